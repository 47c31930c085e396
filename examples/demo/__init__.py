"""The demonstration: what the runtime promises, shown on real processes and real knowledge."""

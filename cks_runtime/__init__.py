"""The knowledge runtime: versioned graphs, merges, conflicts, events."""

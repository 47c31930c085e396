"""Pure values and decisions: nothing here awaits, reads a clock, logs or touches I/O."""

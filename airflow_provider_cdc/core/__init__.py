"""Pure values and rules of change data capture: no I/O, no clock, no randomness."""

"""The decision: from a Problem to a Plan. Pure: no clock, no randomness, no I/O."""

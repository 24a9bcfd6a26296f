"""Discrete-event simulation of serving: the judge of a plan's promises. Seeded, no I/O."""

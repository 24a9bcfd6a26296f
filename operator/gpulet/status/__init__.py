"""Conditions and status figures from what was observed. Pure: the time is an argument."""

"""The operator's loop: snapshot, plan, act, status."""

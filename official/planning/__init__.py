"""Plan of a run: sizes, FLOPs, memory and time, worked out before it."""

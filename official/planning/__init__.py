"""Plan of a run: sizes, FLOPs, memory and time, computed before it starts."""

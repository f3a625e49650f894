"""What a run will be: sizes, FLOPs, memory and time, worked out before it."""

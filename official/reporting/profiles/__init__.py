"""Profile of a run: time of its steps by operation, and memory by part of a step."""

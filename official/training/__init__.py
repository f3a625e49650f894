"""The training program: one step, one loop, one run, independent of the task."""

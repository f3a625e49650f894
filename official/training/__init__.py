"""The training program: one step, one loop, one run. It is given a task and knows none."""

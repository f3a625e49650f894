"""PerfZero benchmarks of the trainer."""

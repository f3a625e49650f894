"""Where a run's replicas are and what each of them computes."""

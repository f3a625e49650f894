"""What a run tells its user: metrics, progress, result and report."""

"""Programs that answer in processes and environments of their own: see `asking`."""

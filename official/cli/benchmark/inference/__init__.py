"""The benchmark of inference: see `command`."""

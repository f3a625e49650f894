"""Programs that run in the environments of other systems: see `worker`."""

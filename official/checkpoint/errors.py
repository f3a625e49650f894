"""Errors of the files of a checkpoint."""


class DamagedError(Exception):
    """A checkpoint's files are corrupted, truncated or incomplete."""

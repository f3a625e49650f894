"""Metrics, progress, result and report of a run: its whole output for the user."""

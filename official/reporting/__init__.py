"""Metrics, progress, result and report of a run: all that its user sees of it."""

"""Metrics, progress, result and report of a run: everything that its user sees."""

"""Benchmarks that a YAML file describes: read, run, and their numbers taken from what they print."""

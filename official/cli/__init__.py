"""Command lines. Nothing below this package reads a flag."""

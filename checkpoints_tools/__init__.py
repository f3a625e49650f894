"""Command lines over `official.checkpoint`: convert and inspect checkpoints."""

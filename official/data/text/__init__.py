"""Text files -> documents of sentences."""

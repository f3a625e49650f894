"""Rows of different lengths in memory, and batches of them."""

"""Reads text files as documents of sentences."""

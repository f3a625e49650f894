"""Checkpoint formats: every module here holds one, FORMAT. A new file here is all that a new format takes."""

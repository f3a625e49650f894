"""Checkpoint formats: every module here holds one, FORMAT. A new file in this folder is all that a new format takes."""

"""The table of settings, one file per section. There are no other settings."""

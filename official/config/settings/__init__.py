"""The table of settings, a file a section. A setting that is in none of them does not exist."""

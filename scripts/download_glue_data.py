#!/usr/bin/env python3
"""The command `bert data glue`: download GLUE."""

from installed import script

if __name__ == "__main__":
    script("data glue")

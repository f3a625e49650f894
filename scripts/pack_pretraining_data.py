#!/usr/bin/env python3
"""The command `bert pack`: several sequences in a row."""

from installed import script

if __name__ == "__main__":
    script("pack")

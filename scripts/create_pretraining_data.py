#!/usr/bin/env python3
"""The command `bert data create`: text to records of masked words and sentence pairs."""

from installed import script

if __name__ == "__main__":
    script("data create")

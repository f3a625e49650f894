#!/usr/bin/env python3
"""The command `bert data corpus`: a small English corpus of what is installed."""

from installed import script

if __name__ == "__main__":
    script("data corpus")

#!/usr/bin/env python3
"""The command `bert data prepare`: clean text, split it, hold some out."""

from installed import script

if __name__ == "__main__":
    script("data prepare")

#!/usr/bin/env python3
"""The command `bert benchmark data`: measures making and reading of records."""

from installed import script

if __name__ == "__main__":
    script("benchmark data")

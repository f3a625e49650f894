#!/usr/bin/env python3
"""The command `bert benchmark data-scale`: measures making records of ever more text."""

from installed import script

if __name__ == "__main__":
    script("benchmark data-scale")

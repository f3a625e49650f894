#!/usr/bin/env python3
"""The command `bert benchmark conversion`: measures time and memory of a conversion."""

from installed import script

if __name__ == "__main__":
    script("benchmark conversion")

#!/usr/bin/env python3
"""The command `bert classify`: label typed sentences."""

from installed import script

if __name__ == "__main__":
    script("classify")

#!/usr/bin/env python3
"""The command `bert data eval-set`: MLPerf's evaluation set: evenly spaced records."""

from installed import script

if __name__ == "__main__":
    script("data eval-set")

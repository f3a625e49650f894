#!/usr/bin/env python3
"""The command `bert compare`: compare runs: settings, results, curves, MLPerf score."""

from installed import script

if __name__ == "__main__":
    script("compare")

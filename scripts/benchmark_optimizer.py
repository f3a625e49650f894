#!/usr/bin/env python3
"""The command `bert benchmark optimizer`: measures the update, beside bare memory."""

from installed import script

if __name__ == "__main__":
    script("benchmark optimizer")

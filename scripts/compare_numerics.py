#!/usr/bin/env python3
"""The command `bert benchmark numerics`: measures the losses of all types, over seeds."""

from installed import script

if __name__ == "__main__":
    script("benchmark numerics")

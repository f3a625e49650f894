#!/usr/bin/env python3
"""The command `bert benchmark memory`: measures the memory of a step, beside the plan's."""

from installed import script

if __name__ == "__main__":
    script("benchmark memory")

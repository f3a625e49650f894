#!/usr/bin/env python3
"""The command `bert benchmark profile`: measures where the time of a step goes."""

from installed import script

if __name__ == "__main__":
    script("benchmark profile")

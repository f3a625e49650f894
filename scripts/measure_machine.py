#!/usr/bin/env python3
"""The command `bert benchmark machine`: measures what this machine reaches, for predictions."""

from installed import script

if __name__ == "__main__":
    script("benchmark machine")

#!/usr/bin/env python3
"""The command `bert data inspect`: check records and show what they hold."""

from installed import script

if __name__ == "__main__":
    script("data inspect")

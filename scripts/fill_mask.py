#!/usr/bin/env python3
"""The command `bert fill-mask`: predict the words that are [MASK] in typed text."""

from installed import script

if __name__ == "__main__":
    script("fill-mask")

#!/usr/bin/env python3
"""The command `bert convert`: convert checkpoints between formats."""

from installed import script

if __name__ == "__main__":
    script("convert")

#!/usr/bin/env python3
"""The command `bert record`: keep the numbers and the picture of a finished run."""

from installed import script

if __name__ == "__main__":
    script("record")

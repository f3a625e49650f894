#!/usr/bin/env python3
"""The command `bert benchmark peers`: measures the training step, beside other systems."""

from installed import script

if __name__ == "__main__":
    script("benchmark peers")

#!/usr/bin/env python3
"""The command `bert benchmark step`: measures the training step, beside bare products."""

from installed import script

if __name__ == "__main__":
    script("benchmark step")

#!/usr/bin/env python3
"""The command `bert benchmark step`: time the training step and bare matrix products."""

from installed import script

if __name__ == "__main__":
    script("benchmark step")

#!/usr/bin/env python3
"""The command `bert inspect`: show the tensors of a checkpoint of any format."""

from installed import script

if __name__ == "__main__":
    script("inspect")

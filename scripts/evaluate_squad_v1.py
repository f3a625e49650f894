#!/usr/bin/env python3
"""The command `bert evaluate squad-v1`: score answers to SQuAD 1.1."""

from installed import script

if __name__ == "__main__":
    script("evaluate squad-v1")

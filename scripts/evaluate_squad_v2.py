#!/usr/bin/env python3
"""The command `bert evaluate squad-v2`: score answers to SQuAD 2.0."""

from installed import script

if __name__ == "__main__":
    script("evaluate squad-v2")

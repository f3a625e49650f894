#!/usr/bin/env python3
"""The command `bert benchmark scores`: fine-tuned models with every back end and precision."""

from installed import script

if __name__ == "__main__":
    script("benchmark scores")

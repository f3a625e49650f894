#!/usr/bin/env python3
"""The command `bert launch`: start the processes of a run, and again after a loss."""

from installed import script

if __name__ == "__main__":
    script("launch")

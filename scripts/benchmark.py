#!/usr/bin/env python3
"""The command `bert benchmark run`: runs the benchmarks of a YAML file."""

from installed import script

if __name__ == "__main__":
    script("benchmark run")

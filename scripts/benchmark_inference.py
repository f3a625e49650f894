#!/usr/bin/env python3
"""The command `bert benchmark inference`: measure throughput and latency of inference."""

from installed import script

if __name__ == "__main__":
    script("benchmark inference")

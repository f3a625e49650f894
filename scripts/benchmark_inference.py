#!/usr/bin/env python3
"""The command `bert benchmark inference`: measures inference, beside Hugging Face + PyTorch."""

from installed import script

if __name__ == "__main__":
    script("benchmark inference")

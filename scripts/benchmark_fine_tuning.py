#!/usr/bin/env python3
"""The command `bert benchmark fine-tuning`: measures fine-tuning, beside Hugging Face's Trainer."""

from installed import script

if __name__ == "__main__":
    script("benchmark fine-tuning")

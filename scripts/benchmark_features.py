#!/usr/bin/env python3
"""The command `bert benchmark features`: measures SQuAD's questions to windows."""

from installed import script

if __name__ == "__main__":
    script("benchmark features")

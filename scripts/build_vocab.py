#!/usr/bin/env python3
"""The command `bert vocab`: learn a WordPiece vocabulary from text."""

from installed import script

if __name__ == "__main__":
    script("vocab")

#!/usr/bin/env python3
"""The command `bert ask`: answer typed questions about a text."""

from installed import script

if __name__ == "__main__":
    script("ask")

#!/usr/bin/env python3
"""The command `bert evaluate glue-submission`: check and zip predictions for GLUE's server."""

from installed import script

if __name__ == "__main__":
    script("evaluate glue-submission")

#!/usr/bin/env python3
"""The command `bert render-job`: write a training command as a job of Kubernetes."""

from installed import script

if __name__ == "__main__":
    script("render-job")

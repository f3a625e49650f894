#!/usr/bin/env python3
"""The command `bert benchmark scaling`: steps of two processes, beside what the model of plans predicts."""

from installed import script

if __name__ == "__main__":
    script("benchmark scaling")

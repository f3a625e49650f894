"""The parts of scripts/fuzz.py: what is damaged, how, which commands read it, and whether they end in order."""

"""The parts of scripts/fuzz.py: what is damaged, how, by which commands it is read, and whether they end in order."""

"""The parts of fuzz.py and kill_runs.py: what is damaged or hit, how, and whether it ends in order."""

"""Replicas of a run: their devices, and the part of the work that each computes."""

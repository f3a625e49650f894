"""Pipelines: which stages of a model are on which device, and what each device does when. No TensorFlow."""

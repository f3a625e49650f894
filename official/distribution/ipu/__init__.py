"""Graphcore's IPUs: their API, and what of it follows from the configuration. Not run on hardware yet.

The API is that of TensorFlow 2.6 in the Poplar SDK. Modules here run on its Python 3.8, and load without it.
"""

"""The GLUE tasks: their table, and files -> rows -> features -> metrics -> files of predictions.

This package does not import TensorFlow.
"""

"""The GLUE tasks: their table, and files -> rows -> features -> metrics -> files of predictions.

No TensorFlow here.
"""

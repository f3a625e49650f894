"""Examples -> records and files of them, without TensorFlow: a job that only writes does not load it."""

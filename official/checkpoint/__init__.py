"""Saving, resuming and initialising by variable name.

A checkpoint is a TensorFlow V2 tensor bundle (`.index`, `.data-*`) whose keys are Google's TF1 variable
names. It is read by `tf.train.load_checkpoint`, by TF1 Savers and by this project alike; nothing is pickled.
"""

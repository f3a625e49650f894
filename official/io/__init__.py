"""The ground floor: finding, reading and writing files, signals, and the error for bad input. No TensorFlow
for files of this machine.
"""

"""The lowest package: finds, reads and writes files, handles signals, and defines the error for bad input. No
TensorFlow for files of this machine.
"""

"""Tensors to tensors: the layers of BERT, its heads and losses.

Shape suffixes: B batch, L length, M attended length, P predictions, D hidden, H heads, K head size, F feed-forward,
V vocabulary, C classes. Variables carry Google's TF1 names, so that a checkpoint's names need no map.
"""

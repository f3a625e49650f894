"""Configurations of Graphcore's BERT programs, as ours: tables of their keys, and what follows from several
of them.

A file is told by what it holds (`families`), its keys are read row by row (`rows` and a table a family), and
what several keys say together becomes settings (`settle`, `batches`). No TensorFlow, no flags.
"""

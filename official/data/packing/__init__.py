"""Packing: chooses the sequences that share a row.

A plan depends only on the histogram of lengths, so it takes the same time for a thousand sequences as for a
billion. Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", arXiv
2107.02027.
"""

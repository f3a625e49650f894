"""Packing: chooses the sequences that share a row.

Plans are made from a histogram of lengths alone, so that they cost the same for a thousand sequences and for
a billion. Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", arXiv
2107.02027.
"""

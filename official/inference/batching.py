"""Many sequences through a network: batches of sequences of nearly one length, results in the order given."""

from collections.abc import Iterator

import numpy as np

from official.data.rows import ragged
from official.inference.backends import Network, Outputs
from official.inference.rows import Rows

TOKENS = 4096  # of a batch, padding to its longest sequence included: more are no faster, and take memory


def run(network: Network, head: str, rows: Rows, tokens: int = TOKENS) -> Outputs:
    """Computes the outputs of all sequences.

    Args:
      network: of the head.
      head: one of `source.HEADS`.
      rows: sequences, one or more.
      tokens: of a batch, at most; a longer sequence is a batch of its own.

    Returns:
      As a network does, of all rows at once and in their order.
    """
    parts = [(batch, network(rows.pick(batch))) for batch in cut(rows.lengths_N, tokens)]
    order_N = np.concatenate([batch for batch, _ in parts])
    counts_N = _counts(head, rows)
    starts_N = np.empty(len(order_N), np.int64)
    starts_N[order_N] = ragged.offsets(counts_N[order_N])[:-1]
    places = ragged.ranges(starts_N, counts_N)
    return {name: np.concatenate([part[name] for _, part in parts])[places] for name in parts[0][1]}


def cut(lengths_N: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
    """Yields which sequences make a batch, longest first: what needs most memory comes first."""
    order_N = np.argsort(-lengths_N, kind="stable")
    first = 0
    while first < len(order_N):
        size = max(tokens // int(lengths_N[order_N[first]]), 1)
        yield order_N[first : first + size]
        first += size


def _counts(head: str, rows: Rows) -> np.ndarray:
    """Returns the number of rows that each sequence has in the outputs, int64 [N]."""
    if head == "classify":
        return np.ones(len(rows.lengths_N), np.int64)
    if head == "fill_mask":
        return rows.masked_counts_N
    return rows.lengths_N.astype(np.int64)

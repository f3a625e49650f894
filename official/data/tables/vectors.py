"""Vectors of texts: exact neighbours in blocks, and the scores of rankings.

Shapes: Q queries, P passages, D numbers of a vector, K neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

TOP = 10  # neighbours that rankings are scored by
RANKING_SCORES = ("ndcg_at_10", "recall_at_1", "recall_at_10", "mrr_at_10")
_QUERIES, _PASSAGES = 1 << 10, 1 << 14  # of a block: 64 MB of products


def unit(vectors_ND: np.ndarray) -> np.ndarray:
    """Returns float32 vectors divided by their lengths; zeros stay."""
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return (vectors_ND / np.maximum(lengths_N1, 1e-12)).astype(np.float32)


def neighbours(
    queries_QD: np.ndarray, blocks: Iterable[np.ndarray], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the passages with the largest products with each query, the best first, of equal ones the one
    that stands first: their places, int64 [Q, K], and the products, float32 [Q, K].

    Args:
      queries_QD: float32.
      blocks: of passages [P, D], one behind the other.
      count: K; where there are fewer passages, as many.
    """
    places_QK, products_QK = (np.zeros((len(queries_QD), 0), kind) for kind in (np.int64, np.float32))
    first = 0
    for block_PD in blocks:
        own_P, found = np.arange(first, first + len(block_PD)), []
        for start in range(0, len(queries_QD), _QUERIES):
            rows = slice(start, start + _QUERIES)
            products_BP = queries_QD[rows] @ block_PD.T
            products = np.concatenate([products_QK[rows], products_BP], axis=1)
            places = np.concatenate([places_QK[rows], np.broadcast_to(own_P, products_BP.shape)], axis=1)
            chosen = _largest(products, count)
            found.append([np.take_along_axis(part, chosen, axis=1) for part in (places, products)])
        if found:
            places_QK, products_QK = (np.concatenate(parts) for parts in zip(*found))
        first += len(block_PD)
    return places_QK, products_QK


def in_blocks(vectors_PD: np.ndarray) -> list[np.ndarray]:
    """Returns vectors in blocks for `neighbours`."""
    return [vectors_PD[first : first + _PASSAGES] for first in range(0, len(vectors_PD), _PASSAGES)]


def _largest(values_NP: np.ndarray, count: int) -> np.ndarray:
    """Returns the columns of the largest values of each row, the best first, of equal ones the first."""
    count = min(count, values_NP.shape[1])
    least_N1 = np.partition(values_NP, -count, axis=1)[:, -count, None]
    rows, columns = np.nonzero(values_NP >= least_N1)  # more than `count` where some equal the least
    order = np.lexsort((columns, -values_NP[rows, columns], rows))
    starts_N = np.searchsorted(rows, np.arange(len(values_NP)))
    return columns[order][starts_N[:, None] + np.arange(count)]


def ranking_scores(queries_QD: np.ndarray, passages_PD: np.ndarray, right_R2: np.ndarray) -> dict[str, float]:
    """Returns the scores of searching all passages for each query, means over the queries: the normalized
    discounted cumulative gain (nDCG) of the first 10; the share of the right passages that are the first, or
    among the first 10 (recall); and 1 / the rank of the first right one, 0 beyond 10 (MRR).

    Args:
      queries_QD, passages_PD: of length 1, or 0.
      right_R2: int64, pairs of a query and a passage that is right for it; each query is in one.

    Source: Järvelin and Kekäläinen 2002, with gains of 0 and 1, as in sentence-transformers and BEIR.
    """
    passages = len(passages_PD)
    right = np.unique(right_R2[:, 0] * passages + right_R2[:, 1])
    counts_Q = np.bincount(right // passages, minlength=len(queries_QD))
    found_QK, _ = neighbours(queries_QD, in_blocks(passages_PD), TOP)
    hits_QK = np.isin(np.arange(len(queries_QD))[:, None] * passages + found_QK, right)
    ranks_K = np.arange(1, found_QK.shape[1] + 1)
    return {
        "ndcg_at_10": float(np.mean((hits_QK / np.log2(ranks_K + 1)).sum(axis=1) / _ideal(counts_Q))),
        "recall_at_1": float(np.mean(hits_QK[:, 0] / counts_Q)),
        "recall_at_10": float(np.mean(hits_QK.sum(axis=1) / counts_Q)),
        "mrr_at_10": float(np.mean((hits_QK / ranks_K).max(axis=1))),
    }


def ndcg_by_chance(counts_Q: np.ndarray, passages: int) -> float:
    """Returns the expected nDCG of the first 10 of a random order of the passages, of which `counts_Q` are
    right for each query."""
    gains = (1 / np.log2(np.arange(2, min(TOP, passages) + 2))).sum()
    return float(np.mean(counts_Q / passages * gains / _ideal(counts_Q)))


def _ideal(counts_Q: np.ndarray) -> np.ndarray:
    """Returns the largest discounted cumulative gain that so many right passages can have."""
    gains = np.cumsum(1 / np.log2(np.arange(2, TOP + 2)))
    return gains[np.minimum(counts_Q, TOP) - 1]

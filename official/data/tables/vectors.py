"""Exact nearest neighbours of embeddings, in blocks, and scores of rankings.

Shapes: Q queries, P passages, D = size of a vector, K neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

TOP = 10  # number of neighbours in the scores of rankings
RANKING_SCORES = ("ndcg_at_10", "recall_at_1", "recall_at_10", "mrr_at_10")
MIN_NORM = 1e-12
_QUERIES, BLOCK_ROWS = 256, 1 << 14  # compared at once: 16 MB of products
# The number of rows in matrix products is a multiple of this: then the bits of a row do not depend on its
# position, and equal vectors get equal products.
_ROW_MULTIPLE = 64


def normalized(vectors_ND: np.ndarray) -> np.ndarray:
    """Returns vectors normalized to length 1; zero vectors stay."""
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), MIN_NORM)


def neighbours(
    queries_QD: np.ndarray, blocks: Iterable[np.ndarray], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the passages with the largest products with each query, best first, ties in their order: their
    positions, int64 [Q, K], and the products, float32 [Q, K].

    Args:
      queries_QD: float32.
      blocks: consecutive blocks of passages, [block, D] each.
      count: K, 1 or more; at most the number of passages.
    """
    best = [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries_QD]
    first = 0
    for block_PD in blocks:
        passages = len(block_PD)
        padded_PD = np.pad(block_PD, ((0, -passages % _ROW_MULTIPLE), (0, 0)))
        for start in range(0, len(queries_QD), _QUERIES):
            products_QP = (padded_PD @ queries_QD[start : start + _QUERIES].T)[:passages].T
            for number, products_P in enumerate(products_QP, start):
                best[number] = _merged(*best[number], products_P, first, count)
        first += passages
    if not best:
        return np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32)
    places, products = zip(*best)
    return np.stack(places), np.stack(products)


def _merged(
    places_K: np.ndarray, products_K: np.ndarray, products_P: np.ndarray, first: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merges the best positions so far with those of a block that begins at position `first`; returns
    positions and products."""
    if len(products_P) > count:
        least = np.partition(products_P, -count)[-count]
        least = max(least, products_K[-1]) if len(products_K) == count else least
        chosen = np.flatnonzero(products_P >= least)  # ties of the least may make more than `count`
    else:
        chosen = np.arange(len(products_P))
    if not len(chosen):
        return places_K, products_K
    places = np.concatenate([places_K, chosen + first])
    products = np.concatenate([products_K, products_P[chosen]])
    order = np.lexsort((places, -products))[:count]
    return places[order], products[order]


def in_blocks(vectors_PD: np.ndarray) -> list[np.ndarray]:
    """Splits vectors into blocks for `neighbours`."""
    return [vectors_PD[first : first + BLOCK_ROWS] for first in range(0, len(vectors_PD), BLOCK_ROWS)]


def ranking_scores(queries_QD: np.ndarray, passages_PD: np.ndarray, right_R2: np.ndarray) -> dict[str, float]:
    """Returns the scores of searching all passages for each query, as means over the queries: the normalized
    discounted cumulative gain (nDCG) of the first 10; the share of the right passages that are first, or
    among the first 10 (recall); and 1 / the rank of the first right one, 0 beyond 10 (MRR).

    Args:
      queries_QD, passages_PD: vectors of length 1, or 0.
      right_R2: int64, pairs of a query and a right passage; each query is in at least one pair.

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
    """Returns the expected nDCG of the first 10 for a random order of the passages; `counts_Q` is the number
    of right passages of each query."""
    gains = (1 / np.log2(np.arange(2, min(TOP, passages) + 2))).sum()
    return float(np.mean(counts_Q / passages * gains / _ideal(counts_Q)))


def _ideal(counts_Q: np.ndarray) -> np.ndarray:
    """Returns the largest possible discounted cumulative gain with these numbers of right passages."""
    gains = np.cumsum(1 / np.log2(np.arange(2, TOP + 2)))
    return gains[np.minimum(counts_Q, TOP) - 1]

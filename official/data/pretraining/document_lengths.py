"""Lengths of documents, in tokens: counts by powers of two, which add up over the tasks of a job."""

from collections.abc import Mapping

import numpy as np

from official.data.pretraining.examples import TokenizedDocuments

_NAME = "documents_below_"


def counted(documents: TokenizedDocuments) -> dict[str, int]:
    """Returns {name: documents} whose tokens are fewer than a power of two, and not fewer than half of it."""
    tokens = np.diff(documents.sentence_starts[documents.document_starts])
    counts = np.bincount(np.frexp(tokens)[1])
    return {f"{_NAME}{2**power}": int(counts[power]) for power in np.flatnonzero(counts)}


def listed(totals: Mapping[str, int]) -> dict[str, int]:
    """Returns {power of two: documents with fewer tokens, and not fewer than half of it}, ascending, for a
    manifest; `totals` holds the sums of all tasks' counts."""
    limits = sorted(int(name.removeprefix(_NAME)) for name in totals if name.startswith(_NAME))
    return {str(limit): totals[f"{_NAME}{limit}"] for limit in limits}

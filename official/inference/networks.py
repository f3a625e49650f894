"""The model of modeling that has the head of a method, and what a batch of it looks like."""

from typing import Any

import numpy as np
import tensorflow as tf

from official.config import BertConfig
from official.inference.rows import Rows
from official.modeling.encoder import BertEncoder
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel

# {method: the stages that its outputs need nothing of}
UNUSED = {"answer": ("pooler",), "embed": ("pooler",), "fill_mask": ("pooler", "next_sentence")}


def make(bert: BertConfig, head: str, classes: int) -> Any:
    """Makes a model.

    Args:
      bert: its sizes.
      head: one of `source.HEADS`.
      classes: of `classify`.
    """
    if head == "classify":
        return SequenceModel(bert, classes)
    return {"answer": SpanModel, "embed": BertEncoder, "fill_mask": BertPretrainer}[head](bert)


def shapes(bert: BertConfig, head: str, classes: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a model's weights by their names. Nothing is initialised."""
    with tf.Graph().as_default():
        variables = make(bert, head, classes).variables
        return {name_of(variable): tuple(variable.shape) for variable in variables}


def name_of(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]


def padded(rows: Rows) -> dict[str, np.ndarray]:
    """Returns a batch of one sequence a row, as wide as the longest one.

    Returns:
      `input_ids`, `segment_ids` and `input_mask` int32 [B, L]; where tokens are masked also
      `masked_lm_positions` int32 [B, P], 0 for a row that has fewer.
    """
    lengths_N = rows.lengths_N
    is_token_BL = np.arange(lengths_N.max()) < lengths_N[:, None]
    ids_BL, segments_BL = np.zeros(is_token_BL.shape, np.int32), np.zeros(is_token_BL.shape, np.int32)
    ids_BL[is_token_BL], segments_BL[is_token_BL] = rows.ids_T, rows.segments_T
    batch = {"input_ids": ids_BL, "segment_ids": segments_BL, "input_mask": is_token_BL.astype(np.int32)}
    if rows.masked_M is not None:
        sequences_M, counts_B = sequences_of(rows, rows.masked_M), rows.masked_counts_N
        places_BP = np.zeros((len(lengths_N), max(counts_B.max(initial=0), 1)), np.int32)
        places_BP[np.arange(places_BP.shape[1]) < counts_B[:, None]] = (
            rows.masked_M - rows.firsts_N[sequences_M]
        )
        batch["masked_lm_positions"] = places_BP
    return batch


def sequences_of(rows: Rows, tokens_M: np.ndarray | None) -> np.ndarray:
    """Returns the sequence that each of some tokens belongs to, or each of all, int64 [M]."""
    if tokens_M is None:
        tokens_M = np.arange(len(rows.ids_T))
    return np.searchsorted(np.cumsum(rows.lengths_N), tokens_M, side="right")

"""Pre-training examples in memory, a batch of them, before they become records of one format or another.

Shapes: N examples, L = max_seq_length, P = max_predictions_per_seq.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Examples:
    """[CLS] A [SEP] B [SEP] and padding, with masks drawn. Slots beyond a row's predictions hold 0."""

    input_ids: np.ndarray  # [N, L] uint16 or int32: with the masks in place; the id of [PAD] beyond `lengths`
    lengths: np.ndarray  # [N] int: tokens, the three special ones among them
    first_lengths: np.ndarray  # [N] int: tokens of [CLS] A [SEP], whose segment id is 0
    positions: np.ndarray  # [N, P] int: of the predicted tokens, ascending; 0 beyond `predictions`
    labels: np.ndarray  # [N, P] int: the tokens at these positions before masking; 0 beyond `predictions`
    predictions: np.ndarray  # [N] int: predicted tokens, 1 to P
    is_random: np.ndarray  # [N] bool: whether B is a random segment

    def __len__(self) -> int:
        return len(self.lengths)

    def pad_id(self) -> int:
        """Returns the id that fills rows up behind their lengths; 0 where every row is full."""
        rows = np.flatnonzero(self.lengths < self.input_ids.shape[1])[:1]
        return int(self.input_ids[rows, self.lengths[rows]].sum())

    def features(self) -> dict[str, np.ndarray]:
        """Returns {feature of `schema.pretraining_schema`: array [N, length]}, integers of any width."""
        column_L = np.arange(self.input_ids.shape[1])
        is_token_NL = column_L < self.lengths[:, None]
        is_used_NP = np.arange(self.positions.shape[1]) < self.predictions[:, None]
        return {
            "input_ids": self.input_ids,
            "input_mask": is_token_NL.astype(np.uint8),
            "segment_ids": (is_token_NL & (column_L >= self.first_lengths[:, None])).astype(np.uint8),
            "masked_lm_positions": self.positions,
            "masked_lm_ids": self.labels,
            "masked_lm_weights": is_used_NP.astype(np.float32),
            "next_sentence_labels": self.is_random[:, None].astype(np.uint8),
        }

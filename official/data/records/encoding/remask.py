"""Graphcore's --remask records: the masked tokens stand in the first M slots, the others, from [CLS] on,
after them.

Features of tf.train.Examples, S = max_seq_length, M = max_predictions_per_seq: input_ids, input_position (of
each token in the text; padding has the pad position) and segment_ids [S]; mask_padding_index and
seq_padding_index [1]: attention goes to slots i with (i < mask_padding_index or i >= M) and i <
seq_padding_index; masked_lm_positions (as many as there are); masked_labels and masked_lm_ids [M], both the
tokens before masking; masked_lm_weights [M]; next_sentence_labels [1].

A row has S slots in all, so that one with fewer than M masks holds fewer tokens than a plain one
(`pairs.ExampleRules.max_tokens`).
Source: the schema of Graphcore's TF1 BERT. It does not say what unused slots hold: here the pad token, at the
pad position.
"""

from __future__ import annotations

import numpy as np

from official.data.pretraining.examples import Examples
from official.data.records.encoding import wire

ROWS_PER_RECORD = 1
VOCABULARY_LIMIT = wire.LIMIT


def encode(examples: Examples, pad_position_value: int | None = None) -> list[bytes]:
    """Returns the records. Raises ValueError where a row's tokens do not fit into its slots.

    Args:
      pad_position_value: position of padding; unset: S.
    """
    (rows, length), most = examples.input_ids.shape, examples.positions.shape[1]
    if (most + examples.lengths - examples.predictions > length).any():
        raise ValueError(
            f"rows of {length} tokens with fewer than {most} masks do not fit into {length} slots"
        )
    slots_NS, is_used_NS = _slots(examples)
    pad_position = length if pad_position_value is None else pad_position_value
    used_NM = np.arange(most) < examples.predictions[:, None]
    row_N1 = np.arange(rows)[:, None]
    return wire.examples(
        [
            wire.integers(
                "input_ids", np.where(is_used_NS, examples.input_ids[row_N1, slots_NS], examples.pad_id())
            ),
            wire.integers("input_position", np.where(is_used_NS, slots_NS, pad_position)),
            wire.integers("mask_padding_index", examples.predictions[:, None]),
            wire.integers("masked_labels", examples.labels),
            wire.integers("masked_lm_ids", examples.labels),
            wire.integers("masked_lm_positions", examples.positions, examples.predictions),
            wire.floats("masked_lm_weights", used_NM),
            wire.integers("next_sentence_labels", examples.is_random[:, None].astype(np.uint8)),
            wire.integers("segment_ids", is_used_NS & (slots_NS >= examples.first_lengths[:, None])),
            wire.integers("seq_padding_index", (most + examples.lengths - examples.predictions)[:, None]),
        ]
    )


def _slots(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Returns, int and bool [N, S], the place in the text of what stands in a slot, and whether the slot is
    used."""
    (rows, length), most = examples.input_ids.shape, examples.positions.shape[1]
    column_S, used_NM = np.arange(length), np.arange(most) < examples.predictions[:, None]
    is_masked_NS = np.zeros((rows, length), bool)
    is_masked_NS[np.nonzero(used_NM)[0], examples.positions[used_NM]] = True
    others_NS = np.argsort(
        is_masked_NS | (column_S >= examples.lengths[:, None]), axis=1, kind="stable"
    )  # tokens that are not masked, in order
    slots_NS = np.concatenate([examples.positions, others_NS], axis=1)[:, :length]
    return slots_NS, np.concatenate(
        [used_NM, column_S < (examples.lengths - examples.predictions)[:, None]], axis=1
    )[:, :length]

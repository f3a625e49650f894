"""Graphcore's --remask records as they stand: predicted tokens in the first M slots, [CLS] in slot M.

The rows of `remask` whose tokens are not put back: the masked-LM head cuts its tokens off and gathers
nothing. What comes out is `schema.static_schema`.
"""

from __future__ import annotations

import tensorflow as tf

from official.data.records.formats import remask
from official.data.records.schema import Feature, in_range, parse_examples

ROWS_PER_RECORD = remask.ROWS_PER_RECORD
count_rows, unpack, describe_mismatch = remask.count_rows, remask.unpack, remask.describe_mismatch


def parse_rows(serialized_B: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
    """Parses records, string [B], into {name: [B, length]} of `schema.static_schema`. Fails with
    InvalidArgumentError where they depart from it."""
    length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
    found = parse_examples(serialized_B, remask.features(schema))
    is_used_BS = remask.used_slots(found, length, most)
    positions_BS = tf.where(is_used_BS, found["input_position"], 0)  # of padding it may be beyond the table
    rows = {
        "input_mask": tf.cast(is_used_BS, tf.int32),
        "position_ids": positions_BS,
        **{name: found[name] for name in schema if name in found},
    }
    return in_range(rows, schema)

"""Remasked records as they stand, against the same records with their tokens put back."""

import numpy as np
import pytest
import tensorflow as tf

from official.data.records import encoding, record_formats
from official.data.records import schema as schema_lib
from tests.data.records.test_records import LENGTH, MOST, static_mask_examples

COUNT = 30


def both(words: int = 50) -> tuple[dict, dict]:
    """Returns the rows as they stand, and put back."""
    encoded = tf.constant(encoding.encode(static_mask_examples(COUNT), "remask", 384))
    schemas = (
        schema_lib.static_schema(LENGTH, MOST, words),
        schema_lib.pretraining_schema(LENGTH, MOST, words),
    )
    return tuple(
        {name: value.numpy() for name, value in record_formats.parse_records(encoded, schema, reader).items()}
        for schema, reader in zip(schemas, ("remask_static", "remask"))
    )


def test_rows_as_they_stand_hold_the_tokens_of_the_text():
    static, plain = both()
    assert set(static) == set(schema_lib.static_schema(LENGTH, MOST))
    for row in range(COUNT):
        is_used = static["input_mask"][row] == 1
        places = static["position_ids"][row][is_used]
        assert sorted(places) == list(range(plain["input_mask"][row].sum()))
        for name in ("input_ids", "segment_ids"):
            np.testing.assert_array_equal(static[name][row][is_used], plain[name][row][places])
        predicted = int(static["masked_lm_weights"][row].sum())
        assert places[:predicted].tolist() == plain["masked_lm_positions"][row][:predicted].tolist()
        assert static["position_ids"][row][MOST] == 0  # [CLS]
        assert (static["position_ids"][row][~is_used] == 0).all()
    for name in ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels"):
        np.testing.assert_array_equal(static[name], plain[name])


def test_a_position_beyond_the_row_is_refused():
    examples = static_mask_examples(1)
    record = tf.train.Example.FromString(encoding.encode(examples, "remask")[0])
    record.features.feature["input_position"].int64_list.value[MOST] = LENGTH
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of range"):
        record_formats.parse_records(
            tf.constant([record.SerializeToString()]), schema_lib.static_schema(LENGTH, MOST), "remask_static"
        )

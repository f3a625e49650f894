"""Reader of the compact format, and examples as words; `encoding` documents and writes them."""

from __future__ import annotations

import itertools
import operator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.records import encoding
from official.data.records.encoding import EXAMPLES, FIRST, HEAD, PREDICTED, RANDOM, SHAPE, TOKENS
from official.data.records.formats.plain import Plain
from official.data.records.schema import Feature, describe_values, in_range, read_example, where_all


class Columns(NamedTuple):
    """The parts of N examples in words, all int32."""

    tokens: tf.Tensor  # [N], number of tokens
    first: tf.Tensor  # [N], tokens of the first segment
    predictions: tf.Tensor  # [N], number of predicted tokens
    random: tf.Tensor  # [N], 1 for a random second segment, 0 for the next one
    pad: tf.Tensor  # [N], the id of [PAD]
    positions: tf.Tensor  # [N, P], positions of the predicted tokens
    labels: tf.Tensor  # [N, P]
    ids: tf.Tensor  # [N, L]


def columns(words_NW: tf.Tensor, length: int, predictions: int) -> Columns:
    """Splits examples in words into their parts; values beyond an example's tokens are arbitrary."""
    parts = tf.split(words_NW, [HEAD, predictions, predictions, length], axis=1)
    head_N5, *others = (tf.cast(part, tf.int32) for part in parts)
    return Columns(*tf.unstack(head_N5, num=HEAD, axis=1), *others)


def to_words(values: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the words, int32, for parsed features {name: [N, length]}; the inverse of `parse_rows` except
    for the id of [PAD].

    Fails with InvalidArgumentError for examples that words cannot represent: tokens behind padding, a first
    segment behind the second one, weights that are not ones and then zeros.
    """
    tokens_N = tf.reduce_sum(values["input_mask"], axis=1)
    first_N = tokens_N - tf.reduce_sum(values["segment_ids"], axis=1)
    weights_NP = values["masked_lm_weights"]
    used_N = tf.reduce_sum(tf.cast(weights_NP > 0, tf.int32), axis=1)
    column_L, slot_P = tf.range(values["input_mask"].shape[1]), tf.range(weights_NP.shape[1])
    is_token_NL = column_L < tokens_N[:, None]
    expected = (
        (values["input_mask"], is_token_NL),
        (values["segment_ids"], is_token_NL & (column_L >= first_N[:, None])),
        (weights_NP, slot_P < used_N[:, None]),
    )
    are_whole = [found == tf.cast(wanted, found.dtype) for found, wanted in expected]
    head = [tokens_N, first_N, used_N, values["next_sentence_labels"][:, 0], tf.zeros_like(tokens_N)]
    rest = [values[name] for name in ("masked_lm_positions", "masked_lm_ids", "input_ids")]
    return tf.concat([tf.stack(where_all(are_whole, head, "parts are out of order"), axis=1), *rest], axis=1)


def words_of(rows_N: tf.Tensor, reader: Plain, schema: dict[str, Feature]) -> tf.Tensor:
    """Converts rows of a reader's `unpack` to words, int32 [N, W]. Fails as `unpack` does."""
    if rows_N.dtype != tf.string:  # formats whose rows are already words
        return tf.cast(rows_N, tf.int32)
    return to_words(reader.parse_rows(rows_N, schema))


def _read(record: bytes) -> tuple[tuple[int, int], list[bytes]]:
    features = read_example(record) or {}
    shape = list(features[SHAPE].int64_list.value) if SHAPE in features else []
    if len(shape) != 2 or EXAMPLES not in features:
        raise ValueError("it is not a compact record")
    return (shape[0], shape[1]), list(features[EXAMPLES].bytes_list.value)


class Compact(Plain):
    """Reader of blocks of examples."""

    @property
    def rows_per_record(self) -> int:  # type: ignore[override]
        return encoding.BLOCK_EXAMPLES

    def split(self, record: bytes) -> list[bytes]:
        return encoding.blocks(*_read(record), size=1)

    def join(self, records: list[bytes]) -> list[bytes]:
        """Joins examples into as few records as possible, one shape per record."""
        joined: list[bytes] = []
        for shape, group in itertools.groupby(map(_read, records), operator.itemgetter(0)):
            joined += encoding.blocks(shape, [string for _, strings in group for string in strings])
        return joined

    def count_rows(self, serialized_B: tf.Tensor) -> tf.Tensor:
        found = tf.io.parse_example(serialized_B, {EXAMPLES: tf.io.RaggedFeature(tf.string)})
        return tf.cast(found[EXAMPLES].row_lengths(), tf.int32)

    def unpack(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
        """Fails with InvalidArgumentError if a record is incomplete or has other lengths."""
        length, predictions = schema["input_ids"].length, schema["masked_lm_ids"].length
        spec = {SHAPE: tf.io.FixedLenFeature([2], tf.int64), EXAMPLES: tf.io.RaggedFeature(tf.string)}
        found = tf.io.parse_example(serialized_B, spec)
        strings_N, others = found[EXAMPLES].values, 2 * predictions + HEAD
        words_NW = tf.io.decode_raw(strings_N, tf.uint16, fixed_length=2 * (others + length))
        counts_N = tf.cast(words_NW[:, :HEAD], tf.int32)
        tokens_N = counts_N[:, TOKENS]
        are_good = [
            found[SHAPE] == tf.constant([length, predictions], tf.int64),
            counts_N[:, FIRST] <= tokens_N,
            tokens_N <= length,
            counts_N[:, PREDICTED] <= predictions,
            tf.strings.length(strings_N) == 2 * (others + tokens_N),
        ]
        return where_all(are_good, words_NW, f"not all records are compact ones of {length} {predictions}")

    def parse_rows(self, words_NW: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        length, predictions = schema["input_ids"].length, schema["masked_lm_ids"].length
        found = columns(words_NW, length, predictions)
        is_token_NL = tf.range(length) < found.tokens[:, None]
        ids_NL, pad_N1 = found.ids, found.pad[:, None]
        has_pads = tf.reduce_any(pad_N1 != 0)
        values = {
            "input_ids": tf.cond(has_pads, lambda: tf.where(is_token_NL, ids_NL, pad_N1), lambda: ids_NL),
            "input_mask": tf.cast(is_token_NL, tf.int32),
            "segment_ids": tf.cast(is_token_NL & (tf.range(length) >= found.first[:, None]), tf.int32),
            "masked_lm_positions": found.positions,
            "masked_lm_ids": found.labels,
            "masked_lm_weights": tf.cast(tf.range(predictions) < found.predictions[:, None], tf.float32),
            "next_sentence_labels": found.random[:, None],
        }
        return in_range(values, schema)

    def describe_mismatch(self, record: bytes, schema: dict[str, Feature]) -> str | None:
        expected = schema["input_ids"].length, schema["masked_lm_ids"].length
        shape, strings = _read(record)
        for found, wanted, what in zip(shape, expected, ("max_seq_length", "max_predictions_per_seq")):
            if found != wanted:
                return f"it is of {what} {found}, expected {wanted}"
        for number, string in enumerate(strings, 1):
            if problem := _describe_example(string, schema):
                return f"example {number}: {problem}"
        return None if strings else "it holds no examples"

    def sizes_of(self, record: bytes) -> tuple[int, int]:
        try:
            return _read(record)[0]
        except ValueError:
            return 0, 0


def _describe_example(string: bytes, schema: dict[str, Feature]) -> str | None:
    length, predictions = schema["input_ids"].length, schema["masked_lm_ids"].length
    others = HEAD + 2 * predictions
    if len(string) < 2 * others or len(string) % 2:
        return f"it has {len(string)} bytes, expected {2 * others} and two for each token"
    words = np.frombuffer(string, "<u2").astype(int)
    tokens, first, predicted = words[[TOKENS, FIRST, PREDICTED]]
    if not (first <= tokens <= length and predicted <= predictions):
        return f"it has {tokens} tokens, {first} of them in the first segment, and {predicted} predicted ones"
    if len(words) != others + tokens:
        return f"it has {len(string)} bytes, expected {2 * (others + tokens)}"
    _, positions, labels, ids = np.split(words, [HEAD, HEAD + predictions, others])
    values = {"input_ids": ids, "masked_lm_positions": positions, "masked_lm_ids": labels}
    return describe_values({**values, "next_sentence_labels": words[[RANDOM]]}, schema)


READER = Compact()

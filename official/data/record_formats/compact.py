"""The compact format: 16-bit words without padding, less than half the bytes of a plain record.

A record is these words, the lower byte first: "B1" (two letters), max_seq_length, max_predictions_per_seq, the id of [PAD], the
number of tokens n, how many of them are [CLS] A [SEP], the number of predicted tokens k, 1 for a random second segment and 0 for
the next one; then n ids, k positions and k labels.
"""

import numpy as np
import tensorflow as tf

from official.data import schema as schema_lib
from official.data.examples import Examples

MAGIC = b"B1"
VOCABULARY_LIMIT = 1 << 16
_MAGIC, _LENGTH, _PREDICTIONS, _PAD, _TOKENS, _FIRST, _PREDICTED, _RANDOM = range(8)  # words of the head
_HEAD = 8
_MAGIC_WORD = int.from_bytes(MAGIC, "little")


def encode(examples: Examples) -> list[bytes]:
    """Raises ValueError for an id that has no 16-bit word."""
    if examples.input_ids.dtype != np.uint16 and max(examples.input_ids.max(initial=0), examples.labels.max(initial=0)) >= VOCABULARY_LIMIT:
        raise ValueError(f"ids of {VOCABULARY_LIMIT} and more do not fit into 16 bits")
    (rows, length), predictions = examples.input_ids.shape, examples.positions.shape[1]
    column_L, slot_P = np.arange(length), np.arange(predictions)
    is_token_NL, is_used_NP = column_L < examples.lengths[:, None], slot_P < examples.predictions[:, None]
    words = np.concatenate([_heads(examples), examples.input_ids, examples.positions, examples.labels], axis=1, dtype="<u2", casting="unsafe")
    is_there = np.concatenate([np.ones((rows, _HEAD), bool), is_token_NL, is_used_NP, is_used_NP], axis=1)
    data = words[is_there].tobytes()
    ends = np.cumsum(2 * (_HEAD + examples.lengths + 2 * examples.predictions)).tolist()
    return [data[start:end] for start, end in zip([0, *ends], ends)]


def _heads(examples: Examples) -> np.ndarray:
    heads, length = np.empty((len(examples), _HEAD), "<u2"), examples.input_ids.shape[1]
    heads[:, _MAGIC], heads[:, _LENGTH], heads[:, _PREDICTIONS] = _MAGIC_WORD, length, examples.positions.shape[1]
    heads[:, _PAD] = np.where(examples.lengths < length, examples.input_ids[np.arange(len(examples)), np.minimum(examples.lengths, length - 1)], 0)
    heads[:, _TOKENS], heads[:, _FIRST], heads[:, _PREDICTED] = examples.lengths, examples.first_lengths, examples.predictions
    heads[:, _RANDOM] = examples.is_random
    return heads


def parse_batch(serialized_B: tf.Tensor, schema: dict) -> dict[str, tf.Tensor]:
    """Fails with InvalidArgumentError where a record is not whole, or not one of these lengths."""
    length, predictions = schema["input_ids"].length, schema["masked_lm_ids"].length
    words = tf.io.decode_raw(serialized_B, tf.uint16, fixed_length=2 * (_HEAD + length))  # what is behind a record's end is 0
    head_B = tf.unstack(tf.cast(words[:, :_HEAD], tf.int32), axis=1)
    bytes_B = tf.strings.length(serialized_B)
    with tf.control_dependencies([_check(head_B, bytes_B, length, predictions)]):
        tokens_B, predicted_B = tf.identity(head_B[_TOKENS]), head_B[_PREDICTED]
    is_token_BL = tf.range(length) < tokens_B[:, None]
    is_second_BL = is_token_BL & (tf.range(length) >= head_B[_FIRST][:, None])
    end_B = 2 * (_HEAD + tokens_B)
    return {
        "input_ids": tf.where(is_token_BL, tf.cast(words[:, _HEAD:], tf.int32), head_B[_PAD][:, None]),
        "input_mask": tf.cast(is_token_BL, tf.int32),
        "segment_ids": tf.cast(is_second_BL, tf.int32),
        "masked_lm_positions": _words(serialized_B, end_B, predicted_B, predictions),
        "masked_lm_ids": _words(serialized_B, end_B + 2 * predicted_B, predicted_B, predictions),
        "masked_lm_weights": tf.cast(tf.range(predictions) < predicted_B[:, None], tf.float32),
        "next_sentence_labels": head_B[_RANDOM][:, None],
    }


def _check(head_B: list[tf.Tensor], bytes_B: tf.Tensor, length: int, predictions: int) -> tf.Operation:
    tokens_B, predicted_B = head_B[_TOKENS], head_B[_PREDICTED]
    is_good_B = (head_B[_MAGIC] == _MAGIC_WORD) & (head_B[_LENGTH] == length) & (head_B[_PREDICTIONS] == predictions)
    is_good_B &= (tokens_B <= length) & (predicted_B <= predictions) & (bytes_B == 2 * (_HEAD + tokens_B + 2 * predicted_B))
    return tf.debugging.Assert(tf.reduce_all(is_good_B), ["not all records are compact ones of", length, predictions])


def _words(serialized_B: tf.Tensor, start_B: tf.Tensor, count_B: tf.Tensor, most: int) -> tf.Tensor:
    """Returns int32 [B, most]: `count` words from byte `start` on, then zeros."""
    return tf.cast(tf.io.decode_raw(tf.strings.substr(serialized_B, start_B, 2 * count_B), tf.uint16, fixed_length=2 * most), tf.int32)


def describe_mismatch(record: bytes, schema: dict) -> str | None:
    length, predictions = schema["input_ids"].length, schema["masked_lm_ids"].length
    if len(record) < 2 * _HEAD or len(record) % 2 or not record.startswith(MAGIC):
        return "it is not a compact record"
    words = np.frombuffer(record, "<u2").astype(int)
    for place, expected, what in ((_LENGTH, length, "max_seq_length"), (_PREDICTIONS, predictions, "max_predictions_per_seq")):
        if words[place] != expected:
            return f"it is of {what} {words[place]}, expected {expected}"
    tokens, first, predicted = words[[_TOKENS, _FIRST, _PREDICTED]]
    if not (first <= tokens <= length and predicted <= predictions):
        return f"it has {tokens} tokens, {first} of them in the first segment, and {predicted} predicted ones"
    if len(words) != _HEAD + tokens + 2 * predicted:
        return f"it has {len(record)} bytes, expected {2 * (_HEAD + tokens + 2 * predicted)}"
    ids, positions, labels = np.split(words[_HEAD:], [tokens, tokens + predicted])
    values = {"input_ids": ids, "masked_lm_positions": positions, "masked_lm_ids": labels, "next_sentence_labels": words[[_RANDOM]]}
    return next(filter(None, (schema_lib.describe_range(name, found, schema[name]) for name, found in values.items())), None)


def sizes_of(record: bytes) -> tuple[int, int]:
    words = np.frombuffer(record[:2 * _HEAD], "<u2")
    return int(words[_LENGTH]), int(words[_PREDICTIONS])

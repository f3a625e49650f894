"""Encodes examples as records, in the formats that jobs write, and serializes tf.train.Examples.

plain: Google's and MLPerf's tf.train.Examples, with the features of `schema.pretraining_schema`.

compact: blocks of examples, as 16-bit words without padding; less than half the bytes of plain records. A
record is a tf.train.Example with two features. `compact_shape` holds max_seq_length L and
max_predictions_per_seq P; `compact_examples` holds a string for each of up to 128 examples, in little-endian
16-bit words: the number of tokens n, the number of tokens in [CLS] A [SEP], the number of predicted tokens k,
1 for a random second segment and 0 for the next one, the id of [PAD]; P positions and P labels, zeros from
the k-th on; n ids. A record is a block because TensorFlow takes a few microseconds for a record of any size,
more than for the words of an example. The parts of fixed length come first in a string, so that strings
padded with zeros are the rows of a matrix.

remask: Graphcore's --remask records, tf.train.Examples: the masked tokens are in the first M slots, the
others, from [CLS] on, after them. Features, S = max_seq_length, M = max_predictions_per_seq: input_ids,
input_position (of each token in the text; padding has the pad position) and segment_ids [S];
mask_padding_index and seq_padding_index [1]: attention goes to slots i with (i < mask_padding_index or i >=
M) and i < seq_padding_index; masked_lm_positions (without padding); masked_labels and masked_lm_ids [M],
both the tokens before masking; masked_lm_weights [M]; next_sentence_labels [1]. A row has S slots in all, so
one with fewer than M masks holds fewer tokens than a plain row (`ExampleRules.max_tokens`).
Source: the schema of Graphcore's TF1 BERT. It does not define unused slots; here they hold the pad token, at
the pad position.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from official.data.pretraining.examples import Examples
from official.data.word_pieces.vocabulary import Vocabulary
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# tf.train.Examples: the same bytes as protobuf's, without a Python step per value
#
# Gain: an example of 128 tokens takes about 3 us instead of 34 with protobuf, one of 512 tokens 12 instead of
# 116. Making an example of 128 tokens takes 32 us in all (dupe_factor 1); with protobuf it would be twice
# that.
#
# A record is joined from pieces: for each feature, in the order of the names, its tags and lengths, then its
# values. The values of a batch are encoded as varints together: one table look-up gives their bytes, padded
# to four with zeros, which are then dropped. No byte of a varint is zero, except that of the value 0.
#
# Source: the wire format of Protocol Buffers (varints have 7 bits per byte, the lowest first);
# `tensorflow/core/example/feature.proto`. Protobuf writes entries of a map in the order of their keys with
# `deterministic=True`.


LIMIT = 1 << 21  # end of the integers whose varint has at most three bytes
_ONE_BYTE_LIMIT = 1 << 7
_FIELD_1, _FIELD_2 = b"\x0a", b"\x12"  # tags of length-delimited fields
_STRINGS, _FLOATS, _INTEGERS = _FIELD_1, _FIELD_2, b"\x1a"  # tags of a Feature's kinds
_CONTINUES = 0x80  # continuation bit of a varint's bytes


class Column(NamedTuple):
    """A feature of N records: its pieces in order, each [N], and its size in bytes."""

    pieces: list[Sequence[bytes]]
    sizes: np.ndarray | int  # [N], or one size for all


def tf_examples(features: Mapping[str, np.ndarray | Column]) -> list[bytes]:
    """Returns N serialized tf.train.Examples.

    Args:
      features: {name: [N, K] floats or whole numbers from 0 to LIMIT - 1, or a column of them}.

    Raises:
      ValueError: for a value out of range.
    """
    columns = [_column(name, values) for name, values in sorted(features.items())]
    pieces = [pieces for column in columns for pieces in column.pieces]
    sizes = np.broadcast_to(sum(column.sizes for column in columns), len(pieces[0]))
    # The bytes before the map of features, the only field of an Example.
    heads = {size: _FIELD_1 + _varint(size) for size in set(sizes.tolist())}
    return list(map(b"".join, zip(map(heads.__getitem__, sizes.tolist()), *pieces)))


def _column(name: str, values: np.ndarray | Column) -> Column:
    if isinstance(values, Column):
        return values
    if values.dtype.kind == "f":
        return _one_width(name, _FLOATS, values.astype("<f4").view(np.uint8))
    return integers(name, values)


def integers(name: str, values: np.ndarray, counts: np.ndarray | None = None) -> Column:
    """Returns a column of int64 lists, one per row.

    Args:
      values: [N, K], 0 to LIMIT - 1.
      counts: int [N], number of values to write of each row; None: all.

    Raises:
      ValueError: for a value out of range.
    """
    lowest, highest = values.min(initial=0), values.max(initial=0)
    if lowest < 0 or highest >= LIMIT:
        raise ValueError(f"{name} has values from {lowest} to {highest}, expected 0 to {LIMIT - 1}")
    if counts is None and highest < _ONE_BYTE_LIMIT:
        return _one_width(name, _INTEGERS, values.astype(np.uint8))
    words = _words(1 << 16 if highest < 1 << 16 else LIMIT)
    data = words.take(values.astype(np.intp), mode="clip").view(np.uint8)  # the other modes copy more
    is_there = data != 0
    is_there[:, ::4] = True
    if counts is not None:
        is_there &= np.arange(data.shape[1]) < 4 * counts[:, None]
    sizes = np.count_nonzero(is_there, axis=1)
    payload, ends = data[is_there].tobytes(), np.cumsum(sizes).tolist()
    heads, head_bytes = _entry_heads(name, values.shape[1] * 3)
    varints = [payload[start:end] for start, end in zip([0, *ends], ends)]
    return Column([list(map(heads.__getitem__, sizes.tolist())), varints], head_bytes[sizes] + sizes)


def byte_strings(name: str, values: Sequence[Sequence[bytes]]) -> Column:
    """Returns a column of lists of strings, one per row."""
    payloads = [b"".join(_FIELD_1 + _varint(len(value)) + value for value in row) for row in values]
    pieces = [_entry_before(name, _STRINGS, len(payload)) + payload for payload in payloads]
    return Column([pieces], np.fromiter(map(len, pieces), np.int64, len(pieces)))


def _one_width(name: str, kind: bytes, payloads: np.ndarray) -> Column:
    """Returns a column of the payloads, uint8 [N, bytes of the values]."""
    head = np.frombuffer(_entry_head(name, kind, payloads.shape[1]), np.uint8)
    rows = np.empty((len(payloads), len(head) + payloads.shape[1]), np.uint8)
    rows[:, : len(head)], rows[:, len(head) :] = head, payloads
    return Column([rows.view(f"V{rows.shape[1]}")[:, 0].tolist()], rows.shape[1])


@functools.lru_cache
def _words(limit: int) -> np.ndarray:
    """Returns uint32 [limit]: the varint of each value in the lower bytes, zeros in the others."""
    values = np.arange(limit, dtype=np.uint32)
    lower, middle, upper = (values >> shift & 0x7F for shift in (0, 7, 14))
    lower |= np.where(values >= 1 << 7, _CONTINUES, 0).astype(np.uint32)
    middle |= np.where(values >= 1 << 14, _CONTINUES, 0).astype(np.uint32)
    return (lower | middle << 8 | upper << 16).astype("<u4")


def _varint(value: int) -> bytes:
    groups = []
    while value >= _ONE_BYTE_LIMIT:
        groups.append(value % _ONE_BYTE_LIMIT | _CONTINUES)
        value >>= 7
    return bytes([*groups, value])


def _entry_head(name: str, kind: bytes, payload_bytes: int) -> bytes:
    """Returns the bytes before the packed values of a feature: `_entry_before`, and the tag and length of the
    values."""
    values = _FIELD_1 + _varint(payload_bytes) if payload_bytes else b""
    return _entry_before(name, kind, len(values) + payload_bytes) + values


def _entry_before(name: str, kind: bytes, payload_bytes: int) -> bytes:
    """Returns the bytes before a feature's list of `payload_bytes` bytes: the head of the map's entry, its
    key and the head of the Feature."""
    feature = kind + _varint(payload_bytes)
    key = _FIELD_1 + _varint(len(name)) + name.encode()
    entry = key + _FIELD_2 + _varint(len(feature) + payload_bytes) + feature
    return _FIELD_1 + _varint(len(entry) + payload_bytes) + entry


@functools.lru_cache
def _entry_heads(name: str, most_bytes: int) -> tuple[list[bytes], np.ndarray]:
    """Returns the heads of integer features with payloads of 0 to `most_bytes`, and their lengths."""
    heads = [_entry_head(name, _INTEGERS, payload_bytes) for payload_bytes in range(most_bytes + 1)]
    return heads, np.array(list(map(len, heads)))


# -----------------------------------------------------------------------------------------------------------
# Compact


BLOCK_EXAMPLES = 128  # maximum number of examples in a record
SHAPE, EXAMPLES = "compact_shape", "compact_examples"  # names of the features
TOKENS, FIRST, PREDICTED, RANDOM, PAD = range(5)  # words of the head
HEAD = 5
_WORD_LIMIT = 1 << 16


def encode_compact(examples: Examples) -> list[bytes]:
    """Returns records of up to 128 examples. Raises ValueError for an id beyond 16 bits."""
    ids, labels = examples.input_ids, examples.labels
    if ids.dtype != np.uint16 and max(ids.max(initial=0), labels.max(initial=0)) >= _WORD_LIMIT:
        raise ValueError(f"ids of {_WORD_LIMIT} and more do not fit into 16 bits")
    length, predictions = ids.shape[1], examples.positions.shape[1]
    padding = ids[np.arange(len(examples)), np.minimum(examples.lengths, length - 1)]
    heads = np.empty((len(examples), HEAD), "<u2")
    heads[:, TOKENS], heads[:, FIRST] = examples.lengths, examples.first_lengths
    heads[:, PREDICTED], heads[:, RANDOM] = examples.predictions, examples.is_random
    heads[:, PAD] = np.where(examples.lengths < length, padding, 0)
    parts = [part.astype("<u2", copy=False) for part in (heads, examples.positions, labels, ids)]
    words_NW = np.concatenate(parts, axis=1)
    counts = HEAD + 2 * predictions + examples.lengths
    data = words_NW[np.arange(words_NW.shape[1]) < counts[:, None]].tobytes()
    ends = np.cumsum(2 * counts).tolist()
    return blocks((length, predictions), [data[start:end] for start, end in zip([0, *ends], ends)])


def blocks(shape: tuple[int, int], strings: list[bytes], size: int | None = None) -> list[bytes]:
    """Returns records of examples of one shape (L, P), given as their strings, `size` per record."""
    records, size = [], size or BLOCK_EXAMPLES
    for first in range(0, len(strings), size):
        own = byte_strings(EXAMPLES, [strings[first : first + size]])
        records += tf_examples({EXAMPLES: own, SHAPE: np.array([shape])})
    return records


# -----------------------------------------------------------------------------------------------------------
# Remask


def encode_remask(examples: Examples, pad_position_value: int | None = None) -> list[bytes]:
    """Returns remask records. Raises ValueError if a row's tokens do not fit into its slots.

    Args:
      pad_position_value: position of padding; None: S.
    """
    size, most = examples.input_ids.shape[1], examples.positions.shape[1]
    column_S, others_N = np.arange(size), examples.lengths - examples.predictions
    if (most + others_N > size).any():
        raise ValueError(f"rows of {size} tokens with fewer than {most} masks do not fit into {size} slots")
    # The position in the text of each slot's token, and whether the slot is used.
    used_NM = np.arange(most) < examples.predictions[:, None]
    is_elsewhere_NS = column_S >= examples.lengths[:, None]  # masked, or padding
    is_elsewhere_NS[np.nonzero(used_NM)[0], examples.positions[used_NM]] = True
    others_NS = np.argsort(is_elsewhere_NS, axis=1, kind="stable")
    slots_NS = np.concatenate([examples.positions, others_NS], axis=1)[:, :size]
    is_used_NS = np.concatenate([used_NM, column_S < others_N[:, None]], axis=1)[:, :size]
    ids_NS = np.take_along_axis(examples.input_ids, slots_NS.astype(np.int64), axis=1)
    pad_position = size if pad_position_value is None else pad_position_value
    return tf_examples(
        {
            "input_ids": np.where(is_used_NS, ids_NS, examples.pad_id()),
            "input_position": np.where(is_used_NS, slots_NS, pad_position),
            "mask_padding_index": examples.predictions[:, None],
            "masked_labels": examples.labels,
            "masked_lm_ids": examples.labels,
            "masked_lm_positions": integers("masked_lm_positions", examples.positions, examples.predictions),
            "masked_lm_weights": used_NM.astype(np.float32),
            "next_sentence_labels": examples.is_random[:, None].astype(np.uint8),
            "segment_ids": is_used_NS & (slots_NS >= examples.first_lengths[:, None]),
            "seq_padding_index": (most + others_N)[:, None],
        }
    )


# -----------------------------------------------------------------------------------------------------------
# Formats by name


def rows_per_record(record_format: str) -> int:
    """Returns the maximum number of examples in a record."""
    return BLOCK_EXAMPLES if record_format == "compact" else 1


def check_vocabulary(vocabulary: Vocabulary, record_format: str) -> None:
    """Raises ConfigError for a vocabulary with more words than records of this format can hold."""
    limit, other = LIMIT, ""
    if record_format == "compact":
        limit, other = _WORD_LIMIT, ", or write --record_format=plain"
    if vocabulary.size > limit:
        holds = f"holds up to {limit:,} words, the vocabulary has {vocabulary.size:,}"
        raise ConfigError(f"--record_format={record_format} {holds}. Give a smaller --vocab_file{other}.")


def encode(examples: Examples, record_format: str, pad_position_value: int | None = None) -> list[bytes]:
    """Returns the records of a batch, in order. Batches of about a thousand examples, a multiple of those of
    a record, are the fastest, since they fit into the cache.

    Args:
      examples: a batch of N examples.
      record_format: plain, compact or remask.
      pad_position_value: `input_position` of unused slots in remask records, 0 to 2,097,151. None:
        max_seq_length.

    Raises:
      ConfigError: for a pad_position_value out of range.
      ValueError: for an id that the format cannot hold, which `check_vocabulary` rules out.
    """
    if record_format == "plain":
        return tf_examples(examples.features())
    if record_format == "compact":
        return encode_compact(examples)
    value = pad_position_value
    if value is not None and not 0 <= value < LIMIT:
        raise ConfigError(f"--pad_position_value={value} is out of range. Allowed: 0 to {LIMIT - 1}.")
    return encode_remask(examples, value)

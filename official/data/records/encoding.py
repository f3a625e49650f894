"""Examples -> records, in the formats that jobs write; `wire` has the bytes of a tf.train.Example.

plain: Google's and MLPerf's tf.train.Examples, with the features of `schema.pretraining_schema`.

compact: blocks of examples, as 16-bit words without padding; less than half the bytes of plain records. A
record is a tf.train.Example with two features. `compact_shape` holds max_seq_length L and
max_predictions_per_seq P; `compact_examples` holds a string for each of up to 128 examples, all in words of
two bytes, the lower one first: the number of tokens n, how many of them are [CLS] A [SEP], the number of
predicted tokens k, 1 for a random second segment and 0 for the next one, the id of [PAD]; P positions and P
labels, zeros from the k-th on; n ids. A record is a block because TensorFlow takes a few microseconds for a
record of any size, more than for the words of an example. What has a fixed length comes first in a string, so
that filling up strings with zeros makes them the rows of a matrix.

remask: Graphcore's --remask records, tf.train.Examples: the masked tokens stand in the first M slots, the
others, from [CLS] on, after them. Features, S = max_seq_length, M = max_predictions_per_seq: input_ids,
input_position (of each token in the text; padding has the pad position) and segment_ids [S];
mask_padding_index and seq_padding_index [1]: attention goes to slots i with (i < mask_padding_index or i >=
M) and i < seq_padding_index; masked_lm_positions (as many as there are); masked_labels and masked_lm_ids
[M], both the tokens before masking; masked_lm_weights [M]; next_sentence_labels [1]. A row has S slots in
all, so that one with fewer than M masks holds fewer tokens than a plain one
(`pairs.ExampleRules.max_tokens`).
Source: the schema of Graphcore's TF1 BERT. It does not say what unused slots hold: here the pad token, at the
pad position.
"""

from __future__ import annotations

import numpy as np

from official.data.pretraining.examples import Examples
from official.data.records import wire
from official.data.word_pieces.vocabulary import Vocabulary
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Compact


BLOCK_EXAMPLES = 128  # of a record, at most
SHAPE, EXAMPLES = "compact_shape", "compact_examples"  # the features
TOKENS, FIRST, PREDICTED, RANDOM, PAD = range(5)  # words of the head
HEAD = 5
_WORD_LIMIT = 1 << 16


def encode_compact(examples: Examples) -> list[bytes]:
    """Returns a record for up to 128 examples each. Raises ValueError for an id that has no 16-bit word."""
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


def width(length: int, predictions: int) -> int:
    """Returns the number of words of an example before its padding is cut."""
    return HEAD + 2 * predictions + length


def blocks(shape: tuple[int, int], strings: list[bytes], size: int | None = None) -> list[bytes]:
    """Returns the records of examples of one shape (L, P), each as its string; `size` of them a record."""
    records, size = [], size or BLOCK_EXAMPLES
    for first in range(0, len(strings), size):
        own = wire.strings(EXAMPLES, [strings[first : first + size]])
        records += wire.examples({EXAMPLES: own, SHAPE: np.array([shape])})
    return records


# -----------------------------------------------------------------------------------------------------------
# Remask


def encode_remask(examples: Examples, pad_position_value: int | None = None) -> list[bytes]:
    """Returns the records. Raises ValueError where a row's tokens do not fit into its slots.

    Args:
      pad_position_value: position of padding; unset: S.
    """
    length, most = examples.input_ids.shape[1], examples.positions.shape[1]
    column_S, others_N = np.arange(length), examples.lengths - examples.predictions
    if (most + others_N > length).any():
        raise ValueError(
            f"rows of {length} tokens with fewer than {most} masks do not fit into {length} slots"
        )
    # The place in the text of what stands in a slot, and whether the slot is used.
    used_NM = np.arange(most) < examples.predictions[:, None]
    is_elsewhere_NS = column_S >= examples.lengths[:, None]  # masked, or padding
    is_elsewhere_NS[np.nonzero(used_NM)[0], examples.positions[used_NM]] = True
    others_NS = np.argsort(is_elsewhere_NS, axis=1, kind="stable")
    slots_NS = np.concatenate([examples.positions, others_NS], axis=1)[:, :length]
    is_used_NS = np.concatenate([used_NM, column_S < others_N[:, None]], axis=1)[:, :length]
    ids_NS = np.take_along_axis(examples.input_ids, slots_NS.astype(np.int64), axis=1)
    pad_position = length if pad_position_value is None else pad_position_value
    return wire.examples(
        {
            "input_ids": np.where(is_used_NS, ids_NS, examples.pad_id()),
            "input_position": np.where(is_used_NS, slots_NS, pad_position),
            "mask_padding_index": examples.predictions[:, None],
            "masked_labels": examples.labels,
            "masked_lm_ids": examples.labels,
            "masked_lm_positions": wire.integers(
                "masked_lm_positions", examples.positions, examples.predictions
            ),
            "masked_lm_weights": used_NM.astype(np.float32),
            "next_sentence_labels": examples.is_random[:, None].astype(np.uint8),
            "segment_ids": is_used_NS & (slots_NS >= examples.first_lengths[:, None]),
            "seq_padding_index": (most + others_N)[:, None],
        }
    )


# -----------------------------------------------------------------------------------------------------------
# Formats by name


def rows_per_record(record_format: str) -> int:
    """Returns the examples of a record, at most."""
    return BLOCK_EXAMPLES if record_format == "compact" else 1


def check_vocabulary(vocabulary: Vocabulary, record_format: str) -> None:
    """Raises ConfigError for a vocabulary with more words than records of this format can hold."""
    limit = _WORD_LIMIT if record_format == "compact" else wire.LIMIT
    if vocabulary.size > limit:
        raise ConfigError(
            f"--record_format={record_format} holds up to {limit:,} words, the vocabulary has"
            f" {vocabulary.size:,}. Give a smaller"
            f" --vocab_file{', or write --record_format=plain' if record_format == 'compact' else ''}."
        )


def encode(examples: Examples, record_format: str, pad_position_value: int | None = None) -> list[bytes]:
    """Returns the records of a batch, in order. About a thousand examples, a multiple of those of a record,
    are the fastest: they stay in the cache.

    Args:
      examples: N of them.
      record_format: plain, compact or remask.
      pad_position_value: `input_position` of unused slots in remask records, 0 to 2,097,151. None:
        max_seq_length.

    Raises:
      ConfigError: for a pad_position_value out of range.
      ValueError: for an id that the format cannot hold; `check_vocabulary` rules it out.
    """
    if record_format == "plain":
        return wire.examples(examples.features())
    if record_format == "compact":
        return encode_compact(examples)
    if pad_position_value is not None and not 0 <= pad_position_value < wire.LIMIT:
        raise ConfigError(
            f"--pad_position_value={pad_position_value} is out of range. Allowed: 0 to {wire.LIMIT - 1}."
        )
    return encode_remask(examples, pad_position_value)

"""The compact format: blocks of examples, as 16-bit words without padding; less than half the bytes of plain
records.

A record is a tf.train.Example with two features. `compact_shape` holds max_seq_length L and
max_predictions_per_seq P; `compact_examples` holds a string for each of up to 128 examples, all in words of
two bytes, the lower one first: the number of tokens n, how many of them are [CLS] A [SEP], the number of
predicted tokens k, 1 for a random second segment and 0 for the next one, the id of [PAD]; P positions and P
labels, zeros from the k-th on; n ids.

A record is a block because TensorFlow takes a few microseconds for a record of any size, more than for the
words of an example. What has a fixed length comes first in a string, so that filling up strings with zeros
makes them the rows of a matrix.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from official.data.pretraining.examples import Examples
from official.data.records.encoding import wire

ROWS_PER_RECORD = 128
VOCABULARY_LIMIT = 1 << 16
SHAPE, EXAMPLES = "compact_shape", "compact_examples"  # the features
TOKENS, FIRST, PREDICTED, RANDOM, PAD = range(5)  # words of the head
HEAD = 5


def encode(examples: Examples) -> list[bytes]:
    """Returns a record for up to 128 examples each. Raises ValueError for an id that has no 16-bit word."""
    if (
        examples.input_ids.dtype != np.uint16
        and max(examples.input_ids.max(initial=0), examples.labels.max(initial=0)) >= VOCABULARY_LIMIT
    ):
        raise ValueError(f"ids of {VOCABULARY_LIMIT} and more do not fit into 16 bits")
    length, predictions = examples.input_ids.shape[1], examples.positions.shape[1]
    words_NW = words(examples, "<u2")
    counts = HEAD + 2 * predictions + examples.lengths
    data = words_NW[np.arange(words_NW.shape[1]) < counts[:, None]].tobytes()
    ends = np.cumsum(2 * counts).tolist()
    return blocks((length, predictions), [data[start:end] for start, end in zip([0, *ends], ends)])


def words(examples: Examples, dtype: npt.DTypeLike) -> np.ndarray:
    """Returns the words of examples, [N, `width`], with all L ids."""
    return np.concatenate(
        [_heads(examples), examples.positions, examples.labels, examples.input_ids],
        axis=1,
        dtype=dtype,
        casting="unsafe",
    )


def width(length: int, predictions: int) -> int:
    """Returns the number of words of an example before its padding is cut."""
    return HEAD + 2 * predictions + length


def _heads(examples: Examples) -> np.ndarray:
    heads, length = np.empty((len(examples), HEAD), "<u2"), examples.input_ids.shape[1]
    heads[:, TOKENS], heads[:, FIRST], heads[:, PREDICTED] = (
        examples.lengths,
        examples.first_lengths,
        examples.predictions,
    )
    heads[:, RANDOM] = examples.is_random
    heads[:, PAD] = np.where(
        examples.lengths < length,
        examples.input_ids[np.arange(len(examples)), np.minimum(examples.lengths, length - 1)],
        0,
    )
    return heads


def blocks(shape: tuple[int, int], strings: list[bytes]) -> list[bytes]:
    """Returns the records of examples of one shape (L, P), each as its string."""
    return [
        block(shape, strings[first : first + ROWS_PER_RECORD])
        for first in range(0, len(strings), ROWS_PER_RECORD)
    ]


def block(shape: tuple[int, int], strings: list[bytes]) -> bytes:
    """Returns the record of up to 128 examples."""
    columns = [wire.strings(EXAMPLES, [strings]), wire.integers(SHAPE, np.array([shape]))]
    return wire.examples(columns)[0]

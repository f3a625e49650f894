"""Packs sequences into rows while records are read.

A stream of sequences is cut into buffers of one size, and each is packed independently, longest pack first.
So the content of a row depends only on the order of the stream, and a run resumes from the number of
sequences done.

Shapes: N sequences of a buffer, R rows, L tokens of a row, P = maximum number of sequences in a row; maximum
number of predicted tokens: M in a sequence, K in a row.
"""

from __future__ import annotations

import dataclasses
import functools

import tensorflow as tf

from official.data import pipeline
from official.data.packing import layout
from official.data.packing.layout import Layout, lay_out
from official.data.records.formats import compact
from official.data.records.formats.plain import Plain
from official.data.records.schema import Feature, in_range, packed_schema, where_all

_SEQUENCES = 8192  # approximate number of sequences in the buffers of all streams together
_MIN_BUFFER = 1024  # sequences: such rows have 0.2 % more padding than those of all Wikipedia planned at once


@dataclasses.dataclass(frozen=True)
class Packer:
    """Packing of sequences into rows.

    Attributes:
      example_schema: schema of a sequence, see `schema.pretraining_schema`.
      depth: P, maximum number of sequences in a row.
    """

    example_schema: dict[str, Feature]
    depth: int

    @property
    def length(self) -> int:
        return self.example_schema["input_ids"].length

    @property
    def predictions(self) -> int:
        return self.example_schema["masked_lm_ids"].length

    @property
    def slots(self) -> int:
        """Number of slots for predicted tokens in a row, as in the published rows of three; `formats.packed`
        explains why it is larger than in a sequence. More slots would rarely be used, but always computed; a
        sequence for which a row has too few left goes into another row."""
        return self.predictions + min(self.depth - 1, 2)

    @property
    def schema(self) -> dict[str, Feature]:
        """The features of a packed row."""
        words = self.example_schema["input_ids"].limit
        packed = packed_schema(self.length, self.slots, self.depth, words)
        return {**packed, "segment_ids": self.example_schema["segment_ids"]}

    def buffer(self, num_streams: int) -> int:
        """Returns the number of sequences in the buffer of each stream."""
        return max(_SEQUENCES // num_streams, _MIN_BUFFER)

    def words(self, rows_N: tf.Tensor, reader: Plain) -> tf.Tensor:
        """Converts rows of a reader's `unpack` to words of compact records, see `compact.words_of`."""
        return compact.words_of(rows_N, reader, self.example_schema)

    def pack(self, words_NW: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Packs a buffer.

        Args:
          words_NW: sequences as of `words`.
          seed: int64 [2], seed of the order of the rows.

        Returns:
          int32 [R, L + 2 K + 4 P], the input of `parse`: tokens; positions and labels; and for each sequence
          its length, the length of its first segment, the number of predicted tokens, and whether its second
          segment is random.
        """
        found = compact.columns(words_NW, self.length, self.predictions)
        lengths_N = tf.maximum(found.tokens, 1)
        is_inside_NM = found.positions < lengths_N[:, None]
        is_inside_NM |= tf.range(self.predictions) >= found.predictions[:, None]  # an empty slot
        problem = "a masked position is beyond the tokens of its sequence"
        lengths_N = where_all([is_inside_NM], lengths_N, problem)
        group = functools.partial(layout.group, row_length=self.length, slots=self.slots, depth=self.depth)
        members_RP = tf.numpy_function(group, [lengths_N, found.predictions], tf.int32)
        members_RP = pipeline.shuffled(tf.ensure_shape(members_RP, [None, self.depth]), seed)

        def of_members(values_N: tf.Tensor) -> tf.Tensor:
            return tf.where(members_RP >= 0, tf.gather(values_N, tf.maximum(members_RP, 0)), 0)

        lengths_RP, predictions_RP = of_members(lengths_N), of_members(found.predictions)
        tokens = lay_out(lengths_RP, self.length)
        slots = lay_out(predictions_RP, self.slots)
        positions_RK = _pick(found.positions, members_RP, slots) + slots.spread(tokens.starts_BP)
        parts = [
            _pick(found.ids, members_RP, tokens),
            tf.where(slots.is_token_BL, positions_RK, 0),
            _pick(found.labels, members_RP, slots),
            lengths_RP,
            of_members(found.first),
            predictions_RP,
            of_members(found.random),
        ]
        return tf.concat(parts, axis=1)

    def sequences_of(self, rows_R: tf.Tensor) -> tf.Tensor:
        """Returns the number of sequences in each row of `pack`, int64 [R]."""
        first = self.length + 2 * self.slots
        return tf.math.count_nonzero(rows_R[:, first : first + self.depth], axis=1)

    def parse(self, rows_B: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parses rows of `pack` into the features of `schema`. Fails with InvalidArgumentError if a value is
        out of range."""
        sizes = [self.length, self.slots, self.slots, *[self.depth] * 4]
        ids_BL, positions_BK, labels_BK, lengths_BP, firsts_BP, *others = tf.split(rows_B, sizes, axis=1)
        predictions_BP, random_BP = others
        tokens, slots = lay_out(lengths_BP, self.length), lay_out(predictions_BP, self.slots)
        is_second_BL = tokens.places_BL >= tokens.spread(firsts_BP)
        is_slot_BK = tf.cast(slots.is_token_BL, tf.int32)
        values = {
            **tokens.features(),
            "input_ids": ids_BL,
            "segment_ids": tf.cast(is_second_BL & tokens.is_token_BL, tf.int32),
            "masked_lm_positions": positions_BK,
            "masked_lm_ids": labels_BK,
            "masked_lm_weights": tf.cast(is_slot_BK, tf.float32),
            "masked_lm_sequences": (slots.slots_BL + 1) * is_slot_BK,
            "next_sentence_labels": random_BP,
            "example_weights": tf.cast(lengths_BP > 0, tf.float32),
        }
        return in_range(values, self.schema)


def _pick(values_NW: tf.Tensor, members_RP: tf.Tensor, laid: Layout) -> tf.Tensor:
    """Returns the values of the sequences of rows, laid out, [R, L]; 0 for padding."""
    members_RL = tf.maximum(laid.spread(members_RP), 0)
    flat_RL = members_RL * tf.shape(values_NW)[1] + laid.places_BL
    return tf.where(laid.is_token_BL, tf.cast(tf.gather(tf.reshape(values_NW, [-1]), flat_RL), tf.int32), 0)


def packed_once(rows: tf.data.Dataset, packer: Packer, reader: Plain) -> tf.data.Dataset:
    """Returns the sequences of a dataset once, packed by `Packer.pack` in buffers; the last one is smaller.

    Args:
      rows: blocks of sequences, as of the reader's `unpack`.
    """

    def pack(number, words):
        return packer.pack(words, tf.stack([tf.constant(0, tf.int64), number]))

    words = rows.map(lambda some: packer.words(some, reader))
    return pipeline.rebatched(words, packer.buffer(1)).enumerate().map(pack)

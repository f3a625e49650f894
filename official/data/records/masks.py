"""Draws masks while records are read: rows of text become rows with masked tokens.

Records of texts store no masks. Each epoch draws new ones, 80 % [MASK], 10 % a random word and 10 % the token
itself, as in BERT. The masks are a function of the seed, the epoch and the tokens of the row: they are the
same on any number of workers, in any batch, and after an interruption.

Shapes: N rows, L tokens of a row, P = maximum number of predicted tokens in a row.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from official.config import slots_of
from official.data.records.encoding import HEAD, PREDICTED
from official.data.records.formats import compact
from official.data.records.formats.plain import Plain
from official.data.records.schema import Feature
from official.data.word_pieces.vocabulary import Vocabulary

_MASKED, _REPLACED = 0.8, 0.1  # shares of the predicted tokens; the others stay
_GOLDEN = 0x9E3779B97F4A7C15  # increment of SplitMix64
_SLOTS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


@dataclasses.dataclass(frozen=True)
class Masks:
    """Settings of the masks.

    Attributes:
      share: share of predicted tokens among the tokens without special ones.
      vocabulary: vocabulary of the records.
      seed: seed of all draws.
      words: number of first words of the vocabulary that random words are drawn from.
      whole_words: whether all pieces of a word are predicted, or none.
      span_length: mean length of the predicted spans, in tokens, or in words with `whole_words`.
    """

    share: float
    vocabulary: Vocabulary
    seed: int
    words: int
    whole_words: bool = False
    span_length: float = 1.0

    def schema(self, stored: dict[str, Feature]) -> dict[str, Feature]:
        """Returns the features of rows with masks, given those of rows without."""
        slots = slots_of(self.share, stored["input_ids"].length)
        return {**stored, **{name: dataclasses.replace(stored[name], length=slots) for name in _SLOTS}}

    def draw(
        self, rows_N: tf.Tensor, reader: Plain, schema: dict[str, Feature], epoch: tf.Tensor | int
    ) -> tf.Tensor:
        """Draws the masks of an epoch.

        A row is cut into spans of one word, or of a geometrically distributed number of words (as in
        SpanBERT, arXiv 1907.10529, which allows at most ten). Spans are chosen in random order until the
        share is reached; the last one is truncated, with `whole_words` between words.

        Args:
          rows_N: rows of the reader's `unpack`.
          schema: schema of these rows, without masks.
          epoch: number of the epoch.

        Returns:
          int32 [N, HEAD + 2 P + L], masked rows in the words of compact records, see `compact.columns`.
        """
        length, words_NW = schema["input_ids"].length, compact.words_of(rows_N, reader, schema)
        slots, found = slots_of(self.share, length), compact.columns(words_NW, length, 0)
        column_L, row_N1 = tf.range(length), self._row_seeds(found, epoch)[:, None]
        is_text_NL = column_L < found.tokens[:, None]
        pad, _, cls, sep, mask = self.vocabulary.special_ids
        for special in (pad, cls, sep, mask):
            is_text_NL &= found.ids != special
        follows_NL = tf.pad(is_text_NL[:, :-1], [[0, 0], [1, 0]])
        begins_NL = is_text_NL  # starts of words
        if self.whole_words:
            goes_on_NL = tf.gather(tf.constant(self.vocabulary.continuations()), found.ids)
            begins_NL &= ~(goes_on_NL & follows_NL)
        begins_span_NL = begins_NL
        if self.span_length > 1:
            is_last_NL = _drawn(row_N1, column_L) < tf.constant(int(2**64 / self.span_length), tf.uint64)
            begins_span_NL &= is_last_NL | ~follows_NL
        # A number that identifies the span of each token within the row.
        span_NL = tf.cast(tf.cumsum(tf.cast(begins_span_NL, tf.int32), axis=1), tf.uint64)
        high_NL = tf.bitwise.right_shift(_drawn(row_N1, span_NL + length), _uint64(17))
        order_NL = tf.bitcast(tf.bitwise.left_shift(high_NL, _uint64(16)) + span_NL, tf.int64)
        order_NL = tf.where(is_text_NL, order_NL, -1)
        # For equal numbers top_k returns the first position first, so that a span stays in order.
        place_NK = tf.math.top_k(order_NL, min(slots + 1, length)).indices
        text_N = tf.math.count_nonzero(is_text_NL, axis=1, dtype=tf.int32)
        wanted_N = tf.cast(tf.round(tf.cast(text_N, tf.float64) * self.share), tf.int32)
        wanted_N = tf.minimum(tf.maximum(wanted_N, 1), text_N)
        slot_K = tf.range(place_NK.shape[1])
        may_end_NK = tf.gather(begins_NL, place_NK, batch_dims=1) | (slot_K >= text_N[:, None])
        taken_N = tf.reduce_max(tf.where(may_end_NK & (slot_K <= wanted_N[:, None]), slot_K, 0), axis=1)
        is_used_NK = slot_K < taken_N[:, None]
        place_NP = tf.sort(tf.where(is_used_NK, place_NK, length), axis=1)[:, :slots]
        is_used_NP = place_NP < length
        labels_NP = tf.gather(tf.pad(found.ids, [[0, 0], [0, 1]]), place_NP, batch_dims=1)
        shown_NP = self._shown(labels_NP, _drawn(row_N1, tf.range(slots) + 2 * length + 1))
        # Unused values go to a column that is dropped.
        row_NP = tf.broadcast_to(tf.range(tf.shape(place_NP)[0])[:, None], tf.shape(place_NP))
        target_NP2, padded = tf.stack([row_NP, place_NP], axis=2), tf.pad(found.ids, [[0, 0], [0, 1]])
        ids_NL = tf.tensor_scatter_nd_update(padded, target_NP2, shown_NP)[:, :length]
        head_N5 = tf.cast(words_NW[:, :HEAD], tf.int32)
        head = head_N5[:, :PREDICTED], taken_N[:, None], head_N5[:, PREDICTED + 1 :]
        return tf.concat([*head, tf.where(is_used_NP, place_NP, 0), labels_NP, ids_NL], axis=1)

    def _row_seeds(self, found: compact.Columns, epoch: tf.Tensor | int) -> tf.Tensor:
        """Returns uint64 [N], a hash of the tokens of each row, the seed and the epoch."""
        length = found.ids.shape[1]
        factors = _drawn(_uint64(self.seed), tf.range(length))
        ids_NL = tf.where(tf.range(length) < found.tokens[:, None], found.ids + 1, 0)
        hash_N = tf.reduce_sum(tf.cast(ids_NL, tf.int64) * tf.bitcast(factors, tf.int64), axis=1)
        return _mixed(tf.bitcast(hash_N, tf.uint64) + _drawn(_uint64(self.seed), tf.cast(epoch, tf.uint64)))

    def _shown(self, labels_NP: tf.Tensor, drawn_NP: tf.Tensor) -> tf.Tensor:
        """Draws the input tokens at predicted positions, int32 [N, P]."""
        fate_NP = tf.bitwise.right_shift(drawn_NP, _uint64(32))
        word_NP = tf.bitwise.bitwise_and(drawn_NP, _uint64(2**32 - 1)) * _uint64(self.words)
        word_NP = tf.cast(tf.bitwise.right_shift(word_NP, _uint64(32)), tf.int32)
        is_replaced_NP = fate_NP < _uint64(int((_MASKED + _REPLACED) * 2**32))
        shown_NP = tf.where(is_replaced_NP, word_NP, labels_NP)
        is_masked_NP = fate_NP < _uint64(int(_MASKED * 2**32))
        return tf.where(is_masked_NP, self.vocabulary.special_ids.mask, shown_NP)


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def _drawn(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns random numbers from 0 to 2**64 - 1: the elements `number` of the sequence of a seed."""
    return _mixed(seed + _uint64(_GOLDEN) * (tf.cast(number, tf.uint64) + _uint64(1)))


def _mixed(values: tf.Tensor) -> tf.Tensor:
    """Hashes uint64 values one to one, see `summary.mixed`."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _uint64(shift)))
        values *= _uint64(factor)
    return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _uint64(31)))

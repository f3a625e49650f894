"""The sequences of packed rows, taken apart into rows of their own and put together again.

A sequence goes to the shortest of a few widths that holds it. How many sequences there are of a width is
known only when it runs, up to some filling, so that this is nothing for steps that are compiled as a whole.
Shapes: N sequences of a width of W tokens, T = B x L tokens of a batch, H heads of size K.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.modeling.shapes import sizes

SHORTEST_ROW = 128  # tokens; of shorter rows nothing was measured
_WIDTHS = 16  # at most: more of them waste less, and are more operations and more to compile
_WIDTH_STEP = 8
_GROUPS = 4  # of sequences end to end
_LOG_2 = 0.6931471805599453


class Moves(NamedTuple):
    """Indices that move vectors between packed rows and rows of one sequence.

    Attributes:
      reads: int32 [vectors of a width], one tensor a width: the vector of the packed rows that goes there.
      writes: int32 [vectors of the packed rows]: the vector, of all widths one after the other, that goes
        there; their number, which is that of a row of zeros, for padding.
    """

    reads: tuple[tf.Tensor, ...]
    writes: tf.Tensor


class Places(NamedTuple):
    """The places of a batch's sequences in rows of their own. Its tuples have one element a width.

    Attributes:
      is_token_NW: bool, false behind the end of a sequence.
      products: of query, key and value: packed [T, 3, H], apart [3, N, H, W].
      heads: of what attention gives: packed [T, H], apart [N, H, W].
    """

    is_token_NW: tuple[tf.Tensor, ...]
    products: Moves
    heads: Moves


def widths(length: int) -> list[int]:
    """Returns the widths for rows of some tokens, ascending: all multiples of one number, and the row."""
    step = -(-length // (_WIDTHS * _WIDTH_STEP)) * _WIDTH_STEP
    return [*range(step, length, step), length]


def find_places(sequence_ids_BL: tf.Tensor, heads: int) -> Places:
    """Returns the places of sequences, whose tokens may stand anywhere in their row.

    Args:
      sequence_ids_BL: int32, the number of the sequence of its row that a token belongs to, from 1; 0 for
        padding. L is known.
      heads: H.
    """
    length = sequence_ids_BL.shape[1]
    order_T, sequences = _find_sequences(sequence_ids_BL)
    return _places_of(order_T, list(zip(widths(length), sequences)), heads)


def find_ragged_places(lengths_N: tf.Tensor, tokens: int | tf.Tensor, heads: int) -> Places:
    """Returns the places of sequences that lie end to end in one row; padding is behind them.

    They are taken in a few groups of nearly one length, each as wide as its longest sequence, so that widths
    follow the sequences and not the row. A group has the same number of sequences in every batch of as many.

    Args:
      lengths_N: int32, tokens of each sequence, 1 or more.
      tokens: of the row.
      heads: H.
    """
    order_N = tf.argsort(-lengths_N, stable=True)
    lengths, firsts = (tf.gather(values, order_N) for values in (lengths_N, tf.cumsum(lengths_N) - lengths_N))
    count = sizes(lengths_N)[0]
    bounds = [group * count // _GROUPS for group in range(_GROUPS + 1)]
    kinds = []
    for first, last in zip(bounds[:-1], bounds[1:]):
        length_N = lengths[first:last]
        longest = tf.reduce_max(tf.concat([length_N, [1]], axis=0))
        width = -(-longest // _WIDTH_STEP) * _WIDTH_STEP
        kinds.append((width, (firsts[first:last], length_N)))
    return _places_of(tf.range(tokens), kinds, heads)


def _places_of(order_T: tf.Tensor, kinds: list, heads: int) -> Places:
    """Returns the places of sequences.

    Args:
      order_T: int32, the tokens of a batch, sequence by sequence.
      kinds: (width, (the first of their tokens among these, how many: int32 [N])) each.
      heads: H.
    """
    tokens = sizes(order_T)[0]
    is_token, near, exact = [], [], []
    for width, (first_N, length_N) in kinds:
        is_token_NW = tf.range(width) < length_N[:, None]
        # Behind its end a sequence repeats its last token, which no other token of it sees there.
        last_N1 = tf.maximum(length_N[:, None] - 1, 0)
        nearest_NW = first_N[:, None] + tf.minimum(tf.range(width), last_N1)
        near.append(tf.gather(order_T, nearest_NW))
        exact.append(tf.where(is_token_NW, near[-1], tokens))
        is_token.append(is_token_NW)
    products, writes = _vectors(near, 3, heads), _inverse(_vectors(exact, 3, heads), tokens * 3 * heads)
    outputs = [tf.minimum(vectors, tokens * heads) for vectors in _vectors(exact, 1, heads)]
    return Places(
        tuple(is_token),
        Moves(tuple(products), writes),
        Moves(tuple(outputs), _inverse(outputs, tokens * heads)),
    )


def _find_sequences(sequence_ids_BL: tf.Tensor) -> tuple[tf.Tensor, list]:
    """Returns (the tokens sequence by sequence, int32 [T]; for each width the sequences that take it: (the
    first of their tokens among these, how many), int32 [N])."""
    batch, length = sizes(sequence_ids_BL)
    most = tf.reduce_max(sequence_ids_BL) + 1
    sequence_T = tf.reshape(tf.range(batch)[:, None] * most + sequence_ids_BL, [-1])
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(sequence_T), sequence_T, batch * most)
    firsts = tf.cumsum(lengths, exclusive=True)
    is_sequence = (tf.range(batch * most) % most > 0) & (lengths > 0)  # number 0 is padding
    kinds = tf.where(is_sequence, tf.searchsorted(tf.constant(widths(length)), lengths), -1)
    chosen = [_filled(tf.where(kinds == kind)[:, 0], batch * most) for kind in range(len(widths(length)))]
    firsts, lengths = (tf.pad(values, [[0, 1]]) for values in (firsts, lengths))  # of what fills up: none
    found = [(tf.gather(firsts, numbers_N), tf.gather(lengths, numbers_N)) for numbers_N in chosen]
    return tf.argsort(sequence_T, stable=True), found


def _filled(numbers_N: tf.Tensor, filling: tf.Tensor) -> tf.Tensor:
    """Returns the numbers, filled up to one of a few counts, a quarter more at most: compiled operations are
    compiled for each count."""
    count = tf.size(numbers_N)
    doublings = tf.math.log(tf.cast(tf.maximum(count - 1, 1), tf.float32)) / _LOG_2 + 1e-4
    step = tf.bitwise.left_shift(1, tf.maximum(tf.cast(doublings, tf.int32) - 2, 0))
    return tf.pad(numbers_N, [[0, -count % step]], constant_values=tf.cast(filling, numbers_N.dtype))


def _vectors(tokens_NW: list[tf.Tensor], parts: int, heads: int) -> list[tf.Tensor]:
    """Returns the vectors [parts, N, H, W], flat, of tokens that have parts x H vectors each."""
    vectors = tf.reshape(tf.range(parts * heads), [parts, 1, heads, 1])
    return [tf.reshape(tokens[:, None] * (parts * heads) + vectors, [-1]) for tokens in tokens_NW]


def _inverse(reads: list[tf.Tensor], count: int | tf.Tensor) -> tf.Tensor:
    """Returns the index among all `reads` of each of 0, 1, .. count - 1, int32 [count]; the number of all
    reads for one that is not among them."""
    joined = tf.minimum(tf.concat(reads, axis=0), count)
    number = tf.size(joined)
    # Zero is what stays where nothing is scattered to.
    return number - tf.scatter_nd(joined[:, None], number - tf.range(number), [count + 1])[:-1]


def take_apart(vectors: tf.Tensor, moves: Moves) -> list[tf.Tensor]:
    """Returns the vectors [.., K] of each width, of the packed rows' [.., K].

    What stands behind the end of a sequence must be given no gradient.
    """

    @tf.custom_gradient
    def move(vectors):
        return [tf.gather(vectors, reads) for reads in moves.reads], lambda *parts: _join(parts, moves.writes)

    return move(vectors)


def put_together(parts: list[tf.Tensor], moves: Moves) -> tf.Tensor:
    """Returns the vectors of the packed rows, zero for padding, of those of each width.

    What stands behind the end of a sequence has no gradient.
    """

    @tf.custom_gradient
    def move(*parts):
        def gradient(upstream):
            upstream = _with_zeros([upstream])
            return [tf.gather(upstream, reads) for reads in moves.reads]

        return _join(parts, moves.writes), gradient

    return move(*parts)


def _join(parts, writes: tf.Tensor) -> tf.Tensor:
    return tf.gather(_with_zeros(parts), writes)


def _with_zeros(parts) -> tf.Tensor:
    """Returns vectors one after the other, and one of zeros behind them."""
    return tf.concat([*parts, tf.zeros([1, parts[0].shape[-1]], parts[0].dtype)], axis=0)

"""Dropout as a pure function of a seed, and the random numbers that it draws."""

from __future__ import annotations

import tensorflow as tf

from official.modeling.shapes import sizes

RANDOM_WORDS = 2**32  # values that a random word can have


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Zeroes a share `rate` of `x` and scales the rest, as a pure function of the seed.

    Args:
      x: any float tensor.
      rate: probability in [0, 1) of zeroing an element.
      seed: int32 [2] of this place in this (run, step, micro batch, replica): see `split_seed`; or None to
        switch dropout off.
    """
    if seed is None or rate == 0:
        return x
    return tf.where(keep_mask(x, rate, seed), x * (1 / (1 - rate)), tf.zeros([], x.dtype))


def split_seed(seed: tf.Tensor | None, count: int) -> list:
    """Returns `count` seeds, int32 [2], drawn from one, int32 [N]; of None, as many None.

    A hash like `keep_mask`'s, for its reasons; TensorFlow's own `fold_in` gives other numbers in compiled
    functions.
    """
    if seed is None:
        return [None] * count
    # Two numbers that differ: each half is a hash of its own.
    state = tf.constant([[0x9E3779B9, 0x85EBCA6B]], tf.uint32)
    for word in (*_words(seed), tf.cast(tf.range(count), tf.uint32)[:, None]):
        state = _mixed(tf.bitwise.bitwise_xor(state, word))
    return [tf.bitcast(state[index], tf.int32) for index in range(count)]


def keep_mask(x: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns bool of the shape of `x`: which elements dropout keeps, each with probability 1 - rate, to
    2^-32.

    A hash of the seed and the element's number: in a compiled function it costs next to nothing, so that a
    backward pass draws the mask again instead of keeping it, and it is the same in every function, compiled
    or not, on every device.
    """
    *rows, columns = sizes(x)
    dropped = tf.constant(least_kept(rate), tf.uint32)
    return tf.reshape(random_words(seed, tf.reduce_prod(rows), columns) >= dropped, tf.shape(x))


def least_kept(rate: float) -> int:
    """Returns the least random word of an element that dropout keeps."""
    return min(round(rate * RANDOM_WORDS), RANDOM_WORDS - 1)


def random_words(seed: tf.Tensor, rows: int | tf.Tensor, columns: int | tf.Tensor) -> tf.Tensor:
    """Returns uint32 [rows, columns], at most 2^32 of them: hashes of the seed, int32 [2], and the element's
    number.

    One half of the seed is where the hash's counter begins, the other its stride, so that none is another one
    shifted.
    """
    first, stride = _words(seed)
    stride = tf.bitwise.bitwise_or(stride, tf.constant(1, tf.uint32))
    # Two short ranges: one of all elements would be made on the host.
    row = tf.cast(tf.range(rows), tf.uint32)[:, None] * (tf.cast(columns, tf.uint32) * stride) + first
    return _mixed(row + tf.cast(tf.range(columns), tf.uint32) * stride)


def _words(seed: tf.Tensor) -> list[tf.Tensor]:
    """Returns the words of a seed, int32 [N], as N scalars of uint32.

    Slices: a GPU has no Unpack of uint32, and one of int32 only in the host's memory, so that either would
    make it wait for the host.
    """
    words = tf.bitcast(seed, tf.uint32)
    return [words[index] for index in range(words.shape[0])]


def _mixed(word: tf.Tensor) -> tf.Tensor:
    """Returns the hash of uint32 numbers. Source: the 32-bit integer hash "lowbias32" (C. Wellons, Hash
    Prospector, 2018)."""
    word = _xor_shifted(word, 16) * tf.constant(0x21F0AAAD, tf.uint32)
    word = _xor_shifted(word, 15) * tf.constant(0x735A2D97, tf.uint32)
    return _xor_shifted(word, 15)


def _xor_shifted(word: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(bits, tf.uint32)))

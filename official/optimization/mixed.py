"""AdamW that keeps its first moment in float16: 6 bytes a weight in place of 8.

The moment is kept times a scale, so that float16 can hold what is small. The scale is the loss scale of the
run's first step. A checkpoint holds it (`SCALE`), and it stays when the loss scale changes. A moment that
float16 could not hold is cut to its largest number.
Source: mpadamw of Graphcore's TF1 BERT, which keeps the moment of the scaled gradients. It scales the second
moment and epsilon too, which makes no difference in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from official.optimization import plain
from official.optimization.moments import Moments

SCALE = "adam_m_scale"


def stored(m: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Returns a first moment, float32, as it is kept: float16, times the scale."""
    return tf.cast(tf.clip_by_value(m * scale, tf.float16.min, tf.float16.max), tf.float16)


def loaded(m: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Returns a first moment that is kept, float16, as float32."""
    return tf.cast(m, tf.float32) / scale


class ScaledMoment(Moments):
    """Base of the AdamW here and in `compiled_mixed`: the first moment in float16, and its scale."""

    SLOTS: ClassVar[dict[str, tf.DType | None]] = {"m": tf.float16, "v": None}

    def __init__(self, learning_rate: Callable, scale: float, **hyper):
        """Makes the optimizer; `scale` of the first moment, the rest as `Moments`."""
        super().__init__(learning_rate, **hyper)
        aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self._scale = tf.Variable(
            scale, trainable=False, dtype=tf.float32, name=SCALE, aggregation=aggregation
        )

    def scalars(self) -> dict[str, tf.Variable]:
        return {SCALE: self._scale}


class PlainAdamW(ScaledMoment, plain.AdamW):
    """`plain.AdamW` with the first moment in float16."""

    def _stored(self, m):
        return stored(m, self._scale)

    def _loaded(self, m):
        return loaded(m, self._scale)

"""Memory-bound operations of a model, in sets: each set is a module with the functions of `Operations`.

  plain  TensorFlow's own operations and gradients: goes everywhere, and says what the functions mean
  fused  the same to rounding, with gradients derived by hand and functions that XLA compiles
  native the same to rounding, in C++ for CPUs

Matrix products are no part of them: every set multiplies by the vendor's library.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Protocol, cast

import tensorflow as tf

from official.modeling.layers import Norm
from official.native import choose as choose_kernels


class Operations(Protocol):
    """The functions of a set; `plain` documents them."""

    def bias_activation(self, x: tf.Tensor, bias: tf.Tensor, activation: str) -> tf.Tensor: ...

    def residual_norm(
        self,
        x: tf.Tensor,
        bias: tf.Tensor,
        residual: tf.Tensor,
        norm: Norm,
        epsilon: float,
        rate: float,
        seed: tf.Tensor | None,
    ) -> tf.Tensor: ...

    def norm(self, x: tf.Tensor, norm: Norm, epsilon: float, swish: bool) -> tf.Tensor: ...

    def gate(self, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor: ...

    def residual(
        self, x: tf.Tensor, bias: tf.Tensor, residual: tf.Tensor, rate: float, seed: tf.Tensor | None
    ) -> tf.Tensor: ...

    def split_heads(
        self, products_BLE: tf.Tensor, bias: tf.Tensor | None, parts: int, heads: int
    ) -> list[tf.Tensor]: ...

    def join_heads(self, heads_BHLK: tf.Tensor) -> tf.Tensor: ...

    def attend(
        self,
        query_BHLK: tf.Tensor,
        key_BHMK: tf.Tensor,
        value_BHMK: tf.Tensor,
        scores_B1LM: tf.Tensor,
        rate: float,
        seed: tf.Tensor | None,
    ) -> tf.Tensor: ...

    def attend_again(
        self,
        query_BHLK: tf.Tensor,
        key_BHMK: tf.Tensor,
        value_BHMK: tf.Tensor,
        scores_B1LM: tf.Tensor,
        rate: float,
        seed: tf.Tensor | None,
    ) -> tf.Tensor: ...

    def cross_entropy(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor: ...


def choose(kernels: str, attends_again: bool = False) -> Operations:
    """Returns the set; of the others nothing is imported.

    Args:
      kernels: plain, fused, native or auto, see `official.native.choose`. Called in the scope of the strategy
        that computes.
      attends_again: gives the set whose `attend` is `attend_again`.

    Raises:
      ConfigError: where `native` cannot be.
    """
    chosen, operations = choose_kernels(kernels), cast(Any, None)
    if chosen == "plain":
        from official.modeling.operations import plain as operations
    elif chosen == "fused":
        from official.modeling.operations import fused as operations
    else:
        from official.modeling.operations import native as operations
    if not attends_again:
        return operations
    return cast(Operations, SimpleNamespace(**{**vars(operations), "attend": operations.attend_again}))

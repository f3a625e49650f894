"""The operations for CPUs in C++, in float32 and bfloat16: each reads and writes its tensors once.

Matrix products stay with the vendor's library. Other types, and operations that BERT's blocks do not use, are
those of `fused`. Backward passes recompute activations, softmax and dropout masks, which is cheaper than to
store them. Graph compilers do not know these operations: they work neither in functions with jit_compile nor
in exports.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from official.modeling import layers
from official.modeling.layers import Norm, after, least_kept, matmul_2d
from official.modeling.operations import fused
from official.modeling.operations.fused import gate as gate
from official.modeling.operations.fused import residual as residual
from official.modeling.operations.fused import rotate as rotate
from official.native import operations as loaded

_TYPES = (tf.float32, tf.bfloat16)
_ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu")


def _are_known(*tensors: tf.Tensor) -> bool:
    """Returns whether the operations support the types of all tensors; the first ones must have the same
    type."""
    return all(tensor.dtype in _TYPES for tensor in tensors)


def bias_activation(x: tf.Tensor, bias: tf.Tensor, activation: str) -> tf.Tensor:
    """See `plain.bias_activation`."""
    bias = tf.convert_to_tensor(bias)
    if not _are_known(x, bias) or activation not in _ACTIVATIONS:
        return fused.bias_activation(x, bias, activation)
    operations = loaded()

    @tf.custom_gradient
    def activate(x, bias):
        def gradient(upstream):
            return tuple(
                operations.bert_bias_activation_gradient(
                    x=x, bias=bias, upstream=upstream, activation=activation
                )
            )

        return operations.bert_bias_activation(x=x, bias=bias, activation=activation), gradient

    return activate(x, bias)


def residual_norm(
    x: tf.Tensor,
    bias: tf.Tensor,
    residual: tf.Tensor,
    norm: Norm,
    epsilon: float,
    rate: float,
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """See `plain.residual_norm`."""
    bias, gamma, beta = map(tf.convert_to_tensor, (bias, *norm))
    if not _are_known(x, bias) or x.dtype != residual.dtype:
        return fused.residual_norm(x, bias, residual, norm, epsilon, rate, seed)
    operations, dropout = loaded(), _dropout(rate, seed)

    @tf.custom_gradient
    def normalize(x, bias, residual, gamma, beta):
        inputs = dict(x=x, bias=bias, residual=residual, gamma=gamma, beta=beta, **dropout)
        y, moments = operations.bert_residual_norm(**inputs, epsilon=epsilon)

        def gradient(upstream):
            found = operations.bert_residual_norm_gradient(**inputs, moments=moments, upstream=upstream)
            x_gradient, residual_gradient, bias_gradient, gamma_gradient, beta_gradient = found
            return x_gradient, bias_gradient, residual_gradient, gamma_gradient, beta_gradient

        return y, gradient

    return normalize(x, bias, residual, gamma, beta)


def norm(x: tf.Tensor, norm: Norm, epsilon: float, swish: bool) -> tf.Tensor:
    """See `plain.norm`."""
    if not _are_known(x) or norm.beta is not None or swish:
        return fused.norm(x, norm, epsilon, swish)
    operations = loaded()

    @tf.custom_gradient
    def normalize(x, gamma):
        nothing = tf.zeros([0], x.dtype)
        _, y, moments = operations.bert_pre_norm(x=x, residual=nothing, gamma=gamma, epsilon=epsilon)

        def gradient(upstream):
            inputs = dict(x=x, gamma=gamma, moments=moments, upstream=upstream)
            return tuple(operations.bert_pre_norm_gradient(**inputs, added=nothing, again=False)[:2])

        return y, gradient

    return normalize(x, norm.gamma)


# For products of memory-bound operations, the backward pass recomputes these operations together with their
# gradients: their results are not stored.


def norm_product(x: tf.Tensor, norm: Norm, epsilon: float, kernel: tf.Tensor) -> tf.Tensor:
    """See `plain.norm_product`."""
    if not _are_known(x, kernel) or norm.beta is not None:
        return fused.norm_product(x, norm, epsilon, kernel)
    operations = loaded()

    @tf.custom_gradient
    def multiply(x, gamma, kernel):
        nothing = tf.zeros([0], x.dtype)
        _, y, moments = operations.bert_pre_norm(x=x, residual=nothing, gamma=gamma, epsilon=epsilon)

        def gradient(upstream):
            inputs = dict(x=x, gamma=gamma, moments=moments, upstream=_times_transposed(upstream, kernel))
            found = operations.bert_pre_norm_gradient(**inputs, added=nothing, again=True)
            return found.x_gradient, found.gamma_gradient, _kernel_gradient(found.y, upstream)

        return matmul_2d(y, kernel), gradient

    return multiply(x, norm.gamma, kernel)


def add_and_norm_product(
    x: tf.Tensor,
    residual: tf.Tensor,
    norm: Norm,
    epsilon: float,
    kernel: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """See `plain.add_and_norm_product`."""
    drops = seed is not None and rate > 0
    if not _are_known(x, kernel) or x.dtype != residual.dtype or norm.beta is not None or drops:
        return fused.add_and_norm_product(x, residual, norm, epsilon, kernel, rate, seed)
    operations = loaded()

    @tf.custom_gradient
    def multiply(x, residual, gamma, kernel):
        total, y, moments = operations.bert_pre_norm(x=x, residual=residual, gamma=gamma, epsilon=epsilon)

        def gradient(added, upstream):
            inputs = dict(x=total, gamma=gamma, moments=moments, upstream=_times_transposed(upstream, kernel))
            found = operations.bert_pre_norm_gradient(**inputs, added=added, again=True)
            sums = found.gamma_gradient, _kernel_gradient(found.y, upstream)
            return found.x_gradient, found.x_gradient, *sums

        return (total, matmul_2d(y, kernel)), gradient

    return multiply(x, residual, norm.gamma, kernel)


def gated_product(
    x: tf.Tensor, activation: str, kernel: tf.Tensor, rate: float, seed: tf.Tensor | None
) -> tf.Tensor:
    """See `plain.gated_product`."""
    drops = seed is not None and rate > 0
    if not _are_known(x, kernel) or activation not in _ACTIVATIONS or drops:
        return fused.gated_product(x, activation, kernel, rate, seed)
    operations = loaded()

    @tf.custom_gradient
    def multiply(x, kernel):
        def gradient(upstream):
            inputs = dict(x=x, upstream=_times_transposed(upstream, kernel), activation=activation)
            found = operations.bert_gated_activation_gradient(**inputs)
            return found.x_gradient, _kernel_gradient(found.y, upstream)

        return matmul_2d(operations.bert_gated_activation(x=x, activation=activation), kernel), gradient

    return multiply(x, kernel)


def _times_transposed(upstream: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of x of a product x @ kernel, upstream @ kernel^T."""
    flat = layers.matmul_transposed(tf.reshape(upstream, [-1, kernel.shape[1]]), kernel)
    return tf.reshape(flat, [*layers.sizes(upstream)[:-1], kernel.shape[0]])


def _kernel_gradient(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of the kernel of a product x @ kernel, x^T @ upstream."""
    return layers.matmul_of_rows(*(tf.reshape(each, [-1, each.shape[-1]]) for each in (x, upstream)))


def rotary_attention(
    products_BLE: tf.Tensor,
    cos: tf.Tensor,
    sin: tf.Tensor,
    ids_BL: tf.Tensor,
    heads: int,
    reach: int | None,
    rate: float,
    seed: tf.Tensor | None,
) -> tf.Tensor | None:
    """Returns the concatenated heads' outputs of self-attention with rotary positions, [B, L, D], without a
    tensor of scores; zeros for padding. None for unsupported types.

    In bfloat16, queries and keys are rounded after they are turned, and, where the CPU multiplies bfloat16
    (AVX512-BF16), weights before they multiply values; sums are float32.

    Args:
      products_BLE: products of query, key and value, E = 3 x H x K.
      cos, sin: cosines and sines of the angles, float32 [B or 1, L, K / 2], see `plain.rotate`.
      ids_BL: int32: a token sees those with its number; 0 for padding.
      heads: H.
      reach: maximum distance of the tokens that a token sees; None: all with its number.
      rate, seed: as in `layers.dropout`, for the weights. Masks differ from those of `attend`.
    """
    if not _are_known(products_BLE):
        return None
    operations = loaded()
    settings = dict(heads=heads, reach=-1 if reach is None else reach, **_dropout(rate, seed))

    @tf.custom_gradient
    def attend(products):
        inputs = dict(products=products, cos=cos, sin=sin, ids=ids_BL, **settings)
        outputs, log_sums = operations.bert_rotary_attention(**inputs)

        def gradient(upstream):
            kept = dict(outputs=outputs, log_sums=log_sums, upstream=upstream)
            return operations.bert_rotary_attention_gradient(**inputs, **kept)

        return outputs, gradient

    return attend(products_BLE)


def split_heads(products_BLE: tf.Tensor, bias: tf.Tensor | None, parts: int, heads: int) -> list[tf.Tensor]:
    """See `plain.split_heads`."""
    if not _are_known(products_BLE, *([] if bias is None else [bias])):
        return fused.split_heads(products_BLE, bias, parts, heads)
    operations = loaded()

    @tf.custom_gradient
    def split(products, bias):
        def gradient(*upstream):
            return tuple(operations.bert_join_heads(parts=upstream, bias=bias))

        return operations.bert_split_heads(products=products, bias=bias, N=parts, heads=heads), gradient

    return split(products_BLE, tf.zeros([0]) if bias is None else tf.convert_to_tensor(bias))


def join_heads(heads_BHLK: tf.Tensor) -> tf.Tensor:
    """See `plain.join_heads`."""
    heads = heads_BHLK.shape[1]
    if not _are_known(heads_BHLK) or heads is None:
        return fused.join_heads(heads_BHLK)
    operations, nothing = loaded(), tf.zeros([0])

    @tf.custom_gradient
    def join(parts):
        def gradient(upstream):
            return operations.bert_split_heads(products=upstream, bias=nothing, N=1, heads=heads)[0]

        return operations.bert_join_heads(parts=[parts], bias=nothing).products, gradient

    return join(heads_BHLK)


def attend(
    query_BHLK: tf.Tensor,
    key_BHMK: tf.Tensor,
    value_BHMK: tf.Tensor,
    scores_B1LM: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
    again: bool = False,
) -> tf.Tensor:
    """See `plain.attend`; the product with the values is not recomputed."""
    if not _are_known(query_BHLK):
        return fused.attend(query_BHLK, key_BHMK, value_BHMK, scores_B1LM, rate, seed, again)
    operations = loaded()
    settings = dict(mask=scores_B1LM, scale=query_BHLK.shape[-1] ** -0.5, **_dropout(rate, seed))

    def weights_of(query, key):
        """Returns (products [B, H, L, M], weights after dropout, function from products to weights). The
        first two have the type of the query: with bfloat16 no tensor of this size is float32."""
        products = tf.matmul(query, key, transpose_b=True)
        return products, *operations.bert_softmax(products=products, **settings)

    @tf.custom_gradient
    def weigh(query, key, value):
        kept = weights_of(query, key)

        def gradient(upstream):
            products, weights, shares = weights_of(after(upstream, [query])[0], key) if again else kept
            product_gradient = operations.bert_softmax_gradient(
                products=products,
                shares=shares,
                upstream=tf.matmul(upstream, value, transpose_b=True),
                **settings,
            )
            return (
                tf.matmul(product_gradient, key),
                tf.matmul(product_gradient, query, transpose_a=True),
                tf.matmul(weights, upstream, transpose_a=True),
            )

        return tf.matmul(kept[1], value), gradient

    return weigh(query_BHLK, key_BHMK, value_BHMK)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """See `plain.cross_entropy`."""
    operations = loaded()

    @tf.custom_gradient
    def surprise(logits):
        losses, shares = operations.bert_cross_entropy(logits=logits, labels=labels)

        def gradient(upstream):
            return operations.bert_cross_entropy_gradient(
                logits=logits, labels=labels, shares=shares, upstream=upstream
            )

        return losses, gradient

    return surprise(logits)


def _dropout(rate: float, seed: tf.Tensor | None) -> dict[str, Any]:
    """Returns the arguments with which an operation has the same mask as `layers.dropout`."""
    if seed is None or rate == 0:
        return {"seed": tf.zeros([2], tf.int32), "dropped": 0, "factor": 1.0}
    return {"seed": seed, "dropped": least_kept(rate), "factor": 1 / (1 - rate)}

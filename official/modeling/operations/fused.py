"""The operations with gradients derived by hand, and their memory-bound parts compiled as small functions.

Matrix products stay outside the compiled functions, with the vendor's library: XLA's own are slower on CPUs,
and bfloat16 ones are computed in float32. Softmax stays outside, too: the library's is three times as fast.
Backward passes draw dropout's masks again. Inside a step that is compiled as a whole (--enable_xla, TPUs) the
small functions become part of it.
"""

from __future__ import annotations

import tensorflow as tf

from official.modeling.activations import ACTIVATIONS
from official.modeling.dropout import dropout
from official.modeling.layers import Norm

# Lengths are traced twice, not once each.
_compiled = tf.function(jit_compile=True, reduce_retracing=True, autograph=False)


def bias_activation(x: tf.Tensor, bias: tf.Tensor, activation: str) -> tf.Tensor:
    """See `plain.bias_activation`."""

    @tf.custom_gradient
    def activate(x, bias):
        def gradient(upstream):
            x_gradient = _activation_gradient(x, bias, upstream, activation)
            return x_gradient, _column_sums(x_gradient, bias.dtype)

        return _activate(x, bias, activation), gradient

    return activate(x, tf.convert_to_tensor(bias))


@_compiled
def _activate(x, bias, activation):
    return ACTIVATIONS[activation].function(x + tf.cast(bias, x.dtype))


@_compiled
def _activation_gradient(x, bias, upstream, activation):
    biased = tf.cast(x, tf.float32) + tf.cast(bias, tf.float32)
    return tf.cast(tf.cast(upstream, tf.float32) * ACTIVATIONS[activation].slope(biased), x.dtype)


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

    @tf.custom_gradient
    def normalize(x, bias, residual, gamma, beta):
        y, normal, scale = _normalize(x, bias, residual, Norm(gamma, beta), epsilon, rate, seed)

        def gradient(upstream):
            x_gradient, residual_gradient, gamma_terms = _norm_gradient(
                upstream, normal, scale, gamma, rate, seed, x.dtype
            )
            return (
                x_gradient,
                _column_sums(x_gradient, bias.dtype),
                residual_gradient,
                _column_sums(gamma_terms, gamma.dtype),
                _column_sums(upstream, beta.dtype),
            )

        return y, gradient

    return normalize(x, *map(tf.convert_to_tensor, (bias, residual, norm.gamma, norm.beta)))


@_compiled
def _normalize(x, bias, residual, norm, epsilon, rate, seed):
    """Returns (LayerNorm, the sum made normal, 1 / its standard deviation [..., 1])."""
    x = dropout(tf.cast(x, tf.float32) + tf.cast(bias, tf.float32), rate, seed)
    x = x + tf.cast(residual, tf.float32)
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    normal = centred * scale
    return tf.cast(normal * norm.gamma + norm.beta, residual.dtype), normal, scale


@_compiled
def _norm_gradient(upstream, normal, scale, gamma, rate, seed, dtype):
    """Returns (gradient of x, gradient of the residual, what sums to that of gamma)."""
    upstream = tf.cast(upstream, tf.float32)
    scaled = upstream * gamma
    mean = tf.reduce_mean(scaled, axis=-1, keepdims=True)
    along = tf.reduce_mean(scaled * normal, axis=-1, keepdims=True)
    gradient = scale * (scaled - mean - normal * along)
    return tf.cast(dropout(gradient, rate, seed), dtype), tf.cast(gradient, dtype), upstream * normal


def attend(
    query_BHLK: tf.Tensor,
    key_BHMK: tf.Tensor,
    value_BHMK: tf.Tensor,
    scores_B1LM: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """See `plain.attend`."""
    scale = query_BHLK.shape[-1] ** -0.5

    @tf.custom_gradient
    def weigh(query, key, value):
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        weights = tf.nn.softmax(scores * scale + scores_B1LM)
        output = tf.matmul(_drop(weights, rate, seed, query.dtype), value)

        def gradient(upstream):
            # Rows of sum(weights x their gradient) are those of sum(output x its gradient).
            # Source: Dao et al. 2022, "FlashAttention".
            products = tf.cast(upstream, tf.float32) * tf.cast(output, tf.float32)
            along = tf.reduce_sum(products, axis=-1, keepdims=True)
            kept_gradient = tf.matmul(upstream, value, transpose_b=True)
            kept, score_gradient = _attention_gradient(weights, kept_gradient, along, scale, rate, seed)
            return (
                tf.matmul(score_gradient, key),
                tf.matmul(score_gradient, query, transpose_a=True),
                tf.matmul(kept, upstream, transpose_a=True),
            )

        return output, gradient

    return weigh(query_BHLK, key_BHMK, value_BHMK)


@_compiled
def _drop(weights, rate, seed, dtype):
    return tf.cast(dropout(weights, rate, seed), dtype)


@_compiled
def _attention_gradient(weights, kept_gradient, along, scale, rate, seed):
    """Returns (weights after dropout, gradient of the products query key^T), in the type of
    `kept_gradient`."""
    dtype = kept_gradient.dtype
    weights_gradient = dropout(tf.cast(kept_gradient, tf.float32), rate, seed)
    score_gradient = (weights_gradient - along) * weights * scale
    return tf.cast(dropout(weights, rate, seed), dtype), tf.cast(score_gradient, dtype)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """See `plain.cross_entropy`."""

    @tf.custom_gradient
    def surprise(logits):
        shares = tf.nn.softmax(logits)
        # The largest logit is where softmax is largest, at least 1 / C: this is log(sum(exp(logits))) without
        # another pass of exponentials.
        largest = tf.reduce_max(logits, axis=-1)
        log_sum = largest - tf.math.log(tf.reduce_max(shares, axis=-1))
        losses = log_sum - tf.gather(logits, labels, batch_dims=labels.shape.rank)
        return losses, lambda upstream: _cross_entropy_gradient(shares, labels, upstream)

    return surprise(logits)


@_compiled
def _cross_entropy_gradient(shares, labels, upstream):
    hits = tf.range(tf.shape(shares)[-1], dtype=labels.dtype) == labels[..., None]
    return (shares - tf.cast(hits, shares.dtype)) * upstream[..., None]


def _column_sums(x, dtype):
    """Returns the sums over all axes but the last, which are float32."""
    columns = x.shape[-1]
    return tf.cast(tf.ensure_shape(_sum_of_rows(tf.reshape(x, [-1, columns])), [columns]), dtype)


@_compiled
def _sum_of_rows(x):
    # As a product: XLA has no better loop for this on CPUs, and TensorFlow's BiasAddGrad takes 1.5 times as
    # long.
    return tf.linalg.matvec(tf.cast(x, tf.float32), tf.ones(tf.shape(x)[:1]), transpose_a=True)

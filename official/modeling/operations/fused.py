"""The operations with gradients derived by hand, and their memory-bound parts compiled as small functions.

Matrix products stay outside the compiled functions, with the vendor's library: XLA's own are slower on CPUs,
and bfloat16 ones are computed in float32. Softmax stays outside, too: TensorFlow's is three times as fast.
Backward passes recompute dropout masks. Inside a step that is compiled as a whole (--enable_xla, TPUs) the
small functions become part of it.
"""

from __future__ import annotations

import tensorflow as tf

from official import native
from official.modeling.layers import ACTIVATIONS, Norm, after, dropout, rounds_products, with_beta
from official.modeling.operations import flash, plain
from official.modeling.operations.plain import join_heads as join_heads
from official.modeling.operations.plain import split_heads as split_heads

# Dynamic lengths need two traces, not one per length.
_compiled = tf.function(jit_compile=True, reduce_retracing=True, autograph=False)
_gated, _rotate = _compiled(plain.gated_activation), _compiled(plain.rotate)


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
    """Returns (LayerNorm, the normalized sum, 1 / its standard deviation [..., 1])."""
    x = dropout(tf.cast(x, tf.float32) + tf.cast(bias, tf.float32), rate, seed)
    normal, scale = _made_normal(x + tf.cast(residual, tf.float32), epsilon)
    return tf.cast(normal * norm.gamma + norm.beta, residual.dtype), normal, scale


@_compiled
def _norm_gradient(upstream, normal, scale, gamma, rate, seed, dtype):
    """Returns (gradient of x, gradient of the residual, terms whose sum is that of gamma)."""
    upstream = tf.cast(upstream, tf.float32)
    gradient = _normal_gradient(upstream * gamma, normal, scale)
    return tf.cast(dropout(gradient, rate, seed), dtype), tf.cast(gradient, dtype), upstream * normal


def _made_normal(x, epsilon):
    """Returns (x normalized to mean 0 and variance 1, 1 / its standard deviation [..., 1]), over the last
    axis."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return centred * scale, scale


def _normal_gradient(upstream, normal, scale):
    """Returns the gradient of x of `_made_normal`, given that of its first result."""
    mean = tf.reduce_mean(upstream, axis=-1, keepdims=True)
    along = tf.reduce_mean(upstream * normal, axis=-1, keepdims=True)
    return scale * (upstream - mean - normal * along)


def norm(x: tf.Tensor, norm: Norm, epsilon: float, swish: bool) -> tf.Tensor:
    """See `plain.norm`."""

    @tf.custom_gradient
    def normalize(x, gamma, beta):
        y, normal, scale = _normalize_only(x, Norm(gamma, beta), epsilon, swish)

        def gradient(upstream):
            x_gradient, scaled, gamma_terms = _norm_only_gradient(
                upstream, normal, scale, Norm(gamma, beta), swish, x.dtype
            )
            return x_gradient, _column_sums(gamma_terms, gamma.dtype), _column_sums(scaled, beta.dtype)

        return y, gradient

    return normalize(x, *map(tf.convert_to_tensor, with_beta(norm)))


@_compiled
def _normalize_only(x, norm, epsilon, swish):
    """Returns (LayerNorm, or swish of it; x normalized; 1 / its standard deviation [..., 1])."""
    normal, scale = _made_normal(tf.cast(x, tf.float32), epsilon)
    y = normal * norm.gamma + norm.beta
    return tf.cast(y * tf.sigmoid(y) if swish else y, x.dtype), normal, scale


@_compiled
def _norm_only_gradient(upstream, normal, scale, norm, swish, dtype):
    """Returns (gradient of x, terms whose sums are those of beta and gamma)."""
    upstream = tf.cast(upstream, tf.float32)
    if swish:
        y = normal * norm.gamma + norm.beta
        share = tf.sigmoid(y)
        upstream = upstream * share * (1 + y * (1 - share))
    gradient = _normal_gradient(upstream * norm.gamma, normal, scale)
    return tf.cast(gradient, dtype), upstream, upstream * normal


def add_and_norm(
    x: tf.Tensor, residual: tf.Tensor, norm: Norm, epsilon: float, rate: float, seed: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """See `plain.add_and_norm`."""

    @tf.custom_gradient
    def normalize(x, residual, gamma, beta):
        total, y, normal, scale = _add_and_normalize(x, residual, Norm(gamma, beta), epsilon, rate, seed)

        def gradient(total_upstream, upstream):
            x_gradient, residual_gradient, gamma_terms = _add_and_norm_gradient(
                total_upstream, upstream, normal, scale, gamma, rate, seed
            )
            sums = _column_sums(gamma_terms, gamma.dtype), _column_sums(upstream, beta.dtype)
            return x_gradient, residual_gradient, *sums

        return (total, y), gradient

    return normalize(x, residual, *map(tf.convert_to_tensor, with_beta(norm)))


@_compiled
def _add_and_normalize(x, residual, norm, epsilon, rate, seed):
    """Returns (the sum, LayerNorm, the normalized sum, 1 / its standard deviation [..., 1])."""
    total = residual + dropout(x, rate, seed)
    normal, scale = _made_normal(tf.cast(total, tf.float32), epsilon)
    return total, tf.cast(normal * norm.gamma + norm.beta, x.dtype), normal, scale


@_compiled
def _add_and_norm_gradient(total_upstream, upstream, normal, scale, gamma, rate, seed):
    """Returns (gradient of x, gradient of the residual, terms whose sum is that of gamma)."""
    upstream = tf.cast(upstream, tf.float32)
    own = _normal_gradient(upstream * gamma, normal, scale)
    gradient = tf.cast(tf.cast(total_upstream, tf.float32) + own, total_upstream.dtype)
    return dropout(gradient, rate, seed), gradient, upstream * normal


def gated_activation(x: tf.Tensor, activation: str) -> tf.Tensor:
    """See `plain.gated_activation`."""

    @tf.custom_gradient
    def activate(x):
        return _gated(x, activation), lambda upstream: _gated_gradient(x, upstream, activation)

    return activate(x)


@_compiled
def _gated_gradient(x, upstream, activation):
    values, gates = tf.split(tf.cast(x, tf.float32), 2, axis=-1)
    upstream, activated = tf.cast(upstream, tf.float32), ACTIVATIONS[activation].function(values)
    both = tf.concat(
        [upstream * gates * ACTIVATIONS[activation].slope(values), upstream * activated], axis=-1
    )
    return tf.cast(both, x.dtype)


norm_product, add_and_norm_product, gated_product = plain.products_of(norm, add_and_norm, gated_activation)


def rotate(products_BLE: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor, heads: int) -> tf.Tensor:
    """See `plain.rotate`."""

    @tf.custom_gradient
    def turn(products):
        return _rotate(products, cos, sin, heads), lambda upstream: _rotate(upstream, cos, -sin, heads)

    return turn(products_BLE)


def gate(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """See `plain.gate`."""

    @tf.custom_gradient
    def open_gates(x, bias):
        def gradient(upstream):
            x_gradient = _gate_gradient(x, bias, upstream)
            return x_gradient, _column_sums(x_gradient, bias.dtype)

        return _gate(x, bias), gradient

    return open_gates(x, tf.convert_to_tensor(bias))


@_compiled
def _gate(x, bias):
    values, gates = tf.split(x + tf.cast(bias, x.dtype), 2, axis=-1)
    return values * tf.sigmoid(gates)


@_compiled
def _gate_gradient(x, bias, upstream):
    values, gates = tf.split(tf.cast(x, tf.float32) + tf.cast(bias, tf.float32), 2, axis=-1)
    upstream, share = tf.cast(upstream, tf.float32), tf.sigmoid(gates)
    both = tf.concat([upstream * share, upstream * values * share * (1 - share)], axis=-1)
    return tf.cast(both, x.dtype)


def residual(
    x: tf.Tensor, bias: tf.Tensor, residual: tf.Tensor, rate: float, seed: tf.Tensor | None
) -> tf.Tensor:
    """See `plain.residual`."""

    @tf.custom_gradient
    def add(x, bias, residual):
        def gradient(upstream):
            x_gradient = _dropped(_drop_rows, upstream, rate, seed, x.dtype)
            return x_gradient, _column_sums(x_gradient, bias.dtype), upstream

        return _add(x, bias, residual, rate, seed), gradient

    return add(x, tf.convert_to_tensor(bias), residual)


@_compiled
def _add(x, bias, residual, rate, seed):
    return residual + tf.cast(dropout(x + tf.cast(bias, x.dtype), rate, seed), residual.dtype)


def _dropped(drop, x, rate, seed, dtype):
    """Returns `x` after dropout by a compiled function; without dropout there is nothing to compile."""
    return tf.cast(x, dtype) if seed is None or rate == 0 else drop(x, rate, seed, dtype)


def _cast_dropped(x, rate, seed, dtype):
    return tf.cast(dropout(x, rate, seed), dtype)


# For attention weights, and for [B, L, D]: a function for both ranks would lose the rank.
_drop, _drop_rows = _compiled(_cast_dropped), _compiled(_cast_dropped)


def attend(
    query_BHLK: tf.Tensor,
    key_BHMK: tf.Tensor,
    value_BHMK: tf.Tensor,
    scores_B1LM: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
    again: bool = False,
) -> tf.Tensor:
    """See `plain.attend`; the product with the values is not recomputed.

    On GPUs the weights are stored in the type of the query, since the softmax is memory-bound.
    """
    if (seed is None or rate == 0) and flash.takes(query_BHLK, scores_B1LM):
        return flash.attend(query_BHLK, key_BHMK, value_BHMK, scores_B1LM)
    scale = query_BHLK.shape[-1] ** -0.5
    kept_dtype = query_BHLK.dtype if native.on_gpus() else tf.float32

    def weights_of(query, key):
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        return tf.cast(tf.nn.softmax(scores * scale + scores_B1LM), kept_dtype)

    @tf.custom_gradient
    def weigh(query, key, value):
        kept_weights = weights_of(query, key)
        output = tf.matmul(_dropped(_drop, kept_weights, rate, seed, query.dtype), value)

        def gradient(upstream):
            weights = weights_of(after(upstream, [query])[0], key) if again else kept_weights
            # The row sums of (weights x their gradient) equal those of (output x its gradient).
            # Source: Dao et al. 2022, "FlashAttention".
            along = tf.cast(upstream, tf.float32) * tf.cast(output, tf.float32)
            along = tf.reduce_sum(along, axis=-1, keepdims=True)
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
def _attention_gradient(weights, kept_gradient, along, scale, rate, seed):
    """Returns (weights after dropout, gradient of the products query key^T), in the type of
    `kept_gradient`."""
    dtype, weights = kept_gradient.dtype, tf.cast(weights, tf.float32)
    weights_gradient = dropout(tf.cast(kept_gradient, tf.float32), rate, seed)
    score_gradient = (weights_gradient - along) * weights * scale
    return tf.cast(dropout(weights, rate, seed), dtype), tf.cast(score_gradient, dtype)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """See `plain.cross_entropy`."""

    @tf.custom_gradient
    def surprise(logits):
        shares = tf.nn.softmax(logits)
        # The maximum of softmax, at least 1 / C, is at the largest logit: this is log(sum(exp(logits)))
        # without another pass of exponentials.
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
    """Returns the sums over all axes except the last, in float32."""
    columns = x.shape[-1]
    return tf.cast(tf.ensure_shape(_sum_of_rows(tf.reshape(x, [-1, columns])), [columns]), dtype)


@_compiled
def _sum_of_rows(x):
    if rounds_products():
        return tf.reduce_sum(tf.cast(x, tf.float32), axis=0)
    # As a product: XLA has no better loop for this on CPUs, and TensorFlow's BiasAddGrad takes 1.5 times as
    # long.
    return tf.linalg.matvec(tf.cast(x, tf.float32), tf.ones(tf.shape(x)[:1]), transpose_a=True)

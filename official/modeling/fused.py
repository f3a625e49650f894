"""The functions of `official.modeling.plain` with gradients derived by hand and their memory-bound parts compiled as small functions.

Matrix products stay outside the compiled functions, with the vendor's library: XLA's own are slower on CPUs, and bfloat16 ones are
computed in float32. Softmax stays outside, too: the library's is three times as fast. Backward passes draw dropout's masks again.
Inside a step that is compiled as a whole (--enable_xla, TPUs) the small functions become part of it.
"""

import math

import tensorflow as tf

from official.modeling import layers

_compiled = tf.function(
    jit_compile=True, reduce_retracing=True, autograph=False
)  # lengths are traced twice, not once each


def bias_activation(x, bias, activation: str):
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
    return layers.ACTIVATIONS[activation](x + tf.cast(bias, x.dtype))


@_compiled
def _activation_gradient(x, bias, upstream, activation):
    biased = tf.cast(x, tf.float32) + tf.cast(bias, tf.float32)
    return tf.cast(tf.cast(upstream, tf.float32) * _SLOPES[activation](biased), x.dtype)


def _gelu_tanh_slope(x):
    """Derivative of 0.5 x (1 + tanh(c (x + 0.044715 x^3))), c = sqrt(2 / pi)."""
    c, cubic = 0.7978845608028654, 0.044715
    tanh = tf.tanh(c * x * (1 + cubic * x * x))
    return 0.5 * (1 + tanh) + 0.5 * c * x * (1 - tanh * tanh) * (1 + 3 * cubic * x * x)


def _gelu_erf_slope(x):
    """Derivative of x P(x), P the standard normal distribution function: P(x) + x p(x), p its density."""
    return 0.5 * (1 + tf.math.erf(x * 0.5**0.5)) + x * tf.exp(-0.5 * x * x) * (2 * math.pi) ** -0.5


_SLOPES = {
    "gelu_tanh": _gelu_tanh_slope,
    "gelu_erf": _gelu_erf_slope,
    "relu": lambda x: tf.cast(x > 0, x.dtype),
}


def residual_norm(x, bias, residual, norm: layers.Norm, rate: float, seed):
    """See `plain.residual_norm`."""

    @tf.custom_gradient
    def normalize(x, bias, residual, gamma, beta):
        y, normal, scale = _normalize(x, bias, residual, layers.Norm(gamma, beta, norm.epsilon), rate, seed)

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
def _normalize(x, bias, residual, norm, rate, seed):
    """Returns (LayerNorm, the sum made normal, 1 / its standard deviation [..., 1])."""
    x = layers.dropout(tf.cast(x, tf.float32) + tf.cast(bias, tf.float32), rate, seed) + tf.cast(
        residual, tf.float32
    )
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(centred * centred, axis=-1, keepdims=True) + norm.epsilon)
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
    return tf.cast(layers.dropout(gradient, rate, seed), dtype), tf.cast(gradient, dtype), upstream * normal


def attend(query_BHLK, key_BHMK, value_BHMK, scores_B11M, rate: float, seed):
    """See `plain.attend`."""
    scale = query_BHLK.shape[-1] ** -0.5

    @tf.custom_gradient
    def weigh(query, key, value):
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        weights = tf.nn.softmax(scores * scale + scores_B11M)
        output = tf.matmul(_drop(weights, rate, seed, query.dtype), value)

        def gradient(upstream):
            # Rows of sum(weights x their gradient) are those of sum(output x its gradient); source: Dao et
            # al. 2022, "FlashAttention".
            along = tf.reduce_sum(
                tf.cast(upstream, tf.float32) * tf.cast(output, tf.float32), axis=-1, keepdims=True
            )
            kept, score_gradient = _attention_gradient(
                weights, tf.matmul(upstream, value, transpose_b=True), along, scale, rate, seed
            )
            return (
                tf.matmul(score_gradient, key),
                tf.matmul(score_gradient, query, transpose_a=True),
                tf.matmul(kept, upstream, transpose_a=True),
            )

        return output, gradient

    return weigh(query_BHLK, key_BHMK, value_BHMK)


@_compiled
def _drop(weights, rate, seed, dtype):
    return tf.cast(layers.dropout(weights, rate, seed), dtype)


@_compiled
def _attention_gradient(weights, kept_gradient, along, scale, rate, seed):
    """Returns (weights after dropout, gradient of the products query key^T), in the type of
    `kept_gradient`."""
    dtype = kept_gradient.dtype
    weights_gradient = layers.dropout(tf.cast(kept_gradient, tf.float32), rate, seed)
    return tf.cast(layers.dropout(weights, rate, seed), dtype), tf.cast(
        (weights_gradient - along) * weights * scale, dtype
    )


def cross_entropy(logits, labels):
    """See `plain.cross_entropy`."""

    @tf.custom_gradient
    def surprise(logits):
        shares = tf.nn.softmax(logits)
        # The largest logit is where softmax is at least 1 / C: log(sum(exp(logits))) without another pass of
        # exponentials.
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
    # As a product: XLA has no better loop for this on CPUs, and TensorFlow's BiasAddGrad takes half as long
    # again.
    return tf.linalg.matvec(tf.cast(x, tf.float32), tf.ones(tf.shape(x)[:1]), transpose_a=True)

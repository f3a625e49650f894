"""BERT's forward pass over concatenated tokens, in oneDNN's fused operations, also in 8 bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_def_library, op_def_registry

from official.config import BertConfig
from official.inference.rows import GROUPS
from official.io.native_library import processor, saturates_int8
from official.modeling.attention import MASKED_SCORE
from official.modeling.layers import ACTIVATIONS, Affine, Norm, layer_norm
from official.modeling.models import pooled

# -----------------------------------------------------------------------------------------------------------
# Weights without a copy


_ALIGNMENT = 64  # bytes: TensorFlow's alignment of tensors


def tensor(values: np.ndarray, dtype: str = "float32") -> tf.Tensor:
    """Returns an array as a tensor. It shares the memory if possible, so the array must not change
    afterwards.

    Args:
      values: float32 array.
      dtype: type of the tensor.
    """
    if values.ctypes.data % _ALIGNMENT or not (values.flags.c_contiguous and values.flags.writeable):
        shared = tf.convert_to_tensor(values)
    else:
        shared = tf.experimental.dlpack.from_dlpack(values.__dlpack__())
    return tf.cast(shared, dtype)


def side_by_side(parts: list[np.ndarray]) -> np.ndarray:
    """Returns float32 arrays concatenated along the last axis; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    widths = [part.shape[-1] for part in parts]
    return np.concatenate(parts, axis=-1, out=empty((*parts[0].shape[:-1], sum(widths))))


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """Returns a float32 array that `tensor` can share."""
    size = int(np.prod(shape)) * 4
    room = np.empty(size + _ALIGNMENT, np.uint8)
    first = -room.ctypes.data % _ALIGNMENT
    return room[first : first + size].view(np.float32).reshape(shape)


# -----------------------------------------------------------------------------------------------------------
# Operations
#
# TensorFlow creates them itself from patterns in a graph of constants. Called directly they need no
# constants in graphs, which take seconds and copies of all weights to make, no patterns, and no compiler:
# shapes may change from call to call. Shapes: T tokens, N sequences of W tokens, H heads of size K.


_PRODUCT, _BATCH_PRODUCT, _NORM = "_MklNativeFusedMatMul", "_MklFusedBatchMatMulV2", "_MklLayerNorm"
# The kernels of some operations are registered under this label, of the others without a label.
_LABEL = attr_value_pb2.AttrValue(s=b"MklNameChangeOp")
_INTEGER_PRODUCT = "_MklQuantizedMatMulWithBiasAndDequantize"
_INTEGER_LABEL = attr_value_pb2.AttrValue(s=b"QuantizedMklOp")
_ACTIVATIONS = {"gelu_tanh": "GeluApproximate", "gelu_erf": "GeluExact", "relu": "Relu"}
_REST = {"epsilon": 1e-4, "leakyrelu_alpha": 0.2}  # further attributes of the fused operations


def are_here(dtype: str = "float32") -> bool:
    """Returns whether this TensorFlow has the operations on this CPU, by running each of them once in
    float32.

    Args:
      dtype: type of the operations. Support of bfloat16 is read from the CPU's instruction set: without it,
        oneDNN ends the process instead of reporting an error.
    """
    if dtype == "bfloat16" and not {"avx512f", "bf16"} & {*processor().instructions}:
        return False
    if any(op_def_registry.get(name) is None for name in (_PRODUCT, _BATCH_PRODUCT, _NORM)):
        return False

    @tf.function(autograph=False)
    def try_all(x):
        one = Affine(x, x[0])
        y = norm(dense(x, one, "relu", None) + dense(x, one, None, x), Norm(x[0], x[0]), 1e-6)
        return scores(y[None, None], y[None, None], tf.zeros([1, 1, 1, 2], x.dtype))

    return _runs(lambda: try_all(tf.ones([2, 2])) is not None)


def _runs(try_it: Callable[[], bool]) -> bool:
    try:
        return try_it()
    except tf.errors.OpError:
        return False


def dense(x: tf.Tensor, weights: Affine, activation: str | None, residual: tf.Tensor | None) -> tf.Tensor:
    """Returns activation(x @ kernel + bias), or x @ kernel + bias + residual, in the type of x.

    The kernel's values are those of the first call forever: the operation caches them in the order that it
    multiplies fastest.

    Args:
      x: [T, in], float32 or bfloat16.
      weights: kernel and bias in the type of x.
      activation: a name of `modeling.layers.ACTIVATIONS`, or None.
      residual: [T, out], in the type of x, only without an activation; or None.
    """
    steps, arguments = ["BiasAdd"], [weights.bias]
    if activation is not None:
        steps.append(_ACTIVATIONS[activation])
    elif residual is not None:
        steps, arguments = ["BiasAdd", "Add"], [weights.bias, residual]
    settings = {"is_filter_const": True, "transpose_a": False, "transpose_b": False, **_REST}
    inputs = {"a": x, "b": weights.kernel, "args": arguments}
    return _call(_PRODUCT, _LABEL, inputs, fused_ops=steps, **settings)


def scores(query_NHWK: tf.Tensor, key_NHWK: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
    """Returns query key^T + added, [N, H, W, W]; `added` [N, 1, 1, W], in the type of the others."""
    inputs = {"x": query_NHWK, "y": key_NHWK, "args": [tf.ones([], added.dtype), added]}
    return _call(_BATCH_PRODUCT, None, inputs, fused_ops=["Mul", "Add"], adj_x=False, adj_y=True, **_REST)


def norm(x: tf.Tensor, weights: Norm, epsilon: float) -> tf.Tensor:
    """Returns LayerNorm of x [T, D] in its type, which is also that of gamma and beta [D]; computed in
    float32."""
    return _call(_NORM, None, {"x": x, "scale": weights.gamma, "offset": weights.beta}, epsilon=epsilon)


def integer_product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns x @ kernel + bias, float32 [T, out], of integers: quint8 [T, in], qint8 [in, out] and qint32
    [out]. As in `dense`, kernel and bias are those of the first call."""
    # Ranges for which one step is 1.
    ranges = {"min_a": 0.0, "max_a": 255.0, "min_b": -127.0, "max_b": 127.0}
    inputs = {"a": x, "b": kernel, "bias": bias, "min_freezed_output": 0.0, "max_freezed_output": 1.0}
    settings = {"Toutput": tf.float32, "transpose_a": False, "transpose_b": False}
    constant = {"is_weight_const": True, "is_bias_const": True, "input_quant_mode": "SCALED"}
    return _call(_INTEGER_PRODUCT, _INTEGER_LABEL, {**inputs, **ranges}, **settings, **constant)


def has_integers() -> bool:
    """Returns whether this TensorFlow has products of integers on this CPU."""
    if op_def_registry.get(_INTEGER_PRODUCT) is None:
        return False

    @tf.function(autograph=False)
    def try_it(x):
        x_8 = tf.bitcast(tf.cast(x, tf.uint8), tf.quint8)
        kernel, bias = tf.bitcast(tf.cast(x, tf.int8), tf.qint8), tf.bitcast(x[0], tf.qint32)
        return integer_product(x_8, kernel, bias)

    return _runs(lambda: bool(tf.reduce_all(try_it(tf.ones([4, 4], tf.int32)) == 5.0)))


def _call(name: str, label: Any, inputs: dict[str, Any], **settings: Any) -> Any:
    result = op_def_library.apply_op(name, name="fused", **inputs, **settings)
    if isinstance(result, (list, tuple)):
        result = result[0]
    if label is not None:
        result.op._set_attr("_kernel", label)
    return result


# -----------------------------------------------------------------------------------------------------------
# 8 bits
#
# Channel k of x is about s_k (a - z) with a in 0..255, s_k x kernel column c about t_c w_c with w in
# -127..127. On processors that add products of bytes in 16 bits, w is in -63..63 to avoid saturation. So
#
# x @ kernel = t_c (a @ w_c - z sum(w_c))
#
# where a @ w_c is an exact product of integers, and the rest follows from the ranges and the weights. A few
# channels after LayerNorm are far larger than the others: s_k splits that between activations and weights.
# Vectors between products, LayerNorm, softmax and attention's own products stay float32. Sources: Jacob et
# al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
# section 2; Xiao et al. 2023, "SmoothQuant", with alpha = 0.5.


_SMALLEST = 1e-9  # minimum of divisors


class Quantised(NamedTuple):
    """A dense product in 8 bits.

    Attributes:
      kernel: qint8 [in, out].
      bias: qint32 [out], in units of `scale`, minus the contribution of the activations' zero point.
      scale: float32 [out]: value of one unit of the integer product.
      steps: float32 [in]: value of one unit of each channel of x.
      zero: float32: the integer that represents 0.
    """

    kernel: tf.Tensor
    bias: tf.Tensor
    scale: tf.Tensor
    steps: tf.Tensor
    zero: tf.Tensor


def quantise(weights: Affine, ranges: Sequence[np.ndarray]) -> Quantised:
    """Returns a dense product in 8 bits, from float32 weights and, for each of several batches, the minimum
    and maximum of each channel of its input, [2, in]."""
    kernel, together = np.asarray(weights.kernel).astype(np.float64), np.stack(ranges)
    least_K, most_K = together[:, 0].min(axis=0), together[:, 1].max(axis=0)
    largest_K, weight_K = np.maximum(np.abs(least_K), np.abs(most_K)), np.abs(kernel).max(axis=1)
    shared_K = np.sqrt(np.maximum(largest_K, _SMALLEST) / np.maximum(weight_K, _SMALLEST))
    low, high = min((least_K / shared_K).min(), 0), max((most_K / shared_K).max(), 0)
    step = max(high - low, _SMALLEST) / 255
    zero = round(-low / step)
    kernel *= shared_K[:, None]
    unit_C = np.maximum(np.abs(kernel).max(axis=0), _SMALLEST) / _largest_weight()
    kernel_8 = np.round(kernel / unit_C).astype(np.int8)
    scale_C = step * unit_C
    bias_C = np.round(np.asarray(weights.bias) / scale_C) - zero * kernel_8.sum(axis=0, dtype=np.int64)
    return Quantised(
        tf.bitcast(tf.constant(kernel_8), tf.qint8),
        tf.bitcast(tf.constant(np.clip(bias_C, -(2**31), 2**31 - 1).astype(np.int32)), tf.qint32),
        tf.constant(scale_C, tf.float32),
        tf.constant(shared_K * step, tf.float32),
        tf.constant(zero, tf.float32),
    )


@functools.cache  # a property of the machine, read once
def _largest_weight() -> int:
    return 63 if saturates_int8(processor()) else 127


def dense_int8(
    x: tf.Tensor, weights: Quantised, activation: str | None, residual: tf.Tensor | None
) -> tf.Tensor:
    """The same as `dense`, in float32 from 8-bit weights."""
    a = tf.clip_by_value(tf.round(x / weights.steps + weights.zero), 0, 255)
    product = integer_product(tf.bitcast(tf.cast(a, tf.uint8), tf.quint8), weights.kernel, weights.bias)
    y = product * weights.scale
    if activation is not None:
        return ACTIVATIONS[activation].function(y)
    return y if residual is None else y + residual


# -----------------------------------------------------------------------------------------------------------
# Forward pass
#
# This shares no functions with `modeling`, but gives the same results to rounding: modeling needs gradients
# everywhere, here weights are packed once, and only the rows of attention are padded. Shapes: T tokens in
# all, N sequences of a group, W tokens of its longest one, H heads of size K, D hidden, M masked tokens.


Dense = Callable[..., tf.Tensor]  # signature of `dense`, with weights in the form of the blocks


class Block(NamedTuple):
    """Weights of a block, in the compute dtype, products in order. Those of the query are already divided by
    sqrt(K)."""

    qkv: Affine | Quantised
    attention_output: Affine | Quantised
    attention_norm: Norm
    intermediate: Affine | Quantised
    output: Affine | Quantised
    output_norm: Norm


class Encoder(NamedTuple):
    """The weights of a model without its head, shared by all of its heads.

    Attributes:
      tables: float32 [rows, D or narrower] for words, segments (None if no token uses them) and positions,
        from that of the first token on.
      norm: LayerNorm of the embeddings, float32.
      projection: from narrower tables to D, in the compute dtype; None if they have width D.
      blocks: all blocks, in order.
    """

    tables: list[tf.Tensor | None]
    norm: Norm
    projection: Affine | None
    blocks: list[Block]


class Attended(NamedTuple):
    """A group of sequences from `rows.attention_groups`, and its tensors for attention.

    Attributes:
      vectors: int32 [3 x N x H x W]: indices among the T x 3 x H vectors of query, key and value.
      added: [N, 1, 1, W], added to the scores.
    """

    vectors: tf.Tensor
    added: tf.Tensor


class Layout(NamedTuple):
    """Layout of all tokens in attention: the groups, whether there is more than one, and for each token and
    head the index of its vector among those of the groups, int32 [T x H]."""

    groups: list[Attended]
    has_more: tf.Tensor
    back: tf.Tensor


class Weights(NamedTuple):
    """Source of the weights of a model.

    Attributes:
      read: function from the name of a weight to its float32 values.
      has: function from a name to whether such a weight exists.
      dtype: type of matrix products: bfloat16 or float32.
    """

    read: Callable[[str], np.ndarray]
    has: Callable[[str], bool]
    dtype: str

    def affine(self, *names: str, scale: float = 1.0) -> Affine:
        """Returns dense layers side by side, the first one multiplied by a factor."""
        kernels = [self.read(f"{name}/kernel") for name in names]
        biases = [self.vector(f"{name}/bias", kernel.shape[1]) for name, kernel in zip(names, kernels)]
        for part in (kernels, biases):
            part[0] = part[0] * np.float32(scale) if scale != 1 else part[0]
        return Affine(*(tensor(side_by_side(part), self.dtype) for part in (kernels, biases)))

    def vector(self, name: str, size: int) -> np.ndarray:
        """Returns a bias; zeros if it is missing."""
        return self.read(name) if self.has(name) else np.zeros(size, np.float32)

    def norm(self, name: str, dtype: str | None = None) -> Norm:
        """Returns the LayerNorm of a layer, by default in the type of products."""
        parts = (self.read(f"{name}/LayerNorm/{part}") for part in ("gamma", "beta"))
        return Norm(*(tensor(part, dtype or self.dtype) for part in parts))

    def linear(self, scope: str) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns an output layer, vectors [N, D] -> float32 [N, C]."""
        kernel_CD, bias_C = self.read(f"{scope}output_weights"), self.read(f"{scope}output_bias")
        kernel_DC, bias = tensor(np.ascontiguousarray(kernel_CD.T)), tensor(bias_C)
        return lambda x_ND: tf.matmul(tf.cast(x_ND, tf.float32), kernel_DC) + bias


def read_encoder(weights: Weights, bert: BertConfig) -> Encoder:
    """Reads the embeddings and blocks of a model, each weight once."""
    scale = (bert.hidden_size // bert.num_attention_heads) ** -0.5
    blocks = []
    for number in range(bert.num_hidden_layers):
        block = f"bert/encoder/layer_{number}"
        own = (f"{block}/attention/self/{name}" for name in ("query", "key", "value"))
        blocks.append(
            Block(
                weights.affine(*own, scale=scale),
                weights.affine(f"{block}/attention/output/dense"),
                weights.norm(f"{block}/attention/output"),
                weights.affine(f"{block}/intermediate/dense"),
                weights.affine(f"{block}/output/dense"),
                weights.norm(f"{block}/output"),
            )
        )
    parts = ("word", "position", "token_type")
    words, positions, segments = (f"bert/embeddings/{part}_embeddings" for part in parts)
    types: Any = weights.read(segments) if weights.has(segments) else None
    places = weights.read(positions)[bert.position_offset :]
    if types is not None and not bert.reads_segments:
        types, places = None, places + types[0]
    tables = [tensor(weights.read(words)), None if types is None else tensor(types), tensor(places)]
    projection = weights.affine("bert/embeddings_project") if bert.embedding_size else None
    return Encoder(tables, weights.norm("bert/embeddings", "float32"), projection, blocks)


def head_of(weights: Weights, head: str, bert: BertConfig) -> Callable[..., dict[str, tf.Tensor]]:
    """Reads the weights of a head, one of `source.HEADS`.

    Returns:
      A function of the vectors of tokens [T, D], in the type of products, the first token of each sequence,
      int32 [N], and the tokens to predict, int32 [M]. It returns the head's float32 outputs, see
      `rows.Network`.
    """
    if head == "embed":
        return lambda x_TD, firsts_N, masked_M: {"sequence": tf.cast(x_TD, tf.float32)}
    if head == "answer":
        output, names = weights.linear("cls/squad/"), ("start_logits", "end_logits")
        return lambda x_TD, firsts_N, masked_M: dict(zip(names, tf.unstack(output(x_TD), num=2, axis=1)))
    if head == "tag":
        labels = weights.linear("")
        return lambda x_TD, firsts_N, masked_M: {"logits": labels(x_TD)}
    if head == "classify":
        pooler, output = weights.affine("bert/pooler/dense"), weights.linear("")

        def classify(x_TD: tf.Tensor, firsts_N: tf.Tensor, masked_M: tf.Tensor) -> dict[str, tf.Tensor]:
            pooled_ND = dense(tf.gather(x_TD, firsts_N), pooler, None, None)
            pooled_ND = pooled(tf.cast(pooled_ND, tf.float32), bert.family_row.pooler_act)
            return {"logits": output(pooled_ND)}

        return classify
    transform = "cls/predictions/transform"
    has_transform = weights.has(f"{transform}/dense/kernel")
    table_VD = weights.read("bert/embeddings/word_embeddings")
    bias_V = weights.vector("cls/predictions/output_bias", len(table_VD))
    table = Affine(tensor(np.ascontiguousarray(table_VD.T), weights.dtype), tensor(bias_V, weights.dtype))
    if has_transform:
        affine, layer = weights.affine(f"{transform}/dense"), weights.norm(transform, "float32")

    def fill_mask(x_TD: tf.Tensor, firsts_N: tf.Tensor, masked_M: tf.Tensor) -> dict[str, tf.Tensor]:
        x_MD = tf.gather(x_TD, masked_M)
        if has_transform:
            x_MD = tf.cast(dense(x_MD, affine, bert.masked_lm_act, None), tf.float32)
            x_MD = tf.cast(layer_norm(x_MD, layer, bert.layer_norm_eps), x_TD.dtype)
        return {"logits": tf.cast(dense(x_MD, table, None, None), tf.float32)}

    return fill_mask


def lay_out(batch: dict[str, tf.Tensor], groups: int, heads: int, dtype: str) -> Layout:
    """Returns the layout of a batch; see `batch_of` in the back end."""
    parts_3H = tf.reshape(tf.range(3 * heads), [3, 1, heads, 1])
    found = []
    for number in range(groups):
        tokens_NW, lengths_N = batch[f"tokens_{number}"], batch[f"lengths_{number}"]
        vectors = tf.reshape(tokens_NW[None, :, None] * (3 * heads) + parts_3H, [-1])
        is_token_NW = tf.range(tf.shape(tokens_NW)[1]) < lengths_N[:, None]
        added = tf.cast(tf.where(is_token_NW, 0.0, MASKED_SCORE), dtype)[:, None, None]
        found.append(Attended(vectors, added))
    back_TH = batch["firsts_T"][:, None] + tf.range(heads) * batch["widths_T"][:, None]
    return Layout(found, batch["used"] > 1, tf.reshape(back_TH, [-1]))


def run_block(x_TD: tf.Tensor, weights: Block, layout: Layout, bert: BertConfig, dense: Dense) -> tf.Tensor:
    """Returns the output of a block for vectors of tokens, [T, D] in their type."""
    heads_TD = attend(dense(x_TD, weights.qkv, None, None), layout, bert.num_attention_heads)
    epsilon = bert.layer_norm_eps
    x_TD = norm(dense(heads_TD, weights.attention_output, None, x_TD), weights.attention_norm, epsilon)
    inner_TF = dense(x_TD, weights.intermediate, bert.hidden_act, None)
    return norm(dense(inner_TF, weights.output, None, x_TD), weights.output_norm, epsilon)


@tf.function(autograph=False)  # traced once for all blocks
def attend(products: tf.Tensor, layout: Layout, heads: int) -> tf.Tensor:
    """Returns the heads' outputs side by side, [T, D], from query, key and value side by side, [T, 3 x D]."""
    hidden = products.shape[1] // 3
    vectors = tf.reshape(products, [-1, hidden // heads])
    first, more = layout.groups[0], layout.groups[1:]
    outputs = tf.cond(
        layout.has_more,
        lambda: tf.concat([_attend_group(vectors, group, heads) for group in (first, *more)], axis=0),
        lambda: _attend_group(vectors, first, heads),
    )
    return tf.reshape(tf.gather(outputs, layout.back), [-1, hidden])


def _attend_group(vectors: tf.Tensor, group: Attended, heads: int) -> tf.Tensor:
    """Returns the outputs of a group, [N x H x W, K], from the vectors of query, key and value."""
    size = vectors.shape[1]
    sequences, width = tf.shape(group.added)[0], tf.shape(group.added)[3]
    parts = tf.reshape(tf.gather(vectors, group.vectors), [3, sequences, heads, width, size])
    query, key, value = tf.unstack(parts, num=3)
    shares = tf.nn.softmax(scores(query, key, group.added))
    return tf.reshape(tf.matmul(shares, value), [-1, size])


def encode(
    encoder: Encoder, bert: BertConfig, dtype: str, dense: Dense, batch: dict[str, tf.Tensor]
) -> tf.Tensor:
    """Returns the vectors of tokens, [T, D] in the type of products, for a batch of `batch_of`."""
    rows = zip(encoder.tables, (batch["ids_T"], batch["segments_T"], batch["positions_T"]))
    x_TD = tf.add_n([tf.gather(table, rows_T) for table, rows_T in rows if table is not None])
    x_TD = tf.cast(norm(x_TD, encoder.norm, bert.layer_norm_eps), dtype)
    if encoder.projection is not None:
        x_TD = tf.matmul(x_TD, encoder.projection.kernel) + encoder.projection.bias
    layout = lay_out(batch, GROUPS, bert.num_attention_heads, dtype)
    for block in encoder.blocks:
        x_TD = run_block(x_TD, block, layout, bert, dense)
    return x_TD

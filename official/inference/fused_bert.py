"""BERT's forward pass over tokens end to end, in oneDNN's fused operations: eleven a block.

Between `modeling` and this there are no common functions, but the same results to rounding: there every
gradient exists, here weights are packed once, and nothing is padded but attention's rows. Shapes: T tokens
in all, N sequences of a group, W tokens of its longest one, H heads of size K, D hidden, M masked tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.config import BertConfig
from official.inference import onednn
from official.inference.constants import side_by_side, tensor
from official.inference.int8 import Quantised
from official.modeling.attention import MASKED_SCORE
from official.modeling.layers import Affine, Norm, layer_norm

Dense = Callable[..., tf.Tensor]  # of the arguments of `onednn.dense`, with weights as the blocks have them


class Block(NamedTuple):
    """The weights of a block, in the compute dtype, products in order. Query's are divided by sqrt(K)
    already."""

    qkv: Affine | Quantised
    attention_output: Affine | Quantised
    attention_norm: Norm
    intermediate: Affine | Quantised
    output: Affine | Quantised
    output_norm: Norm


class Embeddings(NamedTuple):
    """The tables [rows, D] and their LayerNorm, float32."""

    words: tf.Tensor
    types: tf.Tensor
    positions: tf.Tensor
    norm: Norm


class Encoder(NamedTuple):
    """The weights of a model without its head: what all heads of a model share."""

    embeddings: Embeddings
    blocks: list[Block]


class Attended(NamedTuple):
    """A group of sequences, as `places.Group`, and its tensors for attention.

    Attributes:
      vectors: int32 [3 x N x H x W]: which of the T x 3 x H vectors of query, key and value stands where.
      added: [N, 1, 1, W], added to scores.
    """

    vectors: tf.Tensor
    added: tf.Tensor


class Layout(NamedTuple):
    """Layout of all tokens in attention: the groups, whether there is more than the first one, and for each
    token and head the index of its vector among those of the groups, int32 [T x H]."""

    groups: list[Attended]
    has_more: tf.Tensor
    back: tf.Tensor


class Weights(NamedTuple):
    """Source of the weights of a model.

    Attributes:
      read: name of a weight -> float32 values.
      has: name of a weight -> whether there is such a one.
      dtype: of products: bfloat16 or float32.
    """

    read: Callable[[str], np.ndarray]
    has: Callable[[str], bool]
    dtype: str

    def affine(self, *names: str, scale: float = 1.0) -> Affine:
        """Returns dense layers side by side, the first of which is multiplied by a factor."""
        kernels = [self.read(f"{name}/kernel") for name in names]
        biases = [
            self.read(f"{name}/bias") if self.has(f"{name}/bias") else np.zeros(kernel.shape[1], np.float32)
            for name, kernel in zip(names, kernels)
        ]
        for part in (kernels, biases):
            part[0] = part[0] * np.float32(scale) if scale != 1 else part[0]
        return Affine(*(tensor(side_by_side(part), self.dtype) for part in (kernels, biases)))

    def norm(self, name: str, dtype: str | None = None) -> Norm:
        """Returns the LayerNorm of a layer, in the type of products unless another one is given."""
        parts = (self.read(f"{name}/LayerNorm/{part}") for part in ("gamma", "beta"))
        return Norm(*(tensor(part, dtype or self.dtype) for part in parts))

    def linear(self, scope: str) -> Affine:
        """Returns an output layer, [D, C] and [C], float32."""
        kernel_CD, bias_C = self.read(f"{scope}output_weights"), self.read(f"{scope}output_bias")
        return Affine(tensor(np.ascontiguousarray(kernel_CD.T), "float32"), tensor(bias_C, "float32"))


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
    tables = ("word_embeddings", "token_type_embeddings", "position_embeddings")
    words, types, positions = (tensor(weights.read(f"bert/embeddings/{name}"), "float32") for name in tables)
    return Encoder(Embeddings(words, types, positions, weights.norm("bert/embeddings", "float32")), blocks)


def read_head(weights: Weights, head: str) -> tuple:
    """Reads the weights of a head, one of `source.HEADS`.

    Returns:
      Of `answer`: the output layer, [D, 2], float32. Of `classify`: the pooler in the type of products, and
      the output layer, [D, C], float32. Of `fill_mask`: the transform, where there is one, and its LayerNorm,
      float32, and the table [D, V]. Of `embed`: nothing.
    """
    if head == "answer":
        return (weights.linear("cls/squad/"),)
    if head == "classify":
        return weights.affine("bert/pooler/dense"), weights.linear("")
    if head == "embed":
        return ()
    transform, bias = "cls/predictions/transform", "cls/predictions/output_bias"
    table_VD = weights.read("bert/embeddings/word_embeddings")
    bias_V = weights.read(bias) if weights.has(bias) else np.zeros(len(table_VD), np.float32)
    table = Affine(tensor(np.ascontiguousarray(table_VD.T), weights.dtype), tensor(bias_V, weights.dtype))
    if not weights.has(f"{transform}/dense/kernel"):
        return (table,)
    return weights.affine(f"{transform}/dense"), weights.norm(transform, "float32"), table


def embed(weights: Embeddings, batch: dict[str, tf.Tensor], epsilon: float) -> tf.Tensor:
    """Returns the vectors of tokens by word, segment and position, float32 [T, D]."""
    tables = (
        (weights.words, batch["ids_T"]),
        (weights.types, batch["segments_T"]),
        (weights.positions, batch["positions_T"]),
    )
    x_TD = tf.add_n([tf.gather(table, rows_T) for table, rows_T in tables])
    return onednn.norm(x_TD, weights.norm, epsilon)


def lay_out(batch: dict[str, tf.Tensor], groups: int, heads: int, dtype: str) -> Layout:
    """Returns the layout that a batch says; see `batch_of` in the back end."""
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
    x_TD = onednn.norm(dense(heads_TD, weights.attention_output, None, x_TD), weights.attention_norm, epsilon)
    inner_TF = dense(x_TD, weights.intermediate, bert.hidden_act, None)
    return onednn.norm(dense(inner_TF, weights.output, None, x_TD), weights.output_norm, epsilon)


@tf.function(autograph=False)  # traced once for all blocks
def attend(products: tf.Tensor, layout: Layout, heads: int) -> tf.Tensor:
    """Returns the heads' outputs side by side, [T, D], of query, key and value side by side, [T, 3 x D]."""
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
    """Returns the outputs of a group, [N x H x W, K], of the vectors of query, key and value."""
    size = vectors.shape[1]
    sequences, width = tf.shape(group.added)[0], tf.shape(group.added)[3]
    parts = tf.reshape(tf.gather(vectors, group.vectors), [3, sequences, heads, width, size])
    query, key, value = tf.unstack(parts, num=3)
    shares = tf.nn.softmax(onednn.scores(query, key, group.added))
    return tf.reshape(tf.matmul(shares, value), [-1, size])


def encode(
    encoder: Encoder, batch: dict[str, tf.Tensor], layout: Layout, bert: BertConfig, dense: Dense
) -> tf.Tensor:
    """Returns the vectors of tokens, [T, D] in the type of products."""
    x_TD = tf.cast(embed(encoder.embeddings, batch, bert.layer_norm_eps), layout.groups[0].added.dtype)
    for block in encoder.blocks:
        x_TD = run_block(x_TD, block, layout, bert, dense)
    return x_TD


def finish(
    head: str, weights: tuple, x_TD: tf.Tensor, batch: dict[str, tf.Tensor], bert: BertConfig
) -> dict[str, tf.Tensor]:
    """Returns the outputs of a head, float32, see `backends.Network`.

    Args:
      head: one of `source.HEADS`.
      weights: of `read_head`.
      x_TD: of `encode`.
      batch: int32 `firsts_N`, where sequences begin, and `masked_M`, the tokens to predict.
      bert: sizes.
    """
    if head == "embed":
        return {"sequence": tf.cast(x_TD, tf.float32)}
    if head == "answer":
        logits_T2 = _linear(tf.cast(x_TD, tf.float32), weights[0])
        return {"start_logits": logits_T2[:, 0], "end_logits": logits_T2[:, 1]}
    if head == "classify":
        pooled_ND = onednn.dense(tf.gather(x_TD, batch["firsts_N"]), weights[0], None, None)
        return {"logits": _linear(tf.tanh(tf.cast(pooled_ND, tf.float32)), weights[1])}
    *transform, table = weights
    x_MD = tf.gather(x_TD, batch["masked_M"])
    if transform:
        x_MD = tf.cast(onednn.dense(x_MD, transform[0], bert.hidden_act, None), tf.float32)
        x_MD = tf.cast(layer_norm(x_MD, transform[1], bert.layer_norm_eps), x_TD.dtype)
    return {"logits": tf.cast(onednn.dense(x_MD, table, None, None), tf.float32)}


def _linear(x: tf.Tensor, weights: Affine) -> tf.Tensor:
    return tf.matmul(x, weights.kernel) + weights.bias

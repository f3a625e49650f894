"""Models of the BERT family, in reading order: embeddings, encoder, heads, and the models for pre-training,
question answering, classification and regression, multiple choice, token classification, and embeddings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import tensorflow as tf

from official import native
from official.config import BertConfig
from official.modeling import attention, blocks, layers, operations, stages, varlen
from official.modeling.layers import ACTIVATIONS, dropout, normal_initializer, recomputed, sizes, split_seed
from official.modeling.stages import Stage, Staged, Tensors
from official.modeling.varlen import predicted_first

# -----------------------------------------------------------------------------------------------------------
# Embeddings


class Weights(NamedTuple):
    """Weights of the embeddings: the tables [rows, W], None for segments or positions that a family lacks;
    the LayerNorm over their sum, float32; the projection from W to D in the compute dtype, None if W equals
    D."""

    words: tf.Tensor
    types: tf.Tensor | None
    positions: tf.Tensor | None
    norm: layers.Norm
    projection: layers.Affine | None


class Embeddings(tf.keras.layers.Layer):
    """Variables of the embeddings; `run` computes them."""

    def __init__(self, config: BertConfig, shared: Embeddings | None = None):
        """Makes the variables; with `shared`, the tables and their LayerNorm are those of another model."""
        super().__init__(name="embeddings", dtype="float32")
        tables = {
            "word_embeddings": config.vocab_size,
            "token_type_embeddings": config.type_vocab_size,
            "position_embeddings": config.max_position_embeddings if config.family_row.has_positions else 0,
        }
        with tf.name_scope("embeddings"):
            for name, rows in tables.items():
                table = getattr(shared, name, None)
                if rows and shared is None:
                    table = self.add_weight(
                        name=name,
                        shape=(rows, config.table_width),
                        initializer=normal_initializer(config.initializer_range),
                    )
                setattr(self, name, table)
            self.layer_norm: layers.LayerNorm = (
                layers.LayerNorm(config.table_width, config.family_row.has_biases)
                if shared is None
                else shared.layer_norm
            )
        self.projection = None
        if config.embedding_size:
            sizes_WD = config.embedding_size, config.hidden_size
            self.projection = layers.Dense("embeddings_project", *sizes_WD, config.initializer_range)

    def tensors(self) -> Weights:
        tables = (self.word_embeddings, self.token_type_embeddings, self.position_embeddings)
        words, types, positions = (None if table is None else tf.convert_to_tensor(table) for table in tables)
        projection = None if self.projection is None else self.projection.tensors()
        return Weights(words, types, positions, self.layer_norm.tensors(), projection)


def embed(
    weights: Weights, features: dict[str, tf.Tensor], seed: tf.Tensor | None, config: BertConfig
) -> tf.Tensor:
    """Embeds token ids. In float32, since it takes little time and the result feeds every residual.

    Args:
      weights: weights of the embeddings.
      features: `input_ids` and `segment_ids` int32 [B, L]; optionally `position_ids` int32 [B, L], positions
        within a token's sequence, in [0, config.positions). Default: the position in the row.
      seed: seed of dropout.
      config: configuration of the model.

    Returns:
      float32 [B, L, W], W the embedding size.
    """
    input_ids_BL = features["input_ids"]
    words_BLW = layers.gather_rows(weights.words, input_ids_BL)
    if weights.types is not None and not config.reads_segments:
        words_BLW += weights.types[0]
    elif weights.types is not None:
        # Two rows: a product with a one-hot matrix is faster than a gather whose gradient sums into two rows.
        is_type_BLT = tf.one_hot(features["segment_ids"], config.type_vocab_size)
        words_BLW += layers.exact_matmul_2d(is_type_BLT, weights.types)
    x_BLW, offset = words_BLW, config.position_offset
    if weights.positions is not None:
        table = weights.positions[offset:] if offset else weights.positions
        if "position_ids" in features:
            x_BLW = words_BLW + layers.gather_rows(table, features["position_ids"])  # [B, L, W]
        else:
            x_BLW = words_BLW + table[: sizes(input_ids_BL)[1]]  # [L, W]
    x_BLW = layers.layer_norm(x_BLW, weights.norm, config.layer_norm_eps)
    return dropout(x_BLW, config.hidden_dropout_prob, seed)


# -----------------------------------------------------------------------------------------------------------
# Positions that the heads read
#
# These vectors are ordered as in a row that begins with its predicted tokens: those of the P predicted
# tokens, then one of each sequence's [CLS]. R is the number of both.


class Reads(NamedTuple):
    """Positions whose output vectors the heads read; the last block computes only these.

    Attributes:
      positions_BR: int32, in [0, L).
      predicted: P, the number of predicted tokens, which come first: an int, or an int32 scalar tensor if it
        is known only at run time.
    """

    positions_BR: tf.Tensor
    predicted: int | tf.Tensor


def of_masked_lm(features: dict[str, tf.Tensor]) -> Reads:
    """Returns the positions that the masked-LM head reads; `features` as for `MaskedLMModel`."""
    first = predicted_first(features)
    predicted_BP = _first(features, first) if first else features["masked_lm_positions"]
    return Reads(predicted_BP, sizes(predicted_BP)[1])


def of_pretraining(features: dict[str, tf.Tensor]) -> Reads:
    """Returns the positions that the masked-LM head and the pooler read."""
    predicted_BP, count = of_masked_lm(features)
    return Reads(tf.concat([predicted_BP, _cls(features)], axis=1), count)


def of_sequences(features: dict[str, tf.Tensor]) -> Reads:
    """Returns the positions that the pooler reads."""
    return Reads(_cls(features), 0)


def _cls(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the position of each sequence's [CLS], int32 [B, S]."""
    positions_BS = features.get("cls_positions")
    return _first(features, 1) + predicted_first(features) if positions_BS is None else positions_BS


def _first(features: dict[str, tf.Tensor], count: int) -> tf.Tensor:
    """Returns the numbers 0, 1, .. count - 1 of each row, int32 [B, count]."""
    batch = sizes(features["input_ids"])[0]
    return tf.tile(tf.range(count)[None], [batch, 1])


# -----------------------------------------------------------------------------------------------------------
# Encoder


if TYPE_CHECKING:
    from collections.abc import Callable

    FindReads = Callable[[Tensors], Reads]  # features of a batch -> Reads


class BertEncoder(tf.keras.layers.Layer):
    """Encodes token ids to one vector per token and one per sequence. All variables are in the scope `bert`.

    Its stages give `sequence` [B, L, D] in the compute dtype, `seen` (the attention mask, see
    `attention.seen`), and `pooled` float32 [B, D], or [B, S, D] if the batch has `cls_positions` of S
    sequences per row (see `pool`).
    """

    def __init__(
        self,
        config: BertConfig,
        kernels: str = "plain",
        shared: bool = False,
        by_sequence: bool = False,
        recompute: str = "none",
        unpad: bool = False,
        narrow: bool = False,
        portable: bool = False,
        tables: Embeddings | None = None,
    ):
        """Makes the encoder.

        Args:
          config: sizes, dropout rates, and the kind of blocks.
          kernels: implementation of the operations, see `operations.choose`; all agree up to rounding.
          shared: trace the blocks as a single function, which the graph calls with the weights of each block,
            so that it is traced and optimised once instead of 24 times for BERT-large. Not with jit_compile,
            where shapes that the backward pass reads from the forward pass must be constants.
          by_sequence: skip attention scores between the sequences of a packed row on CPUs, see
            `attention.seen`. Not with jit_compile.
          recompute: what the backward pass recomputes: `none`, `attention` (scores, softmax and dropout) or
            `block` (the whole block).
          unpad: skip padding, see `official.modeling.varlen`. Not with jit_compile, and not for rows of
            several sequences.
          narrow: compute only those vectors of the last block that the heads read, see `stages`. Changes the
            dropout masks of that block.
          portable: use plain operations without dropout, which an export can store, instead of `kernels`.
          tables: embedding tables of another encoder to share; this encoder then has no pooler.
        """
        super().__init__(name="bert")
        self._config = config
        self.by_sequence = by_sequence and native.on_cpus()
        self.unpad, self.narrow = unpad, narrow
        kind = blocks.find(config.block_type)
        with tf.name_scope("bert"):
            self.embeddings = Embeddings(config, tables)
            with tf.name_scope("encoder"):
                self.blocks = [kind.Block(config, index) for index in range(config.num_hidden_layers)]
            self.pooler = None
            if not config.family_row.has_prediction_head and tables is None:
                self.pooler = layers.Dense(
                    "pooler/dense", config.hidden_size, config.hidden_size, config.initializer_range
                )
        self.final_norm = None
        if kind.IS_PRENORM:  # Graphcore's name for it has no scope.
            self.final_norm = layers.LayerNorm(config.hidden_size, config.family_row.has_biases)
        self._kind = kind
        ops = operations.choose(kernels, attends_again=recompute == "attention")
        run_block = _block_function(kind, config, ops)
        if recompute == "block":
            # Only plain operations must give the same bits; the others save memory this way.
            run_block = _recomputed(run_block, shared, as_kept=shared and kernels == "plain")
        elif shared:
            run_block = layers.shared_function(run_block)
        self._ops = operations.choose("plain") if portable else ops
        self._run_block = run_block
        self._run_without_dropout = _block_function(kind, config, self._ops) if portable else run_block

    def freeze_pooler(self) -> None:
        """Excludes the pooler, if there is one, from training: for models that do not use it."""
        if self.pooler is not None:
            self.pooler.trainable = False

    @property
    def word_embeddings(self) -> tf.Variable:
        """The word embedding table [V, W], which the masked-LM head shares."""
        return self.embeddings.word_embeddings

    def stages(self, find_reads: FindReads | None = None) -> list[Stage]:
        """Returns the stages `embeddings`, `layer_0`, ..., `final_norm` for prenorm blocks, and `pooler`.

        If the encoder is narrow, the last block returns only the vectors at the positions of `find_reads`,
        `sequence` [B, R, D]; see `official.modeling.models`.

        They read `input_ids`, `input_mask` (1 for tokens, 0 for padding) and `segment_ids` of a batch, int32
        [B, L], and, if present, `position_ids` and `sequence_ids` [B, L] and `cls_positions` [B, S].
        """
        reads = find_reads if self.narrow else None
        *blocks_before, last = self.blocks
        return [
            self._embeddings_stage(),
            *map(self._block_stage, blocks_before),
            self._block_stage(last, reads),
            *([] if self.final_norm is None else [self._norm_stage(self.final_norm)]),
            self._pooler_stage(reads),
        ]

    def predicted(self, features: Tensors) -> int | tf.Tensor:
        """Returns the positions of a pre-training model's predicted tokens in `sequence`: int32 [B, P], or
        their number if they are the first of each row."""
        if self.narrow:
            return of_masked_lm(features).predicted
        return varlen.predicted_first(features) or features["masked_lm_positions"]

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        without = [None] if self.final_norm is None else [None, None]
        return [*split_seed(dropout_seed, 1 + len(self.blocks)), *without]

    def run(self, model: Staged, features: Tensors, dropout_seed: tf.Tensor | None) -> Tensors:
        """Runs all stages of a model with this encoder. Returns all their tensors, {name: tensor}. For the
        requirements of `unpad` see `varlen.run`."""
        if self.unpad:
            left_out = ("seen", "sequence") if self.narrow else ("seen",)
            return varlen.run(model, features, dropout_seed, left_out)
        return stages.run(model, features, dropout_seed)

    def call(self, input_ids_BL, input_mask_BL, segment_ids_BL, dropout_seed=None):
        """Encodes a batch with one sequence per row.

        Args:
          input_ids_BL: int32 token ids.
          input_mask_BL: int32, 1 for tokens and 0 for padding.
          segment_ids_BL: int32, 0 for the first and 1 for the second segment.
          dropout_seed: int32 [N], or None to switch dropout off.

        Returns:
          (sequence [B, L, D] in the compute dtype, pooled [B, D] in float32).
        """
        features = {"input_ids": input_ids_BL, "input_mask": input_mask_BL, "segment_ids": segment_ids_BL}
        carried = stages.run(self, features, dropout_seed)
        return carried["sequence"], carried["pooled"]

    def _embeddings_stage(self) -> Stage:
        def run(weights, carried, features, seed):
            x_BLD = tf.cast(embed(weights, features, seed, self._config), self.compute_dtype)
            if weights.projection is not None:
                x_BLD = layers.dense(x_BLD, weights.projection)
            return {"sequence": x_BLD, "seen": self._seen(features)}

        return stage_of("embeddings", self.embeddings, run, (), ("sequence", "seen"))

    def _seen(self, features):
        return self._kind.seen(features, self._config, self.by_sequence)

    def _block_stage(self, block: Any, find_reads: FindReads | None = None) -> Stage:
        def run(weights, carried, features, seed):
            ids_BL = features.get("sequence_ids", features["input_mask"])
            slots = self._kind.slots(features, self._config)
            reads_BR = None if find_reads is None else find_reads(features).positions_BR
            seen = block.sees(carried["seen"]) if hasattr(block, "sees") else carried["seen"]
            context = attention.Context(seen, ids_BL, slots, reads_BR)
            run_block = self._run_without_dropout if seed is None else self._run_block
            return {"sequence": run_block(carried["sequence"], seed, weights, context)}

        return stage_of(block.name, block, run, ("sequence", "seen"), ("sequence",))

    def _norm_stage(self, norm: layers.LayerNorm) -> Stage:
        def run(weights, carried, features, seed):
            x_BLD, epsilon = carried["sequence"], self._config.layer_norm_eps
            return {"sequence": self._ops.norm(x_BLD, weights, epsilon, swish=False)}

        return stage_of("final_norm", norm, run, ("sequence",), ("sequence",))

    def _pooler_stage(self, find_reads: FindReads | None) -> Stage:
        takes_mean = self._config.classifier_pooling == "mean"

        def run(weights, carried, features, seed):
            if takes_mean:
                return {"pooled": _means(carried["sequence"], features)}
            first = _of_cls(carried["sequence"], features, find_reads)
            if weights is None:
                return {"pooled": first}
            return {"pooled": pool(weights, first, self._config.family_row.pooler_act)}

        return stage_of("pooler", self.pooler, run, ("sequence",), ("pooled",))


def stage_of(name: str, layer: Any, run: Callable, takes: tuple[str, ...], gives: tuple[str, ...]) -> Stage:
    """Returns the stage that computes a layer of variables, or, with None, has no weights."""
    if layer is None:
        return Stage(name, (), lambda: None, run, takes, gives)
    return Stage(name, layer.variables, layer.tensors, run, takes, gives)


def _means(sequence_BLD: tf.Tensor, features: Tensors) -> tf.Tensor:
    """Mean pooling: the mean over each sequence's token vectors, float32 [B, D], or [B, S, D] for S sequences
    per row."""
    ids_BL, places_BS = features.get("sequence_ids", features["input_mask"]), features.get("cls_positions")
    wanted_BS = tf.ones([sizes(ids_BL)[0], 1], ids_BL.dtype)
    if places_BS is not None and "sequence_ids" in features:
        wanted_BS = tf.gather(ids_BL, places_BS, batch_dims=1)
    is_own_BSL = tf.cast(tf.equal(wanted_BS[:, :, None], ids_BL[:, None, :]), tf.float32)
    counts_BS1 = tf.maximum(tf.reduce_sum(is_own_BSL, axis=2, keepdims=True), 1.0)
    means_BSD = tf.matmul(is_own_BSL, tf.cast(sequence_BLD, tf.float32)) / counts_BS1
    return means_BSD[:, 0] if places_BS is None else means_BSD


def _maxima(sequence_BLD: tf.Tensor, features: Tensors) -> tf.Tensor:
    """Max pooling: the maximum over each sequence's token vectors, in the shapes of `_means`."""
    ids_BL, places_BS = features.get("sequence_ids", features["input_mask"]), features.get("cls_positions")
    batch, _, hidden = sizes(sequence_BLD)
    sequences = 1 if places_BS is None else sizes(places_BS)[1]
    numbers_BL = tf.where(ids_BL > 0, tf.range(batch)[:, None] * sequences + ids_BL - 1, -1)
    vectors_TD = tf.reshape(tf.cast(sequence_BLD, tf.float32), [-1, hidden])
    maxima_ND = tf.math.unsorted_segment_max(vectors_TD, tf.reshape(numbers_BL, [-1]), batch * sequences)
    return maxima_ND if places_BS is None else tf.reshape(maxima_ND, [batch, sequences, hidden])


def _of_cls(sequence_BLD: tf.Tensor, features: Tensors, find_reads: FindReads | None) -> tf.Tensor:
    """CLS pooling: the vector of each sequence's [CLS], [B, D], or [B, S, D] for S sequences per row."""
    places_BS = features.get("cls_positions")
    if find_reads is not None:
        behind_BSD = sequence_BLD[:, find_reads(features).predicted :]
        return behind_BSD[:, 0] if places_BS is None else behind_BSD
    if places_BS is None:
        return sequence_BLD[:, varlen.predicted_first(features)]
    return layers.gather_positions(sequence_BLD, places_BS)


def _block_function(kind: Any, config: BertConfig, ops: operations.Operations) -> Callable:
    """Returns (x_BLD, seed, weights, context) -> [B, L, D], or [B, R, D] at the context's `reads_BR`: the
    function of every block."""

    def run_block(x_BLD, seed, weights, context):
        y_BLD = kind.run(weights, x_BLD, context, seed, config, ops)
        return y_BLD if kind.IS_NARROW else layers.picked(y_BLD, context.reads_BR)

    return run_block


def _recomputed(run_block: Callable, shared: bool, as_kept: bool) -> Callable:
    """Returns the function of every block, wrapped so that the backward pass recomputes it."""
    if as_kept:
        return recomputed(layers.shared_function(run_block), as_kept=True)
    again = recomputed(run_block)
    return layers.shared_function(again) if shared else again


# -----------------------------------------------------------------------------------------------------------
# Heads. Logits are float32


class TransformWeights(NamedTuple):
    """Weights of `transform`: a dense layer [D, W] in the compute dtype, and the float32 LayerNorm after its
    activation."""

    dense: layers.Affine
    norm: layers.Norm


class Transform(tf.keras.layers.Layer):
    """Variables of `transform`, the layer in front of the masked-LM output layer; in families with a
    prediction head, in front of every output layer."""

    def __init__(self, config: BertConfig, scope: str = "cls/predictions/transform/"):
        """Makes the variables; `scope` is a prefix of their names, ending in / unless it is part of the
        caller's scope."""
        super().__init__(name="transform")
        bias: layers.Bias = "zeros" if config.family_row.has_biases else "none"
        with tf.name_scope(scope):
            sizes_DW = config.hidden_size, config.table_width
            self.dense = layers.Dense("dense", *sizes_DW, config.initializer_range, bias)
            self.layer_norm = layers.LayerNorm(config.table_width, config.family_row.has_biases)

    def tensors(self) -> TransformWeights:
        return TransformWeights(self.dense.tensors(), self.layer_norm.tensors())


def transform(weights: TransformWeights, x: tf.Tensor, config: BertConfig) -> tf.Tensor:
    """Returns LayerNorm(activation(dense(x))), float32 [..., W], of x [..., D] in the compute dtype."""
    x = tf.cast(ACTIVATIONS[config.masked_lm_act].function(layers.dense(x, weights.dense)), tf.float32)
    return layers.layer_norm(x, weights.norm, config.layer_norm_eps)


class MaskedLMWeights(NamedTuple):
    """The weights of the masked-LM head: a dense layer with LayerNorm, then the word embedding table.

    Attributes:
      transform: weights of `transform`; None if the head has none.
      table: the word embeddings [V, W], in the compute dtype.
      output_bias: float32 [V]; None if the head has none.
    """

    transform: TransformWeights | None
    table: tf.Tensor
    output_bias: tf.Tensor | None


class LinearWeights(NamedTuple):
    """The weights of `linear`: output_weights [C, D] and output_bias [C], float32, and the prediction head of
    families that have one."""

    output_weights: tf.Tensor
    output_bias: tf.Tensor
    transform: TransformWeights | None = None


class MaskedLanguageModelHead(tf.keras.layers.Layer):
    """The variables of `masked_lm` except the table, which belongs to the embeddings."""

    def __init__(self, config: BertConfig):
        super().__init__(name="predictions")
        with tf.name_scope("cls/predictions"):
            self.transform = Transform(config, "transform") if config.use_cls_layer else None
            self.output_bias = None
            if config.use_prediction_bias:  # not cast like the kernels, since it is added to float32 logits
                self.output_bias = self.add_weight(
                    name="output_bias",
                    shape=(config.vocab_size,),
                    initializer="zeros",
                    experimental_autocast=False,
                )

    def tensors(self, word_embeddings_VW: tf.Variable) -> MaskedLMWeights:
        return MaskedLMWeights(
            None if self.transform is None else self.transform.tensors(),
            layers.read(word_embeddings_VW, self.compute_dtype, is_shared=True),
            None if self.output_bias is None else tf.convert_to_tensor(self.output_bias),
        )


class LinearHead(tf.keras.layers.Layer):
    """The variables of `linear`, under the scope of the caller, as in Google's heads."""

    def __init__(self, name: str, config: BertConfig, outputs: int, scale: float = 1.0):
        super().__init__(name=name, dtype="float32")
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(outputs, config.hidden_size),
            initializer=normal_initializer(scale * config.initializer_range),
        )
        self.output_bias = self.add_weight(name="output_bias", shape=(outputs,), initializer="zeros")
        self.transform = Transform(config) if config.family_row.has_prediction_head else None

    def tensors(self) -> LinearWeights:
        transform = None if self.transform is None else self.transform.tensors()
        parts = tf.convert_to_tensor(self.output_weights), tf.convert_to_tensor(self.output_bias)
        return LinearWeights(*parts, transform)


def pool(weights: layers.Affine, first: tf.Tensor, activation: str) -> tf.Tensor:
    """The pooler: a dense layer with activation on the vectors of [CLS]. Returns float32 [..., D] from
    vectors in the compute dtype; `weights` are [D, D] and [D], `activation` is the family's."""
    return pooled(tf.cast(layers.dense(first, weights), tf.float32), activation)


def pooled(x: tf.Tensor, activation: str) -> tf.Tensor:
    """Applies the activation of a family's pooler: tanh, or one of ACTIVATIONS."""
    return tf.tanh(x) if activation == "tanh" else ACTIVATIONS[activation].function(x)


def masked_lm(
    weights: MaskedLMWeights, sequence_BLD: tf.Tensor, positions_BP: tf.Tensor | int, config: BertConfig
) -> tf.Tensor:
    """Predicts the tokens at `positions_BP` (int32, in [0, L)), or at the first positions of each row if it
    is a number (an int, or an int32 scalar).

    Returns:
      Logits float32 [B, P, V].
    """
    if isinstance(positions_BP, int) or not len(positions_BP.shape):
        x_BPD = sequence_BLD[:, :positions_BP]
    else:
        x_BPD = layers.gather_positions(sequence_BLD, positions_BP)
    if weights.transform is not None:
        x_BPD = transform(weights.transform, x_BPD, config)
    batch, predictions, hidden = sizes(x_BPD)
    x_ND = tf.cast(tf.reshape(x_BPD, [-1, hidden]), sequence_BLD.dtype)
    # The product is in the compute dtype; bias, log-softmax and loss are float32.
    logits_NV = tf.cast(tf.matmul(x_ND, weights.table, transpose_b=True), tf.float32)
    if weights.output_bias is not None:
        logits_NV += weights.output_bias
    return tf.reshape(logits_NV, [batch, predictions, weights.table.shape[0]])


def before_linear(
    weights: LinearWeights, x: tf.Tensor, config: BertConfig, seed: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns the input of `linear` for x [..., D], after dropout: in families with a prediction head, the
    outputs of that."""
    x = x if weights.transform is None else transform(weights.transform, x, config)
    return dropout(x, config.hidden_dropout_prob, seed)


def linear(weights: LinearWeights, x: tf.Tensor) -> tf.Tensor:
    """Returns logits float32 [..., C] of x [..., D]: x @ output_weights^T + output_bias, in full float32."""
    product = layers.exact_matmul_2d(tf.cast(x, tf.float32), tf.transpose(weights.output_weights))
    return product + weights.output_bias


# -----------------------------------------------------------------------------------------------------------
# Models


class BertModel(tf.keras.Model):
    """An encoder with heads, as a list of stages.

    The input is a batch {input_ids, input_mask, segment_ids: int32 [B, L]}, with the optional features that
    `BertEncoder.stages` reads; others are ignored. `dropout_seed` is int32 [N], or None to switch dropout
    off. The result is a tuple of the float32 tensors named in `GIVES`, or the tensor itself if there is only
    one.
    """

    GIVES: ClassVar[tuple[str, ...]]
    POOLS: ClassVar[bool] = False  # the heads read the pooler; else it is not trained, and keeps its values
    DROPS: ClassVar[bool] = False  # the head has dropout

    def __init__(self, name: str, config: BertConfig, *options: Any, **named_options: Any):
        """Makes the encoder; the options are those of `BertEncoder`."""
        super().__init__(name=name)
        self._config = config
        self.encoder = BertEncoder(config, *options, **named_options)
        if not self.POOLS:
            self.encoder.freeze_pooler()

    @property
    def encoders(self) -> list[BertEncoder]:
        """The encoders in execution order."""
        return [self.encoder]

    def stages(self) -> list[Stage]:
        """Returns the encoder's stages, without the pooler unless it is read, then those of `_heads`."""
        found = self.encoder.stages(self._find_reads())
        return [*(found if self.POOLS else found[:-1]), *self._heads()]

    def seeds(self, dropout_seed: tf.Tensor | None) -> list:
        encoder_seed, head_seed = split_seed(dropout_seed, 2) if self.DROPS else (dropout_seed, None)
        found = self.encoder.seeds(encoder_seed)
        return [*(found if self.POOLS else found[:-1]), *[head_seed] * len(self._heads())]

    def _heads(self) -> list[Stage]:
        """Returns the stages of the heads."""
        raise NotImplementedError

    def _find_reads(self) -> FindReads | None:
        """Returns the function of the positions that the heads read; None: all."""
        return None

    def call(self, features, dropout_seed=None):
        return self.outputs_of(self.encoder.run(self, features, dropout_seed))

    def get_config(self) -> dict[str, Any]:
        """Returns the model's configuration in Keras' form."""
        return {"config": dataclasses.asdict(self._config)}

    def outputs_of(self, carried: Tensors) -> Any:
        """Returns the outputs of `call`, picked from the tensors of the stages."""
        found = tuple(carried[name] for name in self.GIVES)
        return found if len(found) > 1 else found[0]


# -----------------------------------------------------------------------------------------------------------
# Pre-training


def masked_lm_stage(encoder: BertEncoder, head: MaskedLanguageModelHead, config: BertConfig) -> Stage:
    """Returns the stage `masked_lm`, which shares the embeddings' table."""
    table_VW = encoder.word_embeddings

    def run(weights, carried, features, seed):
        logits_BPV = masked_lm(weights, carried["sequence"], encoder.predicted(features), config)
        return {"masked_lm_logits": logits_BPV}

    return Stage(
        "masked_lm",
        [*head.variables, table_VW],
        lambda: head.tensors(table_VW),
        run,
        ("sequence",),
        ("masked_lm_logits",),
        {"table": table_VW},
    )


class MaskedLMModel(BertModel):
    """BERT with a masked-LM head only: logits [B, P, V].

    The batch also has `masked_lm_positions` int32 [B, P]; without it see `varlen.predicted_first`. With
    `unpad` the logits are [Q, V] if the batch has `masked_lm_weights`, see `varlen.run`.
    """

    GIVES = ("masked_lm_logits",)

    def __init__(self, config: BertConfig, *options: Any, **named_options: Any):
        """Makes a model; the options are those of `BertEncoder`."""
        super().__init__("bert_masked_lm_model", config, *options, **named_options)
        self.masked_lm = MaskedLanguageModelHead(config)

    def _find_reads(self) -> FindReads:
        return of_masked_lm

    def _heads(self) -> list[Stage]:
        return [masked_lm_stage(self.encoder, self.masked_lm, self._config)]


class BertPretrainer(BertModel):
    """BERT with both pre-training heads: 336,226,108 parameters in 398 variables for BERT-large.

    The inputs are those of `MaskedLMModel`. Returns its logits and next-sentence logits [B, 2], or [B, S, 2]
    if the batch has `cls_positions` of S sequences per row.
    """

    GIVES = ("masked_lm_logits", "next_sentence_logits")
    POOLS = True

    def __init__(self, config: BertConfig, *options: Any, **named_options: Any):
        """Makes a model; the options are those of `BertEncoder`."""
        super().__init__("bert_pretrainer", config, *options, **named_options)
        self.masked_lm = MaskedLanguageModelHead(config)
        # Class 0: the second segment follows the first; class 1: it is a random one.
        with tf.name_scope("cls/seq_relationship"):
            self.next_sentence = LinearHead("seq_relationship", config, outputs=2)

    def _find_reads(self) -> FindReads:
        return of_pretraining

    def _heads(self) -> list[Stage]:
        def run(weights, carried, features, seed):
            return {"next_sentence_logits": linear(weights, carried["pooled"])}

        following = stage_of("next_sentence", self.next_sentence, run, ("pooled",), self.GIVES[1:])
        return [masked_lm_stage(self.encoder, self.masked_lm, self._config), following]


# -----------------------------------------------------------------------------------------------------------
# Fine-tuning


class SpanModel(BertModel):
    """BERT for extractive question answering: start and end logits [B, L].

    Variables of the head: cls/squad/output_weights [2, D], cls/squad/output_bias [2]; names of Google's
    run_squad.py.
    """

    GIVES = ("start_logits", "end_logits")

    def __init__(self, config: BertConfig, *options: Any, **named_options: Any):
        """Makes a model; the options are those of `BertEncoder`."""
        super().__init__("bert_span_model", config, *options, **named_options)
        with tf.name_scope("cls/squad"):
            self.head = LinearHead("squad", config, outputs=2)

    def _heads(self) -> list[Stage]:
        def run(weights, carried, features, seed):
            logits_BL2 = linear(weights, before_linear(weights, carried["sequence"], self._config))
            return {"start_logits": logits_BL2[..., 0], "end_logits": logits_BL2[..., 1]}

        return [stage_of("span", self.head, run, ("sequence",), self.GIVES)]


class SequenceModel(BertModel):
    """BERT for classification and regression of texts and pairs: logits [B, C], or [B, S, C] if the batch has
    `cls_positions` of S sequences per row.

    Variables of the head: output_weights [C, D], output_bias [C]; names of Google's run_classifier.py.
    """

    GIVES = ("logits",)
    POOLS = DROPS = True

    def __init__(
        self, config: BertConfig, outputs: int, *options: Any, head_scale: float = 1.0, **named_options: Any
    ):
        """Makes a model for `outputs` classes, or one score. The initial weights of its head are multiplied
        by `head_scale`; the options are those of `BertEncoder`."""
        super().__init__("bert_sequence_model", config, *options, **named_options)
        self.head = LinearHead("classifier", config, outputs, head_scale)

    def _find_reads(self) -> FindReads | None:
        return None if self._config.classifier_pooling == "mean" else of_sequences

    def _heads(self) -> list[Stage]:
        def run(weights, carried, features, seed):
            pooled = before_linear(weights, carried["pooled"], self._config, seed)
            return {"logits": linear(weights, pooled)}

        return [stage_of("classifier", self.head, run, ("pooled",), self.GIVES)]


class ChoiceModel(SequenceModel):
    """BERT for multiple choice: scores the G sequences of an example with a regression head."""

    def __init__(self, config: BertConfig, *options: Any, **named_options: Any):
        """Makes a model; the options are those of `SequenceModel`."""
        super().__init__(config, 1, *options, **named_options)

    def call(self, features, dropout_seed=None):
        """Returns logits float32 [B, G] of features int32 [B, G, L]."""
        batch, group, _ = sizes(features["input_ids"])
        return tf.reshape(super().call(_ungrouped(features), dropout_seed), [batch, group])


def _ungrouped(features: Tensors) -> Tensors:
    """Reshapes features of [B, G, L] tokens to B x G rows."""
    _, group, length = sizes(features["input_ids"])
    names = ("input_ids", "input_mask", "segment_ids", "position_ids")
    flat = {name: tf.reshape(features[name], [-1, length]) for name in names if name in features}
    if "example_weights" in features:
        flat["example_weights"] = tf.repeat(features["example_weights"], group)
    return {**features, **flat}


class TagModel(BertModel):
    """BERT for token classification: logits [B, L, C].

    Variables of the head: output_weights [C, D], output_bias [C], as in `SequenceModel`.
    """

    GIVES = ("tag_logits",)
    DROPS = True

    def __init__(
        self, config: BertConfig, outputs: int, *options: Any, head_scale: float = 1.0, **named_options: Any
    ):
        """Makes a model for `outputs` classes; the options are those of `SequenceModel`."""
        super().__init__("bert_tag_model", config, *options, **named_options)
        self.head = LinearHead("classifier", config, outputs, head_scale)

    def _heads(self) -> list[Stage]:
        def run(weights, carried, features, seed):
            sequence_BLD = before_linear(weights, carried["sequence"], self._config, seed)
            return {"tag_logits": linear(weights, sequence_BLD)}

        return [stage_of("tags", self.head, run, ("sequence",), self.GIVES)]


class EmbeddingModel(BertModel):
    """BERT for text embeddings: float32 [B, D], or [B, G, D] for examples of G texts with features int32
    [B, G, L]."""

    GIVES = ("vectors",)

    def __init__(self, config: BertConfig, pooling: str, *options: Any, **named_options: Any):
        """Makes a model; `pooling` of the vectors of a text's tokens is mean, cls or max; the other options
        are those of `BertEncoder`."""
        super().__init__("bert_embedding_model", config, *options, **named_options)
        self._pooling = pooling

    def call(self, features, dropout_seed=None):
        if features["input_ids"].shape.rank == 2:
            return super().call(features, dropout_seed)
        batch, group, _ = sizes(features["input_ids"])
        vectors_ND = super().call(_ungrouped(features), dropout_seed)
        return tf.reshape(vectors_ND, [batch, group, vectors_ND.shape[-1]])

    def _find_reads(self) -> FindReads | None:
        return of_sequences if self._pooling == "cls" else None

    def _heads(self) -> list[Stage]:
        def run(weights, carried, features, seed):
            sequence_BLD = carried["sequence"]
            if self._pooling == "cls":
                own_reads = of_sequences if self.encoder.narrow else None
                return {"vectors": tf.cast(_of_cls(sequence_BLD, features, own_reads), tf.float32)}
            pooled_by = _means if self._pooling == "mean" else _maxima
            return {"vectors": pooled_by(sequence_BLD, features)}

        return [stage_of("vectors", None, run, ("sequence",), self.GIVES)]

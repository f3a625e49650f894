"""TensorFlow: on CPUs oneDNN's fused operations if available, else the model's stages without padding."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official import native
from official.config import BertConfig, ConfigError
from official.inference import fused_bert
from official.inference.backends import Settings, free_memory
from official.inference.rows import Network, Outputs, Rows, attention_groups, join, padded
from official.inference.source import Source, head_outputs, make_network
from official.modeling import stages, varlen
from official.modeling.layers import Affine

_TYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "float32"}


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network. Raises ConfigError if a weight is missing or cannot be read."""
    network = _build(source, head, settings)
    # At its first call TensorFlow optimizes the graph, in memory that it does not return.
    network(_one_token(head))
    free_memory()
    return network


def _build(source: Source, head: str, settings: Settings) -> Network:
    take_threads(settings.threads)
    # oneDNN's operations compute on the CPU, those in 8 bits on a machine with a GPU, too.
    is_for_cpu = settings.dtype == "int8" or not native.on_gpus()
    if is_for_cpu and source.bert.block_type == "bert" and fused_bert.are_here(_TYPES[settings.dtype]):
        return _fused(source, head, settings)
    if settings.dtype == "int8":
        problem = "TensorFlow needs BERT's blocks and a CPU with oneDNN. Take another --backend or --dtype."
        raise ConfigError(f"dtype=int8: {problem}")
    return _staged(source, head, settings)


def _one_token(head: str | None = None) -> Rows:
    """Returns a sequence of one token, which is masked for the head `fill_mask`."""
    masked_M = np.zeros(1, np.int32) if head == "fill_mask" else None
    return join([np.zeros(1, np.int32)])._replace(masked_M=masked_M)


def take_threads(threads: int | None) -> None:
    """Sets the number of threads of matrix products. Raises ConfigError if TensorFlow already has another
    one."""
    threading = tf.config.threading
    is_other = threads not in (None, threading.get_intra_op_parallelism_threads())
    try:
        if is_other:
            threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(1)  # a chain of operations, none of them concurrent
    except RuntimeError:
        if is_other:
            problem = "TensorFlow already runs in this process with another number of threads."
            raise ConfigError(f"threads={threads}: {problem} Load this model first.") from None


def batch_of(rows: Rows, heads: int) -> dict[str, np.ndarray]:
    """Returns rows in the format of `fused_bert`: tokens, their positions, and their indices in attention."""
    firsts_N = rows.firsts_N
    batch = {
        "ids_T": rows.ids_T,
        "segments_T": rows.segments_T,
        "positions_T": np.arange(len(rows.ids_T)) - np.repeat(firsts_N, rows.lengths_N),
        "firsts_N": firsts_N,
        "masked_M": np.zeros(0, np.int32) if rows.masked_M is None else rows.masked_M,
        **attention_groups(rows, heads),
    }
    return {name: values.astype(np.int32) for name, values in batch.items()}


# Compiled encoders, batches of `batch_of` -> [T, D], shared by the networks of all heads of a model: by type
# and the identity of the source, which they keep alive.
_ENCODERS: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()


def _fused(source: Source, head: str, settings: Settings) -> Network:
    """Returns a network of oneDNN's operations. Raises ConfigError if int8 is not supported."""
    bert, dtype, numbers = source.bert, _TYPES[settings.dtype], tf.TensorSpec([None], tf.int32)
    weights = fused_bert.Weights(source.values, source.tensors.__contains__, dtype)
    encoder = _encoder(source, weights, settings)
    finish = tf.function(fused_bert.head_of(weights, head, bert), autograph=False).get_concrete_function(
        tf.TensorSpec([None, bert.hidden_size], dtype), numbers, numbers
    )

    def network(rows: Rows) -> Outputs:
        batch = _constants(rows, source.bert)
        outputs = finish(encoder(**batch), batch["firsts_N"], batch["masked_M"])
        return {name: values.numpy() for name, values in outputs.items()}

    return network


def _encoder(source: Source, weights: fused_bert.Weights, settings: Settings) -> Callable[..., tf.Tensor]:
    """Returns the encoder of a model; in 8 bits, where the ranges are those of the head's sequences, a
    separate one."""
    bert, key, is_int8 = source.bert, (id(source), settings.dtype), settings.dtype == "int8"
    encoder = _ENCODERS.get(key)
    if encoder is None:
        dense: fused_bert.Dense = fused_bert.dense
        read = fused_bert.read_encoder(weights, bert)
        if is_int8:
            read, dense = _quantised(read, bert, settings.calibration), fused_bert.dense_int8
        encode = lambda **batch: fused_bert.encode(read, bert, weights.dtype, dense, batch)
        encoder = _compiled(encode, batch_of(_one_token(), bert.num_attention_heads))
        if not is_int8:
            _ENCODERS[key] = encoder
    return encoder


def _constants(rows: Rows, bert: BertConfig) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in batch_of(rows, bert.num_attention_heads).items()}


def _quantised(
    encoder: fused_bert.Encoder, bert: BertConfig, calibration: Sequence[Rows]
) -> fused_bert.Encoder:
    """Returns an encoder whose blocks are in 8 bits, with ranges from the inputs of products in these
    batches."""
    if not fused_bert.has_integers():
        problem = "TensorFlow has no integer products on this CPU. Take another --backend or --dtype."
        raise ConfigError(f"dtype=int8: {problem}")

    def ranges_of(**batch: tf.Tensor) -> list[tf.Tensor]:
        ranges = []

        def dense(x: tf.Tensor, *arguments: Any) -> tf.Tensor:
            ranges.append(tf.stack([tf.reduce_min(x, axis=0), tf.reduce_max(x, axis=0)]))
            return fused_bert.dense(x, *arguments)

        fused_bert.encode(encoder, bert, "float32", dense, batch)
        return ranges

    measure = _compiled(ranges_of, batch_of(_one_token(), bert.num_attention_heads))
    found = [[values.numpy() for values in measure(**_constants(rows, bert))] for rows in calibration]
    ranges = iter(zip(*found))  # per product: ranges of all batches
    blocks = [
        fused_bert.Block._make(
            fused_bert.quantise(part, next(ranges)) if isinstance(part, Affine) else part for part in block
        )
        for block in encoder.blocks
    ]
    return encoder._replace(blocks=blocks)


def _compiled(function: Callable, example: dict[str, np.ndarray]) -> Callable:
    """Returns the function traced once, for batches of all sizes that have the names and types of one."""
    signature = {
        name: tf.TensorSpec([None] * values.ndim, values.dtype, name=name) for name, values in example.items()
    }
    return tf.function(function, autograph=False).get_concrete_function(**signature)


def _staged(source: Source, head: str, settings: Settings) -> Network:
    """Returns a network of the model's stages."""
    # Only for blocks whose attention over long rows is faster this way; oneDNN has no operations for them.
    is_native = source.bert.block_type == "modernbert" and native.unavailable() is None
    kernels = "native" if is_native else "plain"
    with tf.variable_creator_scope(stages.symbolic_variable):  # nothing to be replaced
        model = make_network(source.bert, head, source.classes, settings.dtype, kernels)
    copies = stages.copies_without_values(model, tf.as_dtype(_TYPES[settings.dtype]))
    source.fill(model, copies)

    def inputs_of(rows: Rows) -> dict[str, np.ndarray]:
        if head != "fill_mask":
            rows = rows._replace(masked_M=None)
        counts = {"classify": len(rows.lengths_N), "fill_mask": int(rows.masked_counts_N.sum())}
        return {**padded(rows), "count": np.array(counts.get(head, len(rows.ids_T)), np.int32)}

    def compute(count: tf.Tensor, **batch: tf.Tensor) -> dict[str, tf.Tensor]:
        with stages.reading_copies(copies):
            found = head_outputs(stages.run(model, varlen.lay_end_to_end(batch).features, None), head)
        return {name: tf.cast(values[0, :count], tf.float32) for name, values in found.items()}

    run = _compiled(compute, inputs_of(_one_token(head)))

    def network(rows: Rows) -> Outputs:
        return run(**{name: tf.constant(values) for name, values in inputs_of(rows).items()})

    return network

"""TensorFlow: oneDNN's fused operations where there are such, else the model of modeling without padding."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from official.config import BertConfig
from official.inference import fused_bert, networks, onednn, places
from official.inference.backends import Network, Outputs, Settings
from official.inference.rows import Rows
from official.inference.source import Source
from official.modeling import stages

DTYPES = ("fp32", "bf16")
_TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network. Raises ConfigError where a weight is missing or cannot be read."""
    take_threads(settings.threads)
    if source.bert.block_type == "bert" and onednn.are_here():
        return _fused(source, head, settings)
    return _staged(source, head, settings)


def take_threads(threads: int | None) -> None:
    """Gives products so many threads, where TensorFlow has not begun to compute yet."""
    try:
        tf.config.threading.set_inter_op_parallelism_threads(1)  # a chain: no two operations at once
        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:
        pass


def batch_of(rows: Rows, heads: int) -> dict[str, np.ndarray]:
    """Returns rows as `fused_bert` takes them: tokens, their positions, and where they stand in attention."""
    found = places.find(rows, heads)
    firsts_N = rows.firsts_N
    batch = {
        "ids_T": rows.ids_T,
        "segments_T": rows.segments_T,
        "positions_T": np.arange(len(rows.ids_T)) - np.repeat(firsts_N, rows.lengths_N),
        "firsts_N": firsts_N,
        "masked_M": np.zeros(0, np.int32) if rows.masked_M is None else rows.masked_M,
        "firsts_T": found.firsts_T,
        "widths_T": found.widths_T,
        "used": np.array(found.used),
    }
    for number, group in enumerate(found.groups):
        batch |= {f"tokens_{number}": group.tokens_NW, f"lengths_{number}": group.lengths_N}
    return {name: values.astype(np.int32) for name, values in batch.items()}


def _fused(source: Source, head: str, settings: Settings) -> Network:
    bert, dtype = source.bert, _TYPES[settings.dtype]
    weights = fused_bert.read_weights(source.values, bert, head, source.tensors.__contains__, dtype)
    compute = _compiled(_forward(weights, bert, head, dtype), bert)

    def network(rows: Rows) -> Outputs:
        batch = {
            name: tf.constant(values) for name, values in batch_of(rows, bert.num_attention_heads).items()
        }
        return {name: values.numpy() for name, values in compute(**batch).items()}

    return network


def _forward(weights: fused_bert.Weights, bert: BertConfig, head: str, dtype: str) -> Callable:
    def forward(**batch):
        layout = fused_bert.lay_out(batch, places.GROUPS, bert.num_attention_heads, dtype)
        x_TD = tf.cast(fused_bert.embed(weights.embeddings, batch, bert.layer_norm_eps), dtype)
        for block in weights.blocks:
            x_TD = fused_bert.run_block(x_TD, block, layout, bert, onednn.dense)
        return fused_bert.finish(head, weights.head, x_TD, batch, bert)

    return forward


def _compiled(forward: Callable, bert: BertConfig) -> Callable:
    """Returns a function traced once, for batches of all sizes."""
    example = batch_of(Rows(*np.zeros((2, 1), np.int32), np.ones(1, np.int32)), bert.num_attention_heads)
    signature = {
        name: tf.TensorSpec([None] * values.ndim, tf.int32, name=name) for name, values in example.items()
    }
    return tf.function(forward, autograph=False).get_concrete_function(**signature)


def _staged(source: Source, head: str, settings: Settings) -> Network:
    classes = source.tensors["output_weights"].shape[0] if head == "classify" else 0
    model = networks.make(source.bert, head, classes)
    source.fill(model)

    @tf.function(autograph=False, reduce_retracing=True)
    def compute(batch):
        return stages.run(model, batch, None)

    def network(rows: Rows) -> Outputs:
        batch = networks.padded(rows)
        features = {name: tf.constant(values) for name, values in batch.items()}
        return _outputs(compute(features), batch, head, rows)

    return network


def _outputs(carried, batch: dict[str, np.ndarray], head: str, rows: Rows) -> Outputs:
    is_token_BL = batch["input_mask"] > 0
    if head == "classify":
        return {"logits": carried["logits"].numpy()}
    if head == "fill_mask":
        counts_B = np.bincount(networks.sequences_of(rows, rows.masked_M), minlength=len(rows.lengths_N))
        logits_BPV = carried["masked_lm_logits"].numpy()
        return {"logits": logits_BPV[np.arange(logits_BPV.shape[1]) < counts_B[:, None]]}
    names = ("start_logits", "end_logits") if head == "answer" else ("sequence",)
    return {name: carried[name].numpy()[is_token_BL] for name in names}

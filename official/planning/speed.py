"""The time of a step or a forward pass, from what its graph does and what a machine was measured to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from official.config import BertConfig
from official.io.errors import ConfigError
from official.modeling import stages
from official.modeling.encoder import BertEncoder
from official.modeling.fine_tuning import SequenceModel, SpanModel
from official.planning import executor, graph_cost
from official.planning.machine import Machine
from official.planning.timeline import Timed

ALL_REDUCE, CALLS = "all-reduce", "calls"
_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_MODELS: dict[str, Any] = {
    "encoder": BertEncoder,
    "squad": SpanModel,
    "glue": lambda bert, **options: SequenceModel(bert, 2, **options),
}


class Prediction(NamedTuple):
    """A time, and what it is made of.

    Attributes:
      secs: of a step or a forward pass.
      parts: {part: seconds}, whose sum is that, the largest first.
    """

    secs: float
    parts: dict[str, float]


def predict(timeline: Sequence[Timed], machine: Machine) -> Prediction:
    """Predicts how long operations take on one device.

    Args:
      timeline: what `timeline.timeline` returns.
      machine: as it was measured.

    Raises:
      ConfigError: where the machine's file has no products of the type.
    """
    jobs = []
    for work, runs, part, after in timeline:
        secs, cores = machine.alone(work)
        jobs.append(executor.Job(runs * secs, cores, part, after))
    return _prediction({**executor.run(jobs, machine.processor.cores), CALLS: machine.call_secs})


def predict_step(
    cost: graph_cost.Cost, machine: Machine, replicas: int = 1, sharing: int = 1, sent_bytes: int = 0
) -> Prediction:
    """Predicts an optimizer step, or a batch of an evaluation.

    Args:
      cost: of one replica.
      machine: as it was measured.
      replicas: of the run; where there are several, they add up their gradients.
      sharing: replicas that compute on one machine, as logical devices do.
      sent_bytes: of the gradients that a replica adds to the all-reduce; 0 without training.

    Raises:
      ConfigError: where the machine's file has no products of the type.
    """
    own = predict(cost.timeline, machine)
    parts = {name: secs * (1 if name == CALLS else sharing) for name, secs in own.parts.items()}
    if replicas > 1 and machine.all_reduce_gb_per_sec:
        # A ring sends and receives 2 (n - 1) / n of the gradient.
        moved = 2 * (replicas - 1) / replicas * sent_bytes
        parts[ALL_REDUCE] = moved / (machine.all_reduce_gb_per_sec * 1e9)
    return _prediction(parts)


def predict_forward(
    bert: BertConfig,
    head: str,
    length: int,
    batch: int,
    dtype: str,
    machine: Machine,
    fused: bool = True,
) -> Prediction:
    """Predicts a forward pass without dropout.

    Args:
      bert: sizes of the model.
      head: encoder (vectors of all tokens and the pooler's), squad or glue.
      length: tokens of a row. Of rows of several lengths laid end to end, their mean.
      batch: rows.
      dtype: fp32, bf16 or fp16.
      machine: as it was measured.
      fused: takes the operations of `--fused_ops`.

    Raises:
      ConfigError: for a dtype that is none of these, or that the machine's file has no products of.
    """
    if dtype not in _POLICIES:
        raise ConfigError(f"no prediction for dtype={dtype}, only for {', '.join(_POLICIES)}.")
    spec = tf.TensorSpec([None, length], tf.int32)
    features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), spec)
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(_POLICIES[dtype])
    try:
        cost = graph_cost.forward_cost(
            lambda: _MODELS[head](bert, fused=fused),
            lambda model: stages.run(model, graph_cost.symbolic_batch(features, batch), None),
        )
    finally:
        tf.keras.mixed_precision.set_global_policy(before)
    return predict(cost.timeline, machine)


def _prediction(parts: dict[str, float]) -> Prediction:
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return Prediction(sum(ordered.values()), ordered)

"""Allocation of a model's parts to devices, in the words of Graphcore's logs."""

from __future__ import annotations

from official.distribution.pipelining.placement import layers_of
from official.distribution.pipelining.plan import PipelinePlan

_PARTS = {
    "embeddings": "Embedding",
    "pooler": "Pooler",
    "masked_lm": "Classifier",
    "span": "Classifier",
    "classifier": "Classifier",
}


def allocation(plan: PipelinePlan) -> list[tuple[str, int]]:
    """Returns (part, device) in the order of Graphcore's PyTorch program.

    Source: examples v3.4.1 nlp/bert/pytorch/modeling.py.
    """
    names = [name for stage in plan.stages for name in stage]
    layers = layers_of(names)
    parts = [("Embedding", "embeddings")]
    parts += [(f"Encoder {number:<2}", name) for number, name in enumerate(layers)]
    parts += [(_PARTS[name], name) for name in names if name in _PARTS and name != "embeddings"]
    return [(part, plan.device_of(name)) for part, name in parts]

"""A fake of Graphcore's TensorFlow 2.6 IPU API: refuses what the real one refuses, and trains on the CPU.

    with ipu_fake.installed(ipus=4):
        from tensorflow.python import ipu

It has what an IPU run calls and nothing else: configuration, strategy, queues, pipelines, embedded runtime,
popdist. What the published sources leave open is strict here, and marked "not in the sources read".
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.graphcore.ipu_fake import application, machine, pipelining, queues, replicas, strategy

PACKAGE = "tensorflow.python.ipu"
# Module of the package -> (the fake's, names in it).
CONTENTS = {
    "config": (
        machine,
        ["IPUConfig", "DeviceConnectionType", "SchedulingAlgorithm", "StochasticRoundingBehaviour"],
    ),
    "utils": (machine, ["reset_ipu_seed"]),
    "ipu_strategy": (strategy, ["IPUStrategyV1"]),
    "ipu_infeed_queue": (queues, ["IPUInfeedQueue"]),
    "ipu_outfeed_queue": (queues, ["IPUOutfeedQueue"]),
    "gradient_accumulation": (pipelining, ["GradientAccumulationReductionMethod"]),
    "pipelining_ops": (pipelining, pipelining.NAMES),
    "cross_replica_ops": (replicas, ["cross_replica_sum"]),
    "application_compile_op": (application, ["experimental_application_compile_op"]),
    "embedded_runtime": (application, ["embedded_runtime_start", "embedded_runtime_call"]),
}


def _module(name: str, names: dict[str, Any]) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


def modules() -> dict[str, types.ModuleType]:
    """Returns the modules that are found by their names."""
    below = {
        name: _module(f"{PACKAGE}.{name}", {each: getattr(owner, each) for each in names})
        for name, (owner, names) in CONTENTS.items()
    }
    found = {
        PACKAGE: below,
        f"{PACKAGE}.distributed.popdist_strategy": {"PopDistStrategy": strategy.PopDistStrategy},
        "popdist": machine.popdist_names(),
        "popdist.tensorflow": {"set_ipu_config": machine.set_ipu_config},
    }
    return {name: _module(name, names) for name, names in found.items()}


@contextlib.contextmanager
def installed(ipus: int = 16, bytes_per_ipu: int | None = None) -> Iterator[machine.Machine]:
    """`from tensorflow.python import ipu` gives the fake inside, on a fresh machine.

    Args:
      ipus: IPUs of the machine, a power of two.
      bytes_per_ipu: memory for variables and sums of gradients on each IPU, None: without limit.

    Yields:
      The machine: what was configured and compiled can be read there.
    """
    fresh = machine.Machine(ipus, bytes_per_ipu)
    with mock.patch.dict(sys.modules, modules()), mock.patch.object(machine, "current", fresh):
        yield fresh

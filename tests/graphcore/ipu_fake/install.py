"""Puts the fake in the place of Graphcore's modules, and takes it away again."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

import tensorflow.python as tensorflow_python

from tests.graphcore.ipu_fake import (
    application,
    config,
    gradient_accumulation,
    machine,
    operations,
    pipelining,
    poprun,
    queues,
    replicas,
    strategy,
)

PACKAGE = "tensorflow.python.ipu"


def contents() -> dict[str, dict[str, Any]]:
    """Returns the modules of the package: dotted name below it -> names in it."""
    return {
        "config": config.module_names(),
        "gradient_accumulation": gradient_accumulation.module_names(),
        "ipu_strategy": strategy.module_names(),
        "ipu_infeed_queue": queues.infeed_names(),
        "ipu_outfeed_queue": queues.outfeed_names(),
        "ops": {},
        "ops.pipelining_ops": pipelining.module_names(),
        "ops.cross_replica_ops": replicas.module_names(),
        **operations.modules(),
        **application.modules(),
        **poprun.modules(),
    }


def package(name: str, names: dict[str, Any] | None = None) -> types.ModuleType:
    """Returns a package with these names, which `importlib` finds like one from a file."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    vars(made).update(names or {})
    return made


def modules() -> dict[str, types.ModuleType]:
    """Returns the modules of the fake by full name. Those of `ops` are also names of the package itself."""
    made = {PACKAGE: package(PACKAGE)}
    for name, names in contents().items():
        module = package(f"{PACKAGE}.{name}", names)
        parent, _, last = name.rpartition(".")
        setattr(made[f"{PACKAGE}.{parent}" if parent else PACKAGE], last, module)
        if parent == "ops":
            setattr(made[PACKAGE], last, module)
        made[module.__name__] = module
    return {**made, **popdist_modules()}


def popdist_modules() -> dict[str, types.ModuleType]:
    """Returns popdist and popdist.tensorflow."""
    below = package("popdist.tensorflow", {"set_ipu_config": poprun.set_ipu_config})
    popdist = package("popdist", {**poprun.popdist_names(), "tensorflow": below})
    return {"popdist": popdist, "popdist.tensorflow": below}


@contextlib.contextmanager
def installed(ipus: int = 16, bytes_per_ipu: int | None = None) -> Iterator[machine.Machine]:
    """`from tensorflow.python import ipu` gives the fake inside, on a fresh machine.

    Args:
      ipus: IPUs of the machine, a power of two.
      bytes_per_ipu: memory for variables and sums of gradients on each IPU, None: without limit.

    Yields:
      The machine: what was configured and compiled can be read there.
    """
    made = modules()
    before = {name: sys.modules.get(name) for name in made}
    attribute = getattr(tensorflow_python, "ipu", None)
    sys.modules.update(made)
    tensorflow_python.ipu = made[PACKAGE]
    try:
        yield machine.set_up(ipus, bytes_per_ipu)
    finally:
        machine.set_up(1, None)
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        if attribute is None:
            del tensorflow_python.ipu
        else:
            tensorflow_python.ipu = attribute

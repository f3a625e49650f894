"""Models as ONNX files, for the back ends that read them: made once and kept, see `cache`."""

import dataclasses
import functools
import hashlib
import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from official.checkpoint.containers import onnx_file
from official.checkpoint.errors import DamagedError
from official.inference.exported import cache, conversion, padding
from official.inference.exported.padding import Run
from official.inference.source import Source
from official.io.errors import ConfigError, how_to_install

_VERSION = 1  # of what is written; a change makes all files anew
_TOLERANCE = 1e-4  # of outputs around 1


def library(name: str, extra: str) -> Any:
    """Imports a package that a back end needs, and checks that those of an export are there, too.

    Raises:
      ConfigError: where one is missing.
    """
    try:
        conversion.libraries()
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or name).split(".")[0]
        raise ConfigError(
            f"--backend={extra} needs the package {missing}: {how_to_install(extra)}."
        ) from None


def file_of(source: Source, head: str, start: Callable[[str], Run], contrib: bool = False) -> str:
    """Returns the ONNX file of a model; makes it where it is not kept.

    Args:
      source: the model.
      head: one of `source.HEADS`.
      start: path -> what computes; with it a new file is compared with TensorFlow.
      contrib: with operations that only ONNX Runtime has.

    Raises:
      ConfigError: where a weight is missing or cannot be read, the file cannot be written, or computes
        something else than TensorFlow.
    """
    from official.inference.exported import rewriting  # imports onnx

    classes = source.tensors["output_weights"].shape[0] if head == "classify" else 0
    made_of = {
        "version": _VERSION,
        "packages": versions(),
        "model": dataclasses.asdict(source.bert),
        "weights": digest_of(source),
        "head": head,
        "contrib": contrib,
    }

    def make(folder: str) -> None:
        traced = conversion.trace(source.bert, head, classes)
        weights = _weights(source, traced.shapes)
        rewriting.write(folder, _translated(traced, weights, contrib), traced.inputs)
        _compare(traced, weights, start(os.path.join(folder, rewriting.NAME)), source)

    return os.path.join(cache.folder_of(made_of, make), rewriting.NAME)


def check_file(path: str) -> None:
    """Raises ConfigError for an ONNX file whose values are in files that are links, pipes or devices: what
    computes would follow them. To be called before it opens the file."""
    try:
        onnx_file.check_second_files(path)
    except DamagedError as error:
        raise ConfigError(f"{path} cannot be loaded: {error}.") from None


def versions() -> dict[str, str]:
    """Returns the versions of the packages that an export depends on."""
    onnx, tf2onnx = conversion.libraries()
    return {"onnx": onnx.__version__, "tf2onnx": tf2onnx.__version__}


def _translated(traced: conversion.Traced, weights: dict[str, np.ndarray], contrib: bool) -> Any:
    from official.inference.exported import rewriting

    graph = rewriting.graph_of(conversion.translate(traced), weights, traced.outputs)
    rewriting.simplify(graph)
    if contrib:
        rewriting.use_contrib(graph)
    return graph


def _weights(source: Source, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns the weights that a model has of a source."""
    weights: dict[str, np.ndarray] = {}
    variables = [
        SimpleNamespace(name=name, assign=functools.partial(weights.__setitem__, name)) for name in shapes
    ]
    source.fill(cast(Any, SimpleNamespace(variables=variables)))
    missing = sorted(set(shapes) - set(weights))
    if missing:
        raise ConfigError(f"{source.name} has no {missing[0]}.")
    return weights


def digest_of(source: Source) -> str:
    """Returns the sha256 of names, shapes and values of all tensors of a source."""

    def digest(name: str) -> str:
        values = np.ascontiguousarray(source.tensors[name].read())
        content = hashlib.sha256(values.view(np.uint8).data if values.size else b"").hexdigest()
        return f"{name} {values.shape} {values.dtype} {content}"

    with ThreadPoolExecutor() as pool:
        lines = list(pool.map(digest, sorted(source.tensors)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _compare(traced: conversion.Traced, weights: dict[str, np.ndarray], run: Run, source: Source) -> None:
    """Raises ConfigError where an export computes something else than TensorFlow."""
    feeds = padding.sample(traced.inputs)
    expected, computed = conversion.reference(traced, weights, feeds), run(feeds)
    for name, outputs in zip(traced.outputs, computed):
        largest = np.abs(expected[name]).max()
        difference = np.abs(expected[name] - outputs).max()
        if not difference <= _TOLERANCE * max(1.0, largest):
            raise ConfigError(
                f"{source.name} as an ONNX file computes other {name} than TensorFlow: up to {difference:.1g}"
                f" apart, expected {_TOLERANCE:g} at most. Use --backend=tensorflow."
            )

"""ONNX Runtime on the CPU. It has no products in bf16 there: they would be computed in fp32, and cast."""

import functools
from typing import Any

import numpy as np

from official.inference import exported
from official.inference.backends import Network, Settings
from official.inference.exported import padding
from official.inference.source import Source

DTYPES = ("fp32", "int8")


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network; see `backends`. For int8 it is calibrated with the rows of the settings."""
    return of_file(file_of(source, head, settings, contrib=True), head, settings.threads)


def file_of(source: Source, head: str, settings: Settings, contrib: bool) -> str:
    """Returns the ONNX file of a model; see `build` and `exported.file_of`. Raises ConfigError."""
    start = functools.partial(_session, exported.library("onnxruntime", "onnxruntime"), settings.threads)
    if settings.dtype == "int8":
        from official.inference.exported import calibration

        return calibration.file_of(source, head, settings, start)
    return exported.file_of(source, head, start, contrib)


def of_file(path: str, head: str, threads: int | None = None) -> Network:
    """Returns the network of an ONNX file. Raises ConfigError where ONNX Runtime is missing, or the file's
    values are in links."""
    return padding.network(_session(exported.library("onnxruntime", "onnxruntime"), threads, path), head)


def _session(runtime: Any, threads: int | None, path: str) -> padding.Run:
    exported.check_file(path)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or 0  # 0: as many as there are cores
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # what fails is raised
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return session.run(None, feeds)

    return run

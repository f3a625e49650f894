"""ONNX Runtime on the CPU. It has no products in bf16 there: they would be computed in fp32, and cast."""

from typing import Any

import numpy as np

from official.inference import exported
from official.inference.backends import Network, Settings
from official.inference.exported import padding
from official.inference.source import Source

DTYPES = ("fp32", "int8")


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network; see `backends`. For int8 it is calibrated with the rows of the settings."""
    runtime = exported.library("onnxruntime", "onnxruntime")

    def start(path: str) -> padding.Run:
        return _session(runtime, path, settings.threads)

    if settings.dtype == "int8":
        from official.inference.exported import calibration

        return padding.network(start(calibration.file_of(source, head, settings, start)), head)
    return padding.network(start(exported.file_of(source, head, start, contrib=True)), head)


def _session(runtime: Any, path: str, threads: int | None) -> padding.Run:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or 0  # 0: as many as there are cores
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # what fails is raised
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return session.run(None, feeds)

    return run

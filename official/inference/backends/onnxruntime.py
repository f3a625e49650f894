"""ONNX Runtime on the CPU. It has no products in bf16 there: they would be computed in fp32, and cast."""

import functools
from typing import Any

from official.inference.backends import Settings
from official.inference.onnx_files import check_file, file_of, int8_file_of, library
from official.inference.rows import Network, Run, padded_network
from official.inference.signatures import output_names
from official.inference.source import Source

DTYPES = ("fp32", "int8")


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network; see `backends`. For int8 it is calibrated with the rows of the settings."""
    return network_of(path_of(source, head, settings, contrib=True), head, settings.threads)


def path_of(source: Source, head: str, settings: Settings, contrib: bool) -> str:
    """Returns the ONNX file of a model; see `build` and `onnx_files.file_of`. Raises ConfigError."""
    start = functools.partial(_session, library("onnxruntime", "onnxruntime"), settings.threads)
    if settings.dtype == "int8":
        return int8_file_of(source, head, settings, start)
    return file_of(source, head, start, contrib)


def network_of(path: str, head: str, threads: int | None = None) -> Network:
    """Returns the network of an ONNX file. Raises ConfigError where ONNX Runtime is missing, or the file's
    values are in links."""
    session = _session(library("onnxruntime", "onnxruntime"), threads, path)
    return padded_network(session, head, output_names(head))


def _session(runtime: Any, threads: int | None, path: str) -> Run:
    check_file(path)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or 0  # 0: as many as there are cores
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # what fails is raised
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)

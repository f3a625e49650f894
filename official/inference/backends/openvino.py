"""OpenVINO on the CPU, of the same ONNX files as ONNX Runtime."""

from typing import Any

import numpy as np

from official.inference import exported
from official.inference.backends import Network, Settings
from official.inference.exported import padding
from official.inference.source import Source

DTYPES = ("fp32", "bf16", "int8")
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}  # int8: of what is not quantised


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network; see `backends`. For int8 it is calibrated with the rows of the settings, by ONNX
    Runtime."""
    library = exported.library("openvino", "openvino")

    def start(path: str, dtype: str = "fp32") -> padding.Run:
        return _compiled(library, path, dtype, settings.threads)

    if settings.dtype == "int8":
        from official.inference.exported import calibration

        path = calibration.file_of(source, head, settings, start)
    else:
        path = exported.file_of(source, head, start)
    return padding.network(start(path, settings.dtype), head)


def _compiled(library: Any, path: str, dtype: str, threads: int | None) -> padding.Run:
    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype]}
    if threads:
        properties["INFERENCE_NUM_THREADS"] = str(threads)
    exported.check_file(path)
    core = library.Core()
    model = core.compile_model(core.read_model(path), "CPU", properties)
    request = model.create_infer_request()

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        request.infer(feeds, share_inputs=True)
        return [tensor.data.copy() for tensor in request.output_tensors]

    return run

"""OpenVINO on the CPU, of the same ONNX files as ONNX Runtime."""

from collections.abc import Sequence

import numpy as np

from official.inference.backends import Settings
from official.inference.onnx_files import check_file, file_of, int8_file_of, library
from official.inference.rows import Network, Run, padded_network
from official.inference.signatures import output_names
from official.inference.source import Source

DTYPES = ("fp32", "bf16", "int8")
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}  # int8: of what is not quantised


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network; see `backends`. For int8 it is calibrated with the rows of the settings, by ONNX
    Runtime."""
    openvino = library("openvino", "openvino")

    def start(path: str, dtype: str = "fp32") -> Run:
        properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype]}
        if settings.threads:
            properties["INFERENCE_NUM_THREADS"] = str(settings.threads)
        check_file(path)
        core = openvino.Core()
        request = core.compile_model(core.read_model(path), "CPU", properties).create_infer_request()

        def run(feeds: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
            request.infer(feeds, share_inputs=True)
            return [tensor.data.copy() for tensor in request.output_tensors]

        return run

    is_int8 = settings.dtype == "int8"
    path = int8_file_of(source, head, settings, start) if is_int8 else file_of(source, head, start)
    return padded_network(start(path, settings.dtype), head, output_names(head))

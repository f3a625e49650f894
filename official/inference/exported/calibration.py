"""int8: dense products of ONNX files with weights and activations of 8 bits, by ONNX Runtime's own tool.

Weights have a scale for each column, activations one for the tensor, which the ranges in some rows give
("static"). The result says so in pairs of QuantizeLinear and DequantizeLinear, which both back ends read.

On x86 without VNNI two products of 8 bits are added in 16, which saturates: there weights have 7 bits.
Source: "Quantize ONNX models" of ONNX Runtime's documentation, on reduce_range.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from official.inference import exported
from official.inference.backends import Settings
from official.inference.exported import cache, conversion, padding
from official.inference.exported.padding import Run
from official.inference.rows import Rows
from official.inference.source import Source
from official.io.errors import ConfigError
from official.io.native_library import processor, saturates_int8

_VERSION = 4  # of what is written; a change makes all files anew
_SHARE = 3  # of this share of the blocks, the first, the feed-forward products are not quantised
_LAYERS = "layer_"  # the scopes whose products are quantised: not those of pooler and heads


class _Reader:
    """Hands batches to the tool one after the other."""

    def __init__(self, batches: Iterator[dict[str, np.ndarray]]):
        self._batches = batches

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def file_of(source: Source, head: str, settings: Settings, start: Callable[[str], Run]) -> str:
    """Returns the ONNX file of a model in int8; makes it where it is not kept.

    Raises:
      ConfigError: where the settings have no rows to calibrate with; and as `exported.file_of`.
    """
    if not settings.calibration:
        raise ConfigError(
            f"dtype=int8 of {settings.backend} needs rows to take the ranges of activations from, received"
            " none. Give Settings.calibration, or another dtype."
        )
    runtime = exported.library("onnxruntime", settings.backend)
    plain = exported.file_of(source, head, start)
    made_of = {
        "version": _VERSION,
        "packages": {"onnxruntime": runtime.__version__},
        "of": os.path.basename(os.path.dirname(plain)),
        "calibration": _digest_of(settings.calibration),
        **({"weight_bits": 7} if saturates_int8(processor()) else {}),
    }

    def make(folder: str) -> None:
        with _silence():
            _quantise(plain, os.path.join(folder, os.path.basename(plain)), settings.calibration)

    return os.path.join(cache.folder_of(made_of, make), os.path.basename(plain))


def _quantise(plain: str, path: str, rows: Sequence[Rows]) -> None:
    from onnxruntime import quantization

    quantization.quantize_static(
        plain,
        path,
        _Reader(feeds for each in rows for feeds in padding.batches(each)),
        quant_format=quantization.QuantFormat.QDQ,
        nodes_to_quantize=_products(plain),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        reduce_range=saturates_int8(processor()),
        # What the instructions of CPUs multiply: unsigned by signed.
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        use_external_data_format=True,
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"], "MatMulConstBOnly": True},
    )


def _products(path: str) -> list[str]:
    """Returns the names of the dense products of the encoder's blocks that are quantised.

    Before and behind the activation a few values are many times the others, in the first blocks most of all:
    there both products of the feed-forward layer stay in float32.
    """
    onnx, _ = conversion.libraries()
    graph = onnx.load(path, load_external_data=False).graph
    matrices = {each.name: each.dims for each in graph.initializer if len(each.dims) == 2}
    products = [
        node
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and node.name.startswith(_LAYERS)
    ]
    blocks = list(dict.fromkeys(_block_of(node.name) for node in products))
    first = set(blocks[: len(blocks) // _SHARE])
    sizes = {node.name: tuple(matrices[node.input[1]]) for node in products}
    inner = max(ins for ins, _ in sizes.values())
    return [
        name
        for name, (ins, outs) in sizes.items()
        if not (max(ins, outs) == inner and _block_of(name) in first)
    ]


def _block_of(name: str) -> str:
    return name.split("/")[0]


def _digest_of(rows: Sequence[Rows]) -> str:
    digest = hashlib.sha256()
    for each in rows:
        for values in each:
            digest.update(b"-" if values is None else repr(values.shape).encode() + values.tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Within it the tool does not tell what it does."""
    with conversion.silence(), contextlib.redirect_stdout(io.StringIO()):
        yield

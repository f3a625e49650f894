"""Models as ONNX files, for the back ends that read them: made once and kept in the user's cache."""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from official.checkpoint import DamagedError
from official.checkpoint.containers import onnx_file
from official.inference import onnx_conversion
from official.inference.backends import Settings
from official.inference.rows import Rows, Run, feeds_of, padded_groups
from official.inference.source import Source
from official.io import json_files, writing
from official.io.errors import ConfigError, how_to_install
from official.io.native_library import processor, saturates_int8

# -----------------------------------------------------------------------------------------------------------
# Files in float32


_FILE_VERSION = 1  # of what is written; a change makes all files anew
_TOLERANCE = 1e-4  # of outputs around 1


def library(name: str, extra: str) -> Any:
    """Imports a package that a back end needs, and checks that those of an export are there, too.

    Raises:
      ConfigError: where one is missing.
    """
    try:
        onnx_conversion.libraries()
        return importlib.import_module(name)
    except ImportError as error:
        package = (error.name or name).split(".")[0]
        told = f"--backend={extra} needs the package {package}: {how_to_install(extra)}."
        raise ConfigError(told) from None


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
    from official.inference import onnx_rewriting  # imports onnx

    made_of = {
        "version": _FILE_VERSION,
        "packages": versions(),
        "model": dataclasses.asdict(source.bert),
        "weights": digest_of(source),
        "head": head,
        "contrib": contrib,
    }

    def make(folder: str) -> None:
        traced = onnx_conversion.trace(source.bert, head, source.classes)
        weights = {name: source.values(name) for name in traced.shapes}
        graph = onnx_rewriting.graph_of(onnx_conversion.translate(traced), weights, traced.outputs)
        onnx_rewriting.simplify(graph)
        if contrib:
            onnx_rewriting.use_contrib(graph)
        onnx_rewriting.write(folder, graph, traced.inputs)
        _compare(traced, weights, start(os.path.join(folder, onnx_conversion.NAME)), source)

    return os.path.join(folder_of(made_of, make), onnx_conversion.NAME)


def check_file(path: str) -> None:
    """Raises ConfigError for an ONNX file whose values are in files that are links, pipes or devices: what
    computes would follow them. To be called before it opens the file."""
    try:
        onnx_file.check_second_files(path)
    except DamagedError as error:
        raise ConfigError(f"{path} cannot be loaded: {error}.") from None


def versions() -> dict[str, str]:
    """Returns the versions of the packages that an export depends on."""
    onnx, tf2onnx = onnx_conversion.libraries()
    return {"onnx": onnx.__version__, "tf2onnx": tf2onnx.__version__}


def digest_of(source: Source) -> str:
    """Returns the sha256 of names, shapes and values of all tensors of a source."""

    def digest(name: str) -> str:
        values = np.ascontiguousarray(source.tensors[name].read())
        content = hashlib.sha256(values.view(np.uint8).data if values.size else b"").hexdigest()
        return f"{name} {values.shape} {values.dtype} {content}"

    with ThreadPoolExecutor() as pool:
        lines = list(pool.map(digest, sorted(source.tensors)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _compare(traced: Any, weights: dict[str, np.ndarray], run: Run, source: Source) -> None:
    """Raises ConfigError where an export computes something else than TensorFlow."""
    generator = np.random.default_rng(1)
    lengths_N = np.array([11, 1, 6], np.int32)  # a small batch with padding
    ids_T, segments_T = (generator.integers(0, end, 18).astype(np.int32) for end in (5, 2))
    masked_M = np.array([1, 11, 17], np.int32) if "masked" in traced.inputs else None
    feeds = feeds_of(Rows(ids_T, segments_T, lengths_N, masked_M))
    expected, computed = onnx_conversion.reference(traced, weights, feeds), run(feeds)
    for name, outputs in zip(traced.outputs, computed):
        largest = np.abs(expected[name]).max()
        difference = np.abs(expected[name] - outputs).max()
        if not difference <= _TOLERANCE * max(1.0, largest):
            told = f"up to {difference:.1g} apart, expected {_TOLERANCE:g} at most. Use --backend=tensorflow."
            raise ConfigError(f"{source.name} as an ONNX file computes other {name} than TensorFlow: {told}")


# -----------------------------------------------------------------------------------------------------------
# Files in 8 bits
#
# Weights have a scale for each column, activations one for the tensor, which the ranges in some rows give
# ("static"). The result says so in pairs of QuantizeLinear and DequantizeLinear, which both back ends read.
#
# On x86 without VNNI two products of 8 bits are added in 16, which saturates: there weights have 7 bits.
# Source: "Quantize ONNX models" of ONNX Runtime's documentation, on reduce_range.


_INT8_VERSION = 4  # of what is written; a change makes all files anew
_SHARE = 3  # of this share of the blocks, the first, the feed-forward products are not quantised
_LAYERS = "layer_"  # the scopes whose products are quantised: not those of pooler and heads


def int8_file_of(source: Source, head: str, settings: Settings, start: Callable[[str], Run]) -> str:
    """Returns the ONNX file of a model in int8; makes it where it is not kept.

    Raises:
      ConfigError: where the settings have no rows to calibrate with; and as `file_of`.
    """
    if not settings.calibration:
        needs = f"dtype=int8 of {settings.backend} needs rows to take the ranges of activations from"
        raise ConfigError(f"{needs}, received none. Give Settings.calibration, or another dtype.")
    runtime = library("onnxruntime", settings.backend)
    plain = file_of(source, head, start)
    made_of = {
        "version": _INT8_VERSION,
        "packages": {"onnxruntime": runtime.__version__},
        "of": os.path.basename(os.path.dirname(plain)),
        "calibration": _digest_of(settings.calibration),
        **({"weight_bits": 7} if saturates_int8(processor()) else {}),
    }

    def make(folder: str) -> None:
        with onnx_conversion.silence(), contextlib.redirect_stdout(io.StringIO()):
            _quantise(plain, os.path.join(folder, os.path.basename(plain)), settings.calibration)

    return os.path.join(folder_of(made_of, make), os.path.basename(plain))


def _quantise(plain: str, path: str, rows: Sequence[Rows]) -> None:
    from onnxruntime import quantization

    batches = (feeds_of(each.pick(group)) for each in rows for group in padded_groups(each.lengths_N))

    class Batches(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(batches, None)

    quantization.quantize_static(
        plain,
        path,
        Batches(),
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
    onnx, _ = onnx_conversion.libraries()
    graph = onnx.load(path, load_external_data=False).graph
    matrices = {each.name: each.dims for each in graph.initializer if len(each.dims) == 2}
    sizes = {
        node.name: tuple(matrices[node.input[1]])
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and node.name.startswith(_LAYERS)
    }
    blocks = list(dict.fromkeys(name.split("/")[0] for name in sizes))
    first = blocks[: len(blocks) // _SHARE]
    inner = max(ins for ins, _ in sizes.values())
    return [name for name, size in sizes.items() if not (max(size) == inner and name.split("/")[0] in first)]


def _digest_of(rows: Sequence[Rows]) -> str:
    digest = hashlib.sha256()
    for each in rows:
        for values in each:
            digest.update(b"-" if values is None else repr(values.shape).encode() + values.tobytes())
    return digest.hexdigest()


# -----------------------------------------------------------------------------------------------------------
# Cache
#
# A folder is complete when it has a manifest.json, which says of what it was made and the sha256 of each
# file. What does not fit its manifest is made anew. Nothing but time is lost where a folder, or all, are
# removed.


MANIFEST = "manifest.json"


def folder_of(made_of: dict[str, Any], make: Callable[[str], None]) -> str:
    """Returns a folder with files, which are made where they are not there.

    Two processes may do this at once: both make them, and the first one's count.

    Args:
      made_of: all that the files depend on, as JSON.
      make: writes the files into an empty folder.

    Raises:
      ConfigError: where the folder cannot be written; and what `make` raises.
    """
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:24]
    folder = os.path.join(writing.folder(), "exports", key)
    if is_whole(folder):
        return folder
    with writing.naming_output(folder), writing.unpublished(folder) as work:
        make(work)
        files = {name: _digest(os.path.join(work, name)) for name in sorted(os.listdir(work))}
        manifest = {"made_of": made_of, "sha256": files}
        writing.replace_file(os.path.join(work, MANIFEST), json.dumps(manifest, indent=1, sort_keys=True))
        if not is_whole(folder):
            writing.publish_all(work, folder, MANIFEST)
    return folder


def is_whole(folder: str) -> bool:
    """Tells whether all files of a folder are there as they were written."""
    path = os.path.join(folder, MANIFEST)
    try:
        files = json_files.read_json(path).get("sha256") if os.path.exists(path) else None
        return isinstance(files, dict) and all(
            _digest(os.path.join(folder, name)) == digest for name, digest in files.items()
        )
    except (ConfigError, OSError):
        return False


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()

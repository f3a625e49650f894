"""Conversion of models to cached ONNX files, and the back ends that run them."""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from official.checkpoint import DamagedError
from official.checkpoint.containers import onnx_file
from official.config import BertConfig
from official.inference import backends
from official.inference.backends import Settings
from official.inference.rows import STEP, Network, Rows, feeds_of, padded_groups, padded_network
from official.inference.signatures import output_names
from official.inference.source import UNUSED_STAGES, Source, head_outputs, make_network, name_of
from official.io import json_files, quiet, writing
from official.io.errors import ConfigError, how_to_install
from official.io.files import sha256_of
from official.io.native_library import processor, saturates_int8
from official.modeling import stages

# -----------------------------------------------------------------------------------------------------------
# Conversion: TensorFlow's graph of a model, translated by tf2onnx
#
# The weights are inputs of that graph. So it is small, and a translation takes seconds at any size.


NAME = "model.onnx"
OPSET = 18  # newest version that tf2onnx writes
_WEIGHTS = "weights"  # scope of the inputs for weights


class Traced(NamedTuple):
    """A graph of TensorFlow.

    Attributes:
      graph_def: the graph, with an input for each weight.
      inputs: names of the other inputs: input_ids, input_mask and, in families with segments, segment_ids,
        int32 [B, L]; for fill_mask also masked, int32 [M], in [0, B x L).
      outputs: outputs of the head as in `rows.Network`, but [B, L, ...] instead of [T, ...].
      shapes: {variable name: shape} of the weights.
    """

    graph_def: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]


def libraries() -> tuple[Any, Any]:
    """Returns the packages onnx and tf2onnx. Raises ImportError if one is not installed."""
    # Otherwise tf2onnx copies the graph before each of its passes, which takes half of its time.
    os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "FALSE")
    with quiet.silence():
        import onnx
        import tf2onnx.convert

    return onnx, tf2onnx


def trace(bert: BertConfig, head: str, classes: int) -> Traced:
    """Returns the graph of a model, without values of weights; arguments as in `make_network`. Raises
    ConfigError for blocks that cannot be translated."""
    if bert.block_type == "modernbert":
        problem = "ModernBERT's attention over long rows is a loop, which tf2onnx does not translate"
        raise ConfigError(f"{problem}. Take --backend=tensorflow, or an export for TensorFlow.")
    with tf.Graph().as_default() as graph:
        model = make_network(bert, head, classes)
        names = ("input_ids", "input_mask", *(("segment_ids",) if bert.reads_segments else ()))
        inputs = {name: tf.compat.v1.placeholder(tf.int32, [None, None], name) for name in names}
        if head == "fill_mask":
            inputs["masked"] = tf.compat.v1.placeholder(tf.int32, [None], "masked")
        carried: dict[str, tf.Tensor] = {}
        features = inputs
        if bert.positions % STEP:  # rows may be padded beyond the table
            ids_BL = inputs["input_ids"]
            places_L = tf.minimum(tf.range(tf.shape(ids_BL)[1]), bert.positions - 1)
            features = {**inputs, "position_ids": places_L * tf.ones_like(ids_BL)}
        for stage in (each for each in model.stages() if each.name not in UNUSED_STAGES.get(head, ())):
            if stage.name == "masked_lm":  # all rows as one, without padding to the maximum number of masks
                carried["sequence"] = tf.reshape(carried["sequence"], [1, -1, bert.hidden_size])
                features = {"masked_lm_positions": inputs["masked"][None]}
            stages.run_one(stage, carried, features, None)
        for name, values in head_outputs(carried, head).items():
            tf.identity(values[0] if head == "fill_mask" else values, name)
        variables = {variable.handle.op.name: variable for variable in model.variables}
        graph_def, shapes = _with_weights_as_inputs(graph.as_graph_def(), variables, output_names(head))
    return Traced(graph_def, tuple(inputs), output_names(head), shapes)


def _with_weights_as_inputs(
    graph_def: Any, variables: dict[str, tf.Variable], outputs: tuple[str, ...]
) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Returns the operations that the outputs need, with an input in place of each variable, and the shapes
    of these variables."""
    changed, shapes = tf.compat.v1.GraphDef(), {}
    changed.versions.CopyFrom(graph_def.versions)
    with quiet.silence():
        needed = tf.compat.v1.graph_util.extract_sub_graph(graph_def, list(outputs))
    for node in needed.node:
        if node.op == "ReadVariableOp":
            variable = variables[node.input[0]]
            name = name_of(variable)
            if name not in shapes:
                shapes[name] = tuple(variable.shape)
                place = changed.node.add(name=f"{_WEIGHTS}/{name}", op="Placeholder")
                place.attr["dtype"].CopyFrom(node.attr["dtype"])
                place.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            read = changed.node.add(name=node.name, op="Identity", input=[f"{_WEIGHTS}/{name}"])
            read.attr["T"].CopyFrom(node.attr["dtype"])
        elif node.op != "VarHandleOp":
            changed.node.add().CopyFrom(node)
    return changed, shapes


def translate(traced: Traced) -> Any:
    """Returns the graph as an onnx.ModelProto. Its inputs are those of the graph; weights have the names of
    their variables. Its initializers are small constants."""
    _, tf2onnx = libraries()
    weights = {f"{_WEIGHTS}/{name}:0": name for name in traced.shapes}
    inputs, outputs = ([f"{name}:0" for name in names] for names in (traced.inputs, traced.outputs))
    with quiet.silence():
        model, _ = tf2onnx.convert.from_graph_def(
            traced.graph_def, "bert", [*inputs, *weights], outputs, opset=OPSET
        )
    names, graph = weights | {name: name.split(":")[0] for name in (*inputs, *outputs)}, model.graph
    for node in graph.node:
        for listed in (node.input, node.output):
            listed[:] = [names.get(name, name) for name in listed]
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name)
    return model


# -----------------------------------------------------------------------------------------------------------
# Networks


def build(source: Source, head: str, settings: Settings) -> Network:
    """Builds a network of ONNX Runtime or OpenVINO; see `backends`."""
    path = path_of(source, head, settings, contrib=settings.backend == "onnxruntime")
    return network_of(path, head, settings)


def network_of(path: str, head: str, settings: Settings) -> Network:
    """Returns the network of an ONNX file. Raises ConfigError if a package is missing, or the file's values
    are in links, pipes or devices, which the runtime would follow."""
    package = library(settings.backend, settings.backend)
    try:
        onnx_file.check_second_files(path)
    except DamagedError as error:
        raise ConfigError(f"{path} cannot be loaded: {error}.") from None
    if settings.backend == "onnxruntime":
        options = package.SessionOptions()
        options.intra_op_num_threads = settings.threads or 0  # 0: one per core
        options.graph_optimization_level = package.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 4  # errors are raised instead
        session = package.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return padded_network(lambda feeds: session.run(None, {name: feeds[name] for name in names}), head)
    precision = "bf16" if settings.dtype == "bf16" else "f32"  # for int8: of what is not quantised
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    if settings.threads:
        hints["INFERENCE_NUM_THREADS"] = str(settings.threads)
    core = package.Core()
    model = core.compile_model(core.read_model(path), "CPU", hints)
    request, names = model.create_infer_request(), [each.any_name for each in model.inputs]

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        request.infer({name: feeds[name] for name in names}, share_inputs=True)
        return [tensor.data.copy() for tensor in request.output_tensors]

    return padded_network(run, head)


def library(name: str, extra: str) -> Any:
    """Imports a package that a back end needs, and checks that those of an export are installed, too. Raises
    ConfigError for a missing one."""
    try:
        libraries()
        return importlib.import_module(name)
    except ImportError as error:
        package = (error.name or name).split(".")[0]
        problem = f"--backend={extra} needs the package {package}: {how_to_install(extra)}."
        raise ConfigError(problem) from None


# -----------------------------------------------------------------------------------------------------------
# Files in float32


_TOLERANCE = 1e-4  # for outputs around 1


def path_of(source: Source, head: str, settings: Settings, contrib: bool) -> str:
    """Returns the path of a model's ONNX file in a type; converts the model if the file is not cached.

    Args:
      source: the model.
      head: one of `source.HEADS`.
      settings: settings of the back end that compares a new file with TensorFlow. ONNX Runtime calibrates
        int8 with their rows.
      contrib: use operations that only ONNX Runtime has; not for int8.

    Raises:
      ConfigError: if a package or weight is missing, a weight cannot be read, the file cannot be written, or
        its outputs differ from TensorFlow's; for int8 also without calibration rows.
    """
    library(settings.backend, settings.backend)
    if settings.dtype == "int8":
        return _int8_path(source, head, settings)
    from official.inference import onnx_rewriting  # imports onnx

    made_of = {
        "version": 1,  # version of this file format; a change invalidates all files
        "packages": versions(),
        "model": dataclasses.asdict(source.bert),
        "weights": digest_of(source),
        "head": head,
        "contrib": contrib,
    }

    def make(folder: str) -> None:
        traced = trace(source.bert, head, source.classes)
        weights = {name: source.values(name) for name in traced.shapes}
        graph = onnx_rewriting.Graph(translate(traced), weights, traced.outputs)
        onnx_rewriting.simplify(graph)
        if contrib:
            onnx_rewriting.use_contrib(graph)
        onnx_rewriting.write(folder, graph, traced.inputs)
        network = network_of(os.path.join(folder, NAME), head, dataclasses.replace(settings, dtype="fp32"))
        for name, (apart, largest) in differences(source, head, network).items():
            if not apart <= _TOLERANCE * max(1.0, largest):
                by = f"by up to {apart:.1g}, allowed {_TOLERANCE:g}. Use --backend=tensorflow."
                raise ConfigError(f"{source.name}: {name} of the ONNX file differ from TensorFlow's {by}")

    return os.path.join(folder_of(made_of, make), NAME)


def versions() -> dict[str, str]:
    """Returns the versions of the packages that an export depends on."""
    onnx, tf2onnx = libraries()
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


def differences(source: Source, head: str, network: Network) -> dict[str, tuple[float, float]]:
    """Returns {output: (largest difference from TensorFlow's float32 network, largest value)} for random
    sequences of several lengths."""
    generator, bert = np.random.default_rng(1), source.bert
    lengths_N = np.minimum(np.array([37, 1, 12], np.int32), bert.positions)
    ends = bert.vocab_size, max(bert.type_vocab_size, 1)  # some families have no segments
    ids_T, segments_T = (generator.integers(0, end, lengths_N.sum()).astype(np.int32) for end in ends)
    masked_M = np.array([1, len(ids_T) - 1], np.int32) if head == "fill_mask" else None
    rows = Rows(ids_T, segments_T, lengths_N, masked_M)
    expected, computed = backends.build(source, head, Settings())(rows), network(rows)
    return {
        name: (float(np.abs(values - computed[name]).max()), float(np.abs(values).max()))
        for name, values in expected.items()
    }


# -----------------------------------------------------------------------------------------------------------
# Files in 8 bits
#
# Weights have a scale per column, activations one per tensor, from the ranges in some rows ("static"). The
# result contains pairs of QuantizeLinear and DequantizeLinear, which both back ends understand.
#
# On x86 without VNNI, two products of 8 bits are added in 16 bits and may saturate: weights have 7 bits.
# Source: "Quantize ONNX models" of ONNX Runtime's documentation, on reduce_range.


def _int8_path(source: Source, head: str, settings: Settings) -> str:
    runtime = library("onnxruntime", settings.backend)
    plain = path_of(source, head, dataclasses.replace(settings, dtype="fp32"), contrib=False)
    made_of = {
        "version": 4,  # see above
        "packages": {"onnxruntime": runtime.__version__},
        "of": os.path.basename(os.path.dirname(plain)),
        "calibration": _digest_of(settings.calibration),
        **({"weight_bits": 7} if saturates_int8(processor()) else {}),
    }

    def make(folder: str) -> None:
        with quiet.silence(), contextlib.redirect_stdout(io.StringIO()):
            _quantise(plain, os.path.join(folder, os.path.basename(plain)), settings.calibration)

    return os.path.join(folder_of(made_of, make), os.path.basename(plain))


def _quantise(plain: str, path: str, rows: Sequence[Rows]) -> None:
    from onnxruntime import quantization

    onnx, _ = libraries()
    inputs = [each.name for each in onnx.load(plain, load_external_data=False).graph.input]

    class Batches(quantization.CalibrationDataReader):
        batches = (feeds_of(each.pick(group)) for each in rows for group in padded_groups(each.lengths_N))

        def get_next(self) -> dict[str, np.ndarray] | None:
            feeds = next(self.batches, None)
            return feeds and {name: feeds[name] for name in inputs}

    quantization.quantize_static(
        plain,
        path,
        Batches(),
        quant_format=quantization.QuantFormat.QDQ,
        nodes_to_quantize=_products(plain),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        reduce_range=saturates_int8(processor()),
        # CPU instructions multiply unsigned by signed integers.
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        use_external_data_format=True,
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"], "MatMulConstBOnly": True},
    )


def _products(path: str) -> list[str]:
    """Returns the names of the dense products of the encoder's blocks that are quantised.

    Before and after the activation a few values are far larger than the others, especially in the first
    blocks: there both products of the feed-forward layer stay in float32.
    """
    onnx, _ = libraries()
    graph = onnx.load(path, load_external_data=False).graph
    matrices = {each.name: each.dims for each in graph.initializer if len(each.dims) == 2}
    sizes = {
        node.name: tuple(matrices[node.input[1]])
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and node.name.startswith("layer_")
    }
    blocks = list(dict.fromkeys(name.split("/")[0] for name in sizes))
    first = blocks[: len(blocks) // 3]
    inner = max(ins for ins, _ in sizes.values())
    return [name for name, size in sizes.items() if not (max(size) == inner and name.split("/")[0] in first)]


def _digest_of(rows: Sequence[Rows]) -> str:
    parts = (values for each in rows for values in each)
    whole = (b"-" if values is None else repr(values.shape).encode() + values.tobytes() for values in parts)
    return hashlib.sha256(b"".join(whole)).hexdigest()


# -----------------------------------------------------------------------------------------------------------
# Cache
#
# A folder is complete when it has a manifest.json, with its cache key and the sha256 of each file. A folder
# that does not match its manifest is made again. Removing one or all folders only costs time.


MANIFEST = "manifest.json"


def folder_of(made_of: dict[str, Any], make: Callable[[str], None]) -> str:
    """Returns a cached folder of files, and creates it if it is missing.

    If two processes create it at once, the folder of the first one is used.

    Args:
      made_of: JSON value of everything that the files depend on; the cache key.
      make: function that writes the files to an empty folder.

    Raises:
      ConfigError: if the folder cannot be written; also errors of `make`.
    """
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:24]
    folder = os.path.join(writing.folder(), "exports", key)
    if is_whole(folder):
        return folder
    with writing.naming_output(folder), writing.unpublished(folder) as work:
        make(work)
        files = {name: sha256_of(os.path.join(work, name)) for name in sorted(os.listdir(work))}
        manifest = {"made_of": made_of, "sha256": files}
        writing.replace_file(os.path.join(work, MANIFEST), json.dumps(manifest, indent=1, sort_keys=True))
        # One process at a time: in the midst of another's moves its files would count as old ones.
        with writing.locked(folder + ".lock", wait_secs=60):
            if not is_whole(folder):
                writing.publish_all(work, folder, MANIFEST)
    return folder


def is_whole(folder: str) -> bool:
    """Returns whether all files of a folder exist and match their sha256 in manifest.json."""
    try:
        files = json_files.read_json(os.path.join(folder, MANIFEST)).get("sha256")
        paths = {os.path.join(folder, name): digest for name, digest in files.items()}
        return all(sha256_of(path) == digest for path, digest in paths.items())
    except (ConfigError, OSError, AttributeError):  # a manifest of another format
        return False

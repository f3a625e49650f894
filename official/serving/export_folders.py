"""Folders of exports: a SavedModel or an ONNX file, with what belongs to it, compared with the model."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from official import config as config_lib
from official.inference import Model, onnx_conversion, onnx_files
from official.inference.backends import Settings, build, onnxruntime
from official.inference.graph_methods import GraphModel
from official.inference.methods import pooling_of_source
from official.inference.rows import Rows
from official.inference.signatures import main_method, output_names
from official.inference.source import Source
from official.io import model_folder, vocabulary_files, writing
from official.io.errors import ConfigError
from official.io.model_folder import POOLING_MODES, Pooling

if TYPE_CHECKING:
    from official.serving.export import Request


# -----------------------------------------------------------------------------------------------------------
# Files beside the weights


VERSION = 1  # of the manifest
MANIFEST = "export.json"
_MODULES = "sentence_transformers.models"
_PACKAGES = ("bert-tf2", "tensorflow", "tensorflow-text", "numpy")


def write_files(folder: str, source: Source, format: str, dtype: str, more: dict[str, Any]) -> None:
    """Writes the files of a model that are no weights.

    Args:
      folder: an existing one.
      source: the model.
      format, dtype: of the export.
      more: keys of the manifest beside those of all.
    """
    for name, content in _files(source).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        writing.replace_file(path, content)
    manifest = {**manifest_of(source, format, dtype), **more}
    writing.replace_file(os.path.join(folder, MANIFEST), _json(manifest))


def manifest_of(source: Source, format: str, dtype: str) -> dict[str, Any]:
    """Returns the content of export.json that every export has."""
    abilities = source.abilities()
    return {
        "version": VERSION,
        "format": format,
        "dtype": dtype,
        "method": main_method(abilities),
        "methods": abilities,
        "weights_sha256": onnx_files.digest_of(source),
        "vocabulary_sha256": source.vocabulary.sha256,
        "do_lower_case": source.vocabulary.do_lower_case,
        "labels": None if source.labels is None else list(source.labels),
        "unicode": unicodedata.unidata_version,
        "python": sys.version.split()[0],
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def vocabulary_text(source: Source) -> bytes:
    """Returns the vocabulary as a file: a word a line, as the model knows it."""
    return "".join(f"{word}\n" for word in source.vocabulary.words).encode()


def _files(source: Source) -> dict[str, bytes | str]:
    """Returns {name: content}."""
    bert, lower_case = source.bert, source.vocabulary.do_lower_case
    files: dict[str, bytes | str] = {
        vocabulary_files.VOCABULARY: vocabulary_text(source),
        vocabulary_files.TOKENIZER_CONFIG: vocabulary_files.tokenizer_config(lower_case, source.length()),
    }
    if source.run is None:
        files["bert_config.json"] = _json(dataclasses.asdict(bert))
    else:
        files["config.json"] = config_lib.to_json(source.run)
    if "classify" in source.abilities() and (source.labels or source.problem_type):
        files[model_folder.LABELS] = model_folder.labels_json(source.labels, source.problem_type)
    return {**files, **_pooling_files(source)}


def _pooling_files(source: Source) -> dict[str, str]:
    """Returns the pooling of tokens' vectors, in the files of sentence-transformers; none for what is
    usual."""
    pooling = pooling_of_source(source)
    if pooling == Pooling(max_length=source.length()):
        return {}
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalized else [])]
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": f"{_MODULES}.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    modes = {key: mode == pooling.mode for key, mode in POOLING_MODES.items()}
    return {
        "modules.json": _json(modules),
        "1_Pooling/config.json": _json(modes),
        "sentence_bert_config.json": _json({"max_seq_length": pooling.max_length}),
    }


def _json(values: Any) -> str:
    return json.dumps(values, indent=2) + "\n"


# -----------------------------------------------------------------------------------------------------------
# Comparison with the model


Call = Callable[..., dict[str, np.ndarray]]  # of inputs by their names

_CONTEXT = (
    "The first bridge over the river was built of wood in 1312. Ada Lovelace crossed it twice, and wrote of"
    " it in a letter to Charles Babbage: caf\u00e9s on both sides, \u6c34 below. It burned down in 1850."
)
_QUESTIONS = ("Who crossed the bridge?", "When did it burn down?")
_SENTENCES = ("It is a fine bridge.", "Nobody ever liked the old wooden bridge, and who would?", "")
_MASKED = ("The bridge was [MASK] of wood.", "[MASK] crossed the [MASK] in 1312.")


def difference(source: Source, calls: dict[str, Call]) -> float:
    """Returns the largest difference between an export's numbers and the model's; NaN where one is no number.

    A text that is chosen may be another where two are as good to the last bit; its score is compared.

    Args:
      source: the model.
      calls: the export's methods, {name: function}.
    """
    model = Model(source)
    found = [_KINDS[method](model, call) for method, call in calls.items() if method in _KINDS]
    return float(np.max([np.abs(ours - theirs).max() for ours, theirs in found]))


def _answers(model: Model, call: Call) -> tuple[np.ndarray, np.ndarray]:
    asked = [(question, _CONTEXT * times) for question in _QUESTIONS for times in (1, 4)]
    questions, contexts = zip(*asked)
    given = call(question=list(questions), context=list(contexts))["score"]
    return np.array([answer.probability for answer in model.answer_all(asked)]), given


def _labels(model: Model, call: Call) -> tuple[np.ndarray, np.ndarray]:
    if model.texts_of_a_row == 2:
        rows, second = [[text, _SENTENCES[0]] for text in _SENTENCES], [_SENTENCES[0]] * len(_SENTENCES)
    else:
        rows, second = [[text] for text in _SENTENCES], [""] * len(_SENTENCES)
    given = call(sentence_a=list(_SENTENCES), sentence_b=second)["score"]
    return np.array([label.score for label in model.classify_all(rows)]), given


def _vectors(model: Model, call: Call) -> tuple[np.ndarray, np.ndarray]:
    return model.embed(list(_SENTENCES)), call(text=list(_SENTENCES))["embedding"]


def _words(model: Model, call: Call) -> tuple[np.ndarray, np.ndarray]:
    scores = call(text=list(_MASKED))["scores"]
    words = [mask for masks in model.fill_masks(_MASKED) for mask in masks]
    ours = np.array([[word.probability for word in mask] for mask in words])
    return ours, scores[scores[..., 0] > 0]


_KINDS = {"answer": _answers, "classify": _labels, "embed": _vectors, "fill_mask": _words}


# -----------------------------------------------------------------------------------------------------------
# ONNX files, which take token ids and give outputs of a head


_MANIFEST_OF_CACHE = "manifest.json"


def write_onnx(source: Source, folder: str, request: Request) -> list[str]:
    """Writes model.onnx, its data, and what belongs to it. Returns the name of the head's method.

    Raises:
      ConfigError: where a package is missing, there is nothing to calibrate int8 with, or a weight cannot be
        read.
    """
    head = main_method(source.abilities())
    settings = Settings("onnxruntime", request.dtype)
    if request.dtype == "int8":
        settings = Model(source, settings, request.calibration_file).settings_of(head)
    made = onnxruntime.path_of(source, head, settings, contrib=False)
    kept = shutil.ignore_patterns(_MANIFEST_OF_CACHE)
    shutil.copytree(os.path.dirname(made), folder, ignore=kept)
    inputs = ("input_ids", "input_mask", "segment_ids", *(("masked",) if head == "fill_mask" else ()))
    described = {head: {"inputs": list(inputs), "outputs": list(output_names(head))}}
    write_files(
        folder, source, "onnx", request.dtype, {"signatures": described, "onnx": onnx_files.versions()}
    )
    return [head]


def compare_onnx(source: Source, folder: str) -> float:
    """Runs what was written, and returns the largest difference between its outputs and the model's."""
    head = main_method(source.abilities())
    rows = _rows(source, head)
    theirs = onnxruntime.network_of(os.path.join(folder, onnx_conversion.NAME), head)(rows)
    ours = build(source, head, Settings())(rows)
    return float(np.max([np.abs(ours[name] - theirs[name]).max() for name in ours]))


def _rows(source: Source, head: str) -> Rows:
    """Returns made-up sequences of several lengths."""
    generator = np.random.default_rng(1)
    lengths_N = np.minimum(np.array([37, 1, 12], np.int32), source.bert.max_position_embeddings)
    ids_T = generator.integers(0, source.bert.vocab_size, lengths_N.sum()).astype(np.int32)
    segments_T = np.zeros_like(ids_T)
    masked_M = np.array([1, len(ids_T) - 1], np.int32) if head == "fill_mask" else None
    return Rows(ids_T, segments_T, lengths_N, masked_M)


# -----------------------------------------------------------------------------------------------------------
# SavedModels


_EXTRA = "assets.extra"
_DEFAULT = "serving_default"


def write_saved_model(source: Source, folder: str, request: Request) -> list[str]:
    """Writes a SavedModel and what belongs to it. Returns the names of its signatures.

    Raises:
      ConfigError: where a weight is missing or cannot be read, or tensorflow-text cannot take the vocabulary.
    """
    with tempfile.TemporaryDirectory() as words:
        vocabulary = os.path.join(words, vocabulary_files.VOCABULARY)
        writing.replace_file(vocabulary, vocabulary_text(source))
        model = GraphModel(source, vocabulary, request.dtype)
        calls = {name: function.get_concrete_function() for name, function in model.functions.items()}
        main = main_method(source.abilities())
        try:
            tf.saved_model.save(model, folder, signatures={**calls, _DEFAULT: calls[main]})
        except tf.errors.OpError as error:
            raise ConfigError(f"{folder} cannot be written: {str(error).splitlines()[0][:200]}.") from None
    extra = os.path.join(folder, _EXTRA)
    os.makedirs(extra)
    described = {name: _described(function) for name, function in calls.items()}
    write_files(extra, source, "saved_model", request.dtype, {"signatures": described})
    return list(calls)


def _described(function: Any) -> dict[str, dict[str, list]]:
    """Returns {inputs: {name: [type, shape]}, outputs: ..} of a signature."""
    inputs = function.structured_input_signature[0] + tuple(function.structured_input_signature[1].values())
    outputs = function.structured_outputs
    return {
        "inputs": {spec.name: [spec.dtype.name, spec.shape.as_list()] for spec in inputs},
        "outputs": {name: [each.dtype.name, each.shape.as_list()] for name, each in outputs.items()},
    }


def compare_saved_model(source: Source, folder: str) -> float:
    """Loads what was written, and returns the largest difference between its outputs and the model's."""
    loaded = tf.saved_model.load(folder)
    calls = {name: _call(loaded.signatures[name]) for name in source.abilities()}
    return difference(source, calls)


def _call(function: Any) -> Call:
    def call(**inputs: list[str]) -> dict[str, np.ndarray]:
        outputs = function(**{name: tf.constant(values, tf.string) for name, values in inputs.items()})
        return {name: values.numpy() for name, values in outputs.items()}

    return call


# {format: (writes a folder, compares it with the model)}
WRITERS = {"saved_model": (write_saved_model, compare_saved_model), "onnx": (write_onnx, compare_onnx)}

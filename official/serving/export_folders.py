"""Writes the folder of an export (a SavedModel or an ONNX file, vocabulary, settings), and compares it with
the model."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.inference import Model, onnx_files
from official.inference.backends import Settings
from official.inference.graph_methods import GraphModel, only_ids_of
from official.inference.methods import answer_rules, classes_of, embedding_settings
from official.inference.rows import padded_network
from official.inference.signatures import SIGNATURES, TENSORS, main_method, output_names
from official.inference.source import Source
from official.io import model_folder, sentence_folder, vocabulary_files, writing
from official.io.errors import ConfigError, installed_versions
from official.io.json_files import written
from official.io.sentence_folder import EmbeddingSettings
from official.serving.server import protocols

if TYPE_CHECKING:
    from official.serving.export import Request


# -----------------------------------------------------------------------------------------------------------
# Files next to the weights


_EXTRA, MANIFEST = "assets.extra", "export.json"


def write_files(folder: str, source: Source, format: str, dtype: str, more: dict[str, Any]) -> None:
    """Writes vocabulary, settings and manifest of an export.

    Args:
      folder: an existing folder.
      source: the model.
      format, dtype: format and type of the export.
      more: additional keys of the manifest.
    """
    abilities, vocabulary = source.abilities(), source.vocabulary
    manifest = {
        "version": 1,  # of the manifest
        "format": format,
        "dtype": dtype,
        "method": main_method(abilities),
        "methods": abilities,
        "weights_sha256": onnx_files.digest_of(source),
        "vocabulary_sha256": vocabulary.sha256,
        "do_lower_case": vocabulary.do_lower_case,
        "labels": None if source.labels is None else list(source.labels),
        "unicode": unicodedata.unidata_version,
        "python": sys.version.split()[0],
        "packages": installed_versions("bert-tf2", "tensorflow", "tensorflow-text", "numpy"),
        **more,
    }
    words, length = vocabulary_text(source), source.length()
    files: dict[str, bytes | str] = {
        **vocabulary_files.with_settings(vocabulary, words, vocabulary.do_lower_case, length),
        **_sentence_files(source),
        MANIFEST: written(manifest),
    }
    if source.run is None:
        files["bert_config.json"] = written(dataclasses.asdict(source.bert))
    else:
        files["config.json"] = config_lib.to_json(_run_of(source))
    if {"classify", "tag"} & {*abilities} and (source.labels or source.problem_type):
        labels = model_folder.labels_json(source.labels, source.problem_type, source.thresholds)
        files[model_folder.LABELS] = labels
    for name, content in files.items():
        writing.put_file(os.path.join(folder, name), content)


def _run_of(source: Source) -> config_lib.Config:
    """Returns the settings of the run, with the windows that a model of another length reads."""
    if not source.max_seq_length or "answer" not in source.abilities():
        return source.run
    windows, _ = answer_rules(source)
    changed = {name: getattr(windows, name) for name in ("doc_stride", "max_query_length")}
    return config_lib.replaced(source.run, **changed)


def vocabulary_text(source: Source) -> bytes:
    """Returns the model's vocabulary in the form of vocab.txt, one word per line."""
    return "".join(f"{word}\n" for word in source.vocabulary.words).encode()


def _sentence_files(source: Source) -> dict[str, bytes]:
    """Returns the embedding settings as files of sentence-transformers; none for default settings."""
    settings = embedding_settings(source)
    if settings == EmbeddingSettings(max_seq_length=source.length()):
        return {}
    return sentence_folder.contents(settings, source.bert.hidden_size)


# -----------------------------------------------------------------------------------------------------------
# ONNX files, which take token ids and give outputs of a head


def write_onnx(source: Source, folder: str, request: Request) -> list[str]:
    """Writes model.onnx, its data, and the other files of the export. Returns the name of the head's method.

    Raises:
      ConfigError: if a package is missing, int8 has no calibration data, or a weight cannot be read.
    """
    head = main_method(source.abilities())
    settings = Settings("onnxruntime", request.dtype)
    if request.dtype == "int8":
        settings = Model(source, settings, request.calibration_file).settings_of(head)
    made = onnx_files.path_of(source, head, settings, contrib=False)
    shutil.copytree(os.path.dirname(made), folder, ignore=shutil.ignore_patterns(onnx_files.MANIFEST))
    segments, masked = ["segment_ids"][: source.bert.reads_segments], ["masked"][: head == "fill_mask"]
    inputs = ["input_ids", "input_mask", *segments, *masked]
    described = {head: {"inputs": inputs, "outputs": list(output_names(head))}}
    more = {"signatures": described, "onnx": onnx_files.versions()}
    write_files(folder, source, "onnx", request.dtype, more)
    return [head]


def compare_onnx(source: Source, folder: str) -> float:
    """Returns the largest difference between the outputs of the written ONNX file and of the model on random
    sequences."""
    head = main_method(source.abilities())
    network = onnx_files.network_of(os.path.join(folder, onnx_files.NAME), head, Settings("onnxruntime"))
    return float(np.max([apart for apart, _ in onnx_files.differences(source, head, network).values()]))


# -----------------------------------------------------------------------------------------------------------
# SavedModels


_CONTEXT = (
    "The first bridge over the river was built of wood in 1312. Ada Lovelace crossed it twice, and wrote of"
    " it in a letter to Charles Babbage: caf\u00e9s on both sides, \u6c34 below. It burned down in 1850."
)
_QUESTIONS = ("Who crossed the bridge?", "When did it burn down?")
_SENTENCES = ("It is a fine bridge.", "Nobody ever liked the old wooden bridge, and who would?", "")
_MASKED = ("The bridge was [MASK] of wood.", "[MASK] crossed the [MASK] in 1312.")


def write_saved_model(source: Source, folder: str, request: Request) -> list[str]:
    """Writes a SavedModel and the other files of the export. Returns the names of its signatures.

    Raises:
      ConfigError: if a weight is missing or cannot be read, or tensorflow-text does not support the
        vocabulary.
    """
    reason = only_ids_of(source)
    if reason is not None:
        logging.warning("%s: %s, so the SavedModel takes token ids, not text.", source.name, reason)
    with tempfile.TemporaryDirectory() as words:
        vocabulary = os.path.join(words, vocabulary_files.VOCABULARY)
        writing.replace_file(vocabulary, vocabulary_text(source))
        model = GraphModel(source, None if reason else vocabulary, request.dtype)
        calls = {name: function.get_concrete_function() for name, function in model.functions.items()}
        main = main_method(source.abilities())
        try:
            default = calls.get(main, calls[TENSORS])
            tf.saved_model.save(model, folder, signatures={**calls, "serving_default": default})
        except tf.errors.OpError as error:
            raise ConfigError(f"{folder} cannot be written: {str(error).splitlines()[0][:200]}.") from None
    extra = os.path.join(folder, _EXTRA)
    os.makedirs(extra)
    described = {}  # {name: {inputs: {name: [type, shape]}, outputs: ..}}
    for name, call in calls.items():
        inputs = call.structured_input_signature[0] + tuple(call.structured_input_signature[1].values())
        parts = {"inputs": {spec.name: spec for spec in inputs}, "outputs": call.structured_outputs}
        described[name] = {
            part: {key: [each.dtype.name, each.shape.as_list()] for key, each in specs.items()}
            for part, specs in parts.items()
        }
    write_files(extra, source, "saved_model", request.dtype, {"signatures": described})
    return list(calls)


def compare_saved_model(source: Source, folder: str) -> float:
    """Loads the written SavedModel and returns the largest difference between its outputs and the model's.

    Chosen texts may differ if two have the same score to the last bit, so scores are compared.
    """
    loaded, model = tf.saved_model.load(folder), Model(source)
    if only_ids_of(source):
        return _compare_tensors(source, loaded.signatures[TENSORS])
    can = source.abilities()
    second = _SENTENCES[0] if "classify" in can and classes_of(source).texts == 2 else ""
    columns: dict[str, list[Any]] = {
        "answer": list(zip(*((question, _CONTEXT * times) for question in _QUESTIONS for times in (1, 4)))),
        "classify": [_SENTENCES, [second] * len(_SENTENCES)],
        "embed": [_SENTENCES],
        "fill_mask": [_MASKED],
    }
    largest: list[float] = []
    for name in can:
        signature = SIGNATURES[name]
        inputs = {field.name: list(texts) for field, texts in zip(signature.inputs, columns[name])}
        call = protocols.call_of_texts(name, signature, inputs)
        ours = protocols.columns_of(call, signature, model.results(name, call.rows)[0])
        theirs = loaded.signatures[name](**{key: tf.constant(texts) for key, texts in inputs.items()})
        floats = [field.name for field in signature.outputs if field.dtype == "float32"]
        largest += [np.abs(np.subtract(ours[output], theirs[output])).max() for output in floats]
    return float(np.max(largest))


def _compare_tensors(source: Source, call: Any) -> float:
    """Returns the largest difference between the outputs of a function of token ids and the model's."""
    head = main_method(source.abilities())

    def run_batch(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        inputs = {name: tf.constant(feeds[name]) for name in ("input_ids", "input_mask", "segment_ids")}
        found = [call(**inputs)[name].numpy() for name in output_names(head)]
        if "masked" in feeds:  # the function returns the logits of every token
            return [values.reshape(-1, values.shape[-1])[feeds["masked"]] for values in found]
        return found

    network = padded_network(run_batch, head)
    return float(np.max([apart for apart, _ in onnx_files.differences(source, head, network).values()]))


# {format: (writes a folder, compares it with the model)}
WRITERS = {"saved_model": (write_saved_model, compare_saved_model), "onnx": (write_onnx, compare_onnx)}

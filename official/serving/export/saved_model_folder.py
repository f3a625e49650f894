"""Writing and checking of SavedModels."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from official.inference.graph.model import GraphModel
from official.inference.signatures import main_method
from official.inference.source import Source
from official.io import vocabulary_files, writing
from official.io.errors import ConfigError
from official.serving.export import checking, companions

if TYPE_CHECKING:
    from official.serving.export import Request

_EXTRA = "assets.extra"
_DEFAULT = "serving_default"


def write(source: Source, folder: str, request: Request) -> list[str]:
    """Writes a SavedModel and what belongs to it. Returns the names of its signatures.

    Raises:
      ConfigError: where a weight is missing or cannot be read, or tensorflow-text cannot take the vocabulary.
    """
    with tempfile.TemporaryDirectory() as words:
        vocabulary = os.path.join(words, vocabulary_files.VOCABULARY)
        writing.replace_file(vocabulary, companions.vocabulary_text(source))
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
    companions.write(extra, source, "saved_model", request.dtype, {"signatures": described})
    return list(calls)


def _described(function: Any) -> dict[str, dict[str, list]]:
    """Returns {inputs: {name: [type, shape]}, outputs: ..} of a signature."""
    inputs = function.structured_input_signature[0] + tuple(function.structured_input_signature[1].values())
    outputs = function.structured_outputs
    return {
        "inputs": {spec.name: [spec.dtype.name, spec.shape.as_list()] for spec in inputs},
        "outputs": {name: [each.dtype.name, each.shape.as_list()] for name, each in outputs.items()},
    }


def compare(source: Source, folder: str) -> float:
    """Loads what was written, and returns the largest difference between its outputs and the model's."""
    loaded = tf.saved_model.load(folder)
    calls = {name: _call(loaded.signatures[name]) for name in source.abilities()}
    return checking.difference(source, calls)


def _call(function: Any) -> checking.Call:
    def call(**inputs: list[str]) -> dict[str, np.ndarray]:
        outputs = function(**{name: tf.constant(values, tf.string) for name, values in inputs.items()})
        return {name: values.numpy() for name, values in outputs.items()}

    return call

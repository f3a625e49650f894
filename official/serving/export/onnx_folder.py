"""Writing and checking of folders with an ONNX file, which takes token ids and gives outputs of a head."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np

from official.inference import Model, backends, exported
from official.inference.backends import onnxruntime
from official.inference.exported import conversion, rewriting
from official.inference.rows import Rows
from official.inference.signatures import main_method
from official.inference.source import Source
from official.serving.export import companions

if TYPE_CHECKING:
    from official.serving.export import Request

_MANIFEST_OF_CACHE = "manifest.json"


def write(source: Source, folder: str, request: Request) -> list[str]:
    """Writes model.onnx, its data, and what belongs to it. Returns the name of the head's method.

    Raises:
      ConfigError: where a package is missing, there is nothing to calibrate int8 with, or a weight cannot be
        read.
    """
    head = main_method(source.abilities())
    settings = backends.Settings("onnxruntime", request.dtype)
    if request.dtype == "int8":
        settings = Model(source, settings, request.calibration_file).settings_of(head)
    made = onnxruntime.file_of(source, head, settings, contrib=False)
    kept = shutil.ignore_patterns(_MANIFEST_OF_CACHE)
    shutil.copytree(os.path.dirname(made), folder, ignore=kept)
    inputs = ("input_ids", "input_mask", "segment_ids", *(("masked",) if head == "fill_mask" else ()))
    described = {head: {"inputs": list(inputs), "outputs": list(conversion.OUTPUTS[head])}}
    companions.write(
        folder, source, "onnx", request.dtype, {"signatures": described, "onnx": exported.versions()}
    )
    return [head]


def compare(source: Source, folder: str) -> float:
    """Runs what was written, and returns the largest difference between its outputs and the model's."""
    head = main_method(source.abilities())
    rows = _rows(source, head)
    theirs = onnxruntime.of_file(os.path.join(folder, rewriting.NAME), head)(rows)
    ours = backends.build(source, head, backends.Settings())(rows)
    return float(np.max([np.abs(ours[name] - theirs[name]).max() for name in ours]))


def _rows(source: Source, head: str) -> Rows:
    """Returns made-up sequences of several lengths."""
    generator = np.random.default_rng(1)
    lengths_N = np.minimum(np.array([37, 1, 12], np.int32), source.bert.max_position_embeddings)
    ids_T = generator.integers(0, source.bert.vocab_size, lengths_N.sum()).astype(np.int32)
    segments_T = np.zeros_like(ids_T)
    masked_M = np.array([1, len(ids_T) - 1], np.int32) if head == "fill_mask" else None
    return Rows(ids_T, segments_T, lengths_N, masked_M)

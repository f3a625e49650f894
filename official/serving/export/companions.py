"""Files beside the weights of an export: its manifest, sizes or settings, vocabulary, labels."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import sys
import unicodedata
from typing import Any

from official import config as config_lib
from official.inference import embedding, exported, signatures
from official.inference.source import Source
from official.io import model_folder, vocabulary_files, writing
from official.io.model_folder import POOLING_MODES, Pooling

VERSION = 1  # of the manifest
MANIFEST = "export.json"
_MODULES = "sentence_transformers.models"
_PACKAGES = ("bert-tf2", "tensorflow", "tensorflow-text", "numpy")


def write(folder: str, source: Source, format: str, dtype: str, more: dict[str, Any]) -> None:
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
        "method": signatures.main_method(abilities),
        "methods": abilities,
        "weights_sha256": exported.digest_of(source),
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
    pooling = embedding.pooling_of_source(source)
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

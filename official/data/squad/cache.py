"""The features of a file, made once and kept: a folder with `features.npz` and `manifest.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os

import numpy as np
from absl import logging

from official.data.squad.features import Features, WindowRules, make_features
from official.data.squad.squad_files import SquadData
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import json_files, writing
from official.io.errors import ConfigError

FEATURES, MANIFEST = "features.npz", "manifest.json"
_VERSION = 2  # of what the same flags make of the same file


def load_or_make_features(
    data: SquadData, vocabulary: Vocabulary, rules: WindowRules, cache_dir: str | None
) -> Features:
    """Returns the features of the data from their folder below `cache_dir`; makes and writes them where they
    are not there.

    What lies there counts if the rules, the vocabulary and the bytes of the file are the same, and it is
    whole; otherwise it is replaced. Each file is there whole or not at all.

    Args:
      cache_dir: the folder of all caches; None keeps nothing.

    Raises:
      ConfigError: for rules that leave no room for a context, or a folder that cannot be written to.
    """
    rules.check()
    if cache_dir is None:
        return make_features(data, vocabulary, rules)
    folder = os.path.join(cache_dir, cache_name(data, rules))
    wanted = _manifest(data, vocabulary, rules)
    features = _load(folder, wanted)
    if features is None:
        features = make_features(data, vocabulary, rules)
        _save(folder, features, wanted)
    logging.info("%s: %d features of %d questions.", folder, len(features), len(data.questions))
    return features


def cache_name(data: SquadData, rules: WindowRules) -> str:
    """Returns the folder's name, as published: 384_128_64_SQuAD11_train."""
    version = "SQuAD20" if data.version_2_with_negative else "SQuAD11"
    purpose = "train" if data.for_training else "eval"
    return f"{rules.max_seq_length}_{rules.doc_stride}_{rules.max_query_length}_{version}_{purpose}"


def _manifest(data: SquadData, vocabulary: Vocabulary, rules: WindowRules) -> dict:
    """Returns the manifest: the values that the features depend on, and others for a reader of the folder."""
    return {
        "version": _VERSION,
        "flags": {
            **dataclasses.asdict(rules),
            "version_2_with_negative": data.version_2_with_negative,
            "for_training": data.for_training,
        },
        "vocabulary_sha256": vocabulary.sha256,
        "do_lower_case": vocabulary.do_lower_case,
        "input_sha256": data.sha256,
        "questions": len(data.questions),
        "skipped_questions": data.skipped_questions,
        "empty_questions": data.empty_questions,
    }


def _load(folder: str, wanted: dict) -> Features | None:
    """Returns the features, or None where the folder has no whole ones or is of something else."""
    try:
        manifest = json_files.read_json_or_empty(os.path.join(folder, MANIFEST))
        with open(os.path.join(folder, FEATURES), "rb") as file:
            content = file.read()
    except OSError:
        return None
    is_whole = manifest == {**wanted, "features_sha256": hashlib.sha256(content).hexdigest()}
    if not is_whole:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return Features(**arrays)


def _save(folder: str, features: Features, manifest: dict) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **vars(features))
    content = buffer.getvalue()
    manifest = {**manifest, "features_sha256": hashlib.sha256(content).hexdigest()}
    try:
        os.makedirs(folder, exist_ok=True)
        writing.replace_file(os.path.join(folder, FEATURES), content)
        writing.replace_file(os.path.join(folder, MANIFEST), json.dumps(manifest, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"the features cannot be written to {folder}: {error.strerror or error}.") from None

"""The features of a file, made once and kept: a folder with `features.npz` and `manifest.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import tempfile

import numpy as np
from absl import logging

from official.data.squad.features import (
    Chunk,
    Features,
    WindowRules,
    chunks,
    concatenate,
    make_chunk,
    make_features,
)
from official.data.squad.squad_files import SquadData
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import tokenizer_of
from official.io import engines, json_files, writing
from official.io.errors import ConfigError

FEATURES, MANIFEST = "features.npz", "manifest.json"
_VERSION = 2  # of what the same flags make of the same file
_FEWEST_QUESTIONS_PER_WORKER = 100_000  # starting a process takes as long as making the features of 60,000


def load_or_make_features(
    data: SquadData, vocabulary: Vocabulary, rules: WindowRules, cache_dir: str | None, num_workers: int = 1
) -> Features:
    """Returns the features of the data from their folder below `cache_dir`; makes and writes them where they
    are not there.

    What lies there counts if the rules, the vocabulary and the bytes of the file are the same, and it is
    whole; otherwise it is replaced. Each file is there whole or not at all.

    Args:
      cache_dir: the folder of all caches; None keeps nothing.
      num_workers: processes, at most; the features do not depend on it.

    Raises:
      ConfigError: for rules that leave no room for a context, or a folder that cannot be written to.
    """
    rules.check()
    if cache_dir is None:
        return _make(data, vocabulary, rules, num_workers)
    folder = os.path.join(cache_dir, cache_name(data, rules))
    wanted = _manifest(data, vocabulary, rules)
    features = _load(folder, wanted)
    if features is None:
        features = _make(data, vocabulary, rules, num_workers)
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
    return _read(io.BytesIO(content)) if is_whole else None


def _read(file) -> Features:
    with np.load(file, allow_pickle=False) as arrays:
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


# ------------------------------------------------------------------------------------------------------------
# In several processes


def _make(data: SquadData, vocabulary: Vocabulary, rules: WindowRules, num_workers: int) -> Features:
    num_workers = min(num_workers, len(data.questions) // _FEWEST_QUESTIONS_PER_WORKER)
    if num_workers <= 1:
        return make_features(data, vocabulary, rules)
    parts = chunks(data)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{number}.npz") for number in range(len(parts))]
        tasks = ((_write_chunk, chunk, vocabulary, rules, path) for chunk, path in zip(parts, paths))
        size = sum(map(_size, parts))
        engines.Local(num_workers).run(
            engines.Round(tasks, len(parts), size, "Making features", "features", __name__)
        )
        return concatenate([_read(path) for path in paths])


def _size(chunk: Chunk) -> int:
    return sum(map(len, chunk.contexts))


def _write_chunk(chunk: Chunk, vocabulary: Vocabulary, rules: WindowRules, path: str) -> None:
    features = make_chunk(chunk, tokenizer_of(vocabulary), vocabulary, rules)
    np.savez(path, **vars(features))
    engines.report(_size(chunk), len(features))

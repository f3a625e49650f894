"""Distillation (--teacher): the logits of a fine-tuned model on the training rows.

They are computed once before the training and cached, so the training is as fast, and resumes as exactly, as
without a teacher. Teacher and student tokenize the same texts with their own vocabularies.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from official.config import Config
from official.data.rows import text_rows
from official.data.tables.labels import NUMBER, ONE, SEVERAL, Labels
from official.inference.backends import Settings
from official.inference.methods import Classifier
from official.inference.source import find
from official.io import model_folder
from official.io.errors import ConfigError
from official.io.json_files import read_json_or_empty
from official.tasks import TASKS

_ROWS = 4096  # computed and saved at a time
_VERSION = 1  # version of the cache
Names = Sequence[Sequence[str]] | None  # all names of each class


def make_task(config: Config) -> Any:
    """Returns the task of a configuration with --teacher, with the teacher's logits."""
    task = TASKS[config.task](config)
    task.ask_teacher = functools.partial(ask, config)
    return task


def ask(config: Config, rows: Sequence[list[str]], labels: Labels, class_names: Names) -> np.ndarray:
    """Returns the teacher's logits, computed or read from the cache.

    Args:
      config: configuration of the run.
      rows: rows of one or two texts, or of a text and its candidates.
      labels: labels of the task.
      class_names: all names of each class of the task, in order; None: the names in `labels`.

    Returns:
      Logits, float32 [N, C], in the order of the task's classes; for regression in the units of its outputs.

    Raises:
      ConfigError: if the teacher has other labels, or no classifier.
    """
    source = find(str(config.teacher), flag="teacher")
    teacher = Classifier(source, Settings())
    order = _order(str(config.teacher), teacher, labels, source.labels, class_names)
    folder = os.path.join(config.cache_dir or os.path.join(config.model_dir, "features"), "teacher")
    logging.info("Teacher %s: its logits of %s rows are kept in %s", config.teacher, f"{len(rows):,}", folder)
    wanted, parts = {"version": _VERSION, "teacher": source.digest()}, []
    before = read_json_or_empty(os.path.join(folder, "00000", text_rows.MANIFEST)).get("teacher")
    if before not in (None, wanted["teacher"]) and not config.cache_dir:  # which several runs may share
        warning = "The files of --teacher=%s have changed since its logits were saved: computing them again."
        logging.warning(warning, config.teacher)
    for first in range(0, len(rows), _ROWS):
        own = rows[first : first + _ROWS]
        digest = hashlib.sha256(json.dumps(own).encode()).hexdigest()

        def logits(own: Sequence[list[str]] = own) -> dict[str, np.ndarray]:
            return {"logits": teacher.logits(own)[0]}

        name = f"{first // _ROWS:05d}"
        parts.append(
            text_rows.kept(os.path.join(folder, name), {**wanted, "texts": digest}, logits)["logits"]
        )
    logits_NC = np.concatenate(parts)
    if labels.kind == NUMBER:
        mean, deviation = labels.scale
        return ((logits_NC - mean) / deviation).astype(np.float32)
    return logits_NC if order is None else logits_NC[:, order]


def _order(
    path: str, teacher: Classifier, labels: Labels, names: Sequence[str] | None, class_names: Names
) -> list[int] | None:
    """Returns the teacher's output of each class of the task; None if outputs are not classes."""
    advice = "Give one that was fine-tuned for this task."
    if teacher.kind != labels.kind:
        problem = f"label_kind={teacher.kind}, the task has {labels.kind}"
        raise ConfigError(f"--teacher={path} was fine-tuned with {problem}. {advice}")
    if labels.kind == NUMBER and teacher.labels.names:
        problem = f"gives {len(teacher.labels.names)} numbers, the task has one"
        raise ConfigError(f"--teacher={path} {problem}. {advice}")
    if labels.kind not in (ONE, SEVERAL):
        return None
    wanted = class_names or [(name,) for name in labels.names]
    order = model_folder.order_of_labels(names, wanted) if names else None
    if order is None:
        theirs = " ".join(names) if names else "none with names"
        ours = " ".join(own[-1] for own in wanted)
        raise ConfigError(f"--teacher={path} has the labels: {theirs}; the task has: {ours}. {advice}")
    return order

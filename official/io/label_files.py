"""The names of a classifier's classes: labels.json, which is kept with its weights, and the keys of Hugging
Face's config.json.
"""

from __future__ import annotations

import json
import os
import re

from official.io.errors import ConfigError
from official.io.json_files import read_json

LABELS = "labels.json"
REGRESSION = "regression"


def content(labels: tuple[str, ...] | None, problem_type: str | None = None) -> str:
    """Returns the content of labels.json.

    Args:
      labels: names in the order of the classes; None for a score instead of classes.
      problem_type: in Hugging Face's words; None: what the labels say.
    """
    kind = problem_type or (REGRESSION if labels is None else "single_label_classification")
    return (
        json.dumps({"labels": None if labels is None else list(labels), "problem_type": kind}, indent=2)
        + "\n"
    )


def read(folder: str) -> dict:
    """Returns {labels: [names] or None, problem_type} of a folder with labels.json; empty where there is
    none.

    Raises:
      ConfigError: where the file is none of that.
    """
    path = os.path.join(folder, LABELS)
    if not os.path.isfile(path):
        return {}
    values = read_json(path)
    labels = values.get("labels")
    if not (labels is None or isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise ConfigError(
            f"{path}: labels={repr(labels)[:60]}, expected a list of names or null. Restore or remove the"
            " file."
        )
    return {"labels": labels, "problem_type": str(values.get("problem_type"))}


def to_hugging_face(labels: tuple[str, ...] | None, problem_type: str | None, count: int) -> dict:
    """Returns keys of config.json. transformers takes the number of classes from the names: there are names
    for all `count`, known or not."""
    names = list(labels or ())
    if not len(set(names)) == len(names) == count:
        names = [f"LABEL_{number}" for number in range(count)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({"problem_type": problem_type} if problem_type else {}),
    }


def of_hugging_face(values: dict) -> dict:
    """Returns {labels: names or None, problem_type} that a config.json gives; names that are made up,
    LABEL_0, count for none."""
    names, kind = values.get("id2label"), values.get("problem_type")
    labels = tuple(names.get(str(number)) for number in range(len(names))) if isinstance(names, dict) else ()
    is_known = labels and all(
        isinstance(label, str) and not re.fullmatch(r"LABEL_\d+", label) for label in labels
    )
    return {"labels": labels if is_known else None, "problem_type": kind if isinstance(kind, str) else None}

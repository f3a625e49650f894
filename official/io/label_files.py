"""The names of a classifier's classes, kept with its weights as labels.json."""

import json
import os

from official.io.errors import ConfigError
from official.io.json_files import read_json

LABELS = "labels.json"
REGRESSION = "regression"


def content(labels: tuple[str, ...] | None) -> str:
    """Returns the content of labels.json: the names in the order of the classes; None for a score instead of classes."""
    kind = REGRESSION if labels is None else "single_label_classification"
    return json.dumps({"labels": None if labels is None else list(labels), "problem_type": kind}, indent=2) + "\n"


def read(folder: str) -> dict:
    """Returns {labels: [names] or None, problem_type} of a folder with labels.json; empty where there is none.

    Raises:
      ConfigError: where the file is none of that.
    """
    path = os.path.join(folder, LABELS)
    if not os.path.isfile(path):
        return {}
    values = read_json(path)
    labels = values.get("labels")
    if not (labels is None or isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise ConfigError(f"{path}: labels={str(labels)[:60]!r}, expected a list of names or null. Restore or remove the file.")
    return {"labels": labels, "problem_type": str(values.get("problem_type"))}

"""The outputs of a classifier: their names and what they mean, in labels.json, which is kept with its
weights, and in the keys of Hugging Face's config.json.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from official.io.errors import ConfigError
from official.io.json_files import read_json

LABELS = "labels.json"
REGRESSION, ONE_LABEL, SEVERAL_LABELS = PROBLEM_TYPES = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)


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
    """Returns {labels: (names) or None, problem_type} of a folder with labels.json; empty where there is
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
    return {
        "labels": None if labels is None else tuple(labels),
        "problem_type": _problem_type(values, path),
    }


def _problem_type(values: dict, source: str) -> str | None:
    kind = values.get("problem_type")
    if kind not in (None, *PROBLEM_TYPES):
        raise ConfigError(
            f"{source}: problem_type={repr(kind)[:60]} is not supported, only {', '.join(PROBLEM_TYPES)}."
        )
    return kind


def check_count(labels: Sequence[str] | None, outputs: int, source: str) -> None:
    """Raises ConfigError where there are names for another number of outputs than a classifier has."""
    if labels is not None and len(labels) != outputs:
        raise ConfigError(
            f"{source}: {len(labels)} labels ({', '.join(labels)[:120]}), the classifier has"
            f" {outputs} outputs."
        )


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


def of_hugging_face(values: dict, source: str, activation: str | None = None) -> dict:
    """Returns {labels: names or None, problem_type} that a config.json gives.

    id2label counts; label2id, which tells the same, counts where that is missing.

    Args:
      values: of config.json.
      source: begins the messages.
      activation: of the outputs, as a CrossEncoder of sentence-transformers names it; None: as in `values`.

    Raises:
      ConfigError: where they are not names of classes 0, 1, 2, ..., or contradict each other.
    """
    labels, others = (_names_of(values.get(key), key, source) for key in ("id2label", "label2id"))
    if labels and others and labels != others and not are_made_up(others) and not are_made_up(labels):
        raise ConfigError(
            f"{source}: id2label and label2id contradict each other: {', '.join(labels)[:90]} and"
            f" {', '.join(others)[:90]}. Correct one of them."
        )
    if labels is None or are_made_up(labels):
        labels = others or labels
    number = values.get("num_labels")
    if labels and number is not None and number != len(labels):
        raise ConfigError(
            f"{source}: num_labels={str(number)[:40]}, and there are {len(labels)} labels:"
            f" {', '.join(labels)[:90]}. Correct one of them."
        )
    told = values.get("sentence_transformers")
    activation = activation or (told.get("activation_fn") if isinstance(told, dict) else None)
    activation = activation or values.get("sbert_ce_default_activation_function")
    kind = _problem_type(values, source)
    if kind is None and (len(labels) if labels else number) == 1:
        kind = _ACTIVATIONS.get(str(activation or _DEFAULT_ACTIVATION).rpartition(".")[2])
        if kind is None:
            raise ConfigError(
                f"{source}: activation_fn={str(activation)[:60]} is not supported, only"
                f" {', '.join(_ACTIVATIONS)}."
            )
    return {"labels": labels, "problem_type": kind}


# Of a classifier with one output: a score, or a probability, which transformers and sentence-transformers
# take where nothing says it.
_ACTIVATIONS = {"Identity": REGRESSION, "Sigmoid": SEVERAL_LABELS}
_DEFAULT_ACTIVATION = "Sigmoid"


def _names_of(names: object, key: str, source: str) -> tuple[str, ...] | None:
    """Returns the names of the classes in their order; None for none."""
    if not names:
        return None
    pairs = list(names.items()) if isinstance(names, dict) else []
    numbered = {str(number): str(name) for number, name in pairs}
    if key == "label2id":
        numbered = {str(number): str(name) for name, number in pairs}
    if not pairs or len(numbered) < len(pairs) or set(numbered) != set(map(str, range(len(numbered)))):
        raise ConfigError(
            f"{source}: {key}={repr(names)[:90]}, expected names of classes 0, 1, 2, ..., each number once."
        )
    found = tuple(numbered[str(number)] for number in range(len(numbered)))
    if len(set(found)) < len(found):
        raise ConfigError(
            f"{source}: {key}={repr(names)[:90]} has a name twice. Each class has one of its own."
        )
    return found


def are_made_up(labels: Sequence[str]) -> bool:
    """Tells whether names only count the classes, as transformers makes them: LABEL_0, LABEL_1."""
    return all(label == f"LABEL_{number}" for number, label in enumerate(labels))


def order_of(labels: Sequence[str], wanted: Sequence[Sequence[str]]) -> list[int] | None:
    """Returns, for each wanted class, the number of the label that is one of its names; None where they do
    not match one to one. Case, hyphens, underscores and blanks do not count.

    Args:
      labels: of a model, in their order.
      wanted: the names of each class.
    """
    plain = [_plain(label) for label in labels]
    found = [[plain.index(name) for name in map(_plain, names) if name in plain] for names in wanted]
    order = [numbers[0] for numbers in found if numbers]
    return order if sorted(order) == list(range(len(labels))) and len(order) == len(wanted) else None


def _plain(label: str) -> str:
    return re.sub(r"[\s_-]", "", label).casefold()

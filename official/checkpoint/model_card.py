"""Model card: the README.md of a folder for Hugging Face, written from a run's result.json and
labels.json."""

from __future__ import annotations

import json
import os
from typing import Any

from official.io import model_folder
from official.io.json_files import read_json_or_empty

_PIPELINES = {
    "classify": "text-classification",
    "glue": "text-classification",
    "tag": "token-classification",
    "squad": "question-answering",
    "pretrain": "fill-mask",
}
_RECIPE = (
    "init_checkpoint",
    "train_batch_size",
    "num_train_epochs",
    "learning_rate",
    "optimizer_type",
    "max_seq_length",
    "dtype",
    "seed",
)


def of_run(location: str) -> str | None:
    """Returns the model card of the run that a checkpoint is of; None for a checkpoint of no run."""
    folder = model_folder.folder_of(location)
    result = read_json_or_empty(os.path.join(folder, "result.json"))
    config = result.get("config") or {}
    task = config.get("task")
    if task not in _PIPELINES or "evaluations" not in result:
        return None
    name = os.path.basename(os.path.abspath(folder))
    labels = model_folder.read_labels(folder)
    names_of_scores = [key for key in _names_of_scores(result) if key != "best_step"]
    scores = {key: result[key] for key in names_of_scores if isinstance(result.get(key), (int, float))}
    parts = [
        _front_matter(name, _PIPELINES[task], scores),
        f"# {name}",
        f"A BERT encoder, {_what(task, config, labels)}, with TensorFlow, by `bert train --task={task}`.",
    ]
    if names := labels.get("labels"):
        parts.append("Labels: " + ", ".join(f"`{label}`" for label in names) + ".")
    if any(labels.get("thresholds", ())):
        pairs = zip(labels["labels"], labels["thresholds"])
        shown = ", ".join(f"`{label}` {threshold:.3f}" for label, threshold in pairs)
        parts.append(f"A text has each label whose probability reaches its threshold: {shown}.")
    parts += [
        "## Scores\n\nOf the evaluation set, by the best weights.",
        _table(("score", "value"), [(key, f"{value:.4f}") for key, value in scores.items()]),
        "## Data",
        _table(
            ("set", "rows", "files", "sha256"), list(map(_row_of_data, (result.get("data") or {}).items()))
        ),
        "## Recipe",
        _table(("setting", "value"), [(f"`{key}`", _short(config.get(key))) for key in _RECIPE]),
        f"Command and all settings: `config.json` of the run. {_versions(result.get('environment') or {})}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _names_of_scores(result: dict) -> list[str]:
    """Returns the keys behind the learning rates: those of the task's scores."""
    keys = list(result)
    return keys[keys.index("learning_rates") + 1 :] if "learning_rates" in keys else []


def _front_matter(name: str, pipeline: str, scores: dict[str, float]) -> str:
    metrics = [{"type": key, "value": round(value, 6)} for key, value in scores.items()]
    result = {"task": {"type": pipeline}, "dataset": {"type": "own", "name": "own data"}, "metrics": metrics}
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "tags": ["bert"],
        "model-index": [{"name": name, "results": [result]}],
    }
    return "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()) + "---"


def _what(task: str, config: dict, labels: dict) -> str:
    kinds = {
        "one": "fine-tuned to give a text one of several labels",
        "several": "fine-tuned to give a text several labels at once",
        "number": "fine-tuned to predict a number for a text",
        "choice": "fine-tuned to choose one of several texts",
    }
    if task in ("classify", "glue"):
        return kinds[labels.get("kind", "one")]
    others = {"tag": "fine-tuned to tag words", "squad": "fine-tuned to answer questions about a text"}
    return others.get(task, "pre-trained")


def _row_of_data(item: tuple[str, dict]) -> tuple[str, ...]:
    name, values = item
    rows = next((values[key] for key in ("rows", "sentences", "questions") if key in values), "")
    return (
        name,
        f"{rows:,}" if rows != "" else "",
        str(values.get("files", "")),
        str(values.get("sha256", ""))[:16],
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) if rows else ""


def _short(value: Any) -> str:
    return (
        os.path.basename(str(value).rstrip("/")) if isinstance(value, str) and "/" in value else f"`{value}`"
    )


def _versions(environment: dict) -> str:
    versions = environment.get("versions") or {}
    shown = ", ".join(
        f"{name} {version}" for name, version in versions.items() if name in ("tensorflow", "numpy")
    )
    return f"Python {environment.get('python', '')}, {shown}, commit {environment.get('commit', '')}."

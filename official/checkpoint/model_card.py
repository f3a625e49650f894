"""Model card: the README.md of a folder for Hugging Face, generated from a run's result.json and labels.json
with model_card.md.jinja."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from official.io import model_folder
from official.io.json_files import read_json_or_empty

_PIPELINES = {
    "classify": "text-classification",
    "glue": "text-classification",
    "tag": "token-classification",
    "squad": "question-answering",
    "pretrain": "fill-mask",
    "embed": "sentence-similarity",
}
# By a classifier's kind of labels, or by task.
_MADE = {
    "one": "fine-tuned to give a text one of several labels",
    "several": "fine-tuned to give a text several labels at once",
    "number": "fine-tuned to predict a number for a text",
    "choice": "fine-tuned to choose one of several texts",
    "tag": "fine-tuned to tag words",
    "squad": "fine-tuned to answer questions about a text",
    "pretrain": "pre-trained",
    "embed": "trained to give texts that belong together vectors with a large cosine",
}
_RECIPE = (
    "init_checkpoint train_batch_size num_train_epochs learning_rate optimizer_type max_seq_length dtype seed"
)


def of_run(location: str) -> str | None:
    """Returns the model card of a checkpoint's run; None if it is not of a run."""
    folder = model_folder.folder_of(location)
    result = read_json_or_empty(os.path.join(folder, "result.json"))
    config, environment, data = (
        value if isinstance(value := result.get(name), dict) else {}
        for name in ("config", "environment", "data")
    )
    task = config.get("task")
    if not isinstance(task, str) or task not in _PIPELINES or "evaluations" not in result:
        return None  # e.g. a result.json of another program
    import jinja2  # late: only for checkpoints of runs

    name, labels = os.path.basename(os.path.abspath(folder)), model_folder.read_labels(folder)
    keys = list(result)  # the task's scores follow the learning rates
    keys = keys[keys.index("learning_rates") + 1 :] if "learning_rates" in keys else []
    keys = [key for key in keys if key != "best_step" and isinstance(result[key], (int, float))]
    scores = {key: result[key] for key in keys}
    metrics = [{"type": key, "value": round(value, 6)} for key, value in scores.items()]
    pipeline = "multiple-choice" if labels.get("kind") == "choice" else _PIPELINES[task]
    about = {"task": {"type": pipeline}, "dataset": {"type": "own", "name": "own data"}}
    versions = environment.get("versions") or {}
    page = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    page.filters |= {"json": json.dumps, "short": _short}
    template = pathlib.Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8")
    return page.from_string(template).render(
        name=name,
        pipeline=pipeline,
        library="sentence-transformers" if task == "embed" else "transformers",
        index=[{"name": name, "results": [{**about, "metrics": metrics}]}],
        made=_MADE[labels.get("kind", "one") if task in ("classify", "glue") else task],
        labels=labels,
        scores=scores,
        data=data,
        recipe=_RECIPE.split(),
        config=config,
        environment=environment,
        versions=[f"{each} {versions[each]}" for each in versions if each in ("tensorflow", "numpy")],
    )


def _short(value: Any) -> str:
    is_path = isinstance(value, str) and "/" in value
    return os.path.basename(value.rstrip("/")) if is_path else f"`{value}`"

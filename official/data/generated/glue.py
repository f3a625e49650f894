"""Files of a task of GLUE with made-up sentences and labels."""

from __future__ import annotations

import os

from official.data.generated.words import Text
from official.data.glue.tasks import MAX_SCORE, GlueTask

_ROWS = {"train": 1000, "dev": 100, "test": 100}
_SENTENCE = (5, 30)  # words


def write(folder: str, task: GlueTask, text: Text) -> str:
    """Writes train, dev and test set in the layouts of the published files; returns the folder.

    Args:
      folder: as --data_dir, of this machine.
      task: says columns and labels.
      text: draws sentences and labels.
    """
    for split, count in _ROWS.items():
        path = os.path.join(folder, task.splits[split].files[0])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        columns = task.splits[split].columns
        lines = [] if columns else ["\t".join(_columns(task, split))]
        lines += ["\t".join(_row(task, split, number, text)) for number in range(count)]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return folder


def _columns(task: GlueTask, split: str) -> tuple[str, ...]:
    label = () if split == "test" else (task.label_column,)
    return task.splits[split].columns or ("index", *task.text_columns, *label)


def _row(task: GlueTask, split: str, number: int, text: Text) -> list[str]:
    """Returns the fields of a row; a column that nobody reads holds its name."""
    values = {name: text.sentence(*_SENTENCE) for name in task.text_columns}
    values["index"] = str(number)
    values[task.label_column] = _label(task, text)
    return [values.get(name, name) for name in _columns(task, split)]


def _label(task: GlueTask, text: Text) -> str:
    if task.labels is None:
        return str(text.below(int(10 * MAX_SCORE) + 1) / 10)
    return task.labels[text.below(len(task.labels))]

"""Measures the size and accuracy of exports of each type on real text.

  python benchmarks/exports.py --checkpoints=runs/squad,runs/sst2 --predict_file=dev-v1.1.json \\
    --data_dir=glue --output=results/export_minilm

Every export is written, loaded, and called through its text signatures on all questions of --predict_file, or
on the task's dev.tsv under --data_dir. The first row of a checkpoint is the model itself in float32.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import harness
from official.cli import command_line, outputs
from official.io.errors import ConfigError
from scores import find_source

if TYPE_CHECKING:
    from official.inference.source import Source

_DTYPES = ("fp32", "bf16", "int8")
_BATCH = 32  # texts per call
Ask = Callable[[Sequence[tuple[str, str]]], list[tuple[str, float]]]  # texts -> (answer or label, score) each


class Main(harness.ChartFlags):
    """Flags of the command.

    Attributes:
      checkpoints: Runs of --task=squad or glue, comma-separated.
      predict_file: Questions to answer: SQuAD JSON.
      data_dir: GLUE's folder.
      dtypes: Comma-separated: fp32, bf16, int8.
    """

    checkpoints: str
    predict_file: str | None = None
    data_dir: str | None = None
    dtypes: str = ",".join(_DTYPES)


class Questions:
    """SQuAD questions with contexts, and their scores."""

    metric, method = "f1", "answer"

    def __init__(self, flags: argparse.Namespace, source: "Source"):
        from official.data.squad import squad_files

        if not flags.predict_file:
            raise ConfigError("--checkpoints: a model of SQuAD needs --predict_file=F.json.")
        data = squad_files.read_squad(flags.predict_file, "predict_file", False, True)
        self.texts = [(question.text, data.contexts[question.context]) for question in data.questions]
        self._ids = [question.id for question in data.questions]
        self._gold = squad_files.read_gold_answers(flags.predict_file).answers
        self._with_negative = source.run.version_2_with_negative

    def scores_of(self, found: list[tuple[str, float]]) -> dict[str, float]:
        """Returns the official measures as fractions."""
        from official.data.squad import evaluation

        score = evaluation.evaluate_v2 if self._with_negative else evaluation.evaluate_v1
        given = {identity: text for identity, (text, _) in zip(self._ids, found)}
        measures = score(self._gold, given)
        return {name: measures[name] / 100 for name in measures if name in ("f1", "exact_match", "exact")}


class Rows:
    """GLUE rows of one or two texts, and their scores."""

    method = "classify"

    def __init__(self, flags: argparse.Namespace, source: "Source"):
        from official.data.glue import files, tasks

        if not flags.data_dir:
            raise ConfigError("--checkpoints: a model of GLUE needs --data_dir=DIR.")
        self._task = tasks.find_task(source.run.glue_task)
        rows = files.read_split(self._task, "dev", flags.data_dir)
        texts = [*rows.texts, [""] * len(rows.texts[0])][:2]
        self.texts, self._labels, self.metric = list(zip(*texts)), rows.labels, self._task.metrics[0]

    def scores_of(self, found: list[tuple[str, float]]) -> dict[str, float]:
        """Returns the task's measures."""
        import numpy as np

        from official.data.glue import files

        names = list(self._task.labels or ())
        given = [names.index(label) if names else score for label, score in found]
        return files.score(self._task, np.array(given), np.asarray(self._labels))


def measure(flags: argparse.Namespace) -> list[dict]:
    """Returns the rows of all checkpoints."""
    cases: list[dict] = []
    for path in flags.checkpoints:
        source = find_source(path)
        asked = (Questions if source.run.task == "squad" else Rows)(flags, source)
        cases += measure_checkpoint(flags, source, asked)
    return cases


def measure_checkpoint(flags: argparse.Namespace, source: "Source", asked: Any) -> list[dict]:
    """Returns a row for the model, and one for each of its exports."""
    from official.serving import export

    task = source.run.glue_task or "squad"
    found = _row(task, "the model, fp32", asked, _of_model(source, asked.method), None)
    rows = [found]
    for dtype in flags.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            written = export.export(source, os.path.join(folder, "1"), export.Request(dtype=dtype))
            ask = _of_export(written.folder, asked.method)
            rows.append(_row(task, f"export, {dtype}", asked, ask, found))
            rows[-1] |= {"bytes": written.bytes, "dtype": dtype}
    answers = [row.pop("answers") for row in rows]
    for row, given in zip(rows, answers):
        row["same"] = sum(a == b for a, b in zip(given, answers[0])) / len(given)
    return rows


def _row(task: str, name: str, asked: Any, ask: Ask, first: dict | None) -> dict:
    print(f"{task}: {name} ...", file=sys.stderr)
    since = time.monotonic()
    found = ask(asked.texts)
    scores = asked.scores_of(found)
    return {
        "name": f"{task}, {name}",
        "task": task,
        "dtype": "fp32",
        "bytes": None,
        "texts": len(asked.texts),
        "metric": asked.metric,
        "score": scores[asked.metric],
        "lost": (first["score"] if first else scores[asked.metric]) - scores[asked.metric],
        "scores": scores,
        "secs": time.monotonic() - since,
        "answers": [text for text, _ in found],
    }


def _of_model(source: "Source", method: str) -> Ask:
    from official.inference.methods import Model, classes_of

    model = Model(source)

    def ask(texts: Sequence[tuple[str, str]]) -> list[tuple[str, float]]:
        if method == "answer":
            return [(found.text, found.probability) for found in model.answer_all(texts)]
        count = classes_of(source).texts
        return [(found.label or "", found.score) for found in model.classify([t[:count] for t in texts])]

    return ask


def _of_export(folder: str, method: str) -> Ask:
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    key = "text" if method == "answer" else "label"

    def ask(texts: Sequence[tuple[str, str]]) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        for first in range(0, len(texts), _BATCH):
            given = getattr(loaded, method)(
                *(tf.constant(part) for part in zip(*texts[first : first + _BATCH]))
            )
            names = [name.decode() for name in given[key].numpy()]
            found += zip(names, given["score"].numpy().tolist())
        return found

    return ask


def main() -> None:
    flags = Main.parse()
    flags.checkpoints = [path for path in flags.checkpoints.split(",") if path]
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", _DTYPES)
    rows = measure(flags)
    for row in rows:
        row["mb"] = None if row["bytes"] is None else row["bytes"] / 1e6
    columns = [
        ("case", "name", ""),
        ("MB", "mb", ".1f"),
        ("metric", "metric", ""),
        ("score", "score", ".4f"),
        ("lost", "lost", ".4f"),
        ("same", "same", ".2%"),
    ]
    print(outputs.table(columns, rows))
    bars = [
        (row["name"], mb, 0.0, f"{mb:.0f} MB, {row['metric']} {row['score']:.4f}", row["dtype"])
        for row in rows
        if (mb := row.pop("mb")) is not None
    ]
    harness.write(flags, {"cases": rows}, bars, "Exports: size and score of each type", "MB")


if __name__ == "__main__":
    harness.main(main)

"""Measures the scores and the speed of fine-tuned models with every back end and precision of inference.

  python benchmarks/scores.py --checkpoints=runs/squad,runs/sst2 --predict_file=dev-v1.1.json \\
    --train_file=train-v1.1.json --data_dir=glue --output=results/inference_scores

Every case predicts the whole evaluation set of the checkpoint's task: the questions of --predict_file, or the
task's dev.tsv under --data_dir. int8 is calibrated on training data. Then all cases of a checkpoint run the
same batches in turns, several rounds; speeds are medians.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import harness
from official.cli import command_line, outputs
from official.config import Config, ConfigError

if TYPE_CHECKING:
    from official.inference.rows import Rows
    from official.inference.source import Source

_BACKENDS = ("tensorflow", "onnxruntime", "openvino")
_DTYPES = ("fp32", "bf16", "int8")
_METHODS = {"squad": "answer", "glue": "classify"}
_REFERENCE = ("tensorflow", "fp32")


class Case(NamedTuple):
    """A back end and its compute type."""

    backend: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.backend} {self.dtype}"


class Main(harness.ChartFlags):
    """Flags of the command.

    Attributes:
      checkpoints: Runs of --task=squad or glue, comma-separated.
      predict_file: Questions to answer: SQuAD JSON.
      train_file: SQuAD JSON to calibrate int8 with.
      data_dir: GLUE's folder.
      backends: Comma-separated back ends.
      dtypes: Comma-separated: fp32, bf16, int8.
      eval_batch_size: Number of sequences per batch.
      calibration_batches: Number of batches to calibrate int8 with.
      timed_batches: Number of batches per timing.
      rounds: Number of timings of each case.
    """

    RANGES = dict.fromkeys(
        ("eval_batch_size", "calibration_batches", "timed_batches", "rounds"), command_line.COUNT
    )
    checkpoints: str
    predict_file: str | None = None
    train_file: str | None = None
    data_dir: str | None = None
    backends: str = ",".join(_BACKENDS)
    dtypes: str = ",".join(_DTYPES)
    eval_batch_size: int = 32
    calibration_batches: int = 8
    timed_batches: int = 6
    rounds: int = 3


def parse_flags() -> argparse.Namespace:
    flags = Main.parse()
    flags.checkpoints = [path for path in flags.checkpoints.split(",") if path]
    flags.backends = command_line.read_list(flags.backends, "backends", _BACKENDS)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", _DTYPES)
    return flags


def cases_of(flags: argparse.Namespace) -> list[Case]:
    """Returns the requested combinations of back end and type that are supported, the reference first."""
    from official.inference import backends

    wanted = [
        Case(name, dtype)
        for name in flags.backends
        for dtype in flags.dtypes
        if dtype in backends.dtypes_of(name)
    ]
    first = Case(*_REFERENCE)
    return [first, *(case for case in wanted if case != first)]


def find_source(path: str) -> "Source":
    """Returns the model of a run. Raises ConfigError if it is not a fine-tuning run."""
    from official.inference import source

    found = source.find(path, flag="checkpoints")
    if found.run is None:
        raise ConfigError(f"--checkpoints={path} is no run of --task=squad or glue.")
    found.check_can(_METHODS[found.run.task])
    return found


def configure(flags: argparse.Namespace, source: "Source", **asked: Any) -> Config:
    """Returns the configuration for reading a run's evaluation or training set. Raises ConfigError."""
    from official.config import replaced

    files = {"squad": ("predict_file", "train_file"), "glue": ("data_dir",)}[source.run.task]
    given = {name: getattr(flags, name) for name in files if getattr(flags, name)}
    shape = {"eval_batch_size": flags.eval_batch_size, "train_batch_size": flags.eval_batch_size}
    off = {"do_train": False, "do_eval": False, "do_predict": False, "pack": False}
    return replaced(source.run, **{**off, **given, **shape, **asked})


def rows_of(batch: dict[str, Any]) -> "Rows":
    """Returns the sequences of a padded batch without padding, concatenated."""
    from official.inference.rows import Rows

    is_token_BL = (batch["input_mask"] > 0) & (batch["rows"] >= 0)[:, None]
    lengths_B = is_token_BL.sum(axis=1)
    return Rows(
        batch["input_ids"][is_token_BL],
        batch["segment_ids"][is_token_BL],
        lengths_B[lengths_B > 0].astype("int32"),
    )


class Questions:
    """An evaluation set: its batches, and the scores of outputs for all of them."""

    def __init__(self, config: Config):
        from official.tasks import TASKS

        self.task = TASKS[config.task](config)
        self.task.find_data()
        self.batch, self._length = config.eval_batch_size, config.max_seq_length
        dataset = self.task.eval_dataset(config.eval_batch_size)
        self._batches = list(dataset.as_numpy_iterator())
        self.rows = [rows_of(batch) for batch in self._batches]
        self.sequences = sum(len(rows.lengths_N) for rows in self.rows)

    def outputs_of(self, run: Callable[["Rows"], dict]) -> dict[str, Any]:
        """Returns all outputs of a network in the order of the set, in the form that its task scores."""
        from official.training import evaluate

        parts = []
        for batch, rows in zip(self._batches, self.rows):
            numbers = batch["rows"][batch["rows"] >= 0]
            values = {name: self._padded(value, rows) for name, value in run(rows).items()}
            parts.append({**values, "rows": numbers})
        return evaluate.in_order(parts)

    def _padded(self, values: Any, rows: "Rows") -> Any:
        """Pads values per token to [N, max_seq_length]; returns values per sequence unchanged."""
        import numpy as np

        if values.ndim == 2:
            return values
        padded_NL = np.zeros((len(rows.lengths_N), self._length), np.float32)
        padded_NL[np.arange(self._length) < rows.lengths_N[:, None]] = values
        return padded_NL


def calibration_rows(flags: argparse.Namespace, source: "Source") -> list["Rows"]:
    """Returns batches of a run's training set."""
    from official.data.pipeline import TrainingOrder
    from official.tasks import TASKS

    if source.run.task == "squad" and not flags.train_file:
        raise ConfigError("--dtypes: int8 needs --train_file=F.json for the ranges of activations.")
    config = configure(flags, source, do_train=True)
    task = TASKS[config.task](config)
    task.find_data()
    size = flags.eval_batch_size
    dataset = task.train_dataset(size, size, TrainingOrder(config.seed)).take(flags.calibration_batches)
    return [rows_of(batch) for batch in dataset.as_numpy_iterator()]


def measure_checkpoint(flags: argparse.Namespace, source: "Source") -> list[dict]:
    """Returns a row for each case of one checkpoint."""
    from official.inference import backends
    from official.reporting import measurement

    cases, method = cases_of(flags), _METHODS[source.run.task]
    questions = Questions(configure(flags, source, do_eval=True))
    calibration = calibration_rows(flags, source) if any(case.dtype == "int8" for case in cases) else []
    reference: dict[str, Any] = {}
    found, works = [], {}
    for case in cases:
        print(f"{os.path.basename(os.path.normpath(source.location))}: {case.name} ...", file=sys.stderr)
        settings = backends.Settings(case.backend, case.dtype, calibration=calibration)
        network = backends.build(source, method, settings)
        given = questions.outputs_of(network)
        reference = reference or given
        found.append(row_of(source, case, questions, given, reference))
        works[case.name] = _timed(network, questions.rows[: flags.timed_batches])
    timings = measurement.measure_in_turns(works, flags.rounds)
    timed = sum(len(rows.lengths_N) for rows in questions.rows[: flags.timed_batches])
    for case, row in zip(cases, found):
        timing = timings[case.name]
        row |= {"sequences_per_sec": timing.rate(timed), "spread": timing.spread, "secs": timing.secs}
    return found


def _timed(network: Callable, batches: Sequence["Rows"]) -> Callable[[], None]:
    def work() -> None:
        for rows in batches:
            network(rows)

    return work


def row_of(source: "Source", case: Case, questions: Questions, given: dict, reference: dict) -> dict:
    """Returns a row: the scores of a case, and the differences of its outputs from the reference's."""
    scores, first = questions.task.score(given), questions.task.score(reference)
    metric = questions.task.target_metric
    apart = max(float(abs(given[name] - reference[name]).max()) for name in given)
    task = source.run.glue_task if source.run.task == "glue" else "squad"
    return {
        "name": f"{task}, {case.name}",
        "task": task,
        "backend": case.backend,
        "dtype": case.dtype,
        "max_seq_length": source.run.max_seq_length,
        "batch": questions.batch,
        "sequences": questions.sequences,
        "metric": metric,
        "score": scores[metric],
        "lost": first[metric] - scores[metric],
        "scores": scores,
        "largest_difference": apart,
    }


def main() -> None:
    flags = parse_flags()
    rows: list[dict] = []
    for path in flags.checkpoints:
        rows += measure_checkpoint(flags, find_source(path))
    columns = [
        ("case", "name", ""),
        ("metric", "metric", ""),
        ("score", "score", ".4f"),
        ("lost", "lost", ".4f"),
        ("logits +-", "largest_difference", ".1e"),
        ("seq/s", "sequences_per_sec", ".1f"),
        ("+-", "spread", ".1%"),
    ]
    print(outputs.table(columns, rows))
    bars = [
        (
            row["name"],
            row["sequences_per_sec"],
            row["spread"],
            f"{row['sequences_per_sec']:.3g} seq/s, {row['metric']} {row['score']:.4f}",
            row["dtype"],
        )
        for row in rows
    ]
    title = "Inference: scores and speed of back ends and precisions"
    harness.write(flags, {"cases": rows}, bars, title, "sequences per second")


if __name__ == "__main__":
    harness.main(main)

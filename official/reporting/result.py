"""Result of a run: result.json and the exit code."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from typing import Any

import tensorflow as tf

from official.io import json_files
from official.io.errors import ConfigError
from official.io.writing import replace_file
from official.reporting.metrics import plain_value

FILE_NAME = "result.json"

# A wrong configuration or file exits with 2 before there is a result. `failed` is a loss that is not finite,
# or, with a different code, a lost peer; `interrupted` is 128 plus the number of the signal.
EXIT_CODES = {"success": 0, "finished": 0, "aborted": 1, "failed": 3, "interrupted": 128}
PEER_LOST = 4

# Fields whose name in the file differs, since other programs rely on it.
_NAMES_IN_FILE = {"baseline_score": "majority_accuracy", "baseline_prediction": "majority_prediction"}
_TYPES = {"None": type(None), **{kind.__name__: kind for kind in (bool, dict, float, int, list, str)}}
_FORMER = ("predicted_sequences_per_sec",)  # numbers of earlier versions that are not scores


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The result of a run, made once at its end.

    Attributes:
      status: success (threshold reached), finished (no threshold asked for, all steps done), aborted
        (threshold not reached within the steps), interrupted (saved on a signal) or failed (a loss that is
        not finite, or a lost peer).
      reason: the status as a sentence.
      step: optimizer updates done.
      samples: sequences trained on.
      eval_accuracy: the target metric in the last evaluation, a fraction like all scores; masked-LM accuracy
        for pre-training.
      eval_loss: loss of the last evaluation, nats.
      target: value of --stop_threshold for the target metric.
      target_metric: name of the target metric.
      baseline_score: target metric of a constant prediction, the most frequent one of the evaluation set;
        `majority_accuracy` in the file.
      baseline_prediction: that prediction, a token or label; `majority_prediction` in the file.
      sequences_per_sec: training throughput without evaluations and compilation.
      wall_secs: seconds from the start to the end of this process's training.
      startup_secs: seconds from the start of this process until it trains at full speed: until its first step
        is done, minus one step. That is imports, model, checkpoint, data and compilation; without training,
        until the evaluation starts.
      first_step_secs: seconds from the start of this process to the end of its first step.
      compilations: functions that XLA compiled in this process's part of the run, counted per argument shape;
        None if unknown.
      compilation_secs: duration of these compilations.
      peak_memory_bytes: most memory in use at once, of the first GPU if there is one, otherwise of this
        process.
      checkpoint: prefix of the newest checkpoint.
      checkpoints_written: number of checkpoints written by this process; for several processes, by the chief.
      checkpoint_wait_secs: seconds for which checkpoints stopped the training.
      checkpoint_write_secs: seconds of writing checkpoints, in the background or not.
      fresh_variables: variables that were not in the initial checkpoint and started fresh.
      skipped_steps: updates left out because a scaled gradient overflowed.
      config: the whole configuration, seed included.
      environment: commit, versions and machine, for reproducing the run.
      data: identity of the data files: number, bytes and a digest.
      data_changed: whether the run resumed with data different from those at its start.
      signal: number of the signal that asked the run to stop, whether or not it was interrupted.
      peer_lost: whether the run failed because another of its processes was lost.
      scores: the task's scores of the best evaluation, e.g. {"f1": 0.885}; top-level fields in the file.
      tables: {title: rows, the first one the head}: where the model is right and wrong.
      examples: groups of sequences with the model's predictions; see
        `official.training.task.Task.examples`.
      predictions: paths of written prediction files.
      export: folder of the SavedModel exported from the best weights.
      report: path of the page about the run.
      evaluations: later evaluations and predictions with the weights in the folder, by commands without
      training: see `evaluation_entry`.
      sequences_per_row: mean number of sequences per packed row, in this process's training.
      packing_efficiency: share of the positions of these rows that hold a token, 0 to 1.
      pipeline: of a model on several devices: `stages` (in Graphcore's notation), `devices` (of
        each stage, within a replica, from 0), `schedule` and `micro_batches` (of a step of one replica).
      checks: checks of the machine at the start of a run on GPUs: [{name, status (ok, warning or broken),
        found, wanted, advice}].
      learning_rates: {step: learning rate of that update}, enough points to draw the whole schedule with
        straight lines. For a run with a time budget, the rate from each step on, as in --lr_schedule.
    """

    status: str
    reason: str
    step: int
    samples: int
    eval_accuracy: float | None = None
    eval_loss: float | None = None
    target: float | None = None
    target_metric: str = "mlm_accuracy"
    baseline_score: float | None = None
    baseline_prediction: str | None = None
    sequences_per_sec: float | None = None
    wall_secs: float | None = None
    startup_secs: float | None = None
    first_step_secs: float | None = None
    compilations: int | None = None
    compilation_secs: float | None = None
    peak_memory_bytes: int | None = None
    checkpoint: str | None = None
    checkpoints_written: int = 0
    checkpoint_wait_secs: float = 0.0
    checkpoint_write_secs: float = 0.0
    fresh_variables: list[str] = dataclasses.field(default_factory=list)
    skipped_steps: int = 0
    config: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)
    data: dict = dataclasses.field(default_factory=dict)
    data_changed: bool = False
    signal: int | None = None
    peer_lost: bool = False
    scores: dict = dataclasses.field(default_factory=dict)
    tables: dict = dataclasses.field(default_factory=dict)
    examples: list[dict] = dataclasses.field(default_factory=list)
    predictions: list[str] = dataclasses.field(default_factory=list)
    export: str | None = None
    report: str | None = None
    evaluations: list[dict] = dataclasses.field(default_factory=list)
    sequences_per_row: float | None = None
    packing_efficiency: float | None = None
    pipeline: dict | None = None
    checks: list[dict] | None = None
    learning_rates: dict[int, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.status not in EXIT_CODES:
            raise ValueError(f"status={self.status!r} is not one of {', '.join(EXIT_CODES)}.")

    @property
    def exit_code(self) -> int:
        if self.peer_lost:
            return PEER_LOST
        return EXIT_CODES[self.status] + (self.signal or 0 if self.status == "interrupted" else 0)


def result_dict(result: TrainResult) -> dict:
    """Returns the content of result.json: the fields, scores on the same level, NaN and infinity as None."""
    fields = plain_value(dataclasses.asdict(result))
    values = {_NAMES_IN_FILE.get(name, name): value for name, value in fields.items()}
    scores = values.pop("scores")
    clash = values.keys() & scores.keys()
    if clash:
        raise ValueError(f"scores {sorted(clash)} have the names of other fields of {FILE_NAME}.")
    return {**values, **scores}


def from_dict(values: dict) -> TrainResult:
    """Converts the dict of `load_result`. Numbers that are not fields are scores."""
    own = [field.name for field in dataclasses.fields(TrainResult)]
    names = {_NAMES_IN_FILE.get(name, name): name for name in own}
    fields = {names[name]: value for name, value in values.items() if name in names}
    others = {name: value for name, value in values.items() if name not in {*names, *_FORMER}}
    numbers = (int, float, type(None))
    scores = {name: value for name, value in others.items() if isinstance(value, numbers)}
    return TrainResult(**fields, scores=scores)


def evaluation_entry(fields: dict, command: str, checkpoint: str, settings: dict) -> dict:
    """Returns the entry of an evaluation or prediction in `evaluations`.

    Args:
      fields: fields of the evaluation's result.
      command: the command line.
      checkpoint: prefix, or path, of the weights.
      settings: {name: value} of the data and evaluation settings.

    Returns:
      time (ISO 8601, UTC), command, checkpoint, step, status, reason, settings, data (number, bytes and
      digest), target_metric, eval_accuracy, eval_loss, majority_accuracy, predictions, report, and the
      scores.
    """
    names = "step status reason data target_metric eval_accuracy eval_loss".split()
    names += ["baseline_score"] * (fields["eval_accuracy"] is not None) + ["predictions", "report"]
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    head = {"time": now, "command": command, "checkpoint": checkpoint, "settings": settings}
    own = {_NAMES_IN_FILE.get(name, name): fields[name] for name in names}
    return plain_value({**head, **own, **fields["scores"]})


def note(model_dir: str, **values: Any) -> None:
    """Adds fields, such as the folder of an export, to model_dir/result.json."""
    _write(model_dir, {**load_result(model_dir), **plain_value(values)})


def read_result(model_dir: str) -> dict:
    """Returns the model_dir/result.json of an earlier process; an empty dict if it is missing or damaged."""
    try:
        return load_result(model_dir)
    except ConfigError:
        return {}


def load_result(model_dir: str) -> dict:
    """Returns model_dir/result.json with checked fields. Raises ConfigError if it is missing or damaged."""
    path = os.path.join(model_dir, FILE_NAME)
    values = json_files.read_json(path)
    for field in dataclasses.fields(TrainResult):
        if field.name not in ("status", "scores"):
            name = _NAMES_IN_FILE.get(field.name, field.name)
            # float | None -> (float, NoneType), list[str] -> (list,)
            kinds = tuple(_TYPES[part.partition("[")[0].strip()] for part in str(field.type).split("|"))
            json_files.expect(values, name, kinds, path, default=None)
    json_files.expect(values, "best_step", (int, type(None)), path, default=None)
    if json_files.expect(values, "status", str, path) not in EXIT_CODES:
        raise ConfigError(f"{path}: status={values['status']!r} is not one of {', '.join(EXIT_CODES)}.")
    for name in ("fresh_variables", "predictions"):
        for item in values.get(name, ()):
            json_files.check_kind(item, str, f"{path}: {name}")
    return values


def remove_result(model_dir: str) -> None:
    """Removes the result of an earlier process, if any."""
    path = os.path.join(model_dir, FILE_NAME)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def write_result(model_dir: str, result: TrainResult) -> str:
    """Writes model_dir/result.json, atomically. Returns its path."""
    return _write(model_dir, result_dict(result))


def _write(model_dir: str, values: dict) -> str:
    path = os.path.join(model_dir, FILE_NAME)
    replace_file(path, json.dumps(values, indent=2, allow_nan=False) + "\n")
    return path

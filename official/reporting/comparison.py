"""Several runs side by side: their folders read, and the numbers and settings in which they differ."""

import dataclasses
import itertools
import os
import statistics
from typing import Any

import tensorflow as tf

from official import config as config_lib
from official.io import json_files
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.reporting import mllog
from official.reporting.metrics import read_metrics_counted
from official.reporting.result import FILE_NAME as RESULT
from official.reporting.result import load_result

ACCURACY = "mlm_accuracy"
# Settings that say where a run is and what it prints. The model's own settings stand in for its file.
_LEFT_OUT = ("model_dir", "wandb", "plan", "mllog_", "submission_", "verbosity", "bert_config_file")


@dataclasses.dataclass
class Run:
    """Settings, metrics, result and MLPerf log from the folder of a run.

    Attributes:
      name: the shortest end of the folder's path that tells it apart from the others.
      folder: the path that was given.
      settings: the saved configuration, the model's sizes as model.NAME; empty where there is none.
      metrics: lines of metrics.jsonl.
      result: of result.json; empty while the run goes on or where it was killed.
      log_path: of its MLPerf log.
      events: of the MLPerf log; empty where there is none, or where another run has the same.
      notes: doubts about these, a sentence each.
    """

    name: str
    folder: str
    settings: dict
    metrics: list[dict]
    result: dict
    log_path: str
    events: list[dict]
    notes: list[str] = dataclasses.field(default_factory=list)


def read_runs(folders: list[str]) -> list[Run]:
    """Reads the folders of runs.

    Raises:
      ConfigError: naming a folder that is missing, holds no run or is given twice.
    """
    runs = [_read_run(folder, name) for folder, name in zip(folders, short_names(folders))]
    _drop_shared_logs(runs)
    return runs


def _drop_shared_logs(runs: list[Run]) -> None:
    """Takes the events away from runs with one and the same log: it tells of the last of them only, and not
    which that is."""
    by_path: dict[str, list[Run]] = {}
    for run in runs:
        by_path.setdefault(_real(run.log_path), []).append(run)
    for path, sharing in by_path.items():
        if len(sharing) > 1:
            for run in sharing:
                run.events = []
            sharing[0].notes.append(
                f"{', '.join(run.name for run in sharing)} have the same --mllog_file, {path}, which tells of"
                " the last of them only: left out."
            )


def _real(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _read_run(folder: str, name: str) -> Run:
    if not tf.io.gfile.isdir(folder):
        raise ConfigError(f"{folder} is not a folder. Give the --model_dir of each run.")
    metrics, damaged = read_metrics_counted(folder)
    settings = _read_settings(os.path.join(folder, "config.json"))
    if not (metrics or any(key.startswith("model.") for key in settings)):
        raise ConfigError(
            f"{folder} holds no metrics and no config.json of a run. Give the --model_dir of each run."
        )
    log_path = settings.get("mllog_file") or os.path.join(folder, mllog.FILE_NAME)
    result = load_result(folder) if tf.io.gfile.exists(os.path.join(folder, RESULT)) else {}
    notes = [f"{name}: {damaged:,} damaged lines of metrics.jsonl are left out."] if damaged else []
    if not metrics:
        notes.append(f"{name}: no step is in metrics.jsonl, so there is no curve.")
    return Run(name, folder, settings, metrics, result, log_path, mllog.read_events(log_path), notes)


def _read_settings(path: str) -> dict:
    """Returns a saved configuration, the model's sizes as model.NAME; {} where there is none. Raises
    ConfigError where it is damaged."""
    if not tf.io.gfile.exists(path):
        return {}
    settings = json_files.read_json(path)
    model = json_files.expect(settings, "model", (dict, type(None)), path, default=None) or {}
    settings.pop("model", None)
    config_lib.check_settings(settings, path)
    config_lib.checked_sizes(model, f"{path}: model")
    return settings | {f"model.{key}": value for key, value in model.items()}


def short_names(folders: list[str]) -> list[str]:
    """Returns the shortest ends of the paths that differ, without what all of them end with: a/1/run, a/2/run
    -> 1, 2."""
    paths = [_real(folder) for folder in folders]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise ConfigError(f"{folders[number]} is given twice.")
    parts = [path.rstrip("/").split("/") for path in paths]
    while len(parts) > 1 and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    ends = (["/".join(part[-length:]) for part in parts] for length in itertools.count(1))
    return next(names for names in ends if len(set(names)) == len(names))


# ----------------------------------------------------------------------------------------------------------
# The numbers


def compare(runs: list[Run], target: float | None = None) -> dict:
    """Returns the comparison of runs as a dict that JSON can hold.

    Args:
      runs: of `read_runs`.
      target: of the metric that counts; None for each run's own stop_threshold.

    Returns:
      {"settings": names of the settings that differ, "runs": a dict for each run, see `summarize`, "notes":
      of all runs}.
    """
    names = differing_settings(runs)
    return {
        "settings": names,
        "runs": [
            {
                "run": run.name,
                "folder": run.folder,
                "settings": {name: setting(run, name) for name in names},
                **summarize(run, target),
            }
            for run in runs
        ],
        "notes": [note for run in runs for note in run.notes],
    }


def differing_settings(runs: list[Run]) -> list[str]:
    """Returns the names of the settings that are not the same in all runs, in the order of the
    configuration."""
    known = dict.fromkeys([*config_lib.FIELDS, *(name for run in runs for name in run.settings)])
    known_runs = [run for run in runs if run.settings]
    return [
        name
        for name in known
        if not name.startswith(_LEFT_OUT) and len({repr(setting(run, name)) for run in known_runs}) > 1
    ]


def setting(run: Run, name: str) -> Any:
    """Returns a setting of a run; a run older than the setting has the default."""
    default = config_lib.FIELDS[name].default if run.settings and name in config_lib.FIELDS else None
    return run.settings.get(name, default)


def summarize(run: Run, target: float | None = None) -> dict:
    """Returns the numbers of a run, None where it has none.

    Args:
      run: the run.
      target: of the metric that counts; None for the run's own stop_threshold.

    Returns:
      metric: see `metric_of`; target; target_step, target_samples and target_secs (since run_start): where an
      evaluation first reached it; step, eval_loss (nats) and eval_accuracy, of the metric: the last ones;
      best_accuracy; sequences_per_sec; status, "unfinished" without a result.
    """
    target = run_target(run, target)
    evaluations = [line for line in run.metrics if line["split"] == "eval"]
    last, metric = evaluations[-1] if evaluations else {}, metric_of(run)
    reached = next(
        (line for line in evaluations if target is not None and (line.get(metric) or 0) >= target), {}
    )
    return {
        "metric": metric,
        "target": target,
        "target_step": reached.get("step"),
        "target_samples": reached.get("samples"),
        "target_secs": _secs_until(run.events, reached.get("samples")),
        "step": max((line["step"] for line in run.metrics), default=run.result.get("step") or 0),
        "eval_loss": last.get("loss"),
        "eval_accuracy": last.get(metric),
        "best_accuracy": max(
            (line[metric] for line in evaluations if line.get(metric) is not None), default=None
        ),
        "sequences_per_sec": run.result.get("sequences_per_sec") or _median_speed(run.metrics),
        "status": run.result.get("status", "unfinished"),
    }


def metric_of(run: Run) -> str:
    """Returns the metric that counts: masked-LM accuracy, or that of a task once the run has a result."""
    return run.result.get("target_metric") or ACCURACY


def run_target(run: Run, target: float | None) -> float | None:
    """Returns `target`, or the run's own where that is None."""
    return run.settings.get("stop_threshold") if target is None else target


def _secs_until(events: list[dict], samples: int | None) -> float | None:
    """Returns the seconds from run_start to the accuracy of the evaluation at `samples`; None where one of
    them is not known."""
    if samples is None:
        return None
    started = next((event["time_ms"] for event in events if event["key"] == "run_start"), None)
    reached = next(
        (
            event["time_ms"]
            for event in events
            if event["key"] == "eval_accuracy"
            and event["metadata"].get("samples_count", event["metadata"].get("epoch_num")) == samples
        ),
        None,
    )
    return None if started is None or reached is None else (reached - started) / 1000


def _median_speed(metrics: list[dict]) -> float | None:
    speeds = [
        line["sequences_per_sec"]
        for line in metrics
        if line["split"] == "train" and line.get("sequences_per_sec") is not None
    ]
    return statistics.median(speeds) if speeds else None

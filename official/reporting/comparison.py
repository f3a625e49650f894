"""Compares runs: their numbers and the settings that differ, as a table and as a picture."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from official import config as config_lib
from official.io import json_files
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.reporting import charts, mllog, plots
from official.reporting.formats import DASH, format_number, metric_name, setting_text
from official.reporting.metrics import read_metrics_counted
from official.reporting.result import FILE_NAME as RESULT
from official.reporting.result import load_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# -----------------------------------------------------------------------------------------------------------
# Runs


ACCURACY = "mlm_accuracy"
# Settings for the folder and the output of a run. The model's sizes are compared instead of its file.
_LEFT_OUT = ("model_dir", "wandb", "plan", "mllog_", "submission_", "verbosity", "bert_config_file")


@dataclasses.dataclass
class Run:
    """Settings, metrics, result and MLPerf log from the folder of a run.

    Attributes:
      name: the shortest end of the folder's path that distinguishes it from the others.
      folder: path as given.
      settings: the saved configuration, the model's sizes as model.NAME; empty if none was saved.
      metrics: lines of metrics.jsonl.
      result: content of result.json; empty while the run is in progress or after it was killed.
      log_path: path of its MLPerf log.
      events: events of the MLPerf log; empty if there is none, or if another run has the same log.
      notes: warnings about these, one sentence each.
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
    """Reads the folders of runs. Runs that share one MLPerf log get no events, since the log holds only the
    last of them, which is unknown.

    Raises:
      ConfigError: naming a folder that is missing, holds no run or is given twice.
    """
    runs = [_read_run(folder, name) for folder, name in zip(folders, short_names(folders))]
    paths = [_real(run.log_path) for run in runs]
    for path in dict.fromkeys(paths):
        sharing = [run for run, own in zip(runs, paths) if own == path]
        if len(sharing) > 1:
            names = ", ".join(run.name for run in sharing)
            sharing[0].notes.append(
                f"{names} have the same --mllog_file, {path}, which logs only the last of them: left out."
            )
            for run in sharing:
                run.events = []
    return runs


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
    """Returns a saved configuration, the model's sizes as model.NAME; {} for a missing file. Raises
    ConfigError for a damaged one."""
    if not tf.io.gfile.exists(path):
        return {}
    settings = json_files.read_json(path)
    model = json_files.expect(settings, "model", (dict, type(None)), path, default=None) or {}
    settings.pop("model", None)
    for name, value in settings.items():
        if name in config_lib.FIELDS:  # skips settings of other versions
            config_lib.FIELDS[name].checked(value, path)
    config_lib.checked_sizes(model, f"{path}: model")
    return settings | {f"model.{key}": value for key, value in model.items()}


def short_names(folders: list[str]) -> list[str]:
    """Returns the shortest distinct ends of the paths, without their common end: a/1/run, a/2/run
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
    """Returns the comparison of runs as a JSON-serializable dict.

    Args:
      runs: runs from `read_runs`.
      target: target of the main metric; None for each run's own stop_threshold.

    Returns:
      {"settings": names of the settings that differ, "runs": a dict for each run, see `summarize`, "notes":
      warnings of all runs}.
    """
    names, rows = differing_settings(runs), []
    for run in runs:
        settings = {name: setting(run, name) for name in names}
        rows.append({"run": run.name, "folder": run.folder, "settings": settings, **summarize(run, target)})
    notes = [note for run in runs for note in run.notes]
    return {"settings": names, "runs": rows, "notes": [*notes, *_notes_on_data(runs, names)]}


def _notes_on_data(runs: list[Run], differing: list[str]) -> list[str]:
    """Returns warnings about differing data that the differing settings do not show, one sentence each."""
    changed = [run.name for run in runs if run.result.get("data_changed")]
    notes = [f"{', '.join(changed)} resumed with data other than those at its start."] if changed else []
    if any(name in config_lib.FIELDS and config_lib.FIELDS[name].files for name in differing):
        return notes
    digests: dict[str, dict[str, str]] = {}  # {split: {run: digest}}
    for run in runs:
        for split, facts in (run.result.get("data") or {}).items():
            if isinstance(facts, dict) and facts.get("sha256"):
                digests.setdefault(split, {})[run.name] = facts["sha256"]
    for split, by_run in digests.items():
        if len(set(by_run.values())) > 1:
            problem = f"the files of {split} have the same names in these settings, but different content"
            notes.append(f"{', '.join(by_run)}: {problem}.")
    return notes


def differing_settings(runs: list[Run]) -> list[str]:
    """Returns the names of the settings that differ between runs, in the order of the configuration."""
    known = dict.fromkeys([*config_lib.FIELDS, *(name for run in runs for name in run.settings)])
    known_runs = [run for run in runs if run.settings]
    return [
        name
        for name in known
        if not name.startswith(_LEFT_OUT) and len({repr(setting(run, name)) for run in known_runs}) > 1
    ]


def setting(run: Run, name: str) -> Any:
    """Returns a setting of a run; the default if the run is older than the setting."""
    default = config_lib.FIELDS[name].default if run.settings and name in config_lib.FIELDS else None
    return run.settings.get(name, default)


def summarize(run: Run, target: float | None = None) -> dict:
    """Returns the numbers of a run, None for missing ones.

    Args:
      run: the run.
      target: target of the main metric; None for the run's own stop_threshold.

    Returns:
      metric: see `metric_of`; target; target_step, target_samples and target_secs (since run_start): position
      of the first evaluation that reached it; step, eval_loss (nats) and eval_accuracy, the metric's last
      values; best_accuracy; sequences_per_sec; status, "unfinished" without a result.
    """
    target, metric = run_target(run, target), metric_of(run)
    evaluations = [line for line in run.metrics if line["split"] == "eval"]
    training = [line for line in run.metrics if line["split"] == "train"]
    scores = [line[metric] for line in evaluations if line.get(metric) is not None]
    speeds = [speed for line in training if (speed := line.get("sequences_per_sec")) is not None]
    reached = [line for line in evaluations if target is not None and (line.get(metric) or 0) >= target]
    first, last = (reached or [{}])[0], (evaluations or [{}])[-1]
    speed = run.result.get("sequences_per_sec") or (statistics.median(speeds) if speeds else None)
    return {
        "metric": metric,
        "target": target,
        "target_step": first.get("step"),
        "target_samples": first.get("samples"),
        "target_secs": _secs_until(run.events, first.get("samples")),
        "step": max((line["step"] for line in run.metrics), default=run.result.get("step") or 0),
        "eval_loss": last.get("loss"),
        "eval_accuracy": last.get(metric),
        "best_accuracy": max(scores, default=None),
        "sequences_per_sec": speed,
        "status": run.result.get("status", "unfinished"),
    }


def metric_of(run: Run) -> str:
    """Returns the main metric: masked-LM accuracy, or the task's metric if the run has a result."""
    return run.result.get("target_metric") or ACCURACY


def run_target(run: Run, target: float | None) -> float | None:
    """Returns `target`, or the run's own target if it is None."""
    return run.settings.get("stop_threshold") if target is None else target


def _secs_until(events: list[dict], samples: int | None) -> float | None:
    """Returns the seconds from run_start to the accuracy of the evaluation at `samples`; None if either is
    unknown."""
    times: dict[str, list[int]] = {"run_start": [], "eval_accuracy": []}
    for event in events if samples is not None else ():
        at = event["metadata"]
        seen = samples if event["key"] == "run_start" else at.get("samples_count", at.get("epoch_num"))
        if event["key"] in times and seen == samples:
            times[event["key"]].append(event["time_ms"])
    return (times["eval_accuracy"][0] - times["run_start"][0]) / 1000 if all(times.values()) else None


# -----------------------------------------------------------------------------------------------------------
# Table


# Wider tables wrap in a terminal: more settings than this get a separate table, one row each.
_MAX_SETTINGS = 5
_HEADER_WIDTH, _VALUE_WIDTH = 10, 24
_NUMBER = re.compile(rf"{DASH}|-?[\d,.]+(e[-+]?\d+)?")


def format_comparison(comparison: dict) -> str:
    """Formats the comparison of `compare` as text: one row per run; many differing settings become a separate
    table."""
    runs, names = comparison["runs"], comparison["settings"]
    settings = {name: short_values([run["settings"][name] for run in runs]) for name in names}
    column, results = ("run", [run["run"] for run in runs]), _result_columns(runs)
    if len(names) <= _MAX_SETTINGS:
        tables = [format_table([column, *settings.items(), *results])]
    else:
        by_run = zip(column[1], map(list, zip(*settings.values())))
        tables = [format_table([column, *results]), format_table([("setting", names), *by_run])]
    return "\n\n".join([*tables, *(f"Note: {note}" for note in comparison["notes"])])


def _result_columns(runs: list[dict]) -> list[tuple[str, list[str]]]:
    targets, metrics = {run["target"] for run in runs}, {run["metric"] for run in runs}
    target = f"{min(targets):g}" if len(targets) == 1 and targets != {None} else "target"
    score = "score" if len(metrics) > 1 else metric_name(min(metrics))
    score = "accuracy" if metrics == {ACCURACY} else score
    columns: list[tuple[str, str, Callable[[Any], str]]] = [
        ("target_step", f"steps to {target}", "{:,}".format),
        ("target_samples", f"samples to {target}", "{:,}".format),
        ("target_secs", f"seconds to {target}", "{:,.1f}".format),
        ("step", "last step", "{:,}".format),
        ("eval_loss", "final loss", "{:.4f}".format),
        ("eval_accuracy", f"final {score}", "{:.4f}".format),
        ("best_accuracy", f"best {score}", "{:.4f}".format),
        ("sequences_per_sec", "seq/s", format_number),
        ("status", "status", str),
    ]
    return [
        (title, [DASH if run[name] is None else form(run[name]) for run in runs])
        for name, title, form in (columns[3:] if targets == {None} else columns)
    ]


def short_values(values: list) -> list[str]:
    """Returns settings as short text: without folders that paths share, and of long ones only the end."""
    texts = [setting_text(value, DASH) for value in values]
    while all("/" in text.strip("/") for text in texts) and len({text.split("/")[0] for text in texts}) == 1:
        texts = [text.split("/", 1)[1] for text in texts]
    return [text if len(text) <= _VALUE_WIDTH else "\u2026" + text[1 - _VALUE_WIDTH :] for text in texts]


def format_table(columns: list[tuple[str, list[str]]]) -> str:
    """Returns aligned text.

    Args:
      columns: (title, cells). Titles are broken into lines at underscores and spaces. Columns of numbers and
        dashes are right-aligned, others left-aligned.
    """
    headers = [_broken(title) for title, _ in columns]
    depth = max(map(len, headers))
    blocks = []
    for header, (_, cells) in zip(headers, columns):
        lines = [""] * (depth - len(header)) + header + cells
        width = max(map(len, lines))
        align = str.rjust if all(map(_NUMBER.fullmatch, cells)) else str.ljust
        blocks.append([align(line, width) for line in lines])
    return "\n".join("  ".join(line).rstrip() for line in zip(*blocks))


def _broken(title: str) -> list[str]:
    lines = [""]
    for word in title.replace("_", "_\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len((lines[-1] + word).rstrip()) > _HEADER_WIDTH:
            lines.append("")
        lines[-1] += word
    return [line.strip() for line in lines]


# -----------------------------------------------------------------------------------------------------------
# Picture


_MAX_LABEL, _MAX_CAPTION = 26, 150  # characters


def plot_comparison(runs: list[Run], target: float | None = None) -> Figure:
    """Draws the loss and the main metric of all runs over sequences: evaluations strong, training faint, one
    colour per run.

    Args:
      runs: runs from `comparison.read_runs`.
      target: target of the metric, drawn as a line; None for the runs' stop_threshold if it is the same.

    Returns:
      A figure with two axes.
    """
    targets = {run_target(run, target) for run in runs}
    level = targets.pop() if len(targets) == 1 else None
    metrics = {_shortened(run.name): run.metrics for run in runs}
    found = charts.compared_charts(metrics, list(map(metric_of, runs)), level, "samples", with_training=True)
    names = differing_settings(runs)
    captions = []
    for number, run in enumerate(runs if set(names) - {"seed"} else ()):  # otherwise only the seed differs
        values = [short_values([setting(each, name) for each in runs])[number] for name in names]
        text = ", ".join(f"{name} {value}" for name, value in zip(names, values))
        text = text if len(text) <= _MAX_CAPTION else text[: _MAX_CAPTION - 1] + "\u2026"
        captions.append((_shortened(run.name), text, charts.look(number)[0]))
    return plots.plot_charts(found, captions)


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_LABEL else "\u2026" + name[1 - _MAX_LABEL :]

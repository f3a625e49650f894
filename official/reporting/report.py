"""The page about a run: report.html, one file that opens without a network."""

import html
import json
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official import config as config_lib
from official.io.writing import replace_file
from official.reporting import charts as charts_lib
from official.reporting import page, verdict
from official.reporting.metrics import plain_value, read_metrics
from official.reporting.names import format_number, is_known, metric_name
from official.reporting.profiles import section
from official.reporting.progress import format_secs
from official.reporting.result import TrainResult, result_dict
from official.reporting.summary import ParameterRow, format_total

FILE_NAME = "report.html"
_SHOWN_ELSEWHERE = (
    "config",
    "tables",
    "examples",
    "environment",
    "data",
    "learning_rates",
    "fresh_variables",
    "pipeline",
    "report",
    "evaluations",
)


def write_report(
    model_dir: str,
    title: str,
    config_json: str | dict,
    result: TrainResult,
    parameter_rows: Sequence[ParameterRow] = (),
    name: str = FILE_NAME,
) -> str:
    """Writes model_dir/report.html, or another name, from model_dir/metrics.jsonl, command.txt and what is
    given.

    Args:
      model_dir: folder of the run.
      title: stands above the headline, e.g. the task.
      config_json: the saved configuration, as text or as a dict.
      result: the end of the run.
      parameter_rows: the table of `summary.parameter_table`.
      name: of the file.

    Returns:
      Path of the report.
    """
    settings = json.loads(config_json) if isinstance(config_json, str) else dict(config_json)
    metrics = read_metrics(model_dir)
    command = _command_line(os.path.join(model_dir, "command.txt"))
    is_program = command.partition(" ")[0].endswith(".py")
    judged = verdict.judge(metrics, result, f"python {command}" if is_program else command)
    charts = page.charts(charts_lib.run_charts(metrics, result))
    sections = [
        page.cards(_numbers(result)),
        charts
        if settings.get("do_train", True)
        else page.section("The training that the weights are from", charts),
        _pipeline(result),
        section.sections(model_dir),
        page.examples(result.examples),
        *(page.section(name, page.table(rows[0], rows[1:])) for name, rows in result.tables.items()),
        _details(model_dir, settings, result, parameter_rows),
    ]
    path = os.path.join(model_dir, name)
    replace_file(path, _page(model_dir, title, judged, result, sections))
    return path


def write_repeats_report(model_dir: str, title: str, result: TrainResult, runs: dict[str, str]) -> str:
    """Writes model_dir/report.html about the same run from several seeds.

    Args:
      model_dir: folder of all of them.
      title: stands above the headline.
      result: of all, with {metric: mean} and {metric_std: standard deviation} as scores and a table of runs,
        a seed in each first cell.
      runs: {seed: folder in `model_dir`}.

    Returns:
      Path of the report.
    """
    metrics = {f"seed {seed}": read_metrics(os.path.join(model_dir, folder)) for seed, folder in runs.items()}
    links = {seed: f"{folder}/{FILE_NAME}" for seed, folder in runs.items()}
    sections = [
        page.cards(_means(result.scores, len(runs))),
        *(
            page.section(name, page.table(rows[0], rows[1:], links), "Each seed links to its own report.")
            for name, rows in result.tables.items()
        ),
        page.charts(charts_lib.compared_charts(metrics, result.target_metric)),
        _details(model_dir, result.config, result, (), next(iter(runs.values()))),
    ]
    path = os.path.join(model_dir, FILE_NAME)
    replace_file(path, _page(model_dir, title, verdict.judge_repeats(result, len(runs)), result, sections))
    return path


def changed_settings(values: dict) -> dict:
    """Returns the settings of a saved configuration that differ from the defaults, and the sizes of its
    model."""
    changed = {}
    for name, value in values.items():
        if name == "model":
            changed.update({f"model.{key}": size for key, size in (value or {}).items()})
        elif name not in config_lib.FIELDS or config_lib.FIELDS[name].default != value:
            changed[name] = value
    return changed


def _page(
    model_dir: str, title: str, judged: verdict.Verdict, result: TrainResult, sections: list[str]
) -> str:
    badge = f'<span class="badge">{html.escape(result.status)}</span>'
    kicker = f"{html.escape(title)} \u00b7 {html.escape(page.name_of(model_dir))} \u00b7 {badge}"
    lines = [judged.sentence, judged.advice and f"Next: {judged.advice}"]
    return page.page(
        page.name_of(model_dir),
        kicker,
        judged.headline,
        lines,
        judged.tone,
        "\n".join(filter(None, sections)),
    )


# ------------------------------------------------------------------------------------------------------------
# Numbers


def _numbers(result: TrainResult) -> list[tuple[str | None, str]]:
    """Returns the headline numbers of a run as (value, name); the value is None where the run has none."""
    return [
        *_scores(result),
        (_fixed(result.target), f"target of {metric_name(result.target_metric)}"),
        (_fixed(result.baseline_score), f"always predicting {verdict.constant_name(result)}"),
        (_fixed(result.eval_loss), "evaluation loss, nats"),
        (f"{result.step:,}", f"steps, {result.samples:,} sequences"),
        *_packing(result),
        (f"{result.skipped_steps:,}" if result.skipped_steps else None, "steps skipped: gradient overflow"),
        (
            format_number(result.sequences_per_sec) if result.sequences_per_sec else None,
            "sequences per second",
        ),
        (
            format_secs(result.wall_secs) if result.wall_secs else None,
            "wall time, h:mm:ss" if (result.wall_secs or 0) >= 3600 else "wall time, m:ss",
        ),
        (
            f"{result.peak_memory_bytes / 1e9:.1f} GB" if result.peak_memory_bytes else None,
            "most memory in use",
        ),
    ]


def _packing(result: TrainResult) -> list[tuple[str | None, str]]:
    """Returns cards of a packed run, (value, name): sequences a row, and the share of places with a token."""
    if result.sequences_per_row is None or result.packing_efficiency is None:
        return []
    return [
        (f"{result.sequences_per_row:.2f}", "sequences a row"),
        (f"{result.packing_efficiency:.1%}", "of the places of a row hold a token"),
    ]


def _pipeline(result: TrainResult) -> str:
    """Returns the table of the stages on each device of a replica; nothing without a pipeline."""
    if not result.pipeline:
        return ""
    stages, devices = result.pipeline["stages"].split(" / "), result.pipeline["devices"]
    rows = [(f"{number}: {stage}", device) for number, (stage, device) in enumerate(zip(stages, devices))]
    note = (
        f"Schedule {result.pipeline['schedule']}, {result.pipeline['micro_batches']:,} micro batches a step."
    )
    return page.section("Pipeline", page.table(("Stage", "Device of a replica"), rows), note)


def _scores(result: TrainResult) -> list[tuple[str | None, str]]:
    """Returns the scores of the best evaluation, its metric first; for a task without them the last
    evaluation."""
    best = result.scores.get("best_step")
    which = f"best evaluation, step {best:,}" if isinstance(best, int) else "best evaluation"
    known = [name for name in result.scores if is_known(name) or name == result.target_metric]
    names = sorted(known, key=lambda name: name != result.target_metric)
    if result.target_metric in names:
        return [
            (
                _fixed(result.scores[name]),
                f"{metric_name(name)}, {which}" if name == result.target_metric else metric_name(name),
            )
            for name in names
        ]
    return [(_fixed(result.eval_accuracy), f"{metric_name(result.target_metric)}, last evaluation")]


def _means(scores: dict, count: int) -> list[tuple[str | None, str]]:
    """Returns (mean, its deviation and name) of {metric: mean, metric_std: standard deviation}."""
    names = [name for name in scores if f"{name}_std" in scores]
    return [
        (
            _fixed(scores[name]),
            f"\u00b1 {_fixed(scores[name + '_std'])} {metric_name(name)}, mean of {count} runs",
        )
        for name in names
    ]


def _fixed(value: float | None) -> str | None:
    value = plain_value(value)
    return None if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------------------
# What is folded away


def _details(
    model_dir: str,
    settings: dict,
    result: TrainResult,
    parameters: Sequence[ParameterRow],
    command_folder: str = "",
) -> str:
    numbers = {name: value for name, value in result_dict(result).items() if name not in _SHOWN_ELSEWHERE}
    if result.sequences_per_row is not None:
        numbers["rows_per_step"] = settings.get("train_batch_size")
    folded = "".join(
        [
            page.folded("Command", _command(os.path.join(model_dir, command_folder, "command.txt"))),
            page.folded("Settings other than the defaults", page.pairs(changed_settings(settings))),
            page.folded("All numbers of the result", page.pairs(numbers)),
            page.folded(
                f"Variables that started fresh: {len(result.fresh_variables)}",
                page.pairs([("", name) for name in result.fresh_variables]),
            ),
            page.folded("Environment", page.pairs(_flat(result.environment))),
            page.folded("Data and digests", page.pairs(_flat(result.data))),
            page.folded(f"Parameters: {format_total(parameters)}", _parameters(parameters))
            if parameters
            else "",
        ]
    )
    return page.section("Details", folded)


def _flat(values: dict, prefix: str = "") -> dict:
    """Returns nested values under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _command(path: str) -> str:
    line = _command_line(path)
    return f"<pre>{html.escape(line)}</pre>" if line else ""


def _command_line(path: str) -> str:
    """Returns a saved command line; empty where there is none."""
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path) as file:
        return file.read().strip()


def _parameters(rows: Sequence[ParameterRow]) -> str:
    cells = [
        (
            row.name,
            " \u00d7 ".join(map(str, row.shape)) or "scalar",
            f"{row.tensors:,}",
            f"{row.parameters:,}",
            f"{row.megabytes:,.2f}",
        )
        for row in rows
    ]
    return page.table(("Name", "Shape", "Tensors", "Parameters", "MB"), cells)

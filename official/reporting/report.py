"""The page about a run: report.html, a self-contained file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

from official import config as config_lib
from official.io import json_files
from official.io.errors import ConfigError
from official.io.writing import read_lines, replace_file
from official.reporting import charts as charts_lib
from official.reporting import page, palette, verdict
from official.reporting.formats import METRIC_TITLES, format_bytes, metric_name
from official.reporting.metrics import read_metrics
from official.reporting.page import fixed_or_none
from official.reporting.profile import MEMORY, TIMES
from official.reporting.result import TrainResult, result_dict
from official.reporting.summary import ParameterRow, format_total

FILE_NAME = "report.html"
_SHOWN_ELSEWHERE = (
    "config tables examples environment data learning_rates fresh_variables pipeline report evaluations"
    " checks"
).split()


def write_report(
    model_dir: str,
    title: str,
    config_json: str | dict,
    result: TrainResult,
    parameter_rows: Sequence[ParameterRow] = (),
    name: str = FILE_NAME,
) -> str:
    """Writes model_dir/report.html, or another name, from model_dir/metrics.jsonl, command.txt and the
    arguments.

    Args:
      model_dir: folder of the run.
      title: text above the headline, e.g. the task.
      config_json: the saved configuration, as text or as a dict.
      result: result of the run.
      parameter_rows: the table of `summary.parameter_table`.
      name: name of the file.

    Returns:
      Path of the report.
    """
    settings = json.loads(config_json) if isinstance(config_json, str) else dict(config_json)
    metrics, command = read_metrics(model_dir), _command_line(model_dir)
    is_program = command.partition(" ")[0].endswith(".py")
    return _write(
        model_dir,
        name,
        title,
        verdict.judge(metrics, result, f"python {command}" if is_program else command),
        result,
        settings,
        charts_lib.run_charts(metrics, result),
        parameter_rows,
        command=command,
        scores=_scores(result),
        constant=verdict.constant_name(result),
        of_whom="" if settings.get("do_train", True) else "The training that the weights are from",
        **profile_tables(model_dir),
    )


def write_repeats_report(model_dir: str, title: str, result: TrainResult, runs: dict[str, str]) -> str:
    """Writes model_dir/report.html about runs that differ only in their seed.

    Args:
      model_dir: common folder of the runs.
      title: text above the headline.
      result: combined result, with {metric: mean} and {metric_std: standard deviation} as scores and a table
        of runs with the seed in each first cell.
      runs: {seed: folder in `model_dir`}.
    """
    folders = [os.path.join(model_dir, folder) for folder in runs.values()]
    shown = zip(runs, folders[: len(palette.COLORS)])
    drawn = {f"seed {seed}": read_metrics(folder) for seed, folder in shown}
    means = []
    for name, mean in result.scores.items():
        if f"{name}_std" in result.scores:
            deviation = fixed_or_none(result.scores[f"{name}_std"])
            text = f"\u00b1 {deviation} {metric_name(name)}, mean of {len(runs)} runs"
            means.append((fixed_or_none(mean), text))
    return _write(
        model_dir,
        FILE_NAME,
        title,
        verdict.judge_repeats(result, len(runs)),
        result,
        result.config,
        charts_lib.compared_charts(drawn, [result.target_metric] * len(drawn)),
        command=_command_line(folders[0]),
        scores=means,
        links={seed: f"{folder}/{FILE_NAME}" for seed, folder in runs.items()},
    )


def _write(
    model_dir: str,
    name: str,
    title: str,
    judged: verdict.Verdict,
    result: TrainResult,
    settings: dict,
    charts: Sequence[charts_lib.Chart],
    parameters: Sequence[ParameterRow] = (),
    **values: Any,
) -> str:
    numbers = {name: value for name, value in result_dict(result).items() if name not in _SHOWN_ELSEWHERE}
    if result.sequences_per_row is not None:
        numbers["rows_per_step"] = settings.get("train_batch_size")
    pipeline = result.pipeline or {"stages": "", "devices": []}
    stages = [f"{number}: {stage}" for number, stage in enumerate(pipeline["stages"].split(" / "))]
    weights = []
    for row in parameters:
        shape = " \u00d7 ".join(map(str, row.shape)) or "scalar"
        weights.append((row.name, shape, row.tensors, row.parameters, f"{row.bytes / 1e6:,.2f}"))
    known: dict[str, Any] = dict(
        lines=[judged.sentence, judged.advice and f"Next: {judged.advice}"],
        badge=result.status,
        result=result,
        settings=changed_settings(settings),
        all_numbers=numbers,
        drawn=[drawn for chart in charts if (drawn := charts_lib.draw(chart))],
        stages=list(zip(stages, pipeline["devices"])),
        fresh=[("", name) for name in result.fresh_variables],
        parameters=format_total(parameters),
        weights=weights,
        times=None,
        memory=None,
        of_whom="",
        links={},
    )
    kicker = (title, os.path.basename(os.path.normpath(model_dir)))
    path = os.path.join(model_dir, name)
    replace_file(path, page.render("run", kicker, judged.headline, judged.tone, **known | values))
    return path


# ------------------------------------------------------------------------------------------------------------
# Numbers


def _scores(result: TrainResult) -> list[tuple[str | None, str]]:
    """Returns the scores of the best evaluation, the main metric first; for a task without scores, the last
    evaluation."""
    best, target = result.scores.get("best_step"), result.target_metric
    if target not in result.scores:
        return [(fixed_or_none(result.eval_accuracy), f"{metric_name(target)}, last evaluation")]
    which = f"best evaluation, step {best:,}" if isinstance(best, int) else "best evaluation"
    names = [target, *(name for name in result.scores if name in METRIC_TITLES and name != target)]
    titles = [f"{metric_name(target)}, {which}", *map(metric_name, names[1:])]
    return [(fixed_or_none(result.scores[name]), title) for name, title in zip(names, titles)]


# ------------------------------------------------------------------------------------------------------------
# Profile


_MAX_OPERATIONS = 20
_WEIGHTS, _SLOTS = "weights", "optimizer's state"
_LEGEND = {_WEIGHTS: palette.BLUE, _SLOTS: palette.SKY, "forward": palette.GREEN, "backward": palette.ORANGE}


def profile_tables(model_dir: str) -> dict[str, dict]:
    """Returns `times` and `memory` of a run for its page, from its files in `model_dir`; without a table for
    a missing or damaged file."""
    found = {}
    for name, file, tables_of in (("times", TIMES, _times), ("memory", MEMORY, _memory)):
        with contextlib.suppress(ConfigError, KeyError, TypeError, ValueError, IndexError):
            found[name] = tables_of(json_files.read_json(os.path.join(model_dir, file)))
    return found


def _steps(record: dict) -> str:
    first, last = record["steps"]
    return f"From step {first:,} to step {last:,}, on {', '.join(record['devices'])}."


def _times(record: dict) -> dict:
    def numbers(row: dict, digits: int) -> tuple[str, str]:
        return f"{row['ms_per_step']:,.{digits}f}", f"{row['share']:.1%}"

    rows = []
    for each in record["kinds"]:
        part, text = ("", each["ms_per_step"], palette.BLUE), "{} ms, {}".format(*numbers(each, 1))
        rows.append((each["kind"], [part], text))
    note = (
        f"{_steps(record)} A step took {1000 * record['secs_per_step']:,.1f} ms. Times are those of the"
        f" operations of a step, {record['busy_ms_per_step']:,.1f} ms, added up over all threads."
    )
    operations = []
    for each in record["operations"][:_MAX_OPERATIONS]:
        secs, share = numbers(each, 2)
        name, times = f"{each['type']} {each['name']}", f"{each['count_per_step']:,.0f}"
        operations.append((name, _part_of_step(each), secs, times, share))
    parts = [(_part_of_step(each), *numbers(each, 2)) for each in record["parts"]]
    return {"note": note, "bars": charts_lib.bars(rows), "parts": parts, "operations": operations}


def _part_of_step(row: dict) -> str:
    part = row["part"].replace("layer_{}", "all layers")
    return f"{part}, {row['pass']}" if row["pass"] else part


def _memory(record: dict) -> dict:
    memory, stages = record["allocators"][0], record["variables"]
    held: dict[str, dict[str, int]] = {
        each["part"]: {_WEIGHTS: each["weights_bytes"], _SLOTS: each["slots_bytes"]} for each in stages
    }
    for each in memory["parts"]:
        held.setdefault(each["part"], {})[each["pass"]] = each["held_at_peak_bytes"]
    rows = []
    for part, sizes in held.items():
        if total := sum(sizes.values()):
            parts = [(name, size, _LEGEND.get(name, palette.MUTED)) for name, size in sizes.items()]
            rows.append((part, parts, format_bytes(total)))
    variables = sum(each["weights_bytes"] + each["slots_bytes"] for each in stages)
    note = (
        f"{_steps(record)} At most {format_bytes(memory['peak_bytes'])} were in use, while"
        f" {_part_of_step(memory['running_at_peak'])} ran. What a part of the step had taken then is"
        f" measured; weights and the optimizer's state of one replica, {format_bytes(variables)} together,"
        " are computed from their shapes."
    )
    names = ("held_at_peak_bytes", "most_held_bytes", "peak_while_running_bytes")
    table = [(_part_of_step(each), *(format_bytes(each[name]) for name in names)) for each in memory["parts"]]
    return {"note": note, "bars": charts_lib.bars(rows, _LEGEND), "parts": table}


def changed_settings(values: dict) -> dict:
    """Returns the settings of a saved configuration that differ from the defaults, and the sizes of its
    model."""
    defaults = {name: field.default for name, field in config_lib.FIELDS.items()}
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name == "model":
            changed |= {f"model.{key}": size for key, size in (value or {}).items()}
        elif name not in defaults or defaults[name] != value:
            changed[name] = value
    return changed


def _command_line(folder: str) -> str:
    """Returns the saved command line of a run; empty if missing."""
    return b"".join(read_lines(os.path.join(folder, "command.txt"))).decode(errors="replace").strip()

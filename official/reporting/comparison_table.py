"""Runs side by side as text: aligned tables for a terminal."""

import re
from typing import Any

from official.reporting.names import format_number, metric_name

_DASH = "\u2013"
# Wider tables wrap in a terminal: more settings than this get a table of their own, a row each.
_MOST_SETTINGS = 5
_HEADER_WIDTH, _VALUE_WIDTH = 10, 24


def format_comparison(comparison: dict) -> str:
    """Formats the comparison of `compare` as text: a row for each run; settings in a table of their own
    where many differ."""
    tables = _tables(comparison["runs"], comparison["settings"])
    return "\n\n".join([*tables, *(f"Note: {note}" for note in comparison["notes"])])


def _tables(runs: list[dict], names: list[str]) -> list[str]:
    settings = [(name, short_values([run["settings"][name] for run in runs])) for name in names]
    run_names = [run["run"] for run in runs]
    if len(names) <= _MOST_SETTINGS:
        return [format_table([("run", run_names), *settings, *_result_columns(runs)])]
    by_run = zip(run_names, zip(*(values for _, values in settings)))
    listed = [("setting", names), *((run, list(values)) for run, values in by_run)]
    return [format_table([("run", run_names), *_result_columns(runs)]), format_table(listed)]


def _result_columns(runs: list[dict]) -> list[tuple[str, list[str]]]:
    targets = {run["target"] for run in runs}
    to_target = []
    if targets != {None}:
        target = f"{targets.pop():g}" if len(targets) == 1 else "target"
        to_target = [
            ("target_step", f"steps to {target}", "{:,}"),
            ("target_samples", f"samples to {target}", "{:,}"),
            ("target_secs", f"seconds to {target}", "{:,.1f}"),
        ]
    score = _score_name({run["metric"] for run in runs})
    columns = [
        *to_target,
        ("step", "last step", "{:,}"),
        ("eval_loss", "final loss", "{:.4f}"),
        ("eval_accuracy", f"final {score}", "{:.4f}"),
        ("best_accuracy", f"best {score}", "{:.4f}"),
    ]
    shown = [
        (title, [_DASH if run[name] is None else form.format(run[name]) for run in runs])
        for name, title, form in columns
    ]
    speeds = [
        _DASH if run["sequences_per_sec"] is None else format_number(run["sequences_per_sec"]) for run in runs
    ]
    return [*shown, ("seq/s", speeds), ("status", [run["status"] for run in runs])]


def _score_name(metrics: set[str]) -> str:
    if metrics == {"mlm_accuracy"}:
        return "accuracy"
    return metric_name(min(metrics)) if len(metrics) == 1 else "score"


def short_values(values: list) -> list[str]:
    """Returns settings as short text: without the folders that paths share, and only the ends of what is
    still long."""
    texts = [_text(value) for value in values]
    while all("/" in text.strip("/") for text in texts) and len({text.split("/")[0] for text in texts}) == 1:
        texts = [text.split("/", 1)[1] for text in texts]
    return [text if len(text) <= _VALUE_WIDTH else "\u2026" + text[1 - _VALUE_WIDTH :] for text in texts]


def _text(value: Any) -> str:
    if value is None:
        return _DASH
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_table(columns: list[tuple[str, list[str]]]) -> str:
    """Returns aligned text.

    Args:
      columns: (title, cells). Titles are broken at underscores and spaces over several lines. Columns of
        numbers and dashes stand at the right, others at the left.
    """
    headers = [_broken(title) for title, _ in columns]
    depth = max(map(len, headers))
    blocks = []
    for header, (_, cells) in zip(headers, columns):
        lines = [""] * (depth - len(header)) + header + cells
        width = max(map(len, lines))
        align = str.rjust if all(map(_is_number, cells)) else str.ljust
        blocks.append([align(line, width) for line in lines])
    return "\n".join("  ".join(line).rstrip() for line in zip(*blocks))


def _broken(title: str) -> list[str]:
    lines = [""]
    for word in title.replace("_", "_\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len((lines[-1] + word).rstrip()) > _HEADER_WIDTH:
            lines.append("")
        lines[-1] += word
    return [line.strip() for line in lines]


def _is_number(cell: str) -> bool:
    return re.fullmatch(rf"{_DASH}|-?[\d,.]+(e[-+]?\d+)?", cell) is not None

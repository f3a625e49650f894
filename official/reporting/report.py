"""The page about a run: report.html, one file that opens without a network."""

import base64
import html
import json
import os

import tensorflow as tf

from official import config as config_lib
from official.io.writing import replace_file
from official.reporting.metrics import plain_value, read_metrics
from official.reporting.plots import constant_prediction, format_number, metric_title, plot_run, render
from official.reporting.progress import format_secs
from official.reporting.result import TrainResult, result_dict
from official.reporting.summary import ParameterRow, format_total

FILE_NAME = "report.html"

_HEADLINES = {
    "success": ("Target reached", "#1a7f4b"),
    "finished": ("All steps done", "#0b63a5"),
    "aborted": ("Target not reached", "#b35c00"),
    "interrupted": ("Interrupted and saved", "#6e5494"),
    "failed": ("Failed", "#b3261e"),
}
_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f6f8; color: #24292f; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 36px 24px 64px; }
header { border-left: 6px solid var(--status); padding: 2px 0 2px 18px; margin-bottom: 24px; }
header p { margin: 0; color: #57606a; }
h1 { margin: 2px 0; font-size: 30px; line-height: 1.2; color: var(--status); }
h2 { font-size: 17px; margin: 36px 0 10px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px; margin: 0 0 20px; }
.card { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: 12px 14px; }
.card b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; line-height: 1.25; }
.card span { color: #57606a; font-size: 13px; }
.picture { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: 16px; }
.picture img { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid #e3e6ea; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px; border-top: 1px solid #eceef1; vertical-align: top; overflow-wrap: anywhere; }
th { color: #57606a; font-weight: 600; font-size: 13px; background: #fafbfc; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.name { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
pre { background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; padding: 12px 14px; margin: 0; font-size: 13px; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; font-size: 17px; margin: 36px 0 10px; }
td.key { white-space: nowrap; }
"""


def write_report(model_dir: str, title: str, config_json: str | dict, result: TrainResult,
                 parameter_rows: list[ParameterRow] = ()) -> str:
    """Writes model_dir/report.html from model_dir/metrics.jsonl, command.txt and what is given.

    Args:
      model_dir: folder of the run.
      title: stands above the headline, e.g. the model and the flagfile.
      config_json: the saved configuration, as text or as a dict.
      result: the end of the run.
      parameter_rows: the table of `summary.parameter_table`.

    Returns:
      Path of the report.
    """
    values = json.loads(config_json) if isinstance(config_json, str) else dict(config_json)
    figure = plot_run(read_metrics(model_dir), result.target, result.majority_accuracy, metric=result.target_metric)
    sections = [
        _cards(result),
        _picture(render(figure, "png")),
        *(_section(html.escape(title), _table(rows[0], rows[1:])) for title, rows in result.tables.items()),
        _section("Result", _pairs_table(_flat({name: value for name, value in result_dict(result).items() if name not in ("config", "tables")}))),
        _command(os.path.join(model_dir, "command.txt")),
        _section("Settings other than the defaults", _pairs_table(changed_settings(values))),
        _parameters(parameter_rows),
    ]
    path = os.path.join(model_dir, FILE_NAME)
    replace_file(path, _page(title, result, "\n".join(sections)))
    return path


def changed_settings(values: dict) -> dict:
    """Returns the settings of a saved configuration that differ from the defaults, and the sizes of its model."""
    changed = {}
    for name, value in values.items():
        if name == "model":
            changed.update({f"model.{key}": size for key, size in (value or {}).items()})
        elif name not in config_lib.FIELDS or config_lib.FIELDS[name].default != value:
            changed[name] = value
    return changed


def _page(title: str, result: TrainResult, body: str) -> str:
    headline, color = _HEADLINES[result.status]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}: {headline.lower()}</title>
<style>{_CSS}:root {{ --status: {color}; }}</style>
</head>
<body>
<main>
<header>
<p>{html.escape(title)}</p>
<h1>{headline}</h1>
<p>{html.escape(result.reason)}</p>
</header>
{body}
</main>
</body>
</html>
"""


def _cards(result: TrainResult) -> str:
    """The numbers a reader looks for first. Those that the run does not have are left out."""
    title = metric_title(result.target_metric)[0]
    cards = [
        (_fixed(result.eval_accuracy, 4), f"{title}, last evaluation"),
        (_fixed(result.target, 4), "target"),
        (_fixed(result.majority_accuracy, 4), f"always the {constant_prediction(result.target_metric)}"),
        (_fixed(result.eval_loss, 3), "loss, last evaluation (nats)"),
        (f"{result.step:,}", f"steps, {result.samples:,} sequences"),
        (format_number(result.sequences_per_sec) if result.sequences_per_sec else None, "sequences per second"),
        (format_secs(result.wall_secs) if result.wall_secs else None, "wall time"),
    ] + [(_fixed(value, 2), name) for name, value in result.scores.items()]
    shown = [f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>' for value, name in cards if value]
    return f'<div class="cards">{"".join(shown)}</div>'


def _fixed(value, digits: int) -> str | None:
    value = plain_value(value)
    return None if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _picture(png: bytes) -> str:
    data = base64.b64encode(png).decode()
    alt = "Loss, masked-LM accuracy, learning rate and throughput over the steps of the run"
    return f'<div class="picture"><img alt="{alt}" src="data:image/png;base64,{data}"></div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>" if body else ""


def _flat(values: dict, prefix: str = "") -> dict:
    """Returns nested values under dotted names."""
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _pairs_table(values: dict) -> str:
    rows = [f'<tr><td class="name key">{html.escape(name)}</td><td>{html.escape(_cell(value))}</td></tr>' for name, value in values.items()]
    return f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>' if rows else ""


def _cell(value) -> str:
    if value is None or value == []:
        return "\u2013"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _command(path: str) -> str:
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path) as file:
        return _section("Command", f"<pre>{html.escape(file.read().strip())}</pre>")


def _parameters(rows: list[ParameterRow]) -> str:
    if not rows:
        return ""
    cells = [(row.name, " \u00d7 ".join(map(str, row.shape)) or "scalar", f"{row.tensors:,}", f"{row.parameters:,}", f"{row.megabytes:,.2f}")
             for row in rows]
    return (f"<details><summary>Parameters: {format_total(rows)}</summary>"
            f'{_table(("Name", "Shape", "Tensors", "Parameters", "MB"), cells)}</details>')


def _table(head, rows) -> str:
    """Returns a table whose first column is names and whose others are numbers."""
    body = "".join(_row("td", [cell if isinstance(cell, str) else _cell(cell) for cell in row]) for row in rows)
    return f'<div class="scroll"><table><thead>{_row("th", head)}</thead><tbody>{body}</tbody></table></div>'


def _row(tag: str, cells) -> str:
    """Returns a table row: the first cell a name, the others numbers."""
    kinds = ["name"] + ["number"] * (len(cells) - 1)
    return "<tr>" + "".join(f'<{tag} class="{kind}">{html.escape(cell)}</{tag}>' for kind, cell in zip(kinds, cells)) + "</tr>"

"""The parts that reports are made of: a page of HTML that needs nothing from outside, tables, cards, and
sections that fold."""

import html
import os
import re
from collections.abc import Iterable
from typing import Any

_FLAG = re.compile(r"--\w[\w=./:-]*\w")
_TONES = {"good": "#13693d", "fair": "#0b5c97", "bad": "#b3261e"}

CSS = """
:root { color-scheme: light; --ink: #24292f; --muted: #57606a; --border: #dde1e6; --grid: #e6e8eb; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f6f8; color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 16px 64px; }
header { border-left: 6px solid var(--tone); padding: 2px 0 2px 16px; margin-bottom: 24px; }
header p { margin: 6px 0 0; max-width: 75ch; overflow-wrap: anywhere; }
header code { display: inline-block; max-width: 100%; font-size: 14px; }
header .kicker { margin: 0; color: var(--muted); font-size: 14px; }
h1 { margin: 2px 0 8px; font-size: 28px; line-height: 1.2; color: var(--tone); overflow-wrap: anywhere; }
h2 { font-size: 19px; line-height: 1.3; margin: 36px 0 10px; }
h2 + .note { margin: -6px 0 12px; }
.note { color: var(--muted); font-size: 14px; max-width: 80ch; }
.badge { border: 1px solid var(--border); border-radius: 99px; padding: 1px 9px; background: #fff;
  white-space: nowrap; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); gap: 10px; }
.card, .chart, .item { background: #fff; border: 1px solid var(--border); border-radius: 8px; }
.card { padding: 10px 14px; }
.card b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; line-height: 1.3; }
.card span { display: block; color: var(--muted); font-size: 13px; line-height: 1.35; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 14px;
  margin-top: 20px; }
@media (min-width: 900px) {
  .charts { grid-template-columns: repeat(6, minmax(0, 1fr)); }
  .chart { grid-column: span 2; }
  .chart:nth-child(-n + 2) { grid-column: span 3; }
  .chart:only-child { grid-column: span 6; }
}
.chart { display: flex; flex-direction: column; margin: 0; padding: 12px 14px 8px; min-width: 0; }
.chart figcaption { line-height: 1.3; }
.chart figcaption span { color: var(--muted); font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 0 16px; margin-bottom: 12px; font-size: 13px; min-height: 20px;
  font-variant-numeric: tabular-nums; }
.key { display: inline-block; width: 16px; border-top: 3px solid; vertical-align: middle; margin-right: 6px; }
.key.dashed { border-top-style: dashed; border-top-width: 2px; }
.plot { position: relative; height: 190px; margin: auto 18px 42px 46px; flex: none; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.plot .grid { stroke: var(--grid); stroke-width: 1px; }
.plot .line { stroke-width: 2px; }
.plot .faint { stroke-width: 1px; opacity: .28; }
.plot .dots { stroke-width: 7px; stroke-linecap: round; }
.plot .dashed { stroke-width: 1.5px; stroke-dasharray: 6 4; }
.plot span { position: absolute; color: var(--muted); font-size: 12px; line-height: 1;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.plot .y { right: 100%; margin-right: 7px; transform: translateY(-50%); }
.plot .x { top: 100%; margin-top: 7px; transform: translateX(-50%); }
.plot .x-name { top: 100%; margin-top: 24px; left: 0; right: 0; text-align: center; }
.bars { background: #fff; border: 1px solid var(--border); border-radius: 8px; padding: 12px 14px; }
.bar { display: grid; grid-template-columns: 1fr auto; gap: 0 14px; margin-bottom: 7px; font-size: 14px; }
.bar b { font-weight: 400; color: var(--muted); font-variant-numeric: tabular-nums; }
.track { grid-column: 1 / -1; display: flex; height: 10px; background: #f0f1f3; border-radius: 3px;
  overflow: hidden; }
.items { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 12px;
  align-items: start; }
.item { padding: 12px 14px; font-size: 15px; min-width: 0; }
.item p { margin: 0 0 8px; overflow-wrap: anywhere; }
.item dl.pairs { border: 0; border-top: 1px solid var(--border); padding: 8px 0 0; font-size: 14px;
  border-radius: 0; }
mark { border-radius: 3px; padding: 0 3px; color: inherit; background: none; }
mark.right { background: #d3f0df; color: #0b4a2a; font-weight: 600; }
mark.wrong { background: #fbdcd7; color: #8c1d13; text-decoration: line-through; }
mark.gold { background: #d9eafb; color: #0a3f6b; font-weight: 600; }
dl.pairs { display: grid; grid-template-columns: minmax(90px, max-content) minmax(0, 1fr); gap: 4px 18px;
  margin: 0; background: #fff;
  border: 1px solid var(--border); border-radius: 8px; padding: 12px 14px; font-size: 14px;
    font-variant-numeric: tabular-nums; }
dl.pairs dt { color: var(--muted); overflow-wrap: anywhere; }
dl.pairs dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; width: fit-content; max-width: 100%; border: 1px solid var(--border);
  border-radius: 8px; background: #fff; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px; border-top: 1px solid var(--grid); vertical-align: top;
  white-space: nowrap; }
thead th { border-top: 0; color: var(--muted); font-weight: 600; font-size: 13px; background: #fafbfc; }
.number { text-align: right; }
.code, pre { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 13px; }
pre { background: #fff; border: 1px solid var(--border); border-radius: 8px; padding: 12px 14px; margin: 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin-top: 10px; }
summary { cursor: pointer; font-weight: 600; padding: 6px 0; overflow-wrap: anywhere; }
a { color: #0b5c97; }
@media (max-width: 560px) {
  main { padding: 18px 12px 48px; }
  h1 { font-size: 23px; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  details dl.pairs { grid-template-columns: minmax(0, 1fr); gap: 0; }
  details dl.pairs dd { margin-bottom: 8px; }
  th, td { padding: 6px 10px; }
}
@media print {
  details::details-content { content-visibility: visible; }
  .chart, .item { break-inside: avoid; }
}
"""


def page(name: str, kicker: str, headline: str, lines: list[str], tone: str, body: str) -> str:
    """Returns the whole page.

    Args:
      name: of the run, for the title of the window.
      kicker: stands small above the headline, as HTML.
      headline: plain text; in the title of the window, too.
      lines: plain texts below it; empty ones are left out.
      tone: good, fair or bad.
      body: HTML.
    """
    below = "".join(f"<p>{_FLAG.sub(_as_code, html.escape(line))}</p>" for line in lines if line)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(name)}: {html.escape(headline)}</title>
<style>{CSS}:root {{ --tone: {_TONES[tone]}; }}</style>
</head>
<body>
<main>
<header>
<p class="kicker">{kicker}</p>
<h1>{html.escape(headline)}</h1>
{below}
</header>
{body}
</main>
</body>
</html>
"""


def _as_code(found: re.Match) -> str:
    """Marks a flag, so that no line is broken between its hyphens."""
    return f"<code>{found[0]}</code>"


def cards(numbers: list[tuple[str | None, str]]) -> str:
    """Returns (value, name) pairs as cards; those without a value are left out."""
    shown = [
        f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
        for value, name in numbers
        if value
    ]
    return f'<div class="cards">{"".join(shown)}</div>' if shown else ""


def section(title: str, body: str, note: str = "") -> str:
    """Returns a section under a heading; nothing where the body is empty."""
    below = f'<p class="note">{html.escape(note)}</p>' if note else ""
    return f"<section><h2>{html.escape(title)}</h2>{below}{body}</section>" if body else ""


def folded(title: str, body: str) -> str:
    """Returns a section that is folded until a reader opens it; nothing where the body is empty."""
    return f"<details><summary>{html.escape(title)}</summary>{body}</details>" if body else ""


def charts(drawn: list[str]) -> str:
    """Returns the charts side by side where there is room, else one below the other."""
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def pairs(values: dict | list) -> str:
    """Returns names and values, the values below the names on a narrow screen."""
    rows = [
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(cell(value))}</dd>"
        for name, value in (values.items() if isinstance(values, dict) else values)
    ]
    return f'<dl class="pairs">{"".join(rows)}</dl>' if rows else ""


def cell(value: Any) -> str:
    """Returns a value as people read it."""
    if value is None or value == []:
        return "\u2013"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def table(head: Iterable, rows: Iterable[Iterable], links: dict[str, str] | None = None) -> str:
    """Returns a table whose first column is names and whose others are numbers, in a frame of its own that
    scrolls.

    Args:
      head: names of the columns.
      rows: of cells, each a text or a number.
      links: {name: relative address} of names in the first column.
    """
    body = "".join(
        _row("td", [value if isinstance(value, str) else _number(value) for value in row], links or {})
        for row in rows
    )
    top = _row("th", map(str, head), {})
    return f'<div class="scroll"><table><thead>{top}</thead><tbody>{body}</tbody></table></div>'


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else cell(value)


def _row(tag: str, cells: Iterable[str], links: dict[str, str]) -> str:
    """Returns a table row: the first cell a name, the others numbers."""
    made = []
    for number, text in enumerate(cells):
        shown = html.escape(text)
        if number == 0 and text in links:
            shown = f'<a href="{html.escape(links[text])}">{shown}</a>'
        made.append(f"<{tag}{' class=number' if number else ''}>{shown}</{tag}>")
    return f"<tr>{''.join(made)}</tr>"


def examples(groups: list[dict]) -> str:
    """Returns sections of examples; what a group is says `official.training.task.Task.examples`."""
    return "".join(
        section(
            group["title"], f'<div class="items">{"".join(map(_item, group["items"]))}</div>', group["note"]
        )
        for group in groups
        if group["items"]
    )


def _item(item: dict) -> str:
    lines = "".join(f"<p>{''.join(_segment(*segment) for segment in line)}</p>" for line in item["texts"])
    return f'<div class="item">{lines}{pairs(item["facts"])}</div>'


def _segment(text: str, kind: str) -> str:
    shown = html.escape(text)
    if not kind:
        return shown
    return f"<strong>{shown}</strong>" if kind == "strong" else f'<mark class="{kind}">{shown}</mark>'


def name_of(folder: str) -> str:
    """Returns the last part of a folder's path."""
    return os.path.basename(os.path.normpath(folder))

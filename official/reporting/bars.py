"""Horizontal bars as HTML: names above them, numbers beside these, so that they fit on a phone."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Part:
    """A piece of a bar: its name, its value, at least 0, and its colour as CSS takes it."""

    name: str
    value: float
    color: str


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar: its name, its parts from left to right, and the text of its number."""

    name: str
    parts: Sequence[Part]
    text: str


def bars(rows: Sequence[Bar], legend: Sequence[str] = (), colors: Mapping[str, str] | None = None) -> str:
    """Returns bars from top to bottom, the longest as wide as the page; nothing where all are empty.

    Args:
      rows: the bars.
      legend: names of parts, explained above them.
      colors: of these.
    """
    longest = max((sum(part.value for part in bar.parts) for bar in rows), default=0)
    if not longest:
        return ""
    keys = "".join(
        f'<span><i class="key" style="border-color:{(colors or {})[name]}"></i>{html.escape(name)}</span>'
        for name in legend
    )
    top = f'<div class="legend">{keys}</div>' if keys else ""
    return f'<div class="bars">{top}{"".join(_bar(bar, longest) for bar in rows)}</div>'


def _bar(bar: Bar, longest: float) -> str:
    pieces = "".join(
        f'<i title="{html.escape(part.name)}"'
        f' style="width:{part.value / longest:.2%};background:{part.color}"></i>'
        for part in bar.parts
        if part.value
    )
    name, text = html.escape(bar.name), html.escape(bar.text)
    return f'<div class="bar"><span>{name}</span><b>{text}</b><div class="track">{pieces}</div></div>'

"""Pages: one file of HTML that needs nothing from outside, made of sections by templates/page.html."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from official.reporting.formats import cell, fixed

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
_FLAG = re.compile(r"(--\w[\w=./:-]*\w)")
_TONES = {"good": "#13693d", "fair": "#0b5c97", "bad": "#b3261e"}


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a page, which is left out where it has neither content nor folded parts.

    Attributes:
      kind: how its content is shown.
      content: cards: [(value, name)]; charts: [`charts.draw`]; bars: `charts.bars`; table: `table`; pairs:
        [(name, value)]; items: of a group of `official.training.task.Task.examples`; code, text: a text.
      title: its heading; without one it stands by itself.
      note: below the heading.
      folded: parts that are folded until a reader opens them.
    """

    kind: str
    content: Any
    title: str = ""
    note: str = ""
    folded: Sequence[Section] = ()

    @property
    def is_shown(self) -> bool:
        return bool(self.content or any(part.is_shown for part in self.folded))


def cards(numbers: Iterable[tuple[str | None, str]]) -> Section:
    """Returns (value, name) pairs as cards; those without a value are left out."""
    return Section("cards", [(value, name) for value, name in numbers if value])


def pairs(values: Mapping | Iterable, title: str) -> Section:
    """Returns names and values, the values below the names on a narrow screen."""
    rows = list(values.items() if isinstance(values, Mapping) else values)
    return Section("pairs", rows, title)


def table(
    head: Iterable,
    rows: Iterable[Iterable],
    title: str = "",
    note: str = "",
    links: Mapping[str, str] | None = None,
) -> Section:
    """Returns a table whose first column is names and whose others are numbers, in a frame of its own that
    scrolls; empty without rows.

    Args:
      head: names of the columns.
      rows: of cells, each a text or a number.
      title, note: of the section.
      links: {name: relative address} of names in the first column.
    """
    found = [list(row) for row in rows]
    content = {"head": list(head), "rows": found, "links": links or {}} if found else None
    return Section("table", content, title, note)


def render(
    name: str,
    kicker: Sequence[str],
    headline: str,
    lines: Sequence[str],
    tone: str,
    sections: Iterable[Section],
    badge: str = "",
) -> str:
    """Returns the whole page.

    Args:
      name: of the run, for the title of the window.
      kicker: stands small above the headline.
      headline: in the title of the window, too.
      lines: below it; empty ones are left out.
      tone: good, fair or bad.
      sections: those that are not shown are left out.
      badge: stands behind the kicker.
    """
    return _template().render(
        name=name,
        kicker=kicker,
        badge=badge,
        headline=headline,
        lines=lines,
        tone=_TONES[tone],
        sections=sections,
    )


@functools.cache
def _template() -> Any:
    import jinja2  # late: a run that fails before its end does not load it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "cell": cell,
        "table_cell": lambda value: fixed(value) if isinstance(value, float) else cell(value),
        "cut_at_flags": _FLAG.split,  # every second part is a flag
    }
    return environment.get_template("page.html")

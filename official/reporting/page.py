"""Renders pages: self-contained HTML files, from the templates in this folder."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from official.reporting.formats import cell, fixed, format_bytes, format_number, format_secs, metric_name

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
_TONES = {"good": "#13693d", "fair": "#0b5c97", "bad": "#b3261e"}


def render(template: str, kicker: tuple[str, str], headline: str, tone: str, **values: Any) -> str:
    """Returns the page as HTML.

    Args:
      template: name of the template with the sections: run or data_card.
      kicker: kind and name of the page's subject, small above the headline.
      headline: headline, also the title of the window.
      tone: good, fair or bad.
      values: `lines` below the headline, without empty ones, a `badge` after the kicker, and the variables of
        the template.
    """
    head = {"kicker": kicker, "headline": headline, "tone": _TONES[tone], "badge": ""}
    return _templates().get_template(f"{template}.html").render(head | values)


@functools.cache
def _templates() -> Any:
    import jinja2  # late: not loaded by a run that fails before its end

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "cell": cell,
        "table_cell": lambda value: fixed(value) if isinstance(value, float) else cell(value),
        "cut_at_flags": re.compile(r"(--\w[\w=./:-]*\w)").split,  # every second part is a flag
        "n": "{:,}".format,
        "share": lambda value, digits: None if value is None else f"{value:.{digits}%}",
        "bytes": lambda value: format_bytes(value) if value else None,
        "count": lambda value: value if value is None else f"{value:,}",
        "flat": flat,
        "fixed": fixed_or_none,
        "metric_name": metric_name,
        "number": format_number,
        "secs": format_secs,
    }
    return environment


def fixed_or_none(value: Any) -> str | None:
    """Formats a score or a loss; None if it is missing or not finite."""
    from official.reporting.metrics import plain_value  # late: loads TensorFlow

    value = plain_value(value)
    return None if value is None else fixed(value) if isinstance(value, float) else str(value)


def flat(values: Mapping[str, Any], leaves: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """Returns nested values under dotted names; objects named in `leaves` are kept as values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        is_nested = isinstance(value, Mapping) and name not in leaves
        found.update(flat(value, leaves, f"{prefix}{name}.") if is_nested else {prefix + name: value})
    return found

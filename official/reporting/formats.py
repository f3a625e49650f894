"""Display formats of numbers and display names of metrics. No TensorFlow, no plots."""

from __future__ import annotations

import math
from typing import Any

DASH = "\u2013"  # placeholder for an unknown value
# {metric: (title, unit)}; other metrics are shown by their name, and the report only tabulates them.
METRIC_TITLES = {
    "mlm_accuracy": ("Masked-LM accuracy", "fraction of masked tokens predicted right"),
    "accuracy": ("Accuracy", "fraction of rows predicted right"),
    "exact_match": ("Exact match", ""),
    "f1": ("F1", ""),
    "matthews_correlation": ("Matthews correlation", "-1 to 1"),
    "pearson": ("Pearson correlation", "-1 to 1"),
    "spearman": ("Spearman correlation", "-1 to 1"),
}


def metric_title(metric: str) -> tuple[str, str]:
    """Returns the display name of a metric, in plots and reports, and its unit."""
    return METRIC_TITLES.get(metric, (metric, ""))


def metric_name(metric: str) -> str:
    """Returns the display name of a metric."""
    return metric_title(metric)[0]


def format_number(value: float) -> str:
    """Returns three digits or more, with thousands separators: 0.52, 7.30, 41, 412, 5,120."""
    digits = max(0, 2 - len(str(int(abs(value))))) if abs(value) >= 10 else 2 if value else 0
    return f"{value:,.{digits}f}"


def format_power(value: float) -> str:
    """Returns e.g. 4e-4 or 3.52e-4."""
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def format_count(value: float) -> str:
    """Formats a whole number in short form: 800, 1,500, 20k, 1.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * 1e3 and abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}"


def format_bytes(value: float) -> str:
    """Returns a number of bytes in a suitable unit: 999 bytes, 4.143 MB, 10 TB."""
    scaled, units = float(value), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while scaled >= 1000 and len(units) > 1:
        scaled, units = scaled / 1000, units[1:]
    return f"{scaled:.4g} {units[0]}" if scaled < 1000 else f"{scaled:,.0f} {units[0]}"


def format_secs(secs: float) -> str:
    """Returns a duration as m:ss, h:mm:ss or 'Nd h:mm:ss'."""
    if not math.isfinite(secs):
        return "?"
    minutes, secs = divmod(max(0, round(secs)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if not (days or hours):
        return f"{minutes}:{secs:02d}"
    return (f"{days}d " if days else "") + f"{hours}:{minutes:02d}:{secs:02d}"


def fixed(value: float, digits: int = 3) -> str:
    """Returns a score or a loss; a huge one as a power of ten."""
    return f"{value:.{digits}f}" if abs(value) < 1e4 else format_power(value)


def tick_text(value: float, ticks: list[float]) -> str:
    """Returns a number of an axis, with enough digits to distinguish the ticks."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(value) or 1
    if step < 0.001 or abs(value) >= 1e6:
        return format_power(value) if value else "0"
    if step >= 1 and abs(value) >= 1e4:
        return format_count(value)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step * 10**digits, 6) % 1:  # 2.5 and the like
        digits += 1
    return f"{value:,.{digits}f}"


def setting_text(value: Any, unset: str = "unset") -> str:
    """Formats a setting as on a command line; `unset` for None."""
    if isinstance(value, bool):
        return str(value).lower()
    return unset if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def cell(value: Any) -> str:
    """Formats a value of any type for display."""
    if value is None or value == []:
        return DASH
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

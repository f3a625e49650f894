"""Display names of metrics, and formats of numbers, for people. No TensorFlow, no plots."""

# {metric: (title, unit)}; a metric that is not here goes by its name.
_METRIC_TITLES = {
    "mlm_accuracy": ("Masked-LM accuracy", "fraction of masked tokens predicted right"),
    "accuracy": ("Accuracy", "fraction of rows predicted right"),
    "exact_match": ("Exact match", ""),
    "f1": ("F1", ""),
    "matthews_correlation": ("Matthews correlation", "-1 to 1"),
    "pearson": ("Pearson correlation", "-1 to 1"),
    "spearman": ("Spearman correlation", "-1 to 1"),
}


def is_known(metric: str) -> bool:
    """Tells whether a metric has a display name; others stand with all the numbers."""
    return metric in _METRIC_TITLES


def metric_title(metric: str) -> tuple[str, str]:
    """Returns the display name of a metric, in pictures and reports, and its unit."""
    return _METRIC_TITLES.get(metric, (metric, ""))


def metric_name(metric: str) -> str:
    """Returns the display name of a metric."""
    return metric_title(metric)[0]


def format_number(value: float) -> str:
    """Returns three digits or more, with thousands separators: 0.52, 7.3, 41.2, 412, 5,120."""
    digits = max(0, 2 - len(str(int(abs(value))))) if abs(value) >= 10 else 2 if value else 0
    return f"{value:,.{digits}f}"


def format_power(value: float) -> str:
    """Returns e.g. 4e-4 or 3.52e-4."""
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def format_count(value: float) -> str:
    """Returns a whole number that takes little room: 800, 1,500, 20k, 1.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * 1e3 and abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}"

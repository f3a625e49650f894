"""Metrics that people compute in Python files of their own."""

from __future__ import annotations

import contextlib
import runpy
import sys
import types
from collections.abc import Callable, Iterable, Iterator

from official.io.errors import ConfigError

Function = Callable[[str, str, int], float | None]
_PUBLISHED = (
    "examples_utils.benchmarks.custom_metrics"  # where the files of the published runner import it from
)


def load(paths: Iterable[str]) -> dict[str, Function]:
    """Returns {metric: function of stdout, stderr and the exit code} that files register, with
    `register_custom_metric(name, function)`. They need not import it. Raises ConfigError."""
    found: dict[str, Function] = {}

    def register_custom_metric(name: str, function: Function) -> None:
        found[name] = function

    for path in paths:
        with _importable(register_custom_metric):
            try:
                runpy.run_path(path, {"register_custom_metric": register_custom_metric})
            except Exception as error:
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                raise ConfigError(f"--custom_metrics_files={path}: {reason}.") from None
    return found


def compute(
    functions: dict[str, Function], stdout: str, stderr: str, exitcode: int
) -> dict[str, float | None]:
    """Returns {metric: value}; None where a function fails."""
    values: dict[str, float | None] = {}
    for name, function in functions.items():
        values[name] = None
        with contextlib.suppress(Exception):
            value = function(stdout, stderr, exitcode)
            values[name] = None if value is None else float(value)
    return values


@contextlib.contextmanager
def _importable(function: Callable[[str, Function], None]) -> Iterator[None]:
    """In its block the function can be imported under the name that it has in the published package, where
    that is not installed."""
    parts = _PUBLISHED.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))]
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    vars(sys.modules[_PUBLISHED]).setdefault("register_custom_metric", function)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]

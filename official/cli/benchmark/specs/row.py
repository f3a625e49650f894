"""Result row of a run, in the keys shared by all our speed benchmarks."""

from __future__ import annotations

import os
from typing import Any

from official.cli import flags
from official.cli.benchmark.specs.commands import Variant
from official.cli.benchmark.specs.metrics import Results, number_of
from official.io.errors import ConfigError

# Key of a latency -> names of metrics that hold it, in milliseconds.
_LATENCIES = {
    "mean": ("latency", "latency_avg", "latency_mean"),
    "p50": ("latency_50p", "latency_p50"),
    "p99": ("latency_99p", "latency_p99"),
    "p999": ("latency_99p9", "latency_p999"),
    "min": ("latency_min",),
    "max": ("latency_max",),
}
_BATCHES = ("micro_batch_size", "batch_size", "train_batch_size", "batch")
_DTYPES = ("dtype", "dtypes", "precision")
_BACKENDS = ("backend", "backends")


def make(variant: Variant, results: Results) -> dict[str, Any]:
    """Returns {name, dtype, max_seq_length, batch, backend, sequences_per_sec, latency_ms}, with None for
    values that the command does not set or that were not measured.

    Where the seconds of a step are known (`step_secs`), the speed is computed from them, with all its digits:
    the log lines of a training round it to tenths.
    """
    latencies = {key: _first(results, names) for key, names in _LATENCIES.items()}
    said, speed = _said(variant.words), number_of(results, "throughput")
    sequences, secs = said.pop("sequences", None), number_of(results, "step_secs")
    if sequences and secs and speed is not None:
        speed = sequences / secs * variant.processes
    return {
        "name": variant.name,
        **said,
        "sequences_per_sec": speed,
        "latency_ms": latencies if any(value is not None for value in latencies.values()) else None,
    }


def _first(results: Results, names: tuple[str, ...]) -> float | None:
    return next((number for name in names if (number := number_of(results, name)) is not None), None)


def _said(words: tuple[str, ...]) -> dict[str, Any]:
    """Returns dtype, length, batch and back end of a command: for our training from its configuration, with
    the sequences of a step (0 for packed rows); else from its flags."""
    trains = [place for place, word in enumerate(words) if os.path.basename(word) == "train.py"]
    if trains:
        try:
            config = flags.parse([*words[trains[0] + 1 :], "--plan"])
        except ConfigError:
            pass  # another train.py
        else:
            return {
                "dtype": config.dtype,
                "max_seq_length": config.max_seq_length,
                "batch": config.train_batch_size,
                "backend": "tensorflow",
                "sequences": 0 if config.pack_on_the_fly or config.pack else config.train_batch_size,
            }
    given = _given(words)
    batch, length = _one_of(given, _BATCHES) or "", given.get("max_seq_length", "")
    return {
        "dtype": _one_of(given, _DTYPES),
        "max_seq_length": int(length) if length.isdigit() else None,
        "batch": int(batch) if batch.isdigit() else None,
        "backend": _one_of(given, _BACKENDS),
    }


def _one_of(given: dict[str, str], names: tuple[str, ...]) -> str | None:
    """Returns the value of the first flag of `names` that is given; None for a comma-separated list."""
    value = next((given[name] for name in names if name in given), None)
    return None if value is None or "," in value else value


def _given(words: tuple[str, ...]) -> dict[str, str]:
    """Returns {name of a flag: its value} of --name=value and --name value."""
    given = {}
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            given[name.removeprefix("--").replace("-", "_")] = value if equals else following
    return given

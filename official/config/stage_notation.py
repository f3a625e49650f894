"""The text of --pipeline_stages and --device_mapping: Graphcore's notation, their JSON lists, and back."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence

from official.io.errors import ConfigError, suggest

# Graphcore's names of the parts of a model, of their TensorFlow 1 and TensorFlow 2 programs.
NAMES = (
    "emb", "pos", "hid", "enc_out", "pool", "mlm", "nsp", "heads", "loc", "qa_head", "glu", "glu_reg",
    "glue_head",
)  # fmt: skip
_EXAMPLE = "emb+pos / hid*12 / hid*12 / mlm+nsp"
_MOST_REPEATS = 1000


def read_stages(text: str) -> int | list[list[str]]:
    """Parses --pipeline_stages: returns the number of stages, or Graphcore's names in each stage.

    Args:
      text: `5`, `emb+pos / hid*12 / hid*12 / mlm+nsp`, or a JSON list of lists of names.

    Raises:
      ConfigError: for another text, and for a name that they do not have.
    """
    if re.fullmatch(r"\s*\d+\s*", text):
        return _count(text)
    if text.lstrip().startswith("["):
        stages = _json_stages(text)
    else:
        stages = [_names(stage) for stage in text.split("/")]
    for number, stage in enumerate(stages):
        if not stage:
            raise ConfigError(f"pipeline_stages: stage {number} is empty. Write {_EXAMPLE}.")
        for name in stage:
            if name not in NAMES:
                allowed = ", ".join(NAMES)
                raise ConfigError(
                    f"pipeline_stages: {name[:40]!r} is no part of a model{suggest(name, NAMES)}"
                    f"{', and no number of stages' if len(stages) == 1 else ''}. Parts: {allowed}."
                )
    return stages


def _count(text: str) -> int:
    if len(text.strip()) > 4 or not int(text):
        raise ConfigError(f"pipeline_stages={text.strip()[:40]}, expected 1 to 9999 stages.")
    return int(text)


def _json_stages(text: str) -> list[list[str]]:
    stages = _json_list(text, "pipeline_stages", f"a list of lists of names, or {_EXAMPLE}")
    if not all(isinstance(stage, list) and all(isinstance(name, str) for name in stage) for stage in stages):
        raise ConfigError(f"pipeline_stages={text[:100]}, expected a list of lists of names, or {_EXAMPLE}.")
    return stages


def _json_list(text: str, setting: str, expected: str) -> list:
    try:
        found = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise ConfigError(f"{setting}={text[:100]}, expected {expected}.")
    return found


def _names(stage: str) -> list[str]:
    names: list[str] = []
    for term in filter(None, map(str.strip, stage.split("+"))):
        name, star, times = (part.strip() for part in term.partition("*"))
        if star and not (times.isdecimal() and 0 < int(times) <= _MOST_REPEATS):
            raise ConfigError(f"pipeline_stages: {term[:40]!r}, expected a name, or NAME*TIMES: hid*12.")
        names += [name] * (int(times) if star else 1)
    return names


def read_devices(text: str) -> tuple[int, ...]:
    """Parses --device_mapping, `0,1,2,3,0` or a JSON list of numbers: returns the device of each stage.

    Raises:
      ConfigError: for another text.
    """
    expected = "whole numbers from 0, one a stage: 0,1,2,3,0"
    if text.lstrip().startswith("["):
        devices = _json_list(text, "device_mapping", expected)
    else:
        parts = [part.strip() for part in text.split(",")]
        devices = [int(part) if re.fullmatch(r"\d{1,4}", part) else None for part in parts]
    if not devices or not all(type(device) is int and 0 <= device < 10**4 for device in devices):
        raise ConfigError(f"device_mapping={text[:100]}, expected {expected}.")
    return tuple(devices)


def written(stages: Iterable[Sequence[str]]) -> str:
    """Returns names in each stage in Graphcore's notation: `emb+pos / hid*12 / mlm+nsp`."""
    return " / ".join(
        "+".join(
            name if times == 1 else f"{name}*{times}"
            for name, times in ((name, len(list(group))) for name, group in itertools.groupby(stage))
        )
        for stage in stages
    )

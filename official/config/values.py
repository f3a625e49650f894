"""Parsers of settings with several values or units: by step, a window of steps, hosts, bytes, stages."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from official.io.errors import ConfigError, suggest

if TYPE_CHECKING:
    from official.config.table import Config


# Keras' policy of each value of --dtype, and of int8, which has float32 around its 8-bit products.
POLICIES = {"fp32": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16", "int8": "float32"}


# -----------------------------------------------------------------------------------------------------------
# Values by step


_EXPECTED = 'expected JSON of step and value with a step 0, such as {"0": 1e-4, "1000": 1e-5}'


def read_by_step(text: str, name: str) -> dict[int, float]:
    """Returns {step: value}, sorted by step; a value holds from its step on. Empty for a text that is not a
    JSON object.

    Args:
      text: value of the setting.
      name: name of the setting, for messages.

    Raises:
      ConfigError: for an object of another form, a step below 0 or twice, a value that is negative or not
        finite, or a missing step 0.
    """
    if not text.lstrip().startswith("{"):
        return {}
    try:
        pairs = json.loads(text, object_pairs_hook=list)
        found = {int(step): _number(value) for step, value in pairs}
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ConfigError(f"{name}={text[:100]}, {_EXPECTED}.") from None
    if len(found) < len(pairs):
        raise ConfigError(f"{name}={text[:100]} has a step twice. Drop one of the two.")
    if min(found, default=1) != 0:
        raise ConfigError(
            f"{name}={text[:100]} must have a value for step 0 and none for earlier steps: {_EXPECTED}."
        )
    return dict(sorted(found.items()))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise ValueError(value)
    return float(value)


# -----------------------------------------------------------------------------------------------------------
# Profiled steps


def read_steps(text: str) -> tuple[int, int]:
    """Returns (first, last) of --profile_steps: from `first` updates done to `last`. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 2 and all(part.isdecimal() for part in parts):
        first, last = map(int, parts)
        if first < last:
            return first, last
    raise ConfigError(
        f"profile_steps={text[:100]}, expected two steps, the second one after the first, such as 10,20:"
        " the steps from 10 updates done to 20. Change --profile_steps."
    )


def window(config: Config, step: int, last_step: int) -> tuple[int, int] | None:
    """Returns (first, last) of the steps that a process profiles; None for none.

    Args:
      config: configuration of the run.
      step: updates done at the start of the process.
      last_step: the last update of the run.
    """
    if config.profile_steps:
        first, last = read_steps(config.profile_steps)
        return (first, last) if step <= first and last <= last_step else None
    if config.profile_memory and step < last_step:  # the first step of a process compiles
        first = min(step + 1, last_step - 1)
        return first, first + 1
    return None


# -----------------------------------------------------------------------------------------------------------
# Numbers of hosts


_MOST_HOSTS, _MOST_COUNTS = 10**6, 64


def read_host_counts(text: str) -> tuple[int, ...]:
    """Returns the numbers of hosts in a text, ascending.

    Args:
      text: numbers and ranges, comma-separated. 1..4096 is 1, 2, 4 and so on, doubled up to 4096, which is
        always included.

    Raises:
      ConfigError: for a malformed or too long list.
    """
    counts: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 0 < first <= last <= _MOST_HOSTS:
            raise ConfigError(
                f"plan_hosts={text[:100]}: {part.strip()[:40]!r} is not a number of hosts or a range, such as"
                f" 1..4096, from 1 to {_MOST_HOSTS:,}. Change --plan_hosts."
            )
        counts |= {first << doubled for doubled in range((last // first).bit_length())} | {last}
    if len(counts) > _MOST_COUNTS:
        raise ConfigError(
            f"plan_hosts={text[:100]} names {len(counts)} numbers of hosts, {_MOST_COUNTS} at most. Shorten"
            " --plan_hosts."
        )
    return tuple(sorted(counts))


# -----------------------------------------------------------------------------------------------------------
# Memory of devices


_GB, _GIB = 10**9, 2**30

# According to the manufacturers. NVIDIA: data sheets of V100 (16 and 32 GB), A100 (40 and 80 GB) and H100 (80
# GB). Google: Cloud TPU system architecture, 32 GiB a chip of TPU v3, which has two cores, and of TPU v4.
# Graphcore: 900 MB of In-Processor-Memory in a Colossus Mk2 (GC200); its streaming memory is not counted.
DEVICE_BYTES = {
    "v100-16gb": 16 * _GB,
    "v100-32gb": 32 * _GB,
    "a100-40gb": 40 * _GB,
    "a100-80gb": 80 * _GB,
    "h100": 80 * _GB,
    "tpu-v3-core": 16 * _GIB,
    "tpu-v4": 32 * _GIB,
    "ipu-mk2": 900 * 10**6,
}
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": _GB, "kib": 2**10, "mib": 2**20, "gib": _GIB}
_NUMBER = re.compile(r"(\d+\.?\d*(?:e\+?\d{1,2})?)\s*([a-z]*)")


def device_bytes(text: str) -> int:
    """Returns the bytes of memory of a device: a name in `DEVICE_BYTES`, or a number of bytes, such as 16e9
    or 16GB. Raises ConfigError for anything else."""
    lowered = text.strip().lower()
    if lowered in DEVICE_BYTES:
        return DEVICE_BYTES[lowered]
    match = _NUMBER.fullmatch(lowered)
    count = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0.0
    if not 1 <= count < 2**63:
        names = tuple(DEVICE_BYTES)
        raise ConfigError(
            f"plan_device={text[:100]!r} is not one of {', '.join(names)}{suggest(lowered, names)}, and no"
            " number of bytes such as 16e9, 16GB or 16GiB. Change --plan_device."
        )
    return int(count)


def gpu_memory_bytes(text: str) -> int | None:
    """Returns the maximum bytes that --gpu_memory takes of a GPU; None for grow and all. Raises ConfigError
    for anything other than these and a number of GB above 0."""
    if text in ("grow", "all"):
        return None
    try:
        count = float(text) * 1e9
    except ValueError:
        count = 0.0
    if not 2**20 <= count < 2**63:  # TensorFlow counts in MiB; also false for NaN
        raise ConfigError(
            f"gpu_memory={text[:100]!r} is not grow, all or a number of GB above 0, such as 16 or 7.5"
            f"{suggest(text, ('grow', 'all'))}. Change --gpu_memory."
        )
    return int(count)


# -----------------------------------------------------------------------------------------------------------
# Stages of a pipeline


# Graphcore's names of the parts of a model, in their TensorFlow 1 and TensorFlow 2 programs.
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
      ConfigError: for a malformed text, and for an unknown name.
    """
    if re.fullmatch(r"\s*\d+\s*", text):
        if len(text.strip()) > 4 or not int(text):
            raise ConfigError(f"pipeline_stages={text.strip()[:40]}, expected 1 to 9999 stages.")
        return int(text)
    if text.lstrip().startswith("["):
        expected = f"a list of lists of names, or {_EXAMPLE}"
        stages = _json_list(text, "pipeline_stages", expected)
        if not all(isinstance(each, list) and all(isinstance(one, str) for one in each) for each in stages):
            raise ConfigError(f"pipeline_stages={text[:100]}, expected {expected}.")
    else:
        stages = [_names(stage) for stage in text.split("/")]
    for number, stage in enumerate(stages):
        if not stage:
            raise ConfigError(f"pipeline_stages: stage {number} is empty. Write {_EXAMPLE}.")
        for name in stage:
            if name not in NAMES:
                allowed = ", ".join(NAMES)
                raise ConfigError(
                    f"pipeline_stages: {name[:40]!r} is not a part of a model{suggest(name, NAMES)}"
                    f"{', and no number of stages' if len(stages) == 1 else ''}. Parts: {allowed}."
                )
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
      ConfigError: for a malformed text.
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


def written_stages(stages: Iterable[Sequence[str]]) -> str:
    """Returns names in each stage in Graphcore's notation: `emb+pos / hid*12 / mlm+nsp`."""
    return " / ".join(
        "+".join(
            name if times == 1 else f"{name}*{times}"
            for name, times in ((name, len(list(group))) for name, group in itertools.groupby(stage))
        )
        for stage in stages
    )

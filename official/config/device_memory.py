"""Memory of devices: the values of --plan_device."""

from __future__ import annotations

import re

from official.io.errors import ConfigError, suggest

_GB, _GIB = 10**9, 2**30

# As the makers state it. NVIDIA: data sheets of V100 (16 and 32 GB), A100 (40 and 80 GB) and H100 (80 GB).
# Google: Cloud TPU system architecture, 32 GiB a chip of TPU v3, which has two cores, and of TPU v4.
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
    """Returns the bytes of memory of a device: of a name of `DEVICE_BYTES`, or a number of bytes, as 16e9 or
    16GB. Raises ConfigError for anything else."""
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

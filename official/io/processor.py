"""The processor of this machine: its name, how many cores this process may use, and its instructions."""

from __future__ import annotations

import os
import platform
from typing import NamedTuple

# Those that the speed of matrix products depends on, as the kernel names them.
INSTRUCTIONS = (
    "avx2",
    "fma",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "amx_fp16",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
)

_ADD_IN_32_BITS = {"avx_vnni", "avx512_vnni", "amx_int8"}  # products of bytes, on x86


class Processor(NamedTuple):
    """A processor.

    Attributes:
      name: as the processor says it.
      cores: that this process may use.
      instructions: those of `INSTRUCTIONS` that it has.
    """

    name: str
    cores: int
    instructions: tuple[str, ...]


def saturates_int8(cpu: Processor) -> bool:
    """Tells whether a processor adds two products of unsigned and signed bytes in 16 bits: x86 without VNNI.
    These saturate; with signed numbers of 7 bits, up to 63, they do not.

    Source: oneDNN's documentation, "Nuances of int8 computations".
    """
    return "avx2" in cpu.instructions and not _ADD_IN_32_BITS.intersection(cpu.instructions)


def processor(cpu_info: str = "/proc/cpuinfo") -> Processor:
    """Returns the processor of this machine.

    Args:
      cpu_info: the file in which the kernel describes it. Where there is none, its name is what Python knows
        and its instructions are unknown.
    """
    lines: dict[str, str] = {}
    if os.path.exists(cpu_info):
        with open(cpu_info, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                lines.setdefault(key.strip(), value.strip())
    name = lines.get("model name") or platform.processor() or platform.machine()
    flags = (lines.get("flags") or lines.get("Features", "")).split()
    found = tuple(each for each in INSTRUCTIONS if each in flags)
    return Processor(name, len(os.sched_getaffinity(0)), found)

"""Environment of a run, for reproducing it: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import resource
import subprocess

import tensorflow as tf

from official.io.errors import installed_versions
from official.io.native_library import processor

_PACKAGES = ("tensorflow", "tensorflow-addons", "tensorflow-text", "keras", "tf-keras", "numpy")


def environment() -> dict:
    """Returns the versions, the commit of the code and the machine of this process."""
    python, versions = platform.python_version(), installed_versions(*_PACKAGES)
    return {"commit": commit(), "python": python, "versions": versions, "machine": machine()}


def commit() -> str | None:
    """Returns the commit of this checkout, with -dirty if files differ from it; None outside of a
    checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def machine() -> dict:
    """Returns the hardware and system that the speed of a run depends on: CPU, cores, memory, system."""
    own = processor()
    return {
        "cpu": own.name,
        "cores": own.cores,
        "instructions": list(own.instructions),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.platform(),
    }


def peak_memory_bytes() -> int:
    """Returns the peak memory so far, of the first GPU if TensorFlow uses one, otherwise of this process."""
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

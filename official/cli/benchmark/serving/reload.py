"""Publishes a new version of the model while clients ask, and waits until it is served."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from typing import Any

from official.cli.benchmark.serving import traffic
from official.cli.benchmark.serving.servers import Server
from official.cli.benchmark.serving.traffic import Run
from official.io import json_files
from official.io.errors import ConfigError

FIRST, SECOND = "1", "2"
_MODEL = "/v1/models/bert"
_AVAILABLE = "AVAILABLE"
_POLL_SECS = 0.1
_PART = 1 / 4  # of the run, before the new version appears


def publish(model: str, folder: str, version: str) -> str:
    """Adds a version, a link to the model, to a folder of versions, and returns the folder."""
    os.makedirs(folder, exist_ok=True)
    os.symlink(os.path.abspath(model), os.path.join(folder, version))
    return folder


def available(server: Server) -> list[str]:
    """Returns the versions that a server reports as available in TensorFlow Serving's model status."""
    _, body = server.get(_MODEL)
    source = f"GET {_MODEL}"
    states = json_files.expect(json_files.parse_json(body, source), "model_version_status", list, source)
    return [str(state.get("version")) for state in states if state.get("state") == _AVAILABLE]


def swap(server: Server, model: str, folder: str, secs: float) -> dict[str, float]:
    """Publishes the second version after a quarter of a run, and waits until it is served.

    Args:
      server: server that the clients ask.
      model: target of the version's link.
      folder: folder of versions.
      secs: counted seconds of the run.

    Returns:
      {appeared, swapped}: times of the monotonic clock.

    Raises:
      ConfigError: where it is not served before the run ends.
    """
    until = time.monotonic() + traffic.WARM_SECS + secs
    time.sleep(traffic.WARM_SECS + secs * _PART)
    publish(model, folder, SECOND)
    appeared = time.monotonic()
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if SECOND in available(server):
                return {"appeared": appeared, "swapped": time.monotonic()}
        time.sleep(_POLL_SECS)
    raise ConfigError(
        f"--reload: version {SECOND} was not served {secs * (1 - _PART):.0f} s after it appeared."
        " Take more --secs."
    )


def told(run: Run, moments: dict[str, float]) -> dict[str, Any]:
    """Returns the times of the swap in seconds from the run's beginning, and the requests and latencies
    before it, while the new version was loaded, and after it."""
    appeared, swapped = (moments[name] - run.began for name in ("appeared", "swapped"))
    return {
        "appeared_secs": appeared,
        "swapped_secs": swapped,
        "before": run.between(0, appeared),
        "loading": run.between(appeared, swapped),
        "after": run.between(swapped, run.secs),
    }

"""The systems measured: our server, the bare model, and other servers of the same model."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable

from official.cli import command_line
from official.cli.benchmark import environments
from official.cli.benchmark.environments import Environment

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_programs")
_POLL_SECS = 1.0  # between looks for a new version
LOAD_PROGRAM, BARE_PROGRAM = (os.path.join(_FOLDER, name) for name in ("load.py", "bare.py"))
BARE, BARE_TITLE = "bare", "the bare model"  # its name in JSON, and for people


@dataclasses.dataclass(frozen=True)
class ServerSystem:
    """A kind of server.

    Attributes:
      name, title: its name in JSON, and for people.
      flag: the flag that selects it.
      path, health: URL paths of the requests, and of the health check, which answers 200 once it is ready.
      words: (flags, model, port) -> the command line that starts it.
      environment: environment whose packages it uses beside this project's; None: no other.
    """

    name: str
    title: str
    flag: str
    path: str
    health: str
    words: Callable[[argparse.Namespace, str, int], list[str]]
    environment: Environment | None = None

    @property
    def is_ours(self) -> bool:
        return self.environment is None


def _serve(flags: argparse.Namespace, model: str, port: int) -> list[str]:
    """Returns the command line of `bert serve`."""
    given = {
        "export_dir": model,
        "port": port,
        "dtype": flags.dtype,
        "backend": flags.backend,
        "threads": flags.threads,
        "max_batch_size": flags.max_batch_size,
        "batch_delay_ms": flags.batch_delay_ms,
        "methods": "answer",  # what the others load
        "poll_secs": _POLL_SECS,
    }
    return [*command_line.in_new_process("serve"), *(f"--{name}={value}" for name, value in given.items())]


def _litserve(flags: argparse.Namespace, model: str, port: int, fast_queue: bool) -> list[str]:
    """Returns the command line of LitServe with the same model, threads and batches."""
    names = ("dtype", "backend", "threads", "max_batch_size", "batch_delay_ms")
    asked = {name: getattr(flags, name) for name in names}
    asked |= {"model": model, "port": port, "fast_queue": fast_queue}
    return [sys.executable, os.path.join(_FOLDER, "litserve_server.py"), json.dumps(asked)]


_LITSERVE = Environment(
    "litserve", ("litserve==0.2.19", "fastapi==0.165.0", "uvicorn[standard]==0.54.0", "pyzmq==27.3.0")
)
OURS = ServerSystem("bert serve", "bert serve", "export_dir", "/v1/models/bert:predict", "/healthz", _serve)
_ROWS = (
    ServerSystem(
        "litserve",
        "LitServe",
        "peers",
        "/predict",
        "/health",
        lambda flags, model, port: _litserve(flags, model, port, False),
        _LITSERVE,
    ),
    ServerSystem(
        "litserve_fast_queue",
        "LitServe, fast queue",
        "peers",
        "/predict",
        "/health",
        lambda flags, model, port: _litserve(flags, model, port, True),
        _LITSERVE,
    ),
)
PEERS = {row.name: row for row in _ROWS}


def environments_of(peers: list[str]) -> list[tuple[str, Environment]]:
    """Returns the (name, environment) pairs of the peers that have an environment."""
    wanted = [(name, PEERS[name].environment) for name in peers]
    return [(name, environment) for name, environment in wanted if environment]


def variables(system: ServerSystem, of_environments: str) -> dict[str, str]:
    """Returns the environment variables of a server.

    A peer serves this project's model: this interpreter runs it, with the peer's packages before its own on
    the path, as if pip had installed both into one environment.
    """
    found = environments.variables(None)
    if system.environment is None:
        return found
    own = environments.packages_of(system.environment.name, of_environments)
    return {**found, "PYTHONPATH": os.pathsep.join([found["PYTHONPATH"], own])}

"""Runs tasks on the nodes of a Ray cluster: an existing one, or one on this machine that ends with the job.

Ray distributes tasks, and retries them if a process or a node is lost. This module adds: a bounded number of
submitted tasks, exceptions of tasks raised unchanged, and refusal of nodes with other code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging as python_logging
import os
import pathlib
import platform
import secrets
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from absl import logging

from official.io import bars, engines, signals, writing
from official.io.errors import ConfigError, counted, installed_versions

if TYPE_CHECKING:
    from concurrent.futures import Future

    from official.io.engines import Round

_MAX_RETRIES = 5  # of a task whose process or node is lost
_MUST_AGREE = ("tensorflow", "numpy", "tokenizers", "blingfire", "ray")  # packages that records depend on


@dataclasses.dataclass
class Ray:
    """An engine of Ray; the first round connects it."""

    num_workers: int | None
    address: str | None
    _stack: contextlib.ExitStack
    _is_connected: bool = False

    def run(self, tasks: Round) -> None:
        """Runs the tasks of a round; see `engines.Engine`. The bar moves when a task is done."""
        if not tasks.number:
            return
        if not self._is_connected:
            self._stack.enter_context(_connection(self.address, self.num_workers))
            self._is_connected = True
        with bars.of_round(tasks, "ray") as bar:
            workers = self._run(tasks, bar)
            bar.workers = len(workers)
        machines = counted(len({host for host, _ in workers}), "machine")
        logging.info("Ray: done by %s of %s.", counted(len(workers), "process"), machines)

    def _run(self, tasks: Round, bar: bars.ProgressBar) -> set[tuple[str, int]]:
        """Runs the tasks. Returns (machine, process) of those that have."""
        import ray

        run_there = ray.remote(max_retries=_MAX_RETRIES, scheduling_strategy="SPREAD")(_run_there)
        versions = ray.put(_own_versions())
        running: set[Future] = set()
        workers: set[tuple[str, int]] = set()

        def submit(*task) -> Future:
            future = run_there.remote(task, versions).future()
            running.add(future)
            future.add_done_callback(running.discard)
            return future

        def take(done: tuple) -> None:
            worker, *counts = done
            bar.add(*counts)
            workers.add(worker)

        def window() -> int:  # a cluster of our own has one CPU per worker
            most = self.num_workers if self.address else None
            return most or max(1, _nodes_and_cpus()[1]) * 2

        try:
            engines.watch(submit, iter(tasks.tasks), window, take)
        except BaseException as error:
            for future in list(running):
                ray.cancel(future.object_ref, force=True)  # type: ignore[attr-defined]
            if isinstance(error, ray.exceptions.RayTaskError):
                raise _as_itself(error) from None
            if isinstance(error, ray.exceptions.RayError):
                raise ConfigError(
                    f"a task of --engine=ray was lost, and {_MAX_RETRIES} retries"
                    f" failed: {' '.join(str(error).split())[:300]} Give the nodes more memory or lower"
                    " --num_workers; the same command resumes the job."
                ) from None
            raise
        return workers


def _nodes_and_cpus() -> tuple[int, int]:
    """Returns the numbers of living nodes of the cluster, which may join or leave, and of their CPUs."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return len(alive), int(sum(resources.get("CPU", 0) for resources in alive))


def _as_itself(error) -> BaseException:
    """Returns the exception that a task has raised."""
    text = str(error)
    if "failed to import" in text or isinstance(error.cause, ModuleNotFoundError):
        return ConfigError(
            "a node of the Ray cluster cannot load this program. Install the same version of it, with the"
            f" same packages, on every node. It says: {text.strip().splitlines()[-1][:200]}"
        )
    return error.cause if isinstance(error.cause, BaseException) else error


# No usage statistics, no warning on accelerators, and a task that needs too much memory ends.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "3",
}


@contextlib.contextmanager
def _connection(address: str | None, num_cpus: int | None) -> Iterator[None]:
    """Connects this process with a cluster for the block. Ray's processes end with this one, however it ends.

    Args:
      address: of an existing cluster; None: start one of one node on this machine.
      num_cpus: of the one to start: maximum number of concurrent tasks; None: one per core.

    Raises:
      ConfigError: where that is impossible.
    """
    handlers = {number: signal.getsignal(number) for number in signals.NUMBERS}
    with contextlib.ExitStack() as stack:
        how: dict[str, Any] = {}
        if not address:
            # A short path: that of a socket below it is 80 bytes longer than the parent's.
            short = writing.new_folder(engines.folder_for_sockets(24), "bert-ray-")
            # Ray reads them on import. Other users, without the secret, cannot send tasks to the cluster.
            os.environ |= {**_SETTINGS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _secret()}
            how = dict(num_cpus=num_cpus or engines.cores(), include_dashboard=False)
            how |= dict(_node_ip_address="127.0.0.1", _temp_dir=stack.enter_context(short))
            how["object_store_memory"] = 100 << 20  # for small arguments and results: the data are in files
        import ray

        try:
            if address:
                _check_answers(address)
            ray.init(address or "local", log_to_driver=False, logging_level=python_logging.ERROR, **how)
        except Exception as error:  # also plain ones, such as where a node does not start in time
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            if not address:
                raise ConfigError(f"--engine=ray: Ray does not start on this machine: {reason}") from None
            raise ConfigError(
                f"--ray_address={address}: {reason} Give HOST:PORT or ray://HOST:PORT of a cluster with the"
                " same Python and Ray, or drop the flag to start one on this machine."
            ) from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)  # Ray has put its own there
        stack.callback(ray.shutdown)
        nodes, cpus = _nodes_and_cpus()
        where = f"at {address}" if address else "started on this machine"
        logging.info("Ray: %s with %s, %s.", counted(nodes, "node"), counted(cpus, "CPU"), where)
        yield


@functools.lru_cache(maxsize=1)  # Ray takes one a process
def _secret() -> str:
    return secrets.token_hex(32)


def _check_answers(address: str) -> None:
    """Raises an error if nothing listens at an address: Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("it is no address.")
    try:
        socket.create_connection((host, int(port)), timeout=20.0).close()
    except OSError as error:
        raise OSError(f"nothing answers there ({error}).") from None


# ------------------------------------------------------------------------------------------------------------
# On the nodes


def _run_there(task: tuple, versions: dict[str, str]) -> tuple[tuple[str, int], float, float]:
    """Runs a task in a process of a node. Returns (machine, process), and the sums of what it reports."""
    _check_versions(versions)
    host, sums = socket.gethostname(), [0.0, 0.0]
    function, *arguments = task

    def count(num_bytes: float, items: float) -> None:
        sums[0] += num_bytes
        sums[1] += items

    try:
        with engines.reporting_to(count):
            function(*arguments)
    except OSError as error:
        # The folder may be one that this node does not see.
        error.strerror = f"{error.strerror or error} (on the node {host})"
        raise
    return (host, os.getpid()), sums[0], sums[1]


@functools.lru_cache(maxsize=1)
def _own_versions() -> dict[str, str]:
    """Returns the versions of packages that records depend on, and a digest of this program's code."""
    root, code = pathlib.Path(__file__).parents[1], hashlib.blake2b(digest_size=8)
    for path in sorted(path for kind in ("py", "cc", "h") for path in root.glob(f"**/*.{kind}")):
        code.update(str(path.relative_to(root)).encode() + path.read_bytes())
    found = {"python": platform.python_version(), "code of this program": code.hexdigest()}
    return found | installed_versions(*_MUST_AGREE)


def _check_versions(wanted: dict[str, str]) -> None:
    """Raises ConfigError if this node has other versions than the machine that started the job."""
    own = _own_versions()
    differing = [
        f"{name} {own.get(name, 'is missing')} (expected {wanted.get(name, 'none')})"
        for name in sorted({*own, *wanted})
        if own.get(name) != wanted.get(name)
    ]
    if differing:
        raise ConfigError(
            f"the node {socket.gethostname()} of the Ray cluster has {', '.join(differing)}. Install the same"
            " versions on every node: the records depend on them."
        )

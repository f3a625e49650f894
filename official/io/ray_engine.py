"""Runs tasks on the nodes of a Ray cluster: an existing one, or one on this machine that ends with the job.

Ray distributes tasks, and retries them if a process or a node is lost. This module adds: a bounded number of
submitted tasks, exceptions of tasks raised unchanged, refusal of nodes with other code, and the end of Ray's
processes with the process that they were started for.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import logging as python_logging
import os
import pathlib
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from absl import logging

from official.io import bars, engines, signals
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
            address = self.address or self._stack.enter_context(started_cluster(self.num_workers))
            self._stack.enter_context(_connection(address, is_own=not self.address))
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

        # A cluster of our own has one CPU per worker.
        count_cpus = _cpu_counter()
        most = self.num_workers if self.address else None
        try:
            engines.watch(submit, iter(tasks.tasks), lambda: most or count_cpus() * 2, take)
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
    """Returns the numbers of living nodes of the cluster, and of their CPUs."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return len(alive), int(sum(resources.get("CPU", 0) for resources in alive))


def _cpu_counter() -> Callable[[], int]:
    """Returns a function that counts the CPUs of the cluster periodically, since nodes may join or leave."""
    cpus, nodes, next_look = 1, 0, 0.0

    def count() -> int:
        nonlocal cpus, nodes, next_look
        if time.monotonic() > next_look:
            before, (nodes, cpus) = nodes, _nodes_and_cpus()
            next_look = time.monotonic() + 5.0
            if nodes < before:
                left = counted(nodes, "node") + (" is" if nodes == 1 else " are")
                logging.warning("Ray: %s left; lost tasks run again.", left)
        return max(1, cpus)

    return count


def _as_itself(error) -> BaseException:
    """Returns the exception that a task has raised."""
    text = str(error)
    if "failed to import" in text or isinstance(error.cause, ModuleNotFoundError):
        return ConfigError(
            "a node of the Ray cluster cannot load this program. Install the same version of it, with the"
            f" same packages, on every node. It says: {text.strip().splitlines()[-1][:200]}"
        )
    return error.cause if isinstance(error.cause, BaseException) else error


@contextlib.contextmanager
def _connection(address: str, is_own: bool) -> Iterator[None]:
    """Connects this process with a cluster for the block. Raises ConfigError where that is impossible."""
    import ray

    handlers = {number: signal.getsignal(number) for number in signals.NUMBERS}
    try:
        if not is_own:
            _check_answers(address)
        ray.init(address, log_to_driver=False, logging_level=python_logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, AssertionError, OSError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"--ray_address={address}: {reason or type(error).__name__} Give HOST:PORT or ray://HOST:PORT of"
            " a cluster with the same Python and Ray, or drop the flag to start one on this machine."
        ) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has put its own there
    try:
        nodes, cpus = _nodes_and_cpus()
        where = "started on this machine" if is_own else f"at {address}"
        logging.info("Ray: %s with %s, %s.", counted(nodes, "node"), counted(cpus, "CPU"), where)
        yield
    finally:
        ray.shutdown()


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


# ------------------------------------------------------------------------------------------------------------
# A cluster of this machine
#
# Ray's processes survive if their starter is killed. So they are children of a keeper process, which ends all
# of them and removes their files when the pipe to it is closed for any reason.


_BECOME_SUBREAPER = 36  # of prctl(2)
# No usage statistics, no warning on accelerators, and a task that needs too much memory ends.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "3",
}


@contextlib.contextmanager
def started_cluster(num_cpus: int | None) -> Iterator[str]:
    """Starts a cluster of one node, and yields its address; it ends with the block.

    Args:
      num_cpus: maximum number of concurrent tasks; None: one per core.

    Raises:
      ConfigError: if Ray does not start.
    """
    # Ray reads the secret on import. Other users, without it, cannot send tasks to the cluster.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _secret()}
    keeper = subprocess.Popen(
        [sys.executable, "-m", __name__, str(num_cpus or engines.cores())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **_SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C of a terminal is for the job
        text=True,
    )
    assert keeper.stdin and keeper.stdout and keeper.stderr
    try:
        address = keeper.stdout.readline().strip()
        if not address:
            keeper.stdin.close()
            reason = keeper.stderr.read().strip().splitlines()[-1:]
            raise ConfigError(f"--engine=ray: Ray does not start on this machine: {' '.join(reason)[:300]}")
        yield address
    finally:
        for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
            stream.close()
        keeper.wait()


@functools.lru_cache(maxsize=1)  # Ray takes one a process
def _secret() -> str:
    return secrets.token_hex(32)


@contextlib.contextmanager
def ending_all_children(folder: str | None = None) -> Iterator[None]:
    """In its block, orphaned descendants become children of this process. At its end, all children are
    killed, their folder is removed, and this process exits."""
    import psutil

    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    except Exception as error:
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
    finally:
        deadline = time.monotonic() + 5.0
        while (children := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=0.1)  # those of children are ours then
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # pylint: disable=protected-access  # Ray's own end would look for its processes


def main() -> None:
    """Keeps a cluster: `python -m official.io.ray_engine CPUS` writes its address, and stops it at the end of
    stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A short path: that of a socket below it is 80 bytes longer.
    folder = tempfile.mkdtemp(prefix="bert-ray-", dir=engines.folder_for_sockets(24))
    with ending_all_children(folder):
        import ray

        ray.init(
            "local",
            num_cpus=int(sys.argv[1]),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=python_logging.ERROR,
            object_store_memory=100 << 20,  # arguments and results of tasks are small: the data are in files
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        print(ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""Runs tasks on the nodes of a Ray cluster: one that is there, or one of this machine that ends with the job.

Ray sends tasks, and sends them again where a process or a node is lost. What is here besides: a bounded
number of tasks is submitted at a time, every node's progress is in one bar, an exception of a task comes
through as itself, and a node with other code is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import logging as python_logging
import math
import pathlib
import platform
import signal
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from absl import logging

from official.io import bars, engines, jobs, ray_cluster, signals
from official.io.errors import ConfigError, check_installed, counted

if TYPE_CHECKING:
    from official.io.engines import Round

_REFRESH_SECS = 0.5
_LOOK_AT_NODES_SECS = 5.0
_ANSWER_SECS = 20.0
_MOST_RETRIES = 5  # of a task whose process or node is lost
_WAITING_PER_CPU = 2  # tasks that are submitted at once
_MUST_AGREE = ("tensorflow", "numpy", "tokenizers", "blingfire", "ray")  # packages of which records depend


@contextlib.contextmanager
def opened(num_workers: int | None, address: str | None) -> Iterator[Ray]:
    """Yields the engine; the connection ends with the block, and so does a cluster that was started for it.

    Raises:
      ConfigError: where Ray is not installed.
    """
    check_installed("--engine=ray", "ray", "ray")
    with contextlib.ExitStack() as stack:
        yield Ray(num_workers, address, stack)


@dataclasses.dataclass
class Ray:
    """An engine of Ray; the first round connects it."""

    num_workers: int | None
    address: str | None
    _stack: contextlib.ExitStack
    _meter: Any = None  # the actor of all rounds; None: there is no connection yet
    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)  # of the tasks of all rounds

    def run(self, tasks: Round) -> None:
        """Runs the tasks of a round; see `engines.Engine`."""
        if not tasks.number:
            return
        if self._meter is None:
            address = self.address or self._stack.enter_context(ray_cluster.started(self.num_workers))
            self._meter = self._stack.enter_context(_connection(address, is_own=not self.address))
        # A cluster of one's own has as many CPUs as there are to be workers.
        most = self.num_workers if self.address else None
        timed = jobs.timed(jobs.TimedRound(tasks.doing, tasks.items, "ray", 0))
        with timed as found, bars.new_bar(tasks.total_bytes, tasks.doing, tasks.items) as bar:
            found.workers = _Running(zip(self._numbers, tasks.tasks), most, self._meter, bar).run()
            found.bytes, found.items = bar.n, bar.items


@contextlib.contextmanager
def _connection(address: str, is_own: bool) -> Iterator[Any]:
    """Connects this process with a cluster for the block, and yields a meter there. Raises ConfigError where
    that is impossible."""
    import ray

    if not is_own:
        _check_answers(address)
    handlers = {number: signal.getsignal(number) for number in signals.NUMBERS}
    try:
        ray.init(address, log_to_driver=False, logging_level=python_logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, AssertionError, TimeoutError) as error:
        told = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"--ray_address={address}: {told or type(error).__name__} Give HOST:PORT of a cluster of the same"
            " Python and Ray, or leave it out, and one is started on this machine."
        ) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has put its own there
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        cpus = sum(node["Resources"].get("CPU", 0) for node in nodes)
        where = "started on this machine" if is_own else f"at {address}"
        logging.info("Ray: %s with %s, %s.", counted(len(nodes), "node"), counted(int(cpus), "CPU"), where)
        yield ray.remote(num_cpus=0, max_restarts=-1)(_Meter).remote()
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raises ConfigError where nothing listens at an address: Ray would ask for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray_address={address} is no address. Allowed: HOST:PORT or ray://HOST:PORT.")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray_address={address}: nothing answers there ({error}). Start a cluster with ray start, or"
            " leave the flag out, and one is started on this machine."
        ) from None


# ------------------------------------------------------------------------------------------------------------
# In the process that began the job


class _Running:
    """The tasks of a round that are submitted, by what Ray calls them."""

    def __init__(
        self, tasks: Iterator[tuple[int, tuple]], most: int | None, meter: Any, bar: bars.ProgressBar
    ):
        """Makes it of numbered tasks, of which `most` are to run at a time, where that is not None."""
        import ray

        self._tasks, self._most, self._meter, self._bar = tasks, most, meter, bar
        self._submitted: dict[Any, int] = {}  # of the task numbers
        self._done_bytes, self._done_items = 0.0, 0.0
        self._workers: set[tuple[str, int]] = set()
        self._nodes, self._number, self._looked = 0, 1, -math.inf
        self._shown = time.monotonic()
        self._submit_one = ray.remote(max_retries=_MOST_RETRIES, scheduling_strategy="SPREAD")(_run)
        self._shared = ray.put(_own_versions())

    def run(self) -> int:
        """Runs them, and returns how many processes have."""
        import ray

        try:
            while self._submit():
                waiting = list(self._submitted)
                if ray.wait(waiting, timeout=_REFRESH_SECS)[0]:  # then all that are done, not one at a time
                    for reference in ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]:
                        self._finish(reference)
                if time.monotonic() - self._shown > _REFRESH_SECS:
                    self._show()
                    self._shown = time.monotonic()
        except BaseException:
            for reference in self._submitted:
                ray.cancel(reference, force=True)
            raise
        self._bar.move_to(self._done_bytes, self._done_items)
        hosts = {host for host, _ in self._workers}
        done_by = counted(len(self._workers), "process"), counted(len(hosts), "machine")
        logging.info("Ray: done by %s of %s.", *done_by)
        return len(self._workers)

    def _submit(self) -> bool:
        """Submits tasks up to the bound. Returns whether any is not done."""
        room = (self._most or self._cpus() * _WAITING_PER_CPU) - len(self._submitted)
        for number, task in itertools.islice(self._tasks, max(room, 0)):
            reference = self._submit_one.remote(number, task, self._meter, self._shared)
            self._submitted[reference] = number
        return bool(self._submitted)

    def _cpus(self) -> int:
        """Returns the CPUs of the cluster, looked up now and then: nodes come and go."""
        import ray

        if time.monotonic() - self._looked > _LOOK_AT_NODES_SECS:
            alive = [node for node in ray.nodes() if node["Alive"]]
            if len(alive) < self._nodes:
                left = counted(len(alive), "node") + (" is" if len(alive) == 1 else " are")
                logging.warning("Ray: %s left; lost tasks run again.", left)
            self._nodes, self._looked = len(alive), time.monotonic()
            self._number = max(1, int(sum(node["Resources"].get("CPU", 0) for node in alive)))
        return self._number

    def _finish(self, reference) -> None:
        import ray

        del self._submitted[reference]
        try:
            done = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise _as_itself(error) from None
        except ray.exceptions.RayError as error:
            told = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"a task of --engine=ray was lost, and again when Ray had sent it {_MOST_RETRIES} times more:"
                f" {told} Give the nodes more memory or lower --num_workers; the same command goes on with"
                " what is not done."
            ) from None
        self._done_bytes += done.num_bytes
        self._done_items += done.items
        self._workers.add((done.host, done.process))

    def _show(self) -> None:
        """Moves the bar to what is done and what the running tasks have told."""
        import ray

        told = []
        with contextlib.suppress(ray.exceptions.RayError):  # the meter's node is lost: it begins anew
            numbers = list(self._submitted.values())
            told = ray.get(self._meter.told.remote(numbers), timeout=_LOOK_AT_NODES_SECS)
        num_bytes, items = (sum(column) for column in zip((0.0, 0.0), *told))
        self._bar.move_to(self._done_bytes + num_bytes, self._done_items + items)


def _as_itself(error) -> BaseException:
    """Returns the exception that a task has raised."""
    text = str(error)
    if "failed to import" in text or isinstance(error.cause, ModuleNotFoundError):
        return ConfigError(
            "a node of the Ray cluster cannot load this program. Install the same version of it, with the"
            f" same packages, on every node. It says: {text.strip().splitlines()[-1][:200]}"
        )
    return error.cause if isinstance(error.cause, BaseException) else error


class _Meter:
    """An actor that keeps the progress of the tasks in work."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[float, float]] = {}

    def tell(self, number: int, num_bytes: float, items: float) -> None:
        self._told[number] = num_bytes, items

    def told(self, numbers: list[int]) -> list[tuple[float, float]]:
        """Returns the bytes and items of these tasks, and forgets all others."""
        self._told = {number: self._told[number] for number in numbers if number in self._told}
        return list(self._told.values())


# ------------------------------------------------------------------------------------------------------------
# On the nodes


@dataclasses.dataclass
class _Done:
    """Counts of a task that is done, and the process that ran it."""

    host: str
    process: int
    num_bytes: float = 0.0
    items: float = 0.0


def _run(number: int, task: tuple, meter, versions: dict[str, str]) -> _Done:
    """Runs a task in a process of a node."""
    import os

    _check_versions(versions)
    done = _Done(socket.gethostname(), os.getpid())
    told = time.monotonic()

    def count(num_bytes: float, items: float) -> None:
        nonlocal told
        done.num_bytes += num_bytes
        done.items += items
        if time.monotonic() - told > _REFRESH_SECS:
            told = time.monotonic()
            meter.tell.remote(number, done.num_bytes, done.items)

    function, *arguments = task
    try:
        with engines.reporting_to(count):
            function(*arguments)
    except OSError as error:
        # The folder may be one that this node does not see.
        error.strerror = f"{error.strerror or error} (on the node {done.host})"
        raise
    return done


@functools.lru_cache(maxsize=1)
def _own_versions() -> dict[str, str]:
    """Returns the versions of what records depend on, and a digest of this program's code."""
    root, code = pathlib.Path(__file__).parents[1], hashlib.blake2b(digest_size=8)
    for path in sorted(path for kind in ("py", "cc", "h") for path in root.glob(f"**/*.{kind}")):
        code.update(str(path.relative_to(root)).encode() + path.read_bytes())
    found = {"python": platform.python_version(), "code of this program": code.hexdigest()}
    for name in _MUST_AGREE:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _check_versions(wanted: dict[str, str]) -> None:
    """Raises ConfigError where this node has other versions than the machine that began the job."""
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

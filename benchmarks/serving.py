"""Measures the server under the load of several clients, compared with the bare model and with other servers.

  python benchmarks/serving.py --export_dir=models/squad --predict_file=dev-v1.1.json --clients=1,8 \\
    --secs=60 --reload --peers=litserve --make_environments --output=results/serving

A separate process sends real questions over HTTP: each client has a connection and sends one question after
the other. First comes one long load, which records the server's memory over time; with --reload, then a load
during which a new version appears; then all systems run in turns, several rounds, while the others are
paused. The exit code is 1 if a request got a wrong answer or none.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

import harness
from harness import Environment
from official.cli import command_line, outputs
from official.cli.benchmark.inference import (
    Block,
    Program,
    latency_ms,
    read_sizes,
    summary,
)
from official.io import json_files
from official.io.errors import ConfigError
from programs.load import Asked

if TYPE_CHECKING:
    from official.inference.source import Source

SEED = 12345
WARM_SECS = 1.0  # of a run, not counted: in its first batches all clients start at once
_SHOWN_ERRORS = 5
_PERIOD_SECS, _POLL_SECS = 0.2, 0.1
_START_SECS, _STOP_SECS, _REQUEST_SECS = 180.0, 20.0, 10.0
_WINDOW_SECS = 20.0
_MODEL = "/v1/models/bert"
_FIRST, _SECOND = "1", "2"  # versions
_RELOAD_AFTER = 1 / 4  # of the run, before the new version appears
BARE, BARE_TITLE = "bare", "the bare model"  # its name in JSON, and in charts


# ------------------------------------------------------------------------------------------------------------
# Systems: our server and others


@dataclasses.dataclass(frozen=True)
class ServerSystem:
    """A kind of server.

    Attributes:
      name, title: its names in JSON, and in charts.
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
        "poll_secs": 1.0,  # between looks for a new version
    }
    return [*harness.in_new_process("serve"), *(f"--{name}={value}" for name, value in given.items())]


def _litserve(flags: argparse.Namespace, model: str, port: int, fast_queue: bool) -> list[str]:
    """Returns the command line of LitServe with the same model, threads and batches."""
    names = ("dtype", "backend", "threads", "max_batch_size", "batch_delay_ms")
    asked = {name: getattr(flags, name) for name in names}
    asked |= {"model": model, "port": port, "fast_queue": fast_queue}
    return [sys.executable, os.path.join(harness.PROGRAMS, "litserve_server.py"), json.dumps(asked)]


_LITSERVE = Environment(
    "litserve", ("litserve==0.2.19", "fastapi==0.165.0", "uvicorn[standard]==0.54.0", "pyzmq==27.3.0")
)
OURS = ServerSystem("bert serve", "bert serve", "export_dir", "/v1/models/bert:predict", "/healthz", _serve)
PEERS = {
    name: ServerSystem(
        name,
        title,
        "peers",
        "/predict",
        "/health",
        functools.partial(_litserve, fast_queue=fast_queue),
        _LITSERVE,
    )
    for name, title, fast_queue in (
        ("litserve", "LitServe", False),
        ("litserve_fast_queue", "LitServe, fast queue", True),
    )
}
SYSTEMS = {OURS.name: OURS, **PEERS}


def variables(system: ServerSystem, environments: str) -> dict[str, str]:
    """Returns the environment variables of a server.

    A peer serves this project's model: this interpreter runs it, with the peer's packages before its own on
    the path, as if pip had installed both into one environment.
    """
    found = harness.variables(None)
    if system.environment is None:
        return found
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    own = os.path.join(
        os.path.abspath(environments), system.environment.name, "lib", version, "site-packages"
    )
    return {**found, "PYTHONPATH": os.pathsep.join([found["PYTHONPATH"], own])}


# ------------------------------------------------------------------------------------------------------------
# A server in a separate process


class Server:
    """A running server, as a context manager that stops it with SIGTERM at its end.

    Attributes:
      system: the kind of server.
      port: its port on the loopback address.
      start_secs: seconds from the start of the process until it is ready.
      exit_code: exit code after the end.
    """

    def __init__(self, system: ServerSystem, flags: argparse.Namespace, model: str, folder: str):
        """Starts the server and waits until it is ready; its output goes to log.txt in the folder, which is
        created. Raises ConfigError if it ends or does not get ready."""
        self.system, self.port = system, free_port()
        self.exit_code: int | None = None
        self._log = os.path.join(folder, "log.txt")
        os.makedirs(folder, exist_ok=True)
        began = time.monotonic()
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                system.words(flags, model, self.port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables(system, flags.environments),
                start_new_session=True,  # a process group, to pause or end all of its processes
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self.start_secs = time.monotonic() - began

    @property
    def process(self) -> int:
        return self._process.pid

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_SECS
        while time.monotonic() < until:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get(self.system.health)[0] == http.client.OK:
                    return
            if self._process.poll() is not None:
                code = self._process.returncode
                raise ConfigError(f"{self._name()} ended with code {code}: {harness.last_line(self._log)}")
            time.sleep(_POLL_SECS)
        raise ConfigError(
            f"{self._name()} was not ready after {_START_SECS:.0f} s: {harness.last_line(self._log)}"
        )

    def _name(self) -> str:
        return f"--{self.system.flag}: {self.system.name}"

    def get(self, path: str) -> tuple[int, bytes]:
        """Returns status and body of a GET. Raises OSError or HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_REQUEST_SECS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def cpu_secs(self) -> float:
        """Returns the CPU time of all its processes so far."""
        return harness.cpu_secs(self.process)

    def pause(self) -> None:
        """Stops its processes until `resume`."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, number)

    def stop(self) -> None:
        """Ends it: by SIGTERM to its first process, and by SIGKILL to all if that fails."""
        self.resume()
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECS)
        self._send(signal.SIGKILL)  # also the remaining children of the first process
        self.exit_code = self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """Returns a free port of the loopback address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# ------------------------------------------------------------------------------------------------------------
# Memory over time


class Sample(NamedTuple):
    """Resident memory at a moment of the monotonic clock."""

    at: float
    memory_bytes: int


class Peaks(NamedTuple):
    """Peak memory in two windows of equal length: the last one of a load, and the one before it."""

    window_secs: float
    before_bytes: int
    last_bytes: int

    @property
    def growth(self) -> float | None:
        """Relative growth of the last peak over the one before: 0.05 is 5 %; None without an earlier
        sample."""
        return self.last_bytes / self.before_bytes - 1 if self.before_bytes else None


class Sampler:
    """Context manager that samples the memory of a process in a thread.

    Attributes:
      samples: samples in the order of time.
    """

    def __init__(self, root: int):
        self.samples: list[Sample] = []
        self._root, self._ended = root, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            self.samples.append(Sample(time.monotonic(), harness.resident_bytes(self._root)))
            if self._ended.wait(_PERIOD_SECS):
                return

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def peaks_of(samples: list[Sample], end: float, secs: float) -> Peaks:
    """Returns the peaks of the last 20 seconds of a load and of the 20 before.

    Args:
      samples: one or more.
      end: end of the load, on the monotonic clock.
      secs: its duration; for less than 60 seconds, two thirds of it are used, in equal parts.
    """
    window = min(_WINDOW_SECS, secs / 3)
    parts: tuple[list[int], list[int]] = ([], [])
    for sample in samples:
        ago = end - sample.at
        if 0 <= ago < 2 * window:
            parts[ago < window].append(sample.memory_bytes)
    return Peaks(window, *(max(part, default=0) for part in parts))


# ------------------------------------------------------------------------------------------------------------
# Sizes of a server's batches, from its /metrics page

_HISTOGRAM = "bert_batch_sequences"


class Batches(NamedTuple):
    """Counts of batches, so far or between two moments.

    Attributes:
      computed: number of batches.
      requests: number of requests in them.
      up_to: {size: number of batches with at most `size` requests}, ascending.
    """

    computed: float
    requests: float
    up_to: dict[float, float]

    def since(self, before: Batches) -> Batches:
        """Returns the batches after those of an earlier moment."""
        up_to = {size: count - before.up_to.get(size, 0) for size, count in self.up_to.items()}
        return Batches(self.computed - before.computed, self.requests - before.requests, up_to)

    @property
    def mean(self) -> float | None:
        return self.requests / self.computed if self.computed else None

    def shares(self) -> dict[str, float]:
        """Returns {maximum size: share of batches} of the non-empty steps of the histogram."""
        found, below = {}, 0.0
        for size, count in self.up_to.items():
            if count > below:
                found[f"{size:g}"] = (count - below) / self.computed
            below = count
        return found


def read_batches(text: str) -> Batches:
    """Returns the batches that our server has computed, those of all its signatures.

    Args:
      text: content of /metrics, in Prometheus' format.

    Raises:
      ConfigError: without such a histogram.
    """
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        if family.name != _HISTOGRAM:
            continue
        up_to: dict[float, float] = {}
        totals = dict.fromkeys(("count", "sum"), 0.0)
        for sample in family.samples:
            kind = sample.name.removeprefix(f"{_HISTOGRAM}_")
            if kind == "bucket":
                size = float(sample.labels["le"])
                up_to[size] = up_to.get(size, 0) + sample.value
            elif kind in totals:
                totals[kind] += sample.value
        return Batches(totals["count"], totals["sum"], dict(sorted(up_to.items())))
    raise ConfigError(f"--export_dir: the server's /metrics lacks {_HISTOGRAM}.")


# ------------------------------------------------------------------------------------------------------------
# One run of clients against a server


class Run(NamedTuple):
    """Measurements of a run.

    Attributes:
      clients: number of concurrent clients.
      secs: counted seconds.
      began: start of the counted seconds, on the monotonic clock.
      asked: all requests, in the order of their ends, also those outside the counted seconds.
      client_cpu_secs, server_cpu_secs: CPU time of both sides in the whole run.
      samples: samples of the server's memory.
    """

    clients: int
    secs: float
    began: float
    asked: list[Asked]
    client_cpu_secs: float
    server_cpu_secs: float
    samples: list[Sample]

    @property
    def counted(self) -> list[Asked]:
        """The requests without an error that ended within the counted seconds."""
        return [one for one in self.asked if not one.error and 0 < one.end - self.began <= self.secs]

    @property
    def errors(self) -> list[str]:
        return [one.error for one in self.asked if one.error]

    @property
    def texts(self) -> dict[int, str]:
        """{number of a question: text of its answer}."""
        return {one.number: one.text for one in self.asked if not one.error}

    @property
    def block(self) -> Block:
        """The counted requests as a block, for `latency.summary`."""
        secs = tuple(one.end - one.start for one in self.counted)
        return Block(secs, len(secs) / self.secs, 0.0)

    @property
    def peaks(self) -> Peaks:
        return peaks_of(self.samples, self.began + self.secs, self.secs)

    def between(self, first: float, last: float) -> dict[str, Any]:
        """Returns {requests, latency_ms} of the requests that ended between two moments, in seconds from the
        beginning; latency_ms is None where there were none."""
        own = [one.end - one.start for one in self.counted if first < one.end - self.began <= last]
        return {"requests": len(own), "latency_ms": latency_ms(own) if own else None}


def drive(
    load: Program, server: Server, clients: int, secs: float, meanwhile: Callable[[float], object]
) -> Run:
    """Runs clients against a server, and returns the measurements.

    Args:
      load: process of the clients.
      server: server, resumed before and paused afterwards.
      clients: number of concurrent clients.
      secs: counted seconds; the run takes `WARM_SECS` more.
      meanwhile: called with `secs` after the clients have started; it returns before they end.
    """
    server.resume()
    cpu = server.cpu_secs()
    asked = {"port": server.port, "path": server.system.path, "clients": clients, "secs": secs + WARM_SECS}
    with Sampler(server.process) as sampler:
        load.ask(asked)
        meanwhile(secs)
        found = load.answer()
    taken = server.cpu_secs() - cpu
    server.pause()
    every = [Asked(*one) for one in found["asked"]]
    began = found["began"] + WARM_SECS
    return Run(clients, secs, began, every, found["cpu_secs"], taken, sampler.samples)


# ------------------------------------------------------------------------------------------------------------
# A new version of the model under load


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
    return [str(state.get("version")) for state in states if state.get("state") == "AVAILABLE"]


def swap_version(server: Server, model: str, folder: str, secs: float) -> dict[str, float]:
    """Publishes the second version after a quarter of a run, and waits until it is served.

    Args:
      server: server that the clients ask.
      model: target of the version's link.
      folder: folder of versions.
      secs: counted seconds of the run.

    Returns:
      {appeared, swapped}: times of the monotonic clock.

    Raises:
      ConfigError: if it is not served before the run ends.
    """
    until = time.monotonic() + WARM_SECS + secs
    time.sleep(WARM_SECS + secs * _RELOAD_AFTER)
    publish(model, folder, _SECOND)
    appeared = time.monotonic()
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _SECOND in available(server):
                return {"appeared": appeared, "swapped": time.monotonic()}
        time.sleep(_POLL_SECS)
    raise ConfigError(
        f"--reload: version {_SECOND} was not served {secs * (1 - _RELOAD_AFTER):.0f} s after it appeared."
        " Take more --secs."
    )


def describe_swap(run: Run, moments: dict[str, float]) -> dict[str, Any]:
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


# ------------------------------------------------------------------------------------------------------------
# Questions


def read_questions_of(path: str, found: Source) -> list[tuple[str, str]]:
    """Returns (question, context) of a SQuAD file in random order, so that questions of one context do not
    follow each other; empty questions are left out. Raises ConfigError."""
    from official.data.squad import squad_files

    with_negative = found.setting("version_2_with_negative", False)
    data = squad_files.read_squad(path, "predict_file", False, with_negative)
    asked = [question for question in data.questions if not question.is_empty]
    if not asked:
        raise ConfigError(f"--predict_file={path} has no question.")
    order = np.random.default_rng(SEED).permutation(len(asked)).tolist()
    return [(asked[number].text, data.contexts[asked[number].context]) for number in order]


def write_questions(pairs: list[tuple[str, str]], folder: str) -> str:
    """Writes questions for the client programs, and returns the file's path."""
    path = os.path.join(folder, "questions.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(pairs, file)
    return path


# ------------------------------------------------------------------------------------------------------------
# All cases: a long load, a new version under load, then all systems in turns


Turns = dict[tuple[str, int], list[Run]]  # (server, clients): its runs, one a round


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    """Shared state of all cases: flags, folder and processes. A context manager that ends the processes."""

    def __init__(self, flags: argparse.Namespace, pairs: list[tuple[str, str]], folder: str):
        """Starts our server, the peers, the bare model and the clients. Raises ConfigError if one does not
        start."""
        self.flags, self.folder = flags, folder
        os.makedirs(folder, exist_ok=True)
        self.asked = write_questions(pairs, folder)
        self.most = max(flags.clients)
        self.versions = os.path.join(folder, "versions")
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as starting:
            served = publish(flags.export_dir, self.versions, _FIRST)
            wanted = [OURS, *(PEERS[name] for name in flags.peers)]
            self.servers = {}
            for system in wanted:
                model = served if system.is_ours else os.path.abspath(flags.export_dir)
                _say(f"{system.title} starts ...")
                place = os.path.join(folder, system.name)
                server = starting.enter_context(Server(system, flags, model, place))
                server.pause()
                self.servers[system.name] = server
            self.bare = starting.enter_context(self._start("bare"))
            self.load = starting.enter_context(self._start("load"))
            self._stack = starting.pop_all()

    def _start(self, name: str) -> Program:
        """Starts a program of this project and waits until it is ready."""
        how = {name: getattr(self.flags, name) for name in ("dtype", "backend", "threads")}
        model, folder = os.path.abspath(self.flags.export_dir), os.path.join(self.folder, name)
        started = harness.program(f"--export_dir: {name}", f"{name}.py", None, self.flags, folder)
        with contextlib.ExitStack() as starting:
            starting.enter_context(started)
            started.ask({"questions": self.asked, "model": model, **how})
            started.answer()
            starting.pop_all()
        return started

    def drive(
        self, name: str, clients: int, secs: float, meanwhile: Callable[[float], object] = lambda _: None
    ) -> Run:
        """Runs clients against a server, see `drive`. Raises ConfigError if it answers no request."""
        server = self.servers[name]
        run = drive(self.load, server, clients, secs, meanwhile)
        if not run.counted:
            why = f": {run.errors[0]}" if run.errors else ""
            raise ConfigError(f"--{server.system.flag}: {name} answered nothing within {secs:g} s{why}.")
        return run

    def batches(self) -> Batches:
        """Returns the batches that our server has computed so far."""
        server = self.servers[OURS.name]
        server.resume()
        found = read_batches(server.get("/metrics")[1].decode())
        server.pause()
        return found

    def time_bare(self, size: int, secs: float) -> tuple[Block, dict[int, str]]:
        """Returns (timed batches of the bare model, {number of a question: text of its answer})."""
        self.bare.ask({"batch": size, "secs": secs})
        found = self.bare.answer()
        taken = found["batch_secs"]
        texts = {int(number): text for number, text in found["texts"].items()}
        return Block(tuple(taken), size * len(taken) / sum(taken), 0.0), texts

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure(flags: argparse.Namespace, pairs: list[tuple[str, str]], folder: str) -> dict[str, Any]:
    """Returns {cases, load, reload, ...}. Raises ConfigError."""
    with Bench(flags, pairs, folder) as bench:
        _say(f"{bench.most} clients for {flags.secs:g} s ...")
        before = bench.batches()
        hold = bench.drive(OURS.name, bench.most, flags.secs)
        sizes = bench.batches().since(before)
        reloaded, moments = measure_reload(bench) if flags.reload else (None, {})
        turns, bare, texts = take_turns(bench, round(sizes.mean or 1))
        starts = {name: server.start_secs for name, server in bench.servers.items()}
    rows = [row_of_runs(flags, *case, runs, texts) for case, runs in turns.items()]
    rows.append(row_of_bare(flags, round(sizes.mean or 1), bare))
    runs = [hold, *([reloaded] if reloaded else []), *(run for runs in turns.values() for run in runs)]
    ended = {name: server.exit_code for name, server in bench.servers.items()}
    return {
        "questions": len(pairs),
        "seed": SEED,
        "threads": flags.threads,
        "max_batch_size": flags.max_batch_size,
        "batch_delay_ms": flags.batch_delay_ms,
        "rounds": flags.rounds,
        "round_secs": flags.round_secs,
        "start_secs": starts,
        "exit_codes": ended,
        "peers": {name: PEERS[name].environment.requirements for name in flags.peers},
        "load": {**row_of_load(hold, texts), "batches": row_of_batches(sizes)},
        "reload": row_of_reload(reloaded, moments, texts) if reloaded else None,
        "cases": rows,
        "errors": errors_of(runs, ended[OURS.name]),
    }


def errors_of(runs: list[Run], exit_code: int | None) -> list[str]:
    """Returns the errors of all requests, and our server's exit code if it is not 0."""
    errors = [error for run in runs for error in run.errors]
    return [*errors, *([f"{OURS.name} ended with code {exit_code} after SIGTERM"] if exit_code else [])]


def measure_reload(bench: Bench) -> tuple[Run, dict[str, float]]:
    """Returns (a run during which a second version appears, the moments of `swap_version`)."""
    secs, server = bench.flags.secs, bench.servers[OURS.name]
    moments: dict[str, float] = {}
    _say(f"A new version under the load of {bench.most} clients, {secs:g} s ...")

    def swap(length: float) -> None:
        moments.update(swap_version(server, bench.flags.export_dir, bench.versions, length))

    return bench.drive(OURS.name, bench.most, secs, swap), moments


def take_turns(bench: Bench, size: int) -> tuple[Turns, list[Block], dict[int, str]]:
    """Returns (runs of all servers, timed batches of the bare model, texts of its answers). The systems run
    in turns, round by round, while the others are paused."""
    flags = bench.flags
    texts: dict[int, str] = {}
    turns: Turns = {(name, clients): [] for clients in flags.clients for name in bench.servers}
    bare: list[Block] = []
    for number in range(flags.rounds):
        _say(f"Round {number + 1} of {flags.rounds} ...")
        for (name, clients), runs in turns.items():
            runs.append(bench.drive(name, clients, flags.round_secs))
        block, found = bench.time_bare(size, flags.round_secs)
        bare.append(block)
        texts |= found
    return turns, bare, texts


def statistics_of(blocks: list[Block]) -> dict[str, Any]:
    """Returns the `summary` of blocks, without tokens_per_sec."""
    return {name: value for name, value in summary(blocks).items() if name != "tokens_per_sec"}


def same_answers(texts: dict[int, str], reference: dict[int, str]) -> float | None:
    """Returns the share of equal answers among the questions answered in both; None without any."""
    both = texts.keys() & reference.keys()
    return statistics.mean(texts[number] == reference[number] for number in both) if both else None


def row_of_runs(
    flags: argparse.Namespace, name: str, clients: int, runs: list[Run], texts: dict[int, str]
) -> dict[str, Any]:
    """Returns the result row of a server with a number of clients."""
    system = SYSTEMS[name]
    own = {number: text for run in runs for number, text in run.texts.items()}
    return {
        "name": f"{flags.dtype}, {clients} client{'s' * (clients > 1)}: {system.title}",
        "label": system.title,
        "system": name,
        "dtype": flags.dtype,
        "backend": flags.backend,
        "max_seq_length": None,
        "batch": None,
        "clients": clients,
        **statistics_of([run.block for run in runs]),
        "errors": sum(len(run.errors) for run in runs),
        "same_answers": same_answers(own, texts),
        "client_cpu_secs": sum(run.client_cpu_secs for run in runs),
        "server_cpu_secs": sum(run.server_cpu_secs for run in runs),
        "peak_memory_bytes": max(sample.memory_bytes for run in runs for sample in run.samples),
    }


def row_of_bare(flags: argparse.Namespace, size: int, blocks: list[Block]) -> dict[str, Any]:
    """Returns the result row of the bare model; its latencies are those of batches."""
    nothing = ("client_cpu_secs", "server_cpu_secs", "peak_memory_bytes")
    return {
        "name": f"{flags.dtype}, batch {size}: {BARE_TITLE}",
        "label": BARE_TITLE,
        "system": BARE,
        "dtype": flags.dtype,
        "backend": flags.backend,
        "max_seq_length": None,
        "batch": size,
        "clients": None,
        **statistics_of(blocks),
        "errors": 0,
        "same_answers": 1.0,
        **dict.fromkeys(nothing),
    }


def row_of_load(run: Run, texts: dict[int, str]) -> dict[str, Any]:
    """Returns the results of one run: requests, latency, errors, CPU seconds, and memory over time."""
    peaks = run.peaks
    return {
        "clients": run.clients,
        "secs": run.secs,
        "requests": len(run.asked),
        "requests_per_sec": run.block.sequences_per_sec,
        "latency_ms": latency_ms(run.block.secs) if run.counted else None,
        "errors": len(run.errors),
        "same_answers": same_answers(run.texts, texts),
        "client_cpu_secs": run.client_cpu_secs,
        "server_cpu_secs": run.server_cpu_secs,
        "peak_memory": {**peaks._asdict(), "growth": peaks.growth},
        "memory_over_time": [(sample.at - run.began, sample.memory_bytes) for sample in run.samples],
    }


def row_of_reload(run: Run, moments: dict[str, float], texts: dict[int, str]) -> dict[str, Any]:
    """Returns the results of the run with a new version, and [end in seconds, latency in ms] of each
    request."""
    over_time = [(one.end - run.began, (one.end - one.start) * 1000) for one in run.counted]
    return {**row_of_load(run, texts), **describe_swap(run, moments), "requests_over_time": over_time}


def row_of_batches(sizes: Batches) -> dict[str, Any]:
    """Returns number, mean size and size distribution of our server's batches."""
    return {"count": sizes.computed, "mean_size": sizes.mean, "share_up_to": sizes.shares()}


# ------------------------------------------------------------------------------------------------------------
# Printed results


_LATENCIES = ("mean", "p50", "p99", "max")


def table(measured: dict[str, Any]) -> str:
    """Returns the table, a line for each case of the turns."""
    rows = [
        {
            **row,
            **{name: row["latency_ms"][name] for name in _LATENCIES},
            "mb": row["peak_memory_bytes"] and row["peak_memory_bytes"] / 1e6,
        }
        for row in measured["cases"]
    ]
    columns = [
        ("case", "name", ""),
        ("questions/s", "sequences_per_sec", ".2f"),
        ("+-", "spread", ".1%"),
        *((f"{name} ms", name, ".1f") for name in _LATENCIES),
        ("errors", "errors", ""),
        ("same", "same_answers", ".1%"),
        ("load s", "client_cpu_secs", ".1f"),
        ("server s", "server_cpu_secs", ".1f"),
        ("memory MB", "mb", ".0f"),
    ]
    return outputs.table(columns, rows)


def _shown(value: float | None, style: str, unit: float = 1) -> str:
    return "-" if value is None else format(value / unit, style)


def verdicts(measured: dict[str, Any]) -> list[str]:
    """Returns a line on the long load, one on the new version, and one on the turns."""
    lines = [_load_line(measured["load"])]
    if measured["reload"]:
        lines.append(_reload_line(measured["reload"]))
    return [*lines, _turns_line(measured["cases"], measured["load"]["clients"])]


def _load_line(load: dict[str, Any]) -> str:
    latencies, peak, size = load["latency_ms"], load["peak_memory"], load["batches"]["mean_size"]
    window = f"{peak['window_secs']:g} s"
    return (
        f"{load['secs']:g} s, {load['clients']} clients: {load['errors']} of {load['requests']:,} requests"
        f" lost; {load['requests_per_sec']:.2f} a second; p50 {latencies['p50']:.1f} ms,"
        f" p99 {latencies['p99']:.1f} ms;"
        f" {_shown(size, '.1f')} questions a batch; memory {peak['last_bytes'] / 1e6:.0f} MB in the last"
        f" {window}, {_shown(peak['growth'], '+.1%')} to the {window} before"
    )


def _reload_line(reload: dict[str, Any]) -> str:
    took = reload["swapped_secs"] - reload["appeared_secs"]
    parts = [
        f"{reload[name]['latency_ms']['p99']:.1f} ms {name} it" if reload[name]["latency_ms"] else ""
        for name in ("before", "loading", "after")
    ]
    return (
        f"a new version: served {took:.1f} s after it appeared, {reload['errors']} of"
        f" {reload['requests']:,} requests lost; p99 {', '.join(filter(None, parts))}"
    )


def _turns_line(rows: Sequence[dict[str, Any]], most: int) -> str:
    """Returns the ratios of our rate with most clients to those of the bare model, fewer clients, and each
    peer."""
    ours = {row["clients"]: row for row in rows if row["system"] == "bert serve"}
    own = ours.pop(most)
    others = [row for row in rows if row["system"] == "bare"]
    others += ours.values()
    others += [row for row in rows if row["system"] not in ("bert serve", "bare") and row["clients"] == most]
    ratios = [f"{own['sequences_per_sec'] / row['sequences_per_sec']:.2f} x {row['name']}" for row in others]
    return f"{own['name']}: {own['sequences_per_sec']:.2f} questions a second; {'; '.join(ratios)}"


# ------------------------------------------------------------------------------------------------------------
# Command line


class Main(harness.EnvironmentFlags, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      export_dir: An export or a run, fine-tuned on SQuAD.
      predict_file: Questions to ask: SQuAD JSON.
      clients: Comma-separated numbers of concurrent clients; the long load has the largest.
      secs: Seconds of the long load, and of the one with a new version.
      rounds: Number of turns of every system.
      round_secs: Seconds per turn.
      reload: Publish a new version of the model under load.
      peers: Comma-separated systems; the error for another name lists them.
      backend: Library that computes the model.
      dtype: Type of matrix products.
      threads: Number of threads for matrix products. Unset: one per core.
      max_batch_size: Maximum number of requests per batch.
      batch_delay_ms: Longest wait for a batch to fill.
      work_dir: Keep the logs of all processes in this new folder.
    """

    RANGES = dict.fromkeys(("rounds", "max_batch_size", "threads", "secs", "round_secs"), command_line.COUNT)
    export_dir: str
    predict_file: str
    clients: str = "1,8"
    secs: float = 60.0
    rounds: int = 5
    round_secs: float = 6.0
    reload: bool = False
    peers: str = ""
    backend: Literal["tensorflow", "onnxruntime", "openvino"] = "tensorflow"
    dtype: Literal["fp32", "bf16", "int8"] = "fp32"
    threads: int | None = None
    max_batch_size: int = 32
    batch_delay_ms: float = 5.0
    work_dir: str | None = None


def parse_flags() -> argparse.Namespace:
    flags = Main.parse()
    if flags.threads is None:
        flags.threads = len(os.sched_getaffinity(0))
    if flags.batch_delay_ms <= 0:
        raise ConfigError(f"--batch_delay_ms={flags.batch_delay_ms:g}, expected more than 0.")
    if flags.work_dir and os.path.exists(flags.work_dir):
        raise ConfigError(f"--work_dir={flags.work_dir} exists. Give a new folder.")
    flags.clients = sorted(set(read_sizes(flags.clients, "clients")))
    flags.peers = command_line.read_list(flags.peers, "peers", tuple(PEERS)) if flags.peers else []
    return flags


def read_questions(flags: argparse.Namespace) -> list[tuple[str, str]]:
    """Returns the questions to ask. Raises ConfigError, also for a model without a question-answering
    head."""
    from official.inference import source

    if not os.path.isdir(flags.export_dir):
        raise ConfigError(f"--export_dir={flags.export_dir} is not a folder.")
    found = source.find(flags.export_dir, flag="export_dir")
    found.check_can("answer")
    return read_questions_of(flags.predict_file, found)


def main() -> int:
    flags = parse_flags()
    pairs = read_questions(flags)
    harness.prepare([(name, PEERS[name].environment) for name in flags.peers], flags)
    with contextlib.ExitStack() as stack:
        folder = flags.work_dir or stack.enter_context(tempfile.TemporaryDirectory())
        measured = measure(flags, pairs, os.path.abspath(folder))
    comparison = verdicts(measured)
    print("\n".join([table(measured), *comparison]))
    errors = measured["errors"]
    for error in errors[:_SHOWN_ERRORS]:
        print(f"error: {error}")
    name = outputs.stem(os.path.normpath(flags.export_dir))
    record = {"model": name, "data": os.path.basename(flags.predict_file), **measured}
    title = f"Serving {name}, {flags.dtype}, {flags.threads} threads"
    bars = [
        (
            row["name"],
            row["sequences_per_sec"],
            row["spread"],
            f"{row['sequences_per_sec']:.3g}; p50 {row['latency_ms']['p50']:.0f} ms",
            row["label"],
        )
        for row in measured["cases"]
    ]
    harness.write(flags, {**record, "comparison": comparison}, bars, title, "questions per second")
    return 1 if errors else 0


if __name__ == "__main__":
    harness.main(main)

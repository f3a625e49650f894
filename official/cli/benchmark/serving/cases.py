"""Cases of the serving benchmark, in order: a long load, a new version under load, then all systems in
turns."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Callable
from typing import Any

from official.cli.benchmark.inference import latency
from official.cli.benchmark.inference.latency import Block
from official.cli.benchmark.inference.measuring import say
from official.cli.benchmark.programs import Program
from official.cli.benchmark.serving import metrics, questions, reload, systems, traffic
from official.cli.benchmark.serving.metrics import Batches
from official.cli.benchmark.serving.servers import Server
from official.cli.benchmark.serving.traffic import Run
from official.io.errors import ConfigError

OURS = systems.OURS.name
Turns = dict[tuple[str, int], list[Run]]  # (server, clients): its runs, one a round


class Bench:
    """Shared state of all cases: flags, folder and processes. A context manager that ends the processes."""

    def __init__(self, flags: argparse.Namespace, pairs: list[tuple[str, str]], folder: str):
        """Starts our server, the peers, the bare model and the load. Raises ConfigError where one does not
        start."""
        self.flags, self.folder = flags, folder
        os.makedirs(folder, exist_ok=True)
        self.asked = questions.write(pairs, folder)
        self.most = max(flags.clients)
        self.versions = os.path.join(folder, "versions")
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as starting:
            served = reload.publish(flags.export_dir, self.versions, reload.FIRST)
            wanted = [systems.OURS, *(systems.PEERS[name] for name in flags.peers)]
            self.servers = {}
            for system in wanted:
                model = served if system.is_ours else os.path.abspath(flags.export_dir)
                say(f"{system.title} starts ...")
                place = os.path.join(folder, system.name)
                server = starting.enter_context(Server(system, flags, model, place))
                server.pause()
                self.servers[system.name] = server
            self.bare = starting.enter_context(self._start("bare", systems.BARE_PROGRAM))
            self.load = starting.enter_context(self._start("load", systems.LOAD_PROGRAM))
            self._stack = starting.pop_all()

    def _start(self, name: str, program: str) -> Program:
        """Starts a program of this project and waits until it is ready."""
        how = {name: getattr(self.flags, name) for name in ("dtype", "backend", "threads")}
        model, folder = os.path.abspath(self.flags.export_dir), os.path.join(self.folder, name)
        started = Program(f"--export_dir: {name}", program, None, "", folder)
        with contextlib.ExitStack() as starting:
            starting.enter_context(started)
            started.ask({"questions": self.asked, "model": model, **how})
            started.answer()
            starting.pop_all()
        return started

    def drive(
        self, name: str, clients: int, secs: float, meanwhile: Callable[[float], object] = lambda _: None
    ) -> Run:
        """Runs clients against a server, see `traffic.drive`. Raises ConfigError where it answers nothing."""
        server = self.servers[name]
        run = traffic.drive(self.load, server, clients, secs, meanwhile)
        if not run.counted:
            why = f": {run.errors[0]}" if run.errors else ""
            raise ConfigError(f"--{server.system.flag}: {name} answered nothing within {secs:g} s{why}.")
        return run

    def batches(self) -> Batches:
        """Returns the batches that our server has computed so far."""
        server = self.servers[OURS]
        server.resume()
        found = metrics.batches(server.get("/metrics")[1].decode())
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
        say(f"{bench.most} clients for {flags.secs:g} s ...")
        before = bench.batches()
        hold = bench.drive(OURS, bench.most, flags.secs)
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
        "seed": questions.SEED,
        "threads": flags.threads,
        "max_batch_size": flags.max_batch_size,
        "batch_delay_ms": flags.batch_delay_ms,
        "rounds": flags.rounds,
        "round_secs": flags.round_secs,
        "start_secs": starts,
        "exit_codes": ended,
        "peers": {name: found.requirements for name, found in systems.environments_of(flags.peers)},
        "load": {**row_of_load(hold, texts), "batches": row_of_batches(sizes)},
        "reload": row_of_reload(reloaded, moments, texts) if reloaded else None,
        "cases": rows,
        "errors": errors_of(runs, ended[OURS]),
    }


def errors_of(runs: list[Run], exit_code: int | None) -> list[str]:
    """Returns the errors of all requests, and our server's exit code where it is not 0."""
    errors = [error for run in runs for error in run.errors]
    return [*errors, *([f"{OURS} ended with code {exit_code} after SIGTERM"] if exit_code else [])]


def measure_reload(bench: Bench) -> tuple[Run, dict[str, float]]:
    """Returns (a run during which a second version appears, the moments of `reload.swap`)."""
    secs, server = bench.flags.secs, bench.servers[OURS]
    moments: dict[str, float] = {}
    say(f"A new version under the load of {bench.most} clients, {secs:g} s ...")

    def swap(length: float) -> None:
        moments.update(reload.swap(server, bench.flags.export_dir, bench.versions, length))

    return bench.drive(OURS, bench.most, secs, swap), moments


def take_turns(bench: Bench, size: int) -> tuple[Turns, list[Block], dict[int, str]]:
    """Returns (runs of all servers, timed batches of the bare model, texts of its answers). The systems take
    turns, round by round, while the others are paused."""
    flags = bench.flags
    texts: dict[int, str] = {}
    turns: Turns = {(name, clients): [] for clients in flags.clients for name in bench.servers}
    bare: list[Block] = []
    for number in range(flags.rounds):
        say(f"Round {number + 1} of {flags.rounds} ...")
        for (name, clients), runs in turns.items():
            runs.append(bench.drive(name, clients, flags.round_secs))
        block, found = bench.time_bare(size, flags.round_secs)
        bare.append(block)
        texts |= found
    return turns, bare, texts


def summary(blocks: list[Block]) -> dict[str, Any]:
    """Returns the `latency.summary` of blocks, without tokens_per_sec."""
    return {name: value for name, value in latency.summary(blocks).items() if name != "tokens_per_sec"}


def same_answers(texts: dict[int, str], reference: dict[int, str]) -> float | None:
    """Returns the share of equal answers among the questions answered in both; None without any."""
    both = texts.keys() & reference.keys()
    return statistics.mean(texts[number] == reference[number] for number in both) if both else None


def row_of_runs(
    flags: argparse.Namespace, name: str, clients: int, runs: list[Run], texts: dict[int, str]
) -> dict[str, Any]:
    """Returns the result row of a server with a number of clients."""
    system = {OURS: systems.OURS, **systems.PEERS}[name]
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
        **summary([run.block for run in runs]),
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
        "name": f"{flags.dtype}, batch {size}: {systems.BARE_TITLE}",
        "label": systems.BARE_TITLE,
        "system": systems.BARE,
        "dtype": flags.dtype,
        "backend": flags.backend,
        "max_seq_length": None,
        "batch": size,
        "clients": None,
        **summary(blocks),
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
        "latency_ms": latency.latency_ms(run.block.secs) if run.counted else None,
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
    return {**row_of_load(run, texts), **reload.told(run, moments), "requests_over_time": over_time}


def row_of_batches(sizes: Batches) -> dict[str, Any]:
    """Returns number, mean size and size distribution of our server's batches."""
    return {"count": sizes.computed, "mean_size": sizes.mean, "share_up_to": sizes.shares()}

"""One run of clients against a server: their requests, and the server's CPU time and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from official.cli.benchmark.inference.latency import Block, latency_ms
from official.cli.benchmark.programs import Program
from official.cli.benchmark.serving import memory
from official.cli.benchmark.serving.memory import Sample
from official.cli.benchmark.serving.peer_programs.load import Asked
from official.cli.benchmark.serving.servers import Server

WARM_SECS = (
    1.0  # of a run that are not counted: the first batches are those of clients that all begin at once
)


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
    def peaks(self) -> memory.Peaks:
        return memory.peaks(self.samples, self.began + self.secs, self.secs)

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
      meanwhile: called with `secs` once the clients ask; it returns before they end.
    """
    server.resume()
    cpu = server.cpu_secs()
    asked = {"port": server.port, "path": server.system.path, "clients": clients, "secs": secs + WARM_SECS}
    with memory.Sampler(server.process) as sampler:
        load.ask(asked)
        meanwhile(secs)
        found = load.answer()
    taken = server.cpu_secs() - cpu
    server.pause()
    every = [Asked(*one) for one in found["asked"]]
    began = found["began"] + WARM_SECS
    return Run(clients, secs, began, every, found["cpu_secs"], taken, sampler.samples)

"""Metrics in Prometheus' text format, and log lines."""

import contextlib
import datetime
import functools
import json
import logging
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# -----------------------------------------------------------------------------------------------------------
# Metrics


CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of a server, thread-safe. Each attribute is a Prometheus metric.

    Attributes:
      loads: versions by outcome.
      refused: connections beyond the limit.
    """

    def __init__(self, waiting: Callable[[], int], connections: Callable[[], int]):
        """Starts at zero; the arguments return the numbers of waiting calls and of open connections."""
        self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        prometheus_client.GCCollector(registry=self.registry)

        def make(kind: Any, name: str, text: str, *labels: str, **settings: Any) -> Any:
            return kind(f"bert_{name}", text, labels, registry=self.registry, **settings)

        secs = {"buckets": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)}
        rows = {"buckets": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
        self.requests = make(Counter, "requests", "Requests by endpoint and status.", "endpoint", "code")
        self.request_secs = make(Histogram, "request_seconds", "Headers to answer.", "endpoint", **secs)
        self._batch = make(Histogram, "batch_sequences", "Sequences of a batch.", "signature", **rows)
        self._batch_secs = make(Histogram, "batch_seconds", "Time of a batch.", "signature", **secs)
        self.tokens = make(Counter, "tokens", "Tokens computed, including those of the warm-up.")
        self.version = make(Gauge, "model_version", "Version that is served.", "model")
        self.loads = make(Counter, "model_loads", "Versions by outcome.", "outcome")
        self.load_secs = make(Gauge, "model_load_seconds", "Time until the last version was ready.")
        self.refused = make(Counter, "connections_refused", "Connections beyond the limit.")
        make(Gauge, "queue_requests", "Requests that wait for the model.").set_function(waiting)
        make(Gauge, "connections", "Open connections.").set_function(connections)

    def batch(self, name: str, sequences: int, secs: float) -> None:
        """Records a batch: its signature, number of sequences, and seconds."""
        self._batch.labels(name).observe(sequences)
        self._batch_secs.labels(name).observe(secs)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)


# -----------------------------------------------------------------------------------------------------------
# Logs
#
# A thread writes them, so that a stderr without reader does not block the server; lines are dropped then.


class Log(logging.Handler):
    """Writes JSON lines, thread-safe. As a logging handler of libraries it records only that they logged
    something, since their messages may hold client data."""

    def __init__(self, stream: TextIO | None = None):
        """Writes to a stream; by default to stderr."""
        super().__init__(logging.INFO)
        self._stream = stream or sys.stderr
        self._lines: queue.Queue[str | None] = queue.Queue(10_000)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def close(self, secs: float = 1.0) -> None:
        """Writes the waiting lines, for at most `secs`."""
        try:
            self._lines.put(None, timeout=secs)
        except queue.Full:
            return
        self._thread.join(secs)

    def put(self, level: str, event: str, **values: Any) -> None:
        """Queues a line about an event; values that are None are left out."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        known = {name: value for name, value in values.items() if value is not None}
        line = json.dumps({"time": now, "level": level, "event": event, **known})
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line)

    info = functools.partialmethod(put, "info")
    warning = functools.partialmethod(put, "warning")
    error = functools.partialmethod(put, "error")

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        if record.levelno >= logging.WARNING:
            self.warning("library", name=record.name, place=f"{record.module}:{record.lineno}", error=error)
        elif "Malformed HTTP" in str(record.msg):
            self.info("malformed", status=400)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                print(line, file=self._stream, flush=True)
            except (OSError, ValueError):  # closed
                return


def take_over(log: Log) -> None:
    """Redirects the logs of the server's libraries to `log`."""
    for name in ("tornado", "asyncio", "concurrent.futures", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [log]
        logger.propagate = False
    logging.getLogger("tornado").setLevel(logging.INFO)

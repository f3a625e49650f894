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

from official.inference.rows import Rows

# -----------------------------------------------------------------------------------------------------------
# Metrics


CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_SECS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The numbers of a server; from any thread.

    Attributes:
      loads: versions by outcome.
      refused: connections beyond the limit.
    """

    def __init__(self, model: str):
        """Starts at zero. `model` is its name, a label of all."""
        self.registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        prometheus_client.GCCollector(registry=self.registry)
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        histogram = functools.partial(Histogram, registry=self.registry)
        self._requests = counter("bert_requests", "Requests by endpoint and status.", ["endpoint", "code"])
        self._secs = histogram("bert_request_seconds", "Headers to answer.", ["endpoint"], buckets=_SECS)
        self._batch = histogram(
            "bert_batch_sequences", "Sequences of a batch.", ["signature"], buckets=_SEQUENCES
        )
        self._batch_secs = histogram("bert_batch_seconds", "Time of a batch.", ["signature"], buckets=_SECS)
        self._tokens = counter("bert_tokens", "Tokens that were computed, with those of the warm-up.")
        self._version = gauge("bert_model_version", "Version that is served.", ["model"])
        self.loads = counter("bert_model_loads", "Versions by outcome.", ["outcome"])
        self._load_secs = gauge("bert_model_load_seconds", "Time until the last version was ready.")
        self.refused = counter("bert_connections_refused", "Connections beyond the limit.")
        self._model = model

    def watch(self, waiting: Callable[[], int], connections: Callable[[], int]) -> None:
        """Asks for numbers whenever somebody reads them: calls that wait, and open connections."""
        gauge = functools.partial(Gauge, registry=self.registry)
        gauge("bert_queue_requests", "Requests that wait for the model.").set_function(waiting)
        gauge("bert_connections", "Open connections.").set_function(connections)

    def request(self, endpoint: str, code: int, secs: float) -> None:
        """After a request: a name of few, the status, and the time it took."""
        self._requests.labels(endpoint, code).inc()
        self._secs.labels(endpoint).observe(secs)

    def batch(self, name: str, sequences: int, secs: float) -> None:
        """After a batch: its signature, its sequences, and how long it took."""
        self._batch.labels(name).observe(sequences)
        self._batch_secs.labels(name).observe(secs)

    def tokens(self, rows: Rows) -> None:
        """Before a batch of token ids is computed."""
        self._tokens.inc(len(rows.ids_T))

    def loaded(self, version: int, secs: float) -> None:
        """After a version is ready."""
        self._version.labels(self._model).set(version)
        self._load_secs.set(secs)
        self.loads.labels("ready").inc()

    def text(self) -> bytes:
        """Returns all numbers in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)


# -----------------------------------------------------------------------------------------------------------
# Logs
#
# A thread writes them: a stderr that nobody reads does not stop the server, which leaves lines out then.


_MAX_WAITING = 10_000  # lines
_LIBRARIES = ("tornado", "asyncio", "concurrent.futures", "py.warnings")


class Log:
    """Writes lines; from any thread."""

    def __init__(self, stream: TextIO | None = None):
        """Writes to a stream; stderr where there is none."""
        self._stream = stream or sys.stderr
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def info(self, event: str, **values: Any) -> None:
        """Writes what happened; values that are None are left out."""
        self._put("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        """As `info`, of what somebody should look at."""
        self._put("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """As `info`, of what went wrong."""
        self._put("error", event, values)

    def close(self, secs: float = 1.0) -> None:
        """Writes what waits, for `secs` at most."""
        try:
            self._lines.put(None, timeout=secs)
        except queue.Full:
            return
        self._thread.join(secs)

    def _put(self, level: str, event: str, values: dict[str, Any]) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        known = {name: value for name, value in values.items() if value is not None}
        line = json.dumps({"time": now, "level": level, "event": event, **known})
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                print(line, file=self._stream, flush=True)
            except (OSError, ValueError):  # closed
                return


class _Libraries(logging.Handler):
    """Tells that a library has logged something: what its messages hold is not for a log."""

    def __init__(self, log: Log):
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        if record.levelno >= logging.WARNING:
            self._log.warning(
                "library", name=record.name, place=f"{record.module}:{record.lineno}", error=error
            )
        elif "Malformed HTTP" in str(record.msg):
            self._log.info("malformed", status=400)


def take_over(log: Log) -> None:
    """Lets the libraries of the server log here, and nowhere else."""
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers[:] = [_Libraries(log)]
        logger.propagate = False
    logging.getLogger("tornado").setLevel(logging.INFO)

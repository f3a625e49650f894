"""The server as a whole: from its start to its stop."""

import asyncio
import contextlib
import dataclasses
import gc
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tornado import netutil, web

from official.io import signals
from official.io.errors import ConfigError
from official.serving.server import monitoring, versions
from official.serving.server.batcher import Batcher, place_of
from official.serving.server.connections import Callers, Http, is_loopback
from official.serving.server.handlers import routes
from official.serving.server.monitoring import Log, Metrics
from official.serving.server.settings import Endpoint, HTTPError, Limits
from official.serving.server.versions import Loading, Served

_SPARE_FILES = 128  # descriptors beside those of connections


class Server:
    """A server. Its methods belong to the event loop.

    Attributes:
      model: name of the model.
      limits: limits of requests.
      token: token that requests need, or None.
      callers: allowed host names and web pages.
      in_flight: number of requests whose headers have arrived and whose answers are not yet sent.
      is_loading: whether a thread is loading a version.
      is_stopping: whether a signal has arrived.
    """

    LARGE = 2**15  # larger bodies (bytes) and answers (numbers) are processed outside of the event loop

    def __init__(self, endpoint: Endpoint, limits: Limits, loading: Loading, log: Log):
        """Binds the address. Raises ConfigError if that fails."""
        self.callers = Callers(endpoint)
        self.model, self.limits, self.token, self.log = endpoint.model, limits, endpoint.token, log
        self.in_flight: set = set()
        self.is_loading = self.is_stopping = False
        self.metrics = Metrics(lambda: self.batcher.waiting(), lambda: self._http.connections())
        tokens = self.metrics.tokens
        settings = dataclasses.replace(loading.settings, observe=lambda rows: tokens.inc(len(rows.ids_T)))
        self._loading = loading._replace(settings=settings)
        self.versions = versions.Versions(endpoint.export_dir, self._load, log)
        self.executor = ThreadPoolExecutor(1, "bodies")
        self._endpoint = endpoint
        try:
            self._sockets = netutil.bind_sockets(endpoint.port, endpoint.host)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"--host={endpoint.host} --port={endpoint.port}: {reason}.") from None
        self.port: int = self._sockets[0].getsockname()[1]
        _allow_files(limits)

    @property
    def url(self) -> str:
        """Returns the URL of the page."""
        host = f"[{self._endpoint.host}]" if ":" in self._endpoint.host else self._endpoint.host
        return f"http://{host}:{self.port}/"

    @property
    def is_ready(self) -> bool:
        return self.versions.served is not None and not self.is_stopping

    def find(self, version: str | None) -> Served:
        """Returns the served version. Raises HTTPError if none is ready yet, or `version` is another one."""
        served = self.versions.served
        if served is None:
            raise HTTPError(503, "the model is being loaded. Try again later.", {"Retry-After": "5"})
        if version not in (None, str(served.version)):
            raise HTTPError(404, f"version {str(version)[:20]} is not served; {served.version} is.")
        return served

    async def start(self) -> float:
        """Listens, then loads the model and warms it up. Returns the seconds of loading and warm-up.

        Raises:
          ConfigError: if the model cannot be loaded.
        """
        application = web.Application(routes(self), log_function=lambda handler: None)
        self._http = Http(
            application,
            max_header_size=2**15,
            idle_connection_timeout=self.limits.idle_timeout_secs,
            body_timeout=self.limits.body_timeout_secs,
            max_body_size=self.limits.max_request_bytes,
            max_buffer_size=2 * self.limits.max_request_bytes + 2**16,
        )
        self._http.max_connections = self.limits.max_connections
        self._http.refused = self.metrics.refused.inc
        self.batcher = Batcher(self.limits, self.metrics.batch, self._http.connections)
        self._http.add_sockets(self._sockets)
        return await self.versions.start()

    async def look_for_versions(self) -> None:
        """Checks for newer versions in an endless loop."""
        while True:
            await asyncio.sleep(self._endpoint.poll_secs)
            await self.versions.refresh(self.batcher.uses)

    async def stop(self) -> bool:
        """Stops accepting connections, answers the requests in flight, and closes. Returns whether all were
        answered within `grace_secs`."""
        until = time.monotonic() + self.limits.grace_secs
        self.is_stopping = True
        for listening in self._sockets:  # accepts connections in the backlog, which closing would reset
            with contextlib.suppress(OSError):  # none is left
                while True:
                    connection, address = listening.accept()
                    connection.setblocking(False)
                    self._http.handle_socket(connection, address)
        self._http.stop()
        # A request may still be on its way on an open connection.
        await asyncio.sleep(min(0.5, self.limits.grace_secs))
        while (self.in_flight or self._http.writing()) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        unanswered = len(self.in_flight) + self._http.writing()
        await self._http.close_all_connections()
        self.executor.shutdown(wait=False)
        is_idle = self.batcher.close(max(until - time.monotonic(), 0))
        self.log.info("stopped", unanswered=unanswered)
        return is_idle and not unanswered

    def _load(self, version: int, path: str) -> Served:
        began, self.is_loading = time.monotonic(), True
        try:
            served = versions.load(version, path, self._loading)
        except Exception as error:
            self.metrics.loads.labels("failed").inc()
            problem = f"--export_dir={path} cannot be loaded: {place_of(error)}."
            raise (error if isinstance(error, ConfigError) else ConfigError(problem)) from None
        finally:
            self.is_loading = False
        self.metrics.version.labels(self.model).set(version)
        self.metrics.load_secs.set(time.monotonic() - began)
        self.metrics.loads.labels("ready").inc()
        return served


def _allow_files(limits: Limits) -> None:
    """Raises the limit of open files to one per connection. Raises ConfigError if the system does not allow
    it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.max_connections + _SPARE_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        allowed = f"this system allows at most {hard - _SPARE_FILES} (ulimit -n)."
        raise ConfigError(f"--max_connections={limits.max_connections}: {allowed}")
    if needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def run(endpoint: Endpoint, limits: Limits, loading: Loading, say: Callable[[str], None]) -> int:
    """Serves until a signal arrives.

    Args:
      endpoint: address and model.
      limits: limits of requests.
      loading: settings for loading the model.
      say: called with a line when the server is ready.

    Returns:
      The exit code: 0 if all accepted requests were answered.

    Raises:
      ConfigError: if the address cannot be bound or the model cannot be loaded.
    """
    log = Log()
    monitoring.take_over(log)
    if endpoint.token is None and not is_loopback(endpoint.host):
        log.warning(f"--host={endpoint.host} without --token_file: anyone may send requests to this port")
    # Exempts the modules loaded so far from garbage collection, which would delay requests.
    gc.collect()
    gc.freeze()
    try:
        server = Server(endpoint, limits, loading, log)
        code = asyncio.run(_serve(server, say))
    finally:
        log.close()
    if code or server.is_loading:  # exit without waiting for threads that still work
        os._exit(code)  # pylint: disable=protected-access
    return code


async def _serve(server: Server, say: Callable[[str], None]) -> int:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    is_serving = False

    def note(number: int) -> None:
        if not is_serving:
            signals.end(number)
        loop.call_soon_threadsafe(stopping.set)

    with signals.noting(note):
        secs = await server.start()
        is_serving = True
        ready = server.versions.served
        assert ready is not None
        methods = ", ".join(ready.methods)
        say(f"{server.url} serves {server.model} version {ready.version} ({methods}) after {secs:.1f} s")
        watcher = asyncio.create_task(server.look_for_versions())
        await stopping.wait()
        watcher.cancel()
        return 0 if await server.stop() else 1

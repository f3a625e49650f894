"""Request handlers: headers are checked before the body is read, errors are answered in one line, metrics and
log are told of each request.

Nothing of a request's content is logged.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tornado import iostream, web

from official.serving import page
from official.serving.server import protocols
from official.serving.server.batcher import Failure, Work, place_of
from official.serving.server.calls import Call
from official.serving.server.connections import Stream
from official.serving.server.monitoring import CONTENT_TYPE
from official.serving.server.settings import HTTPError
from official.serving.server.versions import Served

if TYPE_CHECKING:
    from official.serving.server.application import Server


_READ_METHODS = ("GET", "HEAD")
_LINGER = (
    16  # times the largest body: what is read of one that is too large, so that its client gets the answer
)
_IDENTITY = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_MAX_PATH = 120  # of a log line
_GONE = 499  # as in nginx' logs: the client has closed the connection
_HEADERS = {
    "Content-Type": "application/json",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _Gone(Exception):
    """The client has closed the connection."""


@web.stream_request_body
class Handler(web.RequestHandler):
    """A request.

    Attributes:
      endpoint: what metrics call it.
      methods: of HTTP that there are.
      needs_token: whether it is for those who have the token, where there is one.
      is_logged: whether it is logged where all is well.
    """

    endpoint = "other"
    methods: tuple[str, ...] = _READ_METHODS
    needs_token = True
    is_logged = True

    async def answer(self, *arguments: Any) -> bytes | str | dict:
        """Returns the body of the answer. Raises HTTPError."""
        raise NotImplementedError

    # pylint: disable=arguments-differ,attribute-defined-outside-init  # so Tornado wants it
    def initialize(self, server: Server) -> None:
        self.server = server
        self.started = time.monotonic()
        self.body = bytearray()
        self.work: Work | None = None
        self._error: HTTPError | None = None
        self._is_gone = self._is_reported = False
        server.in_flight.add(self)

    def set_default_headers(self) -> None:
        if not hasattr(self, "identity"):  # it is called again where an answer starts anew
            given = self.request.headers.get("X-Request-Id", "")
            self.identity = given if _IDENTITY.fullmatch(given) else secrets.token_hex(8)
        self.clear_header("Server")
        for name, value in (*_HEADERS.items(), ("X-Request-Id", self.identity)):
            self.set_header(name, value)

    def prepare(self) -> None:
        """Checks what the headers say. A refusal is sent after the body, which is dropped; at once where that
        is very large, or waits for a word of ours."""
        if self.server.is_stopping:
            self.set_header("Connection", "close")
        try:
            self._check_headers()
        except HTTPError as error:
            self._error = error
            length, most = self._declared_length(), self.server.limits.max_request_bytes
            if length > _LINGER * most or "Expect" in self.request.headers:
                self._refuse(error)
            elif length > most:
                self.request.connection.set_max_body_size(length)  # type: ignore[union-attr]

    def _check_headers(self) -> None:
        given = self.request.headers
        problem = self.server.callers.problem(given.get("Host"), given.get("Origin"))
        if problem:
            raise HTTPError(403, problem)
        if self.request.method not in self.methods:
            allowed = ", ".join(self.methods)
            raise HTTPError(405, f"{self.request.method}: here is only {allowed}.", {"Allow": allowed})
        if self.needs_token and self.server.token is not None and not self._has_token(self.server.token):
            headers = {"WWW-Authenticate": "Bearer"}
            raise HTTPError(401, "a token is needed: Authorization: Bearer TOKEN.", headers)
        most = self.server.limits.max_request_bytes
        if self._declared_length() > most:
            raise HTTPError(413, f"a body of more than {most:,} bytes.")
        if self.request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise HTTPError(415, "compressed bodies are not read here.")

    def _declared_length(self) -> int:
        length = self.request.headers.get("Content-Length", "0")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0

    def _has_token(self, token: bytes) -> bool:
        kind, _, given = self.request.headers.get("Authorization", "").partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token)
        return is_equal and kind.lower() == "bearer"

    def data_received(self, chunk: bytes) -> None:
        if self._error is None:
            self.body += chunk

    async def _run(self, *arguments: Any) -> None:
        try:
            if self._error is not None:
                raise self._error
            body = await self.answer(*arguments)
        except HTTPError as error:
            sent = self._refuse(error)
        except _Gone:
            return
        else:
            sent = self.finish(body if isinstance(body, (bytes, str)) else json.dumps(body))
        await self._see_it_sent(sent)

    get = head = post = put = patch = delete = options = _run

    async def _see_it_sent(self, sent: asyncio.Future) -> None:
        """Closes the connection of a client that does not read."""
        try:
            await asyncio.wait_for(sent, self.server.limits.idle_timeout_secs)
        except asyncio.TimeoutError:
            self.request.connection.stream.close()  # type: ignore[union-attr]
        except iostream.StreamClosedError:
            pass

    def _refuse(self, error: HTTPError) -> asyncio.Future:
        self.set_status(error.status)
        for name, value in error.headers.items():
            self.set_header(name, value)
        return self.finish(json.dumps({"error": str(error)}))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answers what Tornado refuses by itself."""
        self.finish(json.dumps({"error": self._reason}))

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        if isinstance(value, Exception) and not isinstance(value, web.HTTPError):
            self.server.log.error("failed", id=self.identity, error=place_of(value))

    # ----------------------------------------------------------------------------------------------------
    # The model

    async def compute(self, served: Served, call: Call) -> list[Any]:
        """Waits for the results of a call. Raises HTTPError."""
        if self._is_gone:
            raise _Gone
        deadline = self.started + self.server.limits.request_timeout_secs
        self.work = self.server.batcher.submit(served, call, deadline)
        stream: Stream = self.request.connection.stream  # type: ignore[union-attr]
        try:
            with stream.awaiting():
                return await asyncio.wait_for(self.work.future, deadline - time.monotonic())
        except asyncio.TimeoutError:
            raise HTTPError(504, "the model did not come to it in time. Try again later.") from None
        except Failure as error:
            self.server.log.error("model failed", id=self.identity, error=str(error))
            raise HTTPError(500, "the model failed. The log says where.") from None

    async def in_executor(self, size: int, function: Callable, *arguments: Any) -> Any:
        """Runs a function and returns its result; in the executor, beside the event loop, where `size` is
        large."""
        if size < self.server.LARGE:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.server.executor, function, *arguments)

    # ----------------------------------------------------------------------------------------------------
    # Its end

    def on_finish(self) -> None:
        self._report(self.get_status())

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._is_gone = True
        if self.work is not None and not self.work.future.done():
            self.work.future.set_exception(_Gone())
        is_late = time.monotonic() - self.started >= self.server.limits.body_timeout_secs
        self._report(408 if is_late and self.work is None else _GONE)

    def _report(self, status: int) -> None:
        self.server.in_flight.discard(self)
        if self._is_reported:
            return
        self._is_reported = True
        secs = time.monotonic() - self.started
        self.server.metrics.request(self.endpoint, status, secs)
        if self.is_logged or status >= 400:
            self.server.log.info(
                "request",
                id=self.identity,
                method=self.request.method,
                path=self.request.path[:_MAX_PATH],
                status=status,
                ms=round(1000 * secs, 1),
                sequences=self.work and len(self.work.call.rows),
                batch=self.work and self.work.batch,
            )


# -----------------------------------------------------------------------------------------------------------
# Addresses


def routes(server: Server) -> list[tuple]:
    """Returns the addresses: (pattern, handler, arguments)."""
    own = {"server": server}
    v1 = rf"/v1/models/{re.escape(server.model)}(?:/versions/(\d{{1,18}}))?"
    model = r"/v2/models/([^/]+)(?:/versions/([^/]+))?"
    found: list[tuple] = [
        (r"/healthz", Health, own),
        (r"/metrics", Numbers, own),
        (v1, Status, own),
        (rf"{v1}/metadata", Metadata, own),
        (rf"{v1}:predict", Predict, own),
        (r"/v2", V2Server, own),
        (r"/v2/health/(live|ready)", V2Health, own),
        (model, V2Metadata, own),
        (rf"{model}/ready", V2Ready, own),
        (rf"{model}/infer", V2Infer, own),
    ]
    for path, (kind, content) in page.files(server.model).items():
        found.append((re.escape(path), Page, {**own, "kind": kind, "content": content}))
    return [*found, (r".*", Nothing, own)]


class Health(Handler):
    """Whether the server can be asked: 503 before the first version is ready, and while it stops."""

    endpoint, needs_token, is_logged = "healthz", False, False

    async def answer(self) -> dict:
        if self.server.is_stopping or self.server.versions.served is None:
            raise HTTPError(503, "stopping." if self.server.is_stopping else "loading the model.")
        return {"status": "ok", "version": self.server.versions.served.version}


class Numbers(Handler):
    """Prometheus' metrics."""

    endpoint, is_logged = "metrics", False

    async def answer(self) -> bytes:
        self.set_header("Content-Type", CONTENT_TYPE)
        return self.server.metrics.text()


class Page(Handler):
    """A file of the page."""

    endpoint, needs_token, is_logged = "page", False, False

    # pylint: disable=arguments-differ,attribute-defined-outside-init  # so Tornado wants it
    def initialize(self, server: Server, kind: str = "", content: bytes = b"") -> None:
        super().initialize(server)
        self._kind, self._content = kind, content

    async def answer(self) -> bytes:
        for name, value in page.HEADERS.items():
            self.set_header(name, value)
        self.set_header("Content-Type", self._kind)
        return self._content


class Nothing(Handler):
    """Any other address: 404."""

    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

    async def answer(self) -> bytes:
        raise HTTPError(404, f"nothing is here. The model is at /v1/models/{self.server.model} and /v2.")


class Status(Handler):
    """TensorFlow Serving's GetModelStatus."""

    endpoint = "status"

    async def answer(self, version: str | None) -> dict:
        states = self.server.versions.states
        if version is not None:
            if int(version) not in states:
                raise HTTPError(404, f"no version {version} of {self.server.model}.")
            states = {int(version): states[int(version)]}
        return protocols.rest_status(states)


class Metadata(Handler):
    """TensorFlow Serving's GetModelMetadata."""

    endpoint = "metadata"

    async def answer(self, version: str | None) -> dict:
        return protocols.rest_metadata(self.server.model, self.server.find(version))


class Predict(Handler):
    """TensorFlow Serving's Predict."""

    endpoint, methods = "predict", ("POST",)

    async def answer(self, version: str | None) -> bytes:
        served, body = self.server.find(version), bytes(self.body)
        asked = await self.in_executor(len(body), protocols.read_rest, body, served, self.server.limits)
        results = await self.compute(served, asked.call)
        return await self.in_executor(_numbers(results), protocols.write_rest, asked, results)


class V2Server(Handler):
    """The server's metadata in the v2 protocol."""

    endpoint = "v2"

    async def answer(self) -> dict:
        return protocols.V2_SERVER


class V2Health(Handler):
    """Whether the server is live, or ready."""

    endpoint, is_logged = "v2_health", False

    async def answer(self, what: str) -> dict:
        if what == "ready" and not self.server.is_ready:
            raise HTTPError(503, "not ready.")
        return {what: True}


class _V2Model(Handler):
    """A request about a model of the v2 protocol."""

    endpoint = "v2_model"

    def signature(self, name: str, version: str | None) -> tuple[Served, str]:
        """Returns the version that is served and the signature that a name stands for. Raises HTTPError."""
        served = self.server.find(version)
        return served, protocols.find_signature(self.server.model, name, served)


class V2Metadata(_V2Model):
    """A model's metadata."""

    async def answer(self, name: str, version: str | None) -> dict:
        served, signature = self.signature(name, version)
        return protocols.v2_metadata(name, signature, served)


class V2Ready(_V2Model):
    """Whether a model is ready."""

    is_logged = False

    async def answer(self, name: str, version: str | None) -> dict:
        self.signature(name, version)
        if not self.server.is_ready:
            raise HTTPError(503, "not ready.")
        return {"name": name, "ready": True}


class V2Infer(_V2Model):
    """An inference."""

    endpoint, methods = "infer", ("POST",)

    async def answer(self, name: str, version: str | None) -> bytes:
        served, signature = self.signature(name, version)
        body, length = bytes(self.body), self.request.headers.get(protocols.V2_HEADER)
        limits = self.server.limits
        asked = await self.in_executor(len(body), protocols.read_v2, body, length, signature, served, limits)
        results = await self.compute(served, asked.call)
        content, json_length = await self.in_executor(
            _numbers(results), protocols.write_v2, asked, results, name, served.version
        )
        if json_length is not None:
            self.set_header(protocols.V2_HEADER, str(json_length))
            self.set_header("Content-Type", "application/octet-stream")
        return content


def _numbers(results: list[Any]) -> int:
    """Returns the number of numbers in an answer, about."""
    first = results[0]
    parts = first.values() if isinstance(first, dict) else [first]
    return len(results) * sum(part.size if isinstance(part, np.ndarray) else 8 for part in parts)

"""Request handlers. They check headers before reading the body, answer errors in one line, and record each
request in metrics and log.

The content of requests is never logged.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import html
import inspect
import json
import re
import secrets
import time
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tornado import iostream, web

from official.serving.server import embeddings, protocols
from official.serving.server.batcher import Failure, Work, place_of
from official.serving.server.monitoring import CONTENT_TYPE
from official.serving.server.settings import HTTPError, require, whole_number

if TYPE_CHECKING:
    from official.serving.server.application import Server
    from official.serving.server.versions import Served


_HEADERS = {
    "Content-Type": "application/json",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']+)", re.IGNORECASE)
# Query parameters that identify the caller or the version of its API, and may be ignored.
_OF_CALLERS = {"key", "api_key", "api-key", "api-version"}


class _Gone(Exception):
    """The client has closed the connection."""


@web.stream_request_body
class Request(web.RequestHandler):
    """Handler of a request.

    Attributes:
      server: the server.
      route: route of the request's path.
      body: bytes of the body received so far.
      work: the request's call in the batch queue, once it was submitted.
    """

    # pylint: disable=arguments-differ,attribute-defined-outside-init  # Tornado's interface
    def initialize(self, server: Server, route: Route) -> None:
        self.server, self.route = server, route
        self.started = time.monotonic()
        self.body = bytearray()
        self.work: Work | None = None
        self._error: HTTPError | None = None
        self._is_gone = self._is_reported = False
        server.in_flight.add(self)

    def set_default_headers(self) -> None:
        if not hasattr(self, "identity"):  # Tornado calls this again when it resets a response
            given = self.request.headers.get("X-Request-Id", "")
            self.identity = given if re.fullmatch(r"[\w.:-]{1,64}", given, re.ASCII) else secrets.token_hex(8)
        self.clear_header("Server")
        for name, value in (*_HEADERS.items(), ("X-Request-Id", self.identity)):
            self.set_header(name, value)

    def prepare(self) -> None:
        """Checks the headers. An error is sent after the body was received and dropped; at once if the body
        is very large, or if the client waits for `100 Continue`."""
        if self.server.is_stopping:
            self.set_header("Connection", "close")
        try:
            self._check_headers()
        except HTTPError as error:
            self._error = error
            length, most = self._declared_length(), self.server.limits.max_request_bytes
            # A body that is too large is read up to this size, so that its client gets the error.
            if length > 16 * most or "Expect" in self.request.headers:
                self._refuse(error)
            elif length > most:
                self.request.connection.set_max_body_size(length)  # type: ignore[union-attr]

    def _check_headers(self) -> None:
        given, server, route, method = self.request.headers, self.server, self.route, self.request.method
        server.callers.check(given.get("Host"), given.get("Origin"))
        allowed = ", ".join(route.methods)
        require(method in route.methods, f"{method} is not allowed, only {allowed}.", 405, {"Allow": allowed})
        if route.needs_token and server.token is not None:
            kind, _, token = given.get("Authorization", "").partition(" ")
            is_equal = hmac.compare_digest(token.strip().encode("utf-8", "replace"), server.token)
            needed = "a token is needed: Authorization: Bearer TOKEN."
            require(is_equal and kind.lower() == "bearer", needed, 401, {"WWW-Authenticate": "Bearer"})
        most = server.limits.max_request_bytes
        limit = f"the body has more than {most:,} bytes (--max_request_bytes)."
        require(self._declared_length() <= most, limit, 413)
        is_plain = given.get("Content-Encoding", "identity").lower() == "identity"
        require(is_plain, "compressed bodies are not supported.", 415)
        if route.methods == ("POST",):  # it reads a body
            charset = "".join(_CHARSET.findall(given.get("Content-Type", ""))[:1])
            is_utf8 = charset.lower() in ("", "utf-8", "utf8", "us-ascii")
            require(is_utf8, f"charset={charset[:40]}: bodies are read as UTF-8.", 415)
            unread = "".join(sorted(self.request.query_arguments.keys() - _OF_CALLERS)[:1])
            require(not unread, f"unknown query parameter {unread[:60]!r}. Put it into the body.")

    def _declared_length(self) -> int:
        return whole_number(self.request.headers.get("Content-Length", "0")) or 0

    def data_received(self, chunk: bytes) -> None:
        if self._error is None:
            self.body += chunk

    async def _run(self, *arguments: Any) -> None:
        try:
            if self._error is not None:
                raise self._error
            body = self.route.answer(self, *arguments)
            body = await body if inspect.isawaitable(body) else body
        except HTTPError as error:
            sent = self._refuse(error)
        except _Gone:
            return
        else:
            sent = self.finish(body if isinstance(body, (bytes, str)) else json.dumps(body))
        try:
            await asyncio.wait_for(sent, self.server.limits.idle_timeout_secs)
        except asyncio.TimeoutError:  # its client does not read
            self.request.connection.stream.close()  # type: ignore[union-attr]
        except iostream.StreamClosedError:
            pass

    get = head = post = put = patch = delete = options = _run

    def _refuse(self, error: HTTPError) -> asyncio.Future:
        self.set_status(error.status)
        for name, value in error.headers.items():
            self.set_header(name, value)
        return self.finish(json.dumps({"error": self.route.describe_error(error)}))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answers requests that Tornado itself rejects."""
        self.finish(json.dumps({"error": self.route.describe_error(HTTPError(status_code, self._reason))}))

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        if isinstance(value, Exception) and not isinstance(value, web.HTTPError):
            self.server.log.error("failed", id=self.identity, error=place_of(value))

    # ----------------------------------------------------------------------------------------------------
    # The model

    async def _compute(self, served: Served, call: protocols.Call) -> list[Any]:
        """Waits for the results of a call. Raises HTTPError."""
        if self._is_gone:
            raise _Gone
        deadline = self.started + self.server.limits.request_timeout_secs
        self.work = self.server.batcher.submit(served, call, deadline)
        try:
            with self.request.connection.stream.awaiting():  # type: ignore[union-attr]
                return await asyncio.wait_for(self.work.future, deadline - time.monotonic())
        except asyncio.TimeoutError:
            raise HTTPError(504, "the model did not answer in time. Try again later.") from None
        except Failure as error:
            self.server.log.error("model failed", id=self.identity, error=str(error))
            raise HTTPError(500, "the model failed. See the server's log.") from None

    async def answer(self, served: Served, read: Callable, write: Callable, *given: Any) -> Any:
        """Returns the body of a response: `read` parses the request's body, the model computes, `write`
        formats the results. Large bodies are processed outside of the event loop. The header X-Truncated gets
        the indices of rows with a truncated text, at most 1,000. `given`: further arguments of `read`."""

        async def called(size: int, function: Callable, *arguments: Any) -> Any:
            if size < self.server.LARGE:
                return function(*arguments)
            return await asyncio.get_running_loop().run_in_executor(
                self.server.executor, function, *arguments
            )

        body = bytes(self.body)
        asked = await called(len(body), read, body, *given, served, self.server.limits)
        found = await self._compute(served, asked.call)
        if cut := [str(number) for number, one in enumerate(found) if one.is_cut]:
            self.set_header("X-Truncated", ",".join([*cut[:1000], *["..."][: len(cut) > 1000]]))
        results = [one.value for one in found]
        parts = results[0].values() if isinstance(results[0], dict) else [results[0]]
        numbers = sum(part.size if isinstance(part, np.ndarray) else 8 for part in parts)
        return await called(len(results) * numbers, write, asked, results)

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
        self._report(408 if is_late and self.work is None else 499)  # the latter as in nginx' logs

    def _report(self, status: int) -> None:
        self.server.in_flight.discard(self)
        if self._is_reported:
            return
        self._is_reported = True
        secs = time.monotonic() - self.started
        self.server.metrics.requests.labels(self.route.endpoint, status).inc()
        self.server.metrics.request_secs.labels(self.route.endpoint).observe(secs)
        if self.route.is_logged or status >= 400:
            asked = {"method": self.request.method, "path": self.request.path[:120], "status": status}
            work = {"sequences": len(self.work.call.rows), "batch": self.work.batch} if self.work else {}
            self.server.log.info("request", id=self.identity, **asked, ms=round(1000 * secs, 1), **work)


# -----------------------------------------------------------------------------------------------------------
# Addresses


class Route(NamedTuple):
    """A path of the server.

    Attributes:
      pattern: regular expression of the path.
      answer: (request, groups of the pattern) -> body, or an awaitable of one. Raises HTTPError.
      endpoint: name in the metrics.
      methods: allowed HTTP methods.
      needs_token: whether requests need the token, if there is one.
      is_logged: whether successful requests are logged.
      describe_error: (error) -> JSON value of `error` in the response.
    """

    pattern: str
    answer: Callable[..., Any]
    endpoint: str
    methods: tuple[str, ...] = ("GET", "HEAD")
    needs_token: bool = True
    is_logged: bool = True
    describe_error: Callable[[HTTPError], Any] = str


def routes(server: Server) -> list[tuple]:
    """Returns the routes in Tornado's form: (pattern, handler, arguments)."""
    v1 = rf"/v1/models/{re.escape(server.model)}(?:/versions/(\d{{1,18}}))?"
    v2 = r"/v2/models/([^/]+)(?:/versions/([^/]+))?"
    post, every = ("POST",), ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    found = [
        Route("/healthz", _health, "healthz", needs_token=False, is_logged=False),
        Route("/metrics", _metrics, "metrics", is_logged=False),
        Route(v1, _status, "status"),
        Route(f"{v1}/metadata", _metadata, "metadata"),
        Route(f"{v1}:predict", _predict, "predict", post),
        Route("/v1/embeddings", _embeddings, "embeddings", post, describe_error=embeddings.describe_error),
        Route("/v2", lambda request: protocols.V2_SERVER, "v2"),
        Route("/v2/health/(live|ready)", _v2_health, "v2_health", is_logged=False),
        Route(v2, _v2_metadata, "v2_model"),
        Route(f"{v2}/ready", _v2_ready, "v2_model", is_logged=False),
        Route(f"{v2}/infer", _infer, "infer", post),
    ]
    for path, (kind, content) in page_files(server.model).items():
        send = functools.partial(_send_page, kind=kind, content=content)
        found.append(Route(re.escape(path), send, "page", needs_token=False, is_logged=False))
    found.append(Route(".*", _nothing, "other", every))
    return [(route.pattern, Request, {"server": server, "route": route}) for route in found]


def _health(request: Request) -> dict:
    """Answers /healthz: 503 until the first version is ready, and while the server stops."""
    server = request.server
    require(server.is_ready, "stopping." if server.is_stopping else "loading the model.", 503)
    return {"status": "ok", "version": server.find(None).version}


def _metrics(request: Request) -> bytes:
    request.set_header("Content-Type", CONTENT_TYPE)
    return request.server.metrics.text()


# The web page for trying the model uses TensorFlow Serving's REST contract of its own server. Its URLs are
# relative, so it also works behind a proxy's prefix that ends in a slash. It requests
#
# - `GET v1/models/NAME/metadata`: the model's signatures and its version;
# - `POST v1/models/NAME:predict` with `signature_name` and `instances`: every instance is an object with all
#   inputs, optional ones as ''. A response has `predictions`, an error `error`.
#
# The files hold no secrets and need no token. After a 401 the page asks the user for the token, keeps it in
# memory and sends it as `Authorization: Bearer TOKEN`.
PAGE_HEADERS = {
    # No external and no inline content; the only image is the icon, a data: URL.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cache-Control": "no-cache",
}


def page_files(model: str) -> dict[str, tuple[str, bytes]]:
    """Returns {path, "/" and "/static/...": (content type, content)} of the page; `model` is the model's name
    in URLs."""
    folder = resources.files("official.serving") / "page"
    page = (folder / "index.html").read_text(encoding="utf-8").replace("MODEL_NAME", html.escape(model))
    found = {"/": ("text/html; charset=utf-8", page.encode())}
    for file in sorted((folder / "static").iterdir(), key=lambda each: each.name):
        kind = "css" if file.name.endswith(".css") else "javascript"
        found[f"/static/{file.name}"] = f"text/{kind}; charset=utf-8", file.read_bytes()
    return found


def _send_page(request: Request, kind: str, content: bytes) -> bytes:
    for name, value in {**PAGE_HEADERS, "Content-Type": kind}.items():
        request.set_header(name, value)
    return content


def _nothing(request: Request) -> None:
    raise HTTPError(404, f"unknown path. The model is at /v1/models/{request.server.model} and /v2.")


def _status(request: Request, version: str | None) -> dict:
    """TensorFlow Serving's GetModelStatus."""
    states = request.server.versions.states
    if version is not None:
        require(int(version) in states, f"no version {version} of {request.server.model}.", 404)
        states = {int(version): states[int(version)]}
    return protocols.rest_status(states)


def _metadata(request: Request, version: str | None) -> dict:
    """TensorFlow Serving's GetModelMetadata."""
    return protocols.rest_metadata(request.server.model, request.server.find(version))


async def _predict(request: Request, version: str | None) -> bytes:
    """TensorFlow Serving's Predict."""
    return await request.answer(request.server.find(version), protocols.read_rest, protocols.write_rest)


async def _embeddings(request: Request) -> bytes:
    """OpenAI's embeddings."""
    model = request.server.model
    return await request.answer(request.server.find(None), embeddings.read, embeddings.write, model)


def _v2_health(request: Request, what: str) -> dict:
    require(what == "live" or request.server.is_ready, "not ready.", 503)
    return {what: True}


def _v2_asked(request: Request, name: str, version: str | None) -> tuple[str, Served]:
    """Returns the signature that a model name of the v2 protocol selects, and the served version."""
    served = request.server.find(version)
    return protocols.find_signature(request.server.model, name, served), served


def _v2_metadata(request: Request, name: str, version: str | None) -> dict:
    return protocols.v2_metadata(name, *_v2_asked(request, name, version))


def _v2_ready(request: Request, name: str, version: str | None) -> dict:
    _v2_asked(request, name, version)
    require(request.server.is_ready, "not ready.", 503)
    return {"name": name, "ready": True}


async def _infer(request: Request, name: str, version: str | None) -> bytes:
    signature, served = _v2_asked(request, name, version)
    header = request.request.headers.get(protocols.V2_HEADER)
    write = functools.partial(protocols.write_v2, model=name, version=served.version)
    content, json_length = await request.answer(served, protocols.read_v2, write, header, signature)
    if json_length is not None:
        request.set_header(protocols.V2_HEADER, str(json_length))
        request.set_header("Content-Type", "application/octet-stream")
    return content

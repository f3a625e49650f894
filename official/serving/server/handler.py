"""Base of all request handlers: checks the headers before the body is read, answers errors in one line, and
tells metrics and log of each request.

Nothing of a request's content is logged.
"""

import asyncio
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tornado import iostream, web

from official.serving.server.batcher import Failure, Work, place_of
from official.serving.server.calls import Call
from official.serving.server.connections import Stream
from official.serving.server.refusals import Refused
from official.serving.server.served import Served

if TYPE_CHECKING:  # it imports this module
    from official.serving.server.application import Server

_READ = ("GET", "HEAD")
_LINGER = (
    16  # times the largest body: what is read of one that is too large, so that its client gets the answer
)
_IDENTITY = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_LONGEST_PATH = 120  # of a log line
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
    methods: tuple[str, ...] = _READ
    needs_token = True
    is_logged = True

    async def answer(self, *arguments: Any) -> bytes | str | dict:
        """Returns the body of the answer. Raises Refused."""
        raise NotImplementedError

    # pylint: disable=arguments-differ,attribute-defined-outside-init  # so Tornado wants it
    def initialize(self, server: "Server") -> None:
        self.server = server
        self.started = time.monotonic()
        self.body = bytearray()
        self.work: Work | None = None
        self._refused: Refused | None = None
        self._is_gone = self._is_told = False
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
        except Refused as refused:
            self._refused = refused
            length, most = self._declared_length(), self.server.limits.max_request_bytes
            if length > _LINGER * most or "Expect" in self.request.headers:
                self._refuse(refused)
            elif length > most:
                self.request.connection.set_max_body_size(length)  # type: ignore[union-attr]

    def _check_headers(self) -> None:
        given = self.request.headers
        problem = self.server.callers.problem(given.get("Host"), given.get("Origin"))
        if problem:
            raise Refused(403, problem)
        if self.request.method not in self.methods:
            allowed = ", ".join(self.methods)
            raise Refused(405, f"{self.request.method}: here is only {allowed}.", {"Allow": allowed})
        if self.needs_token and self.server.token is not None and not self._has_token(self.server.token):
            headers = {"WWW-Authenticate": "Bearer"}
            raise Refused(401, "a token is needed: Authorization: Bearer TOKEN.", headers)
        most = self.server.limits.max_request_bytes
        if self._declared_length() > most:
            raise Refused(413, f"a body of more than {most:,} bytes.")
        if self.request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refused(415, "compressed bodies are not read here.")

    def _declared_length(self) -> int:
        length = self.request.headers.get("Content-Length", "0")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0

    def _has_token(self, token: bytes) -> bool:
        kind, _, given = self.request.headers.get("Authorization", "").partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token)
        return is_equal and kind.lower() == "bearer"

    def data_received(self, chunk: bytes) -> None:
        if self._refused is None:
            self.body += chunk

    async def _run(self, *arguments: Any) -> None:
        try:
            if self._refused is not None:
                raise self._refused
            body = await self.answer(*arguments)
        except Refused as refused:
            sent = self._refuse(refused)
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

    def _refuse(self, refused: Refused) -> asyncio.Future:
        self.set_status(refused.status)
        for name, value in refused.headers.items():
            self.set_header(name, value)
        return self.finish(json.dumps({"error": str(refused)}))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answers what Tornado refuses by itself."""
        self.finish(json.dumps({"error": self._reason}))

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        if isinstance(value, Exception) and not isinstance(value, web.HTTPError):
            self.server.log.error("failed", id=self.identity, error=place_of(value))

    # ----------------------------------------------------------------------------------------------------
    # The model

    async def compute(self, served: Served, call: Call) -> list[Any]:
        """Waits for the results of a call. Raises Refused."""
        if self._is_gone:
            raise _Gone
        deadline = self.started + self.server.limits.request_timeout_secs
        self.work = self.server.batcher.submit(served, call, deadline)
        stream: Stream = self.request.connection.stream  # type: ignore[union-attr]
        try:
            with stream.awaiting():
                return await asyncio.wait_for(self.work.future, deadline - time.monotonic())
        except asyncio.TimeoutError:
            raise Refused(504, "the model did not come to it in time. Try again later.") from None
        except Failure as error:
            self.server.log.error("model failed", id=self.identity, error=str(error))
            raise Refused(500, "the model failed. The log says where.") from None

    async def beside(self, size: int, function: Callable, *arguments: Any) -> Any:
        """Runs a function and returns its result; in the executor, beside the event loop, where `size` is
        large."""
        if size < self.server.LARGE:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.server.executor, function, *arguments)

    # ----------------------------------------------------------------------------------------------------
    # Its end

    def on_finish(self) -> None:
        self._tell(self.get_status())

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._is_gone = True
        if self.work is not None and not self.work.future.done():
            self.work.future.set_exception(_Gone())
        is_late = time.monotonic() - self.started >= self.server.limits.body_timeout_secs
        self._tell(408 if is_late and self.work is None else _GONE)

    def _tell(self, status: int) -> None:
        self.server.in_flight.discard(self)
        if self._is_told:
            return
        self._is_told = True
        secs = time.monotonic() - self.started
        self.server.metrics.request(self.endpoint, status, secs)
        if self.is_logged or status >= 400:
            self._log_line(status, secs)

    def _log_line(self, status: int, secs: float) -> None:
        work = self.work
        self.server.log.info(
            "request",
            id=self.identity,
            method=self.request.method,
            path=self.request.path[:_LONGEST_PATH],
            status=status,
            ms=round(1000 * secs, 1),
            sequences=work and len(work.call.rows),
            batch=work and work.batch,
        )

"""Settings of the server, and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Address of a server, and the model that it serves.

    Attributes:
      export_dir: path of a version, or folder of numbered versions.
      model: name of the model in URLs.
      host, port: address to listen on; port 0 selects a free one.
      token: token that requests need; None for no token.
      poll_secs: interval of checks for newer versions.
      allowed_hosts, allowed_origins: see `connections.Callers`.
    """

    export_dir: str
    model: str = "bert"
    host: str = "127.0.0.1"
    port: int = 8501
    token: bytes | None = dataclasses.field(default=None, repr=False)
    poll_secs: float = 5.0
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
      max_batch_size: maximum number of sequences per batch, 1 or more; longer requests are split.
      max_batch_tokens: approximate maximum number of tokens per batch, at four characters per token.
      batch_delay_ms: how long an idle model waits for more requests, 0 or more.
      max_queue: maximum number of waiting requests.
      max_request_bytes: maximum size of a request body.
      max_instances: maximum number of instances per request.
      max_text_chars: maximum number of characters per text.
      max_connections: maximum number of open connections.
      request_timeout_secs: maximum time from the headers of a request to its answer.
      idle_timeout_secs: maximum time to send complete request headers, or to read an answer.
      body_timeout_secs: maximum time from the headers of a request to the end of its body.
      grace_secs: maximum time for running requests when the server stops.
    """

    max_batch_size: int = 32
    max_batch_tokens: int = 16384
    batch_delay_ms: float = 5.0
    max_queue: int = 256
    max_request_bytes: int = 2**20
    max_instances: int = 64
    max_text_chars: int = 50_000
    max_connections: int = 512
    request_timeout_secs: float = 30.0
    idle_timeout_secs: float = 60.0
    body_timeout_secs: float = 10.0
    grace_secs: float = 10.0


class HTTPError(Exception):
    """A request that is refused. The message is sent to the client.

    Attributes:
      status: HTTP status.
      headers: additional headers of the response.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def whole_number(text: str) -> int | None:
    """Parses a header as a non-negative integer; None for anything else, or a number above all sizes."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def require(
    condition: object, message: str, status: int = 400, headers: dict[str, str] | None = None
) -> None:
    """Raises HTTPError if a condition is false."""
    if not condition:
        raise HTTPError(status, message, headers)

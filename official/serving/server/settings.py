"""Settings of the server, and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """Address of a server, and the model that it serves.

    Attributes:
      export_dir: a version, or a folder of numbered ones.
      model: the name in addresses.
      host, port: to listen on; port 0 is a free one.
      token: that requests need; None where they need none.
      poll_secs: between looks for newer versions.
      allowed_hosts, allowed_origins: as of `connections.Callers`.
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
      max_batch_size: sequences that are computed together, 1 or more; a longer request is cut.
      max_batch_tokens: tokens that are computed together, about: counted at four characters a token.
      batch_delay_ms: how long the model, when it is idle, waits for further requests, 0 or more.
      max_queue: requests that wait for the model.
      max_request_bytes: of a body.
      max_instances: of a request.
      max_text_chars: characters of a text.
      max_connections: that are open at once.
      request_timeout_secs: from the headers of a request to its answer.
      idle_timeout_secs: of a connection without the complete headers of a request, or whose client does not
        read its answer.
      body_timeout_secs: from the headers of a request to the end of its body.
      grace_secs: for requests in flight when the server stops.
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
    """A request that is not answered. Its message is the line that the client gets.

    Attributes:
      status: of HTTP.
      headers: of the answer, beside the usual ones.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def whole_number(text: str) -> int | None:
    """Returns the number of a header; None where it is none, or larger than any size."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def require(
    condition: object, message: str, status: int = 400, headers: dict[str, str] | None = None
) -> None:
    """Raises HTTPError where a condition does not hold."""
    if not condition:
        raise HTTPError(status, message, headers)

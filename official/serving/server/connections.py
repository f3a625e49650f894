"""Client connections, and the checks of the Host and Origin headers."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tornado import httpserver, iostream

from official.io.errors import ConfigError, shortened
from official.serving.server.settings import Endpoint, require

# -----------------------------------------------------------------------------------------------------------
# Clients that shut down their sending side and still wait for their answer
#
# End of file looks the same whether a client has only shut down its sending side or is gone. Sending the
# first bytes of the answer, which are the same for every answer, distinguishes them: the system of a client
# that is gone resets the connection. So these bytes are sent early, and calls of clients that are gone are
# not computed.


class Stream(iostream.IOStream):
    """A connection of a client.

    Attributes:
      is_ended: whether the client has shut down its sending side.
    """

    is_ended = False
    _has_line_feed = False
    _is_awaited = False
    _sent = 0  # number of bytes of the answer sent early

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Reads like Tornado, which closes the connection at end of file. End of file is delayed once, since
        a complete request may precede it. While an answer is computed and nothing is read, it is reported as
        an empty line, which is ignored before a request, and as end of file at the next read."""
        count = super().read_from_fd(buf)
        if count != 0:
            return count
        if self.reading():
            is_first, self.is_ended = not self.is_ended, True
            return None if is_first else 0
        if self._has_line_feed:
            return None
        self.is_ended = self._has_line_feed = True
        buf[0] = ord("\n")
        self._look()
        return 1

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """Context manager around the computation of an answer, in which a closed connection is detected."""
        self._is_awaited = True
        self._look()
        try:
            yield
        finally:
            self._is_awaited = False

    def write(self, data: bytes | memoryview):
        """Writes the bytes that have not been sent early."""
        sent, self._sent = self._sent, 0
        return super().write(data[sent:])

    def _look(self) -> None:
        """Closes the connection if the client is gone; checks again while the answer is awaited."""
        if not (self.is_ended and self._is_awaited) or self.closed():
            return
        if not self._sent and not self.writing():
            with contextlib.suppress(OSError):  # it is closed below
                self._sent = self.socket.send(b"HTTP/1.1 ")
        poll = select.poll()
        poll.register(self.socket, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            self.close()
        else:
            self.io_loop.call_later(0.05, self._look)


class Http(httpserver.HTTPServer):
    """Tornado's HTTP server with a limit on connections.

    Attributes:
      max_connections: maximum number of open connections; further ones are closed.
      refused: called for each connection that is closed for this reason.
    """

    max_connections = 0
    refused: Callable[[], None]

    def handle_stream(self, stream: iostream.IOStream, address: tuple) -> None:
        self.handle_socket(stream.socket, address)

    def handle_socket(self, connection: socket.socket, address: tuple) -> None:
        """Takes a connection."""
        if self.connections() >= self.max_connections:
            self.refused()
            connection.close()
        else:
            sizes = {"max_buffer_size": self.max_buffer_size, "read_chunk_size": self.read_chunk_size}
            super().handle_stream(Stream(connection, **sizes), address)

    def connections(self) -> int:
        """Returns the number of open connections."""
        return len(self._connections)

    def writing(self) -> int:
        """Returns the number of connections with an answer on its way."""
        return sum(each.stream.writing() for each in self._connections)


# -----------------------------------------------------------------------------------------------------------
# Web pages that may send requests
#
# A browser lets any web page send requests to this machine (cross-site request forgery). A page whose own
# name is made to resolve to this machine can read the answers, too (DNS rebinding). Both are detected by
# headers that pages cannot change: Origin and Host. Programs other than browsers send no Origin, and the host
# name that they were given.


_ANY = "*"
_NAME_AND_PORT = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", re.IGNORECASE | re.ASCII)
_MAX_SHOWN = 100  # characters of a header or a flag in a message

Origin = tuple[str, str, int]  # scheme, name, port


def is_loopback(host: str) -> bool:
    """Tells whether an address can be reached only from this machine."""
    return re.fullmatch(r"localhost|::1|127(\.\d+){3}", host) is not None


class Callers:
    """Allowed Host and Origin headers: the server's own names with any port, and those of --allowed_hosts and
    --allowed_origins.

    On the loopback address without a token, both headers are checked. On other addresses the server does not
    know its own names, and with a token other pages have no access. There both headers are checked only if
    --allowed_hosts is set, and Origin only if --allowed_origins is.
    """

    def __init__(self, endpoint: Endpoint):
        """Raises ConfigError for an invalid host name or origin."""
        hosts, pages = endpoint.allowed_hosts, endpoint.allowed_origins
        names = _parsed("allowed_hosts", hosts, _name_of, "names or addresses")
        origins = _parsed("allowed_origins", pages, _origin_of, "SCHEME://NAME or SCHEME://NAME:PORT")
        are_checked = (is_loopback(endpoint.host) and endpoint.token is None) or bool(names)
        self._names = {"localhost", "127.0.0.1", "::1", _canonical(endpoint.host), *names}
        self._are_names_checked = are_checked and _ANY not in hosts
        self._origins = origins if (are_checked or origins) and _ANY not in pages else None

    def check(self, host: str | None, origin: str | None) -> None:
        """Raises HTTPError if the Host or Origin header of a request is not allowed."""
        if self._are_names_checked and host is not None:
            names = f"is not a name of this server ({shortened(sorted(self._names))}). See --allowed_hosts."
            require(_name_of(host) in self._names, f"Host: {host[:_MAX_SHOWN]} {names}", 403)
        if self._origins is not None and origin is not None:
            found = _origin_of(origin)
            may_ask = found and (found[1] in self._names or found in self._origins)
            problem = "pages of this origin may not send requests. See --allowed_origins."
            require(may_ask, f"Origin: {origin[:_MAX_SHOWN]}: {problem}", 403)


def _parsed(flag: str, given: Sequence[str], parse: Callable[[str], Any], expected: str) -> set:
    """Returns the parsed names of a flag, without '*'. Raises ConfigError."""
    found = {text: parse(text) for text in given if text != _ANY}
    for text in (text for text in found if found[text] is None):
        raise ConfigError(f"--{flag}={text[:_MAX_SHOWN]}, expected comma-separated {expected}, or '*'.")
    return set(found.values())


def _name_of(authority: str) -> str | None:
    """Returns the name of NAME or NAME:PORT; None for anything else."""
    found = _NAME_AND_PORT.fullmatch(authority)
    if not found and authority.count(":") > 1:  # an address of IPv6
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(authority))
    return (_canonical(found[1].strip("[]")) or None) if found else None


def _origin_of(text: str) -> Origin | None:
    """Returns scheme, name and port of an origin; None for another text, such as `null`."""
    found = re.fullmatch(r"([a-z][a-z0-9+.-]*)://(.+)", text, re.IGNORECASE)
    place = found and _NAME_AND_PORT.fullmatch(found[2])
    if not found or not place:
        return None
    scheme = found[1].lower()
    port = place[2] or {"http": 80, "https": 443}.get(scheme, 0)
    return scheme, _canonical(place[1].strip("[]")), int(port)


def _canonical(name: str) -> str:
    """Returns a host name or address in its canonical spelling."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower().removesuffix(".")

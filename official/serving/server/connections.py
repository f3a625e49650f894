"""Connections: sockets of clients, and the web pages that may ask the server."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import re
import select
import socket
from collections.abc import Callable, Iterator, Sequence

from tornado import httpserver, iostream

from official.io.errors import ConfigError, shortened

# -----------------------------------------------------------------------------------------------------------
# Clients that may end their writing and still wait for their answer
#
# The end of what a client writes looks the same whether it has only shut that side down or is gone. The
# first bytes of an answer, which are those of every answer, tell: the system of a client that is gone
# refuses them. So they are sent at once while the model is awaited, and what nobody waits for is not
# computed.


_FIRST_BYTES = b"HTTP/1.1 "
_LOOK_SECS = 0.05  # between looks whether those bytes were refused
_LINE_FEED = 10


class Stream(iostream.IOStream):
    """A connection of a client.

    Attributes:
      is_ended: the client writes nothing more.
    """

    is_ended = False
    _has_line_feed = False
    _is_awaited = False
    _sent = 0  # first bytes of the answer that is to come

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Reads as Tornado does, which closes the connection at its end. That is kept back once, since there
        may be a whole request before it. While an answer is made and nothing is to be read, it comes as an
        empty line, which before a request means nothing, and as the end when the next one is to be read."""
        count = super().read_from_fd(buf)
        if count != 0:
            return count
        if self.reading():
            is_first, self.is_ended = not self.is_ended, True
            return None if is_first else 0
        if self._has_line_feed:
            return None
        self.is_ended = self._has_line_feed = True
        buf[0] = _LINE_FEED
        self._look()
        return 1

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """In its block the answer is computed: a client that is gone is noticed."""
        self._is_awaited = True
        self._look()
        try:
            yield
        finally:
            self._is_awaited = False

    def write(self, data: bytes | memoryview):
        """Writes, without what is sent already."""
        sent, self._sent = self._sent, 0
        return super().write(data[sent:])

    def _look(self) -> None:
        """Closes the connection where its client is gone; looks again while the answer is awaited."""
        if not (self.is_ended and self._is_awaited) or self.closed():
            return
        if not self._sent and not self.writing():
            with contextlib.suppress(OSError):  # it is closed below
                self._sent = self.socket.send(_FIRST_BYTES)
        poll = select.poll()
        poll.register(self.socket, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            self.close()
        else:
            self.io_loop.call_later(_LOOK_SECS, self._look)


class Http(httpserver.HTTPServer):
    """Tornado's server with a limit of connections.

    Attributes:
      max_connections: that are open at once; further ones are closed.
      refused: is called for each of these.
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
            stream = Stream(
                connection, max_buffer_size=self.max_buffer_size, read_chunk_size=self.read_chunk_size
            )
            super().handle_stream(stream, address)

    def connections(self) -> int:
        """Returns the number of open connections."""
        return len(self._connections)

    def writing(self) -> int:
        """Returns the number of connections with an answer on its way."""
        return sum(each.stream.writing() for each in self._connections)


# -----------------------------------------------------------------------------------------------------------
# Web pages that may ask the server
#
# A browser lets any page on the web send requests to this machine (forgery), and lets a page whose own name
# is made to mean this machine read the answers, too (DNS rebinding). Both are told by headers that no page
# can change: Origin, and Host. Programs that are no browser send no Origin, and the name that they were
# given.


_ANY = "*"
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_LOOPBACK = re.compile(r"localhost|::1|127(\.\d+){3}")
_NAME_AND_PORT = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", re.IGNORECASE | re.ASCII)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
_MAX_SHOWN = 100  # characters of a header or a flag that are told

Origin = tuple[str, str, int]  # scheme, name, port


def is_loopback(host: str) -> bool:
    """Tells whether an address to listen on is reached from this machine alone."""
    return _LOOPBACK.fullmatch(host) is not None


@dataclasses.dataclass(frozen=True)
class Callers:
    """Names of a server, and web pages that may ask it.

    Attributes:
      names: of the server; its own pages are of one of these, with any port.
      are_names_checked: whether the header Host is to be one of them.
      origins: of other pages that may ask; None: all may.
    """

    names: frozenset[str]
    are_names_checked: bool
    origins: frozenset[Origin] | None

    def problem(self, host: str | None, origin: str | None) -> str | None:
        """Returns the fault of the headers Host and Origin of a request; None where there is none."""
        if self.are_names_checked and host is not None and _name_of(host) not in self.names:
            names = shortened(sorted(self.names))
            return f"Host: {host[:_MAX_SHOWN]} is no name of this server, expected {names}: --allowed_hosts."
        if self.origins is None or origin is None:
            return None
        found = _origin_of(origin)
        if found is None or (found[1] not in self.names and found not in self.origins):
            return (
                f"Origin: {origin[:_MAX_SHOWN]}: pages from there may not ask this server, only its own:"
                " --allowed_origins."
            )
        return None


def callers_of(
    host: str, has_token: bool, allowed_hosts: Sequence[str] = (), allowed_origins: Sequence[str] = ()
) -> Callers:
    """Returns the callers that a server accepts.

    On the loopback address without a token both headers are checked. Elsewhere nobody knows the names of the
    machine, and a foreign page has no token: there both are checked where names are given, and origins where
    these are.

    Args:
      host: that the server listens on.
      has_token: whether requests need a token.
      allowed_hosts: names beside localhost, 127.0.0.1, ::1 and `host`; '*' for all.
      allowed_origins: SCHEME://NAME or SCHEME://NAME:PORT of pages beside the server's own; '*' for all.

    Raises:
      ConfigError: for what is no name, or no origin.
    """
    names = {name: _name_of(name) for name in allowed_hosts if name != _ANY}
    origins = {origin: _origin_of(origin) for origin in allowed_origins if origin != _ANY}
    for name, found in names.items():
        if found is None:
            raise ConfigError(
                f"--allowed_hosts={name[:_MAX_SHOWN]}, expected names or addresses with commas between"
                " them, or '*'."
            )
    for origin, page in origins.items():
        if page is None:
            raise ConfigError(
                f"--allowed_origins={origin[:_MAX_SHOWN]}, expected SCHEME://NAME or SCHEME://NAME:PORT with"
                " commas between them, or '*'."
            )
    is_private = is_loopback(host) and not has_token
    are_names_checked = (is_private or bool(names)) and _ANY not in allowed_hosts
    are_origins_checked = (is_private or bool(names) or bool(origins)) and _ANY not in allowed_origins
    return Callers(
        frozenset(filter(None, (*_OWN_NAMES, _canonical(host), *names.values()))),
        are_names_checked,
        frozenset(filter(None, origins.values())) if are_origins_checked else None,
    )


def _name_of(authority: str) -> str | None:
    """Returns the name of NAME or NAME:PORT; None for what is none of them."""
    found = _NAME_AND_PORT.fullmatch(authority)
    if found:
        return _canonical(found[1].strip("[]"))
    return _canonical(authority) if authority.count(":") > 1 and _is_address(authority) else None


def _origin_of(text: str) -> Origin | None:
    """Returns scheme, name and port of an origin; None for another text, such as `null`."""
    found = _ORIGIN.fullmatch(text)
    place = found and _NAME_AND_PORT.fullmatch(found[2])
    if not found or not place:
        return None
    scheme = found[1].lower()
    return scheme, _canonical(place[1].strip("[]")), int(place[2] or _PORTS.get(scheme, 0))


def _canonical(name: str) -> str:
    """Returns the one spelling of a name or address."""
    return str(ipaddress.ip_address(name)) if _is_address(name) else name.lower().removesuffix(".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

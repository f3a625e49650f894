"""Connections of clients that may end their writing and still wait for their answer.

The end of what a client writes looks the same whether it has only shut that side down or is gone. The first
bytes of an answer, which are those of every answer, tell: the system of a client that is gone refuses them.
So they are sent at once while the model is awaited, and what nobody waits for is not computed.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Iterator

from tornado import httpserver, iostream

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

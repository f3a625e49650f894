"""What process 0 does with those that call it: strangers take nothing from the processes of the run."""

import contextlib
import os
import resource
import socket
import struct
import time

import pytest

from official.config.cluster import Cluster
from official.distribution import rendezvous


@contextlib.contextmanager
def gathered(count=3):
    """Yields what process 0 of some processes knows, whose addresses nobody has told, and its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(200)
        listener.setblocking(False)
        address = listener.getsockname()
        cluster = Cluster((f"127.0.0.1:{address[1]}", *[""] * (count - 1)), 0)
        connections = rendezvous.Connections(rendezvous.Wait(cluster, 30, address[1]), listener)
        with contextlib.closing(connections):
            yield connections, address


def receive(connections, until) -> None:
    """Takes what arrives until something holds."""
    deadline = time.monotonic() + 5
    while not until():
        assert time.monotonic() < deadline
        connections.receive(0.02)


def is_sent_away(caller) -> bool:
    """Whether a caller's connection has ended."""
    caller.setblocking(False)
    try:
        return caller.recv(100) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def come(connections, address, rank=1, count=3) -> None:
    """Calls as a process of the run does, and is let in."""
    with socket.socket() as own, socket.create_connection(address) as caller:
        own.bind(("127.0.0.1", 0))
        own.listen()
        caller.sendall(f"bert-run {rank} {count} {own.getsockname()[1]}\n".encode())
        receive(connections, lambda: rank in connections.present)
        assert connections.addresses[rank] == f"127.0.0.1:{own.getsockname()[1]}"


@pytest.mark.parametrize(
    "line",
    [
        b"bert-run 1 3 " + b"9" * 4000,
        b"bert-run " + b"9" * 4000 + b" 3 25000",
        b"bert-run 1 3 0",
        b"bert-run 1 3 65536",
        "bert-run 1 3 ٢٥٠٠٠".encode(),
        b"bert-run 1 3",
        b"GET / HTTP/1.1\r",
        b"bert-run 1 3 " + b" " * 4090 + b"25000",
    ],
)
def test_who_says_something_else_is_sent_away(line):
    with gathered() as (connections, address), socket.create_connection(address) as caller:
        caller.sendall(line + b"\n")
        receive(connections, lambda: is_sent_away(caller))
        assert not connections.unknown and not connections.present


@pytest.mark.parametrize("digits", [5000, 9000])
def test_a_number_of_thousands_of_digits_ends_nothing(digits):
    with gathered() as (connections, address), socket.create_connection(address) as caller:
        caller.sendall(b"bert-run 1 3 " + b"9" * digits + b"\n")
        receive(connections, lambda: is_sent_away(caller))
        come(connections, address)


def test_a_greeting_may_come_in_parts():
    with gathered() as (connections, address), socket.create_connection(address) as caller:
        for part in (b"bert", b"-run 1 ", b"2 25000\n"):
            caller.sendall(part)
            connections.receive(0.05)
            connections.receive(0.05)
        receive(connections, lambda: not connections.unknown)
        assert caller.recv(200).startswith(b"refused 127.0.0.1:")


def test_who_greets_and_resets_its_connection_ends_nothing():
    with gathered() as (connections, address), socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        caller = socket.create_connection(address)
        receive(connections, lambda: connections.unknown)
        caller.sendall(b"bert-run 1 3 %d\n" % own.getsockname()[1])
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()  # a reset, behind the line
        receive(connections, lambda: not connections.unknown)
        receive(connections, lambda: connections.missing() == [1, 2])
        come(connections, address)


def test_who_does_not_say_who_it_is_is_sent_away(monkeypatch):
    monkeypatch.setattr(rendezvous, "CALL_SECS", 0.1)
    with gathered() as (connections, address), socket.create_connection(address) as caller:
        receive(connections, lambda: connections.unknown)
        receive(connections, lambda: is_sent_away(caller))
        assert not connections.unknown


def test_many_strangers_keep_nobody_out():
    with gathered() as (connections, address), contextlib.ExitStack() as stack:
        callers = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]
        come(connections, address)
        assert 50 < len(connections.unknown) <= 64
        assert is_sent_away(callers[0]) and not is_sent_away(callers[-1])


def test_where_no_file_is_left_the_oldest_stranger_leaves_its_own():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with gathered() as (connections, address), contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(address))
        receive(connections, lambda: connections.unknown)
        second = stack.enter_context(socket.create_connection(address))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (second.fileno() + 10, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.dup(0))
        receive(connections, lambda: is_sent_away(first))
        receive(connections, lambda: connections.unknown)
        assert not is_sent_away(second)

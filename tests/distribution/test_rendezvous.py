"""How the processes of a run wait for each other: who is missing is said, and strangers take nothing away."""

import contextlib
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
import tensorflow as tf

from official.config.cluster import Cluster
from official.distribution import heartbeat, rendezvous
from official.distribution import strategy as strategy_lib
from official.io.errors import ConfigError, PeerError
from tests import programs
from tests.distribution.test_processes import free_ports
from tests.fixtures import ROOT


def free_hosts(count: int) -> list[str]:
    return [f"localhost:{port}" for port in free_ports(count)]


def in_threads(run, members) -> None:
    """Calls a function with each of some arguments, all at once."""
    threads = [threading.Thread(target=run, args=member) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def meet(members: list[tuple[list[str], int]], timeout_secs: float = 30) -> list:
    """Lets (hosts, rank) meet, each in a thread of its own, the first for `timeout_secs`. Returns what each
    has raised, or None."""
    ends = [None] * len(members)

    def run(number, hosts, rank):
        try:
            rendezvous.meet(Cluster(tuple(hosts), rank), timeout_secs if number == 0 else 30)
        except (ConfigError, PeerError) as error:
            ends[number] = error

    in_threads(run, [(number, *member) for number, member in enumerate(members)])
    return ends


def test_all_meet_and_their_ports_are_free_again():
    hosts = free_hosts(3)
    for order in ((0, 1, 2), (2, 1, 0)):  # at the same ports, as after a restart
        assert meet([(hosts, rank) for rank in order]) == [None] * 3
    assert meet([(hosts[:1], 0)]) == [None]  # one process alone waits for nobody


def test_who_does_not_come_is_named_by_all(monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_SECS_BETWEEN_LINES", 0.2)
    hosts = free_hosts(3)
    for error in meet([(hosts, 0), (hosts, 2)], timeout_secs=1.2):
        assert isinstance(error, PeerError) and hosts[2] not in str(error)
        assert f"{hosts[1]} (rank 1)" in str(error) and "peer_timeout_secs=1.2" in str(error)
    assert f"Waiting for {hosts[1]} (rank 1)" in caplog.text


@pytest.mark.slow
def test_a_process_at_another_address_than_it_says_is_missing():
    hosts, other = free_hosts(2), free_hosts(1)
    ours, _ = meet([(hosts, 0), ([hosts[0], *other], 1)], timeout_secs=1.0)
    assert f"{hosts[1]} (rank 1): it reaches this process, but cannot be reached" in str(ours)


def test_a_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        hosts = [f"localhost:{taken.getsockname()[1]}", *free_hosts(1)]
        (error,) = meet([(hosts, 0)])
    assert isinstance(error, ConfigError)
    assert f"{hosts[0]} (rank 0), cannot be used: Address already in use" in str(error)


def test_processes_that_contradict_each_other_are_refused():
    hosts = free_hosts(3)
    first, refused = meet([(hosts[:2], 0), (hosts, 2)], timeout_secs=1.0)
    assert isinstance(refused, ConfigError) and "2 processes, but this one is rank 2 of" in str(refused)
    assert isinstance(first, PeerError)


def test_addresses_that_nobody_has_told_are_learned():
    """As of mpirun on several hosts: all know where the first process is, and nothing else."""
    (first,) = free_hosts(1)
    met = {}

    def run(rank):
        met[rank] = rendezvous.meet(Cluster((first, "", ""), rank), 30)

    in_threads(run, [(2,), (0,), (1,)])
    lists = {each.cluster.hosts for each in met.values()}
    assert len(lists) == 1 and all(re.fullmatch(r"localhost:\d+", host) for host in lists.pop())
    assert [set(met[rank].links) for rank in range(3)] == [{1, 2}, {0}, {0}]


@contextlib.contextmanager
def greeted(hosts, rank):
    """Yields a connection that has said what a process of this rank would say."""
    host, port = hosts[0].split(":")
    for _ in range(200):
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=5) as connection,
        ):
            connection.sendall(f"bert-run {rank} {len(hosts)} 1\n".encode())
            yield connection
            return
        time.sleep(0.02)
    raise AssertionError("process 0 does not answer")


@contextlib.contextmanager
def waiting(hosts, timeout_secs: float):
    """Lets process 0 wait for others, of which number 1 can be called; yields what it raises."""
    ends: list = []
    with socket.socket() as listener:
        listener.bind(("localhost", int(hosts[1].split(":")[1])))
        listener.listen()
        thread = threading.Thread(target=lambda: ends.extend(meet([(hosts, 0)], timeout_secs)))
        thread.start()
        yield ends
        thread.join()


def test_two_processes_of_one_rank_are_refused():
    hosts = free_hosts(3)
    with waiting(hosts, 1), greeted(hosts, 1) as first, greeted(hosts, 1) as second:
        assert first.recv(100).startswith(b"missing ")
        assert second.recv(100).startswith(b"refused Another process already has rank 1")


def test_a_process_that_ends_is_missing_again_and_strangers_are_none():
    hosts = free_hosts(3)
    with waiting(hosts, 1.5) as ends, greeted(hosts, 1) as guest, greeted(hosts[:2], "x") as stranger:
        assert guest.recv(100) and stranger.recv(100) == b""
    assert f"{hosts[1]} (rank 1): its connection has ended" in str(ends[0])


WAITS = """
import sys
from official.config.cluster import Cluster
from official.distribution import rendezvous
from official.io import signals

rendezvous._SECS_BETWEEN_LINES = 0.1
signals.watch()
try:
    with signals.raising():
        rendezvous.meet(Cluster(tuple(sys.argv[1:]), 0), 60)
except KeyboardInterrupt as error:
    sys.exit(signals.report(error))
"""


def test_a_signal_ends_the_wait():
    command = [sys.executable, "-c", WAITS, *free_hosts(2)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert "Waiting for localhost:" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == 143 and "Traceback" not in errors and errors.endswith("ed.\n")


def test_a_first_process_that_is_not_there_is_named_and_one_of_ipv6_addresses_only_is_bad_input(monkeypatch):
    addresses = {"node6": ["fd00::6", "fd00::7"], "node": ["fd00::6", "127.0.0.1"]}
    (own,) = free_hosts(1)

    def find(host, port, *_, **__):
        if host not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        stream = socket.SOCK_STREAM, 6, ""
        return [(kinds[":" in each], *stream, (each, port or 0)) for each in addresses[host]]

    def connect(address, timeout):
        find(*address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ConfigError, match=r"Host node6 .* only IPv6 addresses, such as fd00::6; expected"):
        rendezvous.meet(Cluster(("node6:25000", "node7:25000"), 1), 30)
    for host, why in (("node", "^Connection refused$"), ("unknown", "unknown host")):
        with pytest.raises(ConnectionError, match=why):
            rendezvous.call(f"{host}:25000")
    monkeypatch.undo()
    (error,) = meet([(["no.invalid:1", own], 1)], timeout_secs=0.5)
    assert isinstance(error, PeerError) and "no.invalid:1 (rank 0): unknown host" in str(error)


HEARTBEAT = (
    "Collective ops is aborted by: Error reported from /job:worker/task:1: Task /job:worker/replica:0/task:1"
    " heartbeat timeout."
)


def test_only_errors_of_peers_are_lost_peers():
    cluster = Cluster(("a:1", "b:2", "c:3"), 0)
    lost = tf.errors.UnavailableError(None, None, HEARTBEAT)
    assert heartbeat._is_of_a_lost_peer(lost) and heartbeat._who(lost, cluster) == "b:2 (rank 1)"
    unnamed = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")
    assert heartbeat._who(unnamed, cluster) == "another process"
    elsewhere = tf.errors.UnavailableError(None, None, "gs://bucket/x: service unavailable")
    assert not heartbeat._is_of_a_lost_peer(elsewhere)
    assert not heartbeat._is_of_a_lost_peer(tf.errors.InvalidArgumentError(None, None, HEARTBEAT))
    alone = tf.distribute.OneDeviceStrategy("CPU:0")
    with pytest.raises(tf.errors.UnavailableError), strategy_lib.noticing_lost_peers(alone):
        raise lost


CODE = """
import ctypes, sys, time
from unittest import mock
sys.modules["tensorflow"] = mock.MagicMock()  # takes seconds to import, and no part in this
from official.distribution import heartbeat

for secs, pause in ((0.1, 0.001), (0.05, 0.5)):
    with heartbeat.ending(secs, 4, "a peer was lost: 100% of them"):
        ctypes.PyDLL(None).usleep(int(pause * 1e6))  # with Python's lock
    time.sleep(0.4)
    print("done", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="timers of Linux")
def test_who_takes_too_long_ends_with_a_line_and_a_code():
    done = programs.call(sys.executable, "-c", CODE)
    assert (done.returncode, done.stdout) == (4, "done\n"), done.stderr
    assert done.stderr.rstrip().endswith("a peer was lost: 100% of them")


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


TOO_LONG = (b"1 3 " + b"9" * 4000, b"1 3 " + b"9" * 9000, b"9" * 4000 + b" 3 25000")
WRONG = (b"1 3 0", b"1 3 65536", "1 3 ٢٥٠٠٠".encode(), b"1 3", b"1 3 " + b" " * 4090 + b"25000")
LINES = (b"GET / HTTP/1.1\r", *(b"bert-run " + each for each in (*TOO_LONG, *WRONG)))


def test_who_says_something_else_is_sent_away():
    with gathered() as (connections, address):
        for line in LINES:
            with socket.create_connection(address) as caller:
                caller.sendall(line + b"\n")
                receive(connections, lambda caller=caller: is_sent_away(caller))
                assert not connections.unknown and not connections.present, line
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


def test_as_many_files_may_be_open_as_are_needed(monkeypatch):
    """More would be inherited, by programs that close every one that may be open."""
    every = resource.RLIM_INFINITY
    for limits, raised in (
        ((100, 10**6), [(514, 10**6)]),
        ((100, every), [(514, every)]),
        ((100, 300), [(300, 300)]),
        ((1024, 10**6), []),
        ((every, every), []),
    ):
        found = []
        monkeypatch.setattr(rendezvous.resource, "getrlimit", lambda _, own=limits: own)
        monkeypatch.setattr(rendezvous.resource, "setrlimit", lambda _, given, to=found: to.append(given))
        hosts = free_hosts(2)
        assert meet([(hosts, rank) for rank in range(2)]) == [None] * 2
        assert found == raised, limits


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

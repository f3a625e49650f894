"""How the processes of a run wait for each other: who is missing is said, and nobody waits for ever."""

import contextlib
import re
import signal
import socket
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
from tests.conftest import ROOT


def free_hosts(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("localhost", 0))
        return [f"localhost:{item.getsockname()[1]}" for item in sockets]


def meet(members: list[tuple[list[str], int]], timeout_secs: float = 30) -> list:
    """Lets (hosts, rank) meet, each in a thread of its own, the first for `timeout_secs`. Returns what each
    has raised, or None."""
    ends = [None] * len(members)

    def run(number, hosts, rank):
        try:
            rendezvous.meet(Cluster(tuple(hosts), rank), timeout_secs if number == 0 else 30)
        except (ConfigError, PeerError) as error:
            ends[number] = error

    threads = [threading.Thread(target=run, args=(number, *member)) for number, member in enumerate(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_all_meet_and_their_ports_are_free_again(order):
    hosts = free_hosts(3)
    for _ in range(2):  # at the same ports, as after a restart
        assert meet([(hosts, rank) for rank in order]) == [None] * 3


def test_one_process_alone_waits_for_nobody():
    assert meet([(free_hosts(1), 0)]) == [None]


def test_who_does_not_come_is_named_by_all(monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_SECS_BETWEEN_LINES", 0.2)
    hosts = free_hosts(3)
    for error in meet([(hosts, 0), (hosts, 2)], timeout_secs=1.2):
        assert isinstance(error, PeerError) and hosts[2] not in str(error)
        assert f"{hosts[1]} (rank 1)" in str(error) and "peer_timeout_secs=1.2" in str(error)
    assert f"Waiting for {hosts[1]} (rank 1)" in caplog.text


def test_a_missing_first_process_is_named():
    hosts = free_hosts(2)
    (error,) = meet([(hosts, 1)], timeout_secs=0.5)
    assert isinstance(error, PeerError) and f"{hosts[0]} (rank 0): Connection refused" in str(error)


def test_a_host_that_nobody_knows_is_named():
    (error,) = meet([(["no-such-host.invalid:1", *free_hosts(1)], 1)], timeout_secs=0.5)
    assert "no-such-host.invalid:1 (rank 0): no such host is known" in str(error)


@pytest.mark.slow
def test_a_process_at_another_address_than_it_says_is_missing():
    hosts, other = free_hosts(2), free_hosts(1)
    ours, _ = meet([(hosts, 0), ([hosts[0], *other], 1)], timeout_secs=1.0)
    assert f"{hosts[1]} (rank 1): it calls, but cannot be called" in str(ours)


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
    assert isinstance(refused, ConfigError) and "waits for 2 processes, this one is rank 2 of" in str(refused)
    assert isinstance(first, PeerError)


def test_addresses_that_nobody_has_told_are_learned():
    """As of mpirun on several hosts: all know where the first process is, and nothing else."""
    (first,) = free_hosts(1)
    met = {}

    def run(rank):
        met[rank] = rendezvous.meet(Cluster((first, "", ""), rank), 30)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lists = {each.cluster.hosts for each in met.values()}
    assert len(lists) == 1 and all(re.fullmatch(r"localhost:\d+", host) for host in lists.pop())
    assert [set(met[rank].links) for rank in range(3)] == [{1, 2}, {0}, {0}]


def greeted(hosts, rank) -> socket.socket:
    """Returns a connection that says what a process of this rank would say."""
    host, port = hosts[0].split(":")
    for _ in range(200):
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, int(port)), timeout=5)
            connection.sendall(f"bert-run {rank} {len(hosts)} 1\n".encode())
            return connection
        time.sleep(0.02)
    raise AssertionError("process 0 does not answer")


def test_two_processes_of_one_rank_are_refused():
    hosts = free_hosts(3)
    with socket.socket() as listener:
        listener.bind(("localhost", int(hosts[1].split(":")[1])))
        listener.listen()
        thread = threading.Thread(target=meet, args=([(hosts, 0)], 1))
        thread.start()
        with greeted(hosts, 1) as first, greeted(hosts, 1) as second:
            assert first.recv(100).startswith(b"missing ") and second.recv(100).startswith(
                b"refused Another process is rank 1 already"
            )
        thread.join()


def test_a_process_that_ends_is_missing_again_and_strangers_are_none():
    hosts = free_hosts(2)
    ends = []
    with socket.socket() as listener:
        listener.bind(("localhost", int(hosts[1].split(":")[1])))
        listener.listen()
        thread = threading.Thread(target=lambda: ends.extend(meet([(hosts + free_hosts(1), 0)], 1.5)))
        thread.start()
        with greeted(hosts + ["x:1"], 1) as guest, greeted(hosts, "x") as stranger:
            assert guest.recv(100) and stranger.recv(100) == b""
        thread.join()
    assert f"{hosts[1]} (rank 1): it was here and has ended" in str(ends[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait(number):
    code = (
        "from official.distribution import rendezvous; from official.config.cluster import Cluster;"
        " import sys; from official.io import signals\n"
        "rendezvous._SECS_BETWEEN_LINES = 0.1; signals.watch()\n"
        "try:\n with signals.raising(): rendezvous.meet(Cluster(tuple(sys.argv[1:]), 0), 60)\nexcept"
        " KeyboardInterrupt as error: sys.exit(signals.report(error))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *free_hosts(2)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert "Waiting for localhost:" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(number)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == 128 + number and "Traceback" not in errors and errors.endswith("ed.\n")


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
    assert not heartbeat._is_of_a_lost_peer(
        tf.errors.UnavailableError(None, None, "gs://bucket/x: service unavailable")
    )
    assert not heartbeat._is_of_a_lost_peer(tf.errors.InvalidArgumentError(None, None, HEARTBEAT))
    with (
        pytest.raises(tf.errors.UnavailableError),
        strategy_lib.noticing_lost_peers(tf.distribute.OneDeviceStrategy("CPU:0")),
    ):
        raise lost

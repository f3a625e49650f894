"""How processes notice that one of them is gone, silent or hangs; each is a thread here."""

import socket
import time

import pytest

from official.config.cluster import Cluster
from official.distribution.heartbeat import Watch
from official.distribution.rendezvous import Met

CLUSTER = Cluster(("a:1", "b:2", "c:3"), 0)


class Processes:
    """Three processes that watch each other, and what each has heard."""

    def __init__(self, silence_secs=30.0, stall_secs=30.0, running=(0, 1, 2)):
        pairs = self.pairs = {rank: socket.socketpair() for rank in (1, 2)}
        self.links = {rank: theirs for rank, (_, theirs) in pairs.items()}
        links = {0: {rank: ours for rank, (ours, _) in pairs.items()}}
        links |= {rank: {0: theirs} for rank, theirs in self.links.items()}
        self.lost = {}
        self.watches = {}
        for rank in running:
            met = Met(Cluster(CLUSTER.hosts, rank), links[rank])
            self.watches[rank] = Watch(
                met, silence_secs, stall_secs, silence_secs, lambda who, _, rank=rank: self.hear(rank, who)
            )
        for watch in self.watches.values():
            watch.start()

    def hear(self, rank, who):
        self.lost[rank] = who

    def wait_for(self, *ranks):
        for rank in ranks:
            assert self.watches[rank].found.wait(20)
        deadline = time.monotonic() + 20
        while not set(ranks) <= self.lost.keys() and time.monotonic() < deadline:
            time.sleep(0.01)
        return [self.lost[rank] for rank in ranks]


def test_a_process_that_ends_without_a_word_is_named_by_all_at_once():
    processes = Processes(running=(0, 1))
    processes.links[2].close()
    assert processes.wait_for(0, 1) == ["c:3 (rank 2)"] * 2


def test_the_first_process_is_watched_too():
    processes = Processes(running=(1, 2))  # one that still ran might name another before its last link ends
    for link, _ in processes.pairs.values():
        link.shutdown(socket.SHUT_RDWR)  # as the kernel does when it has ended
    assert processes.wait_for(1, 2) == ["a:1 (rank 0)"] * 2


def test_a_process_that_is_cut_off_is_silent():
    processes = Processes(silence_secs=0.5, running=(0, 1))
    assert processes.wait_for(0, 1) == ["c:3 (rank 2) has been silent for 0.5 s"] * 2


def test_who_waits_in_vain_for_the_first_process_says_so():
    processes = Processes(silence_secs=0.5, running=(1,))
    assert processes.wait_for(1) == ["a:1 (rank 0) has been silent for 0.5 s"]


def test_a_process_that_does_not_go_on_is_named():
    processes = Processes(silence_secs=0.6, stall_secs=1.0)
    for rank in (0, 2):
        processes.watches[rank].note_passed()
    assert processes.wait_for(0, 1, 2) == ["b:2 (rank 1) does not go on, the others wait for 1 s"] * 3


def test_all_in_one_step_is_no_process_but_a_limit():
    processes = Processes(silence_secs=0.6, stall_secs=1.0)
    assert "all in the same step" in processes.wait_for(0)[0]


@pytest.mark.parametrize("silence_secs,stall_secs,secs", [(0.5, 1.0, 2.0), (60.0, 0.5, 0.8)])
def test_processes_that_go_on_are_left_alone(silence_secs, stall_secs, secs):
    processes = Processes(silence_secs, stall_secs)
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        for watch in processes.watches.values():
            watch.note_passed()
        time.sleep(0.02)
    assert processes.lost == {}
    for watch in processes.watches.values():
        watch.end()
    assert processes.lost == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_who_has_done_its_part_is_not_lost(order):
    processes = Processes(silence_secs=0.5)
    for rank in order:
        processes.watches[rank].end()
        time.sleep(0.3)
    assert processes.lost == {}


def test_who_knows_better_tells_the_others():
    """As where TensorFlow is the first to notice."""
    processes = Processes()
    processes.watches[0].lose("b:2 (rank 1)")
    assert processes.wait_for(1, 2) == ["b:2 (rank 1)"] * 2

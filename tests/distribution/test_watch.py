"""How processes notice that one is gone, silent or hangs, and when they stop to watch; each is a thread."""

import socket
import time

import pytest

from official.config.cluster import Cluster
from official.distribution import heartbeat
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
            on_loss = lambda who, _, rank=rank: self.lost.update({rank: who})  # noqa: E731
            self.watches[rank] = Watch(met, silence_secs, stall_secs, silence_secs, on_loss)
        for watch in self.watches.values():
            watch.start()

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
    processes, alone = Processes(silence_secs=0.5, running=(0, 1)), Processes(0.5, running=(1,))
    assert processes.wait_for(0, 1) == ["c:3 (rank 2) has been silent for 0.5 s"] * 2
    # Who waits in vain for the first process says so.
    assert alone.wait_for(1) == ["a:1 (rank 0) has been silent for 0.5 s"]


def test_a_process_that_does_not_go_on_is_named_and_all_in_one_step_are_no_process_but_a_limit():
    processes, equal = (Processes(silence_secs=0.6, stall_secs=1.0) for _ in range(2))
    for rank in (0, 2):
        processes.watches[rank].note_passed()
    assert processes.wait_for(0, 1, 2) == ["b:2 (rank 1) has kept the others waiting for 1 s"] * 3
    assert "all processes have been in the same step" in equal.wait_for(0)[0]


def test_processes_that_go_on_are_left_alone():
    several = Processes(0.5, 1.0), Processes(60.0, 0.5)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        for watch in (*several[0].watches.values(), *several[1].watches.values()):
            watch.note_passed()
        time.sleep(0.02)
    assert [each.lost for each in several] == [{}, {}]
    for watch in (*several[0].watches.values(), *several[1].watches.values()):
        watch.end()
    assert [each.lost for each in several] == [{}, {}]


def test_who_has_done_its_part_is_not_lost():
    forward, backward = Processes(silence_secs=0.5), Processes(silence_secs=0.5)
    for rank in range(3):
        forward.watches[rank].end()
        backward.watches[2 - rank].end()
        time.sleep(0.3)
    assert forward.lost == backward.lost == {}


def test_who_knows_better_tells_the_others():
    """As where TensorFlow is the first to notice."""
    processes = Processes()
    processes.watches[0].lose("b:2 (rank 1)")
    assert processes.wait_for(1, 2) == ["b:2 (rank 1)"] * 2


class Strategy:
    """In the place of TensorFlow's, which two processes would have made."""


@pytest.fixture
def joined():
    """Yields a strategy of two processes, whose watch runs, the watch, and what the other process hears."""
    ours, theirs = socket.socketpair()
    watch = Watch(Met(Cluster(("a:1", "b:2"), 0), {1: ours}), 60, 60, 60, lambda *_: None)
    strategy = Strategy()
    heartbeat._WATCHED[strategy] = watch
    watch.start()
    theirs.settimeout(5)
    with theirs:
        yield strategy, watch, theirs
    watch._ending.set()


def heard(theirs) -> bytes:
    """Returns all that the other process hears until the connection ends."""
    said = b""
    while data := theirs.recv(100):
        said += data
    return said


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_nobody_watches_and_the_others_see_that_it_has_gone(joined, error):
    """A notebook goes on: nothing may end it half a minute later."""
    strategy, watch, theirs = joined
    with pytest.raises(error), heartbeat.noticing_lost_peers(strategy):
        raise error
    assert not watch._thread.is_alive() and watch._ending.is_set()
    assert b"bye" not in heard(theirs)


def test_who_has_done_its_part_says_so(joined):
    strategy, watch, theirs = joined
    with heartbeat.noticing_lost_peers(strategy):
        with pytest.raises(ValueError), heartbeat.noticing_lost_peers(strategy):
            raise ValueError
        assert watch._thread.is_alive()
    assert not watch._thread.is_alive() and heard(theirs).endswith(b"bye\n")

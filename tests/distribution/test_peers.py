"""What is left of the watch of other processes once this one has done its part, or has failed."""

import socket

import pytest

from official.config.cluster import Cluster
from official.distribution import heartbeat
from official.distribution.heartbeat import Watch
from official.distribution.rendezvous import Met


class Strategy:
    """In the place of TensorFlow's, which two processes would have made."""


@pytest.fixture
def joined():
    """Yields a strategy of two processes, whose watch runs, the watch, and what the other process hears."""
    ours, theirs = socket.socketpair()
    strategy, watch = (
        Strategy(),
        Watch(Met(Cluster(("a:1", "b:2"), 0), {1: ours}), 60, 60, 60, lambda *_: None),
    )
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

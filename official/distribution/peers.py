"""The other processes of a run: joining them, and noticing that one is gone."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from official.config.cluster import Cluster
from official.distribution import deadline, rendezvous
from official.distribution.watch import Watch
from official.io import signals
from official.io.errors import ConfigError, PeerError, report_error

# What TensorFlow raises in an operation of all processes once one of them is gone.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
_OF_PEERS = re.compile(r"ollective|heartbeat|coordination|/job:worker", re.IGNORECASE)


_GRACE_SECS = 1.0  # for what this process is about to find out by itself, such as bad input that all read
_NAMING_SECS = 3.0  # to learn from the watch who it is that TensorFlow misses
_ALARM_SECS = 5.0  # for the line and the exit code, before a mere signal
_LAST_SECS = 30.0  # from a loss to the end of this process, at most
_LAST_SECS_OF_FIRST = 120.0  # of process 0, which may be writing a checkpoint


@dataclasses.dataclass(frozen=True)
class Patience:
    """Time limits of the waits for other processes, in seconds; see the settings --peer_*_secs.

    Attributes:
      start: until all are there.
      silence: for a word of one.
      stall: for one that does not go on.
    """

    start: int
    silence: float
    stall: float


@dataclasses.dataclass
class _Watched:
    """The watch of a strategy's processes, and how many contexts rely on it."""

    watch: Watch
    depth: int = 0


_WATCHED: weakref.WeakKeyDictionary[tf.distribute.Strategy, _Watched] = weakref.WeakKeyDictionary()


def join(
    cluster: Cluster, options: tf.distribute.experimental.CommunicationOptions, patience: Patience
) -> tf.distribute.Strategy:
    """Waits for the other processes and returns the strategy of them all.

    Raises:
      ConfigError: where the processes contradict each other, or TensorFlow refuses them.
      PeerError: where one does not come in time.
    """
    logging.info("%s", cluster.describe())
    met = rendezvous.meet(cluster, patience.start)
    strategy = _connected(met.cluster, options, patience.start)
    last_secs = _LAST_SECS if cluster.rank else _LAST_SECS_OF_FIRST
    on_loss = functools.partial(_end_soon, last_secs)
    watch = Watch(met, patience.silence, patience.stall, patience.start, on_loss)
    _WATCHED[strategy] = _Watched(watch)
    watch.start()
    return strategy


def _connected(
    cluster: Cluster, options: tf.distribute.experimental.CommunicationOptions, timeout_secs: int
) -> tf.distribute.Strategy:
    # A chief is the first worker here, so whoever reads a rank need not know of jobs.
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": cluster.hosts}, "task": {"type": "worker", "index": cluster.rank}}
    )
    try:
        with (
            _killable(timeout_secs),
            deadline.ending(timeout_secs, 4, f"{_line(_unconnected(timeout_secs))}."),
        ):
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
        if _is_of_a_lost_peer(error):
            raise PeerError(_describe(error, cluster)) from None
        raise ConfigError(
            f"distribution_strategy=multi_worker_mirrored: {str(error).splitlines()[0][:200]}. Check"
            " --worker_hosts and TF_CONFIG."
        ) from None


def _end_soon(last_secs: float, who: str, is_done: threading.Event) -> None:
    """Ends this process, which may wait in an operation of all: by an error there, or else at once, later."""
    if is_done.wait(_GRACE_SECS):
        return
    with contextlib.suppress(Exception):  # of TensorFlow's own, where it has ended all operations before
        _abort_operations(who)
    if is_done.wait(last_secs - _GRACE_SECS):
        return
    report_error("bert", f"{_line(who)}. This process has not ended by itself in {last_secs:g} s")
    sys.stderr.flush()
    os._exit(4)  # pylint: disable=protected-access


def _abort_operations(who: str) -> None:
    """Ends all operations of several processes, those that wait and those that come, with an error."""
    from tensorflow.python.eager import context  # TensorFlow's own check of health does it the same way

    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, f"Collective ops end: {who}")


def note_passed(strategy: tf.distribute.Strategy) -> None:
    """Notes that this process has come to the next point that all pass together."""
    if strategy in _WATCHED:
        _WATCHED[strategy].watch.note_passed()


@contextlib.contextmanager
def _killable(timeout_secs: int) -> Iterator[None]:
    """Lets signals, and an alarm after some seconds, end the process while TensorFlow connects.

    It holds Python's lock meanwhile, so no code of ours can run, and takes SIGTERM for itself. All processes
    were there a moment ago: the alarm is for one that has died since, for which TensorFlow would wait an
    hour, where there is no `deadline`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (*signals.handled(), signal.SIGALRM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(int(timeout_secs + _ALARM_SECS))
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def noticing_lost_peers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns what TensorFlow raises where another process is gone into a PeerError of one line. The outermost
    such context ends the watch; the others learn that this process has done its part, or, after an exception,
    only that it has gone.

    Args:
      strategy: of several processes, which `join` has made.
    """
    watched = _WATCHED[strategy]
    watched.depth += 1
    in_order = False
    try:
        yield
        in_order = True
    except tf.errors.OpError as error:
        if not _is_of_a_lost_peer(error):
            raise
        watched.watch.found.wait(_NAMING_SECS)
        resolver = strategy.cluster_resolver
        hosts = tuple(resolver.cluster_spec().as_dict()["worker"])
        who = watched.watch.lost or _who(error, Cluster(hosts, resolver.task_id))
        watched.watch.lose(who)
        raise PeerError(_line(who)) from None
    finally:
        watched.depth -= 1
        if watched.depth == 0:
            watched.watch.end(in_order)


def _is_of_a_lost_peer(error: Exception) -> bool:
    return isinstance(error, _LOST) and bool(_OF_PEERS.search(str(error)))


def _describe(error: Exception, cluster: Cluster) -> str:
    """Returns the line for people, with the process that TensorFlow names, where it names one."""
    return _line(_who(error, cluster))


def _unconnected(secs: float) -> str:
    return f"one of those that were there has not connected within --peer_timeout_secs={secs:g}"


def _line(who: str) -> str:
    return f"a peer was lost: {who}. Start all processes again: they go on from the newest checkpoint"


def _who(error: Exception, cluster: Cluster) -> str:
    ranks = [int(rank) for rank in re.findall(r"/job:worker(?:/replica:\d+)?/task:(\d+)", str(error))]
    lost = next((rank for rank in ranks if rank != cluster.rank and rank < len(cluster.hosts)), None)
    if lost is None and len(cluster.hosts) == 2:
        lost = 1 - cluster.rank
    return "another process" if lost is None else cluster.name(lost)

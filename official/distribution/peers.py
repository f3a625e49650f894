"""The other processes of a run: joining them, and noticing that one is gone."""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator

import tensorflow as tf

from official.config.cluster import Cluster
from official.distribution import rendezvous
from official.io.errors import ConfigError, PeerError

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


def join(
    cluster: Cluster, options: tf.distribute.experimental.CommunicationOptions, timeout_secs: int
) -> tf.distribute.Strategy:
    """Waits for the other processes and returns the strategy of them all.

    Raises:
      ConfigError: where the processes contradict each other, or TensorFlow refuses them.
      PeerError: where one does not come in time.
    """
    rendezvous.meet(cluster, timeout_secs)
    # A chief is the first worker here, so whoever reads a rank need not know of jobs.
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": cluster.hosts}, "task": {"type": "worker", "index": cluster.rank}}
    )
    try:
        with _killable(timeout_secs):
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
        if _is_of_a_lost_peer(error):
            raise PeerError(_describe(error, cluster)) from None
        raise ConfigError(
            f"distribution_strategy=multi_worker_mirrored: {str(error).splitlines()[0][:200]}. Check"
            " --worker_hosts and TF_CONFIG."
        ) from None


@contextlib.contextmanager
def _killable(timeout_secs: int) -> Iterator[None]:
    """Lets signals, and an alarm after some seconds, end the process while TensorFlow connects.

    It holds Python's lock meanwhile, so no code of ours can run, and takes SIGTERM for itself. All processes
    were there a moment ago: the alarm is for one that has died since, for which TensorFlow would wait an
    hour.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(timeout_secs)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def noticing_lost_peers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns what TensorFlow raises where another process is gone into a PeerError of one line.

    Args:
      strategy: of several processes, which `join` has made.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if not _is_of_a_lost_peer(error):
            raise
        resolver = strategy.cluster_resolver
        hosts = tuple(resolver.cluster_spec().as_dict()["worker"])
        raise PeerError(_describe(error, Cluster(hosts, resolver.task_id))) from None


def _is_of_a_lost_peer(error: Exception) -> bool:
    return isinstance(error, _LOST) and bool(_OF_PEERS.search(str(error)))


def _describe(error: Exception, cluster: Cluster) -> str:
    """Returns the line for people, with the process that TensorFlow names, where it names one."""
    ranks = [int(rank) for rank in re.findall(r"/job:worker(?:/replica:\d+)?/task:(\d+)", str(error))]
    lost = next((rank for rank in ranks if rank != cluster.rank and rank < len(cluster.hosts)), None)
    if lost is None and len(cluster.hosts) == 2:
        lost = 1 - cluster.rank
    who = "another process" if lost is None else cluster.name(lost)
    return f"a peer was lost: {who}. Start all processes again: they go on from the newest checkpoint"

"""Heartbeat: the processes of a run join, and detect in bounded time that one is lost or hangs."""

import contextlib
import ctypes
import functools
import json
import os
import re
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

import tensorflow as tf
from absl import logging

from official.config.cluster import Cluster
from official.distribution import rendezvous
from official.distribution.rendezvous import MAX_LINE_BYTES, Met
from official.io import signals
from official.io.errors import ConfigError, PeerError, report_error

# -----------------------------------------------------------------------------------------------------------
# Deadline
#
# Python code cannot run while C code blocks, and a signal could not set the exit code. So timers of the C
# library call C functions: one prints a line, one ends the process.


_SIGEV_THREAD = 2
_SECS_TO_PRINT = 0.2


@contextlib.contextmanager
def ending(secs: float, code: int, message: str) -> Iterator[None]:
    """Ends the process if the block takes too long, even while it blocks in C code.

    Without such timers in the C library (not Linux), the block has no time limit.

    Args:
      secs: seconds that the block may take, above 0.
      code: the exit code, from 1 to 255.
      message: one line, printed on stderr before.
    """
    line = ctypes.create_string_buffer(message.replace("%", "%%").encode())
    with contextlib.ExitStack() as timers:
        try:
            if sys.platform != "linux" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
                raise OSError("timers that call functions are known for Linux of 64 bits only")
            libc = ctypes.CDLL(None, use_errno=True)
            _start(timers, libc, secs, libc.warnx, ctypes.addressof(line))
            _start(timers, libc, secs + _SECS_TO_PRINT, libc._exit, code)  # pylint: disable=protected-access
        except (AttributeError, OSError) as error:
            logging.debug("No limit of time: %s", error)
        yield


def _start(timers: contextlib.ExitStack, libc: ctypes.CDLL, secs: float, function, value: int) -> None:
    """Starts a timer that calls function(value), and stops with `timers`."""
    timer = ctypes.c_void_p()
    address = ctypes.cast(function, ctypes.c_void_p).value
    # struct sigevent (64 bytes: value, signal, notify, function, attributes) and itimerspec (interval, value)
    # of Linux: sigevent(7), timer_settime(2).
    event = struct.pack("QiiQQ32x", value, 0, _SIGEV_THREAD, address, 0)
    times = struct.pack("qqqq", 0, 0, int(secs), int(secs % 1 * 1e9))
    if libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    timers.callback(libc.timer_delete, timer)
    if libc.timer_settime(timer, 0, times, None):
        raise OSError(ctypes.get_errno(), "timer_settime")


# -----------------------------------------------------------------------------------------------------------
# Heartbeat
#
# A thread in each process keeps the connections of the rendezvous: process 0 to all others, these to process
# 0. A few times a minute it reports that the process is alive, and how many of the common points of all
# processes it has passed. Process 0 tells all processes which one is lost.
#
# - A process that ends without notice is detected at once: its connection ends.
# - A process whose machine is down, cut off or stopped is silent.
# - A process that hangs is alive, but the others have passed more points.


_BEATS = 6  # messages within the allowed silence, and within the allowed stall


class _Peer:
    """Another process, as this one knows it."""

    def __init__(self, link: socket.socket, deadline: float):
        link.setblocking(False)
        self.link = link
        self.text = b""  # beginning of an incomplete line
        self.deadline = deadline  # of its next message
        self.passed, self.passed_at = 0, time.monotonic()  # points


OnLoss = Callable[[str, threading.Event], object]


class Watch:
    """A thread that watches the other processes.

    Args:
      met: the processes, and the connections to them.
      silence_secs: how long a process may be silent.
      stall_secs: how long processes may wait for one that makes no progress.
      first_secs: how long the first message of a process may take.
      on_loss: called once, in the thread, with a description of the lost process, 'host:port (rank 1)', and
        an event that is set if this process still completes its part.
    """

    def __init__(self, met: Met, silence_secs: float, stall_secs: float, first_secs: float, on_loss: OnLoss):
        self.lost: str | None = None
        self.found = threading.Event()  # set once `lost` is
        self.depth = 0  # contexts that rely on it
        self.cluster, self._on_loss = met.cluster, on_loss
        self._silence_secs, self._stall_secs = silence_secs, stall_secs
        self._passed, self._passed_at = 0, time.monotonic()
        deadline = time.monotonic() + max(first_secs, silence_secs)
        self._peers = {rank: _Peer(link, deadline) for rank, link in met.links.items()}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def note_passed(self) -> None:
        """Notes that this process has reached the next common point of all processes."""
        self._passed, self._passed_at = self._passed + 1, time.monotonic()

    def end(self, in_order: bool = True) -> None:
        """Ends the watch, and tells the others whether this process has completed its part."""
        self._ending.set()
        self._thread.join()
        if in_order:
            self._tell("bye")
        for peer in self._peers.values():
            peer.link.close()

    def lose(self, who: str) -> None:
        """Notes that a process is lost, and tells the others; only the first one counts."""
        if self.lost is not None:
            return
        self.lost = who
        self.found.set()
        logging.warning("A process is lost: %s", who)
        self._tell(f"lost {who}")

    # --------------------------------------------------------------------------------------------------------
    # In the thread

    def _run(self) -> None:
        pause = min(self._silence_secs, self._stall_secs) / _BEATS
        last = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer.link, selectors.EVENT_READ, rank)
            next_beat = last
            while self._peers and not self._ending.is_set() and self.lost is None:
                now = time.monotonic()
                if (stood_still := now - last - pause) > 1:  # this process was stopped: extend the deadlines
                    for peer in self._peers.values():
                        peer.deadline += stood_still
                last = now
                if now >= next_beat:
                    self._tell(f"at {self._passed}")
                    next_beat = now + pause
                for key, _ in selector.select(min(pause, 0.25)):
                    if not self._hear(key.data):
                        selector.unregister(cast(socket.socket, key.fileobj))
                for rank, peer in self._peers.items():
                    if time.monotonic() > peer.deadline:
                        who = self.cluster.name(rank)
                        self.lose(f"{who} has been silent for {self._silence_secs:g} s")
                self._check_stall()
        if self.lost is not None:
            self._on_loss(self.lost, self._ending)

    def _tell(self, line: str) -> None:
        for peer in list(self._peers.values()):
            # `_hear` detects a process that ended; one that is cut off is silent.
            with contextlib.suppress(OSError):
                peer.link.send(f"{line}\n".encode())

    def _hear(self, rank: int) -> bool:
        """Receives a process's messages. Returns whether more may come."""
        peer = self._peers[rank]
        try:
            data = peer.link.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        *lines, peer.text = (peer.text + data).split(b"\n")
        words = [line.decode(errors="replace").partition(" ") for line in lines]
        said_bye = any(kind == "bye" for kind, _, _ in words)
        for kind, _, rest in words:
            if kind == "at" and rest.isdecimal() and len(rest) < 20:
                if int(rest) != peer.passed:
                    peer.passed, peer.passed_at = int(rest), time.monotonic()
            elif kind == "lost":
                self.lose(rest)
        peer.deadline = time.monotonic() + self._silence_secs
        if not data and not said_bye:
            self.lose(self.cluster.name(rank))
        if said_bye or not data:
            del self._peers[rank]
        return bool(data) and not said_bye

    def _check_stall(self) -> None:
        """Finds, in process 0, the processes that others wait for."""
        if self.cluster.rank != 0 or not self._peers:
            return
        passed = {rank: (peer.passed, peer.passed_at) for rank, peer in self._peers.items()}
        passed[0] = (self._passed, self._passed_at)
        fewest = min(count for count, _ in passed.values())
        behind = {rank: since for rank, (count, since) in passed.items() if count == fewest}
        if time.monotonic() - max(behind.values()) < self._stall_secs:
            return
        if len(behind) < len(passed):
            names = ", ".join(map(self.cluster.name, list(behind)[:3]))
            who = f"{names} has kept the others waiting"
        else:
            who = "the data or the device of one process hangs: all processes have been in the same step"
        self.lose(f"{who} for {self._stall_secs:g} s")


# -----------------------------------------------------------------------------------------------------------
# Peers


# Errors that TensorFlow raises in a collective operation once a process is lost.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)
_OF_PEERS = re.compile(r"ollective|heartbeat|coordination|/job:worker", re.IGNORECASE)


_GRACE_SECS = 1.0  # for this process to find the same error itself, such as bad input that all read
_NAMING_SECS = 3.0  # for the watch to name the process that TensorFlow misses
_LAST_SECS = 30.0  # maximum time from a loss to the end of this process
_LAST_SECS_OF_FIRST = 120.0  # of process 0, which may be writing a checkpoint


Options: TypeAlias = tf.distribute.experimental.CommunicationOptions
_WATCHED: weakref.WeakKeyDictionary[tf.distribute.Strategy, Watch] = weakref.WeakKeyDictionary()


def join(cluster: Cluster, options: Options, timeout_secs: int) -> tf.distribute.Strategy:
    """Waits for the other processes and returns the strategy over all of them.

    Args:
      cluster: the processes.
      options: options of collective operations.
      timeout_secs: --peer_timeout_secs: time limit for all processes to connect. The limits for silent and
        for stalled processes are derived from it.

    Raises:
      ConfigError: if the processes contradict each other, or TensorFlow refuses them.
      PeerError: if one does not connect in time.
    """
    logging.info("%s", cluster.describe())
    met = rendezvous.meet(cluster, timeout_secs)
    strategy = _connected(met.cluster, options, timeout_secs)
    on_loss = functools.partial(_end_soon, _LAST_SECS if cluster.rank else _LAST_SECS_OF_FIRST)
    silence_secs, stall_secs = max(2.0, min(60.0, timeout_secs / 5)), 6.0 * timeout_secs
    _WATCHED[strategy] = watch = Watch(met, silence_secs, stall_secs, timeout_secs, on_loss)
    watch.start()
    return strategy


def _connected(cluster: Cluster, options: Options, timeout_secs: int) -> tf.distribute.Strategy:
    # The chief becomes the first worker here, so that readers of a rank need not handle jobs.
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": cluster.hosts}, "task": {"type": "worker", "index": cluster.rank}}
    )
    late = f"a process that has started did not connect within --peer_timeout_secs={timeout_secs:g}"
    try:
        with _killable(), ending(timeout_secs, 4, f"{_line(late)}."):
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
        if _is_of_a_lost_peer(error):
            raise PeerError(_line(_who(error, cluster))) from None
        raise ConfigError(
            f"distribution_strategy=multi_worker_mirrored: {str(error).splitlines()[0][:200]}. Check"
            " --worker_hosts and TF_CONFIG."
        ) from None


def _end_soon(last_secs: float, who: str, is_done: threading.Event) -> None:
    """Ends this process, which may wait in a collective operation: by an error in it, or later by
    os._exit."""
    if is_done.wait(_GRACE_SECS):
        return
    with contextlib.suppress(Exception):  # TensorFlow may have ended all operations already
        from tensorflow.python.eager import context  # TensorFlow's own check of health does it the same way

        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, f"Collective ops end: {who}")
    if is_done.wait(last_secs - _GRACE_SECS):
        return
    report_error("bert", f"{_line(who)}. This process is ended, as it did not stop within {last_secs:g} s")
    sys.stderr.flush()
    os._exit(4)  # pylint: disable=protected-access


def note_passed(strategy: tf.distribute.Strategy) -> None:
    """Notes that this process has reached the next common point of all processes."""
    if strategy in _WATCHED:
        _WATCHED[strategy].note_passed()


@contextlib.contextmanager
def _killable() -> Iterator[None]:
    """Lets signals end the process while TensorFlow connects, which holds Python's lock and handles SIGTERM
    itself, so that none of our code can run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signals.handled()}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def noticing_lost_peers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns TensorFlow's errors about a lost process into a PeerError of one line. The outermost such context
    ends the watch; the other processes learn that this one completed its part, or, after an exception, only
    that it ended.

    Args:
      strategy: strategy over several processes, from `join`.
    """
    watch = _WATCHED[strategy]
    watch.depth += 1
    in_order = False
    try:
        yield
        in_order = True
    except tf.errors.OpError as error:
        if not _is_of_a_lost_peer(error):
            raise
        watch.found.wait(_NAMING_SECS)
        who = watch.lost or _who(error, watch.cluster)
        watch.lose(who)
        raise PeerError(_line(who)) from None
    finally:
        watch.depth -= 1
        if watch.depth == 0:
            watch.end(in_order)


def _is_of_a_lost_peer(error: Exception) -> bool:
    return isinstance(error, _LOST) and bool(_OF_PEERS.search(str(error)))


def _line(who: str) -> str:
    return f"a peer was lost: {who}. Start all processes again to resume from the newest checkpoint"


def _who(error: Exception, cluster: Cluster) -> str:
    ranks = [int(rank) for rank in re.findall(r"/job:worker(?:/replica:\d+)?/task:(\d+)", str(error))]
    lost = next((rank for rank in ranks if rank != cluster.rank and rank < len(cluster.hosts)), None)
    if lost is None and len(cluster.hosts) == 2:
        lost = 1 - cluster.rank
    return "another process" if lost is None else cluster.name(lost)

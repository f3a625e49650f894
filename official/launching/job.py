"""A job: its processes start together, end together, and are restarted after a loss."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, NamedTuple

from official.config.cluster import host_names
from official.io import signals, streams
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Hosts


_ENTRY = re.compile(r"([^:]+)(?::(\d{1,5}))?")
_NAME = re.compile(r"[\w.][\w.-]*")  # of a machine; no leading hyphen, which ssh would read as an option
_MOST_PORTS = 2**16


class Host(NamedTuple):
    """An entry of --hosts.

    Attributes:
      name: the name or address of the machine.
      port: port of its first process; None: any free one.
    """

    name: str
    port: int | None


class Worker(NamedTuple):
    """A process of a job.

    Attributes:
      rank: its number in the job.
      host: the machine that it runs on.
      port: port at which the other processes reach it.
      is_local: whether it runs on this machine.
    """

    rank: int
    host: str
    port: int
    is_local: bool

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """Name of the process in messages: its rank and its address."""
        return f"rank {self.rank} ({self.address})"


def read_hosts(text: str, instances_per_host: int = 1) -> list[Host]:
    """Returns the machines of --hosts=HOST[:PORT],..., where HOST may have a range: node[0-2,4].

    Raises:
      ConfigError: for an invalid host, or an address of two processes.
    """
    entries = [entry.strip() for entry in re.split(r",(?![^\[]*\])", text) if entry.strip()]
    hosts = [host for entry in entries for host in _read_entry(entry)]
    if not hosts:
        raise ConfigError(f"--hosts={text[:100]!r} names no host, expected HOST:PORT,HOST:PORT,...")
    taken: set[tuple[str, int]] = set()
    for name, first in hosts:
        for port in range(first, first + instances_per_host) if first else ():
            if port >= _MOST_PORTS or (name, port) in taken:
                problem = "is not a port" if port >= _MOST_PORTS else "occurs twice"
                raise ConfigError(
                    f"--hosts: {name}:{port} {problem}; each process takes one, from the port of its host on"
                    f" (--instances_per_host={instances_per_host}). Give other ports."
                )
            taken.add((name, port))
    return hosts


def _read_entry(entry: str) -> list[Host]:
    match, names = _ENTRY.fullmatch(entry), []
    port = int(match[2]) if match and match[2] else None
    if match and (port is None or 0 < port < _MOST_PORTS):
        with contextlib.suppress(ConfigError):
            names = host_names(match[1])
    if not names or not all(map(_NAME.fullmatch, names)):
        raise ConfigError(
            f"--hosts: {entry[:100]!r} is not HOST, HOST:PORT or HOST[0-2,4]:PORT, with a port from 1 to"
            " 65535, and a name of letters, digits and . _ -, the first no -."
        )
    return [Host(name, port) for name in names]


def make_workers(hosts: list[Host], instances_per_host: int) -> list[Worker]:
    """Returns the processes of a job by rank: those of the first host, then those of the second.

    Raises:
      ConfigError: for another host without a port, and for 'localhost' among several hosts.
    """
    here = {host.name: is_local(host.name) for host in hosts}
    for name, port in hosts:
        if port is None and not here[name]:
            problem = f"--hosts: {name} has no port, which is optional only for this machine"
            raise ConfigError(f"{problem}. Give {name}:PORT.")
        if not all(here.values()) and _is_loopback(name):
            problem = f"--hosts: on each host, {name} means that host itself"
            raise ConfigError(f"{problem}. Give a name or an address at which the other hosts reach it.")
    free = iter(_free_ports(sum(instances_per_host for host in hosts if host.port is None)))
    places = [
        (name, next(free) if port is None else port + instance)
        for name, port in hosts
        for instance in range(instances_per_host)
    ]
    return [Worker(rank, name, port, here[name]) for rank, (name, port) in enumerate(places)]


def is_local(name: str) -> bool:
    """Whether a name or an address belongs to this machine."""
    try:
        found = {info[4][:2] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    for address, _ in found:
        family = socket.AF_INET6 if ":" in str(address) else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, 0))
            return True
    return False


def _is_loopback(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def tf_config(workers: list[Worker], rank: int) -> str:
    """Returns TF_CONFIG of a process: the addresses of the job and its index."""
    addresses = [worker.address for worker in workers]
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


# -----------------------------------------------------------------------------------------------------------
# Processes


# A host without connection kills its processes after this time; ssh notices a lost connection earlier.
SILENCE_SECS = 30.0
SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
_SSH_FAILED = 255
ALIVE_SECS = 5.0
_LONGEST_LINE_BYTES = 2**16
_SUPERVISOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")


class Job(NamedTuple):
    """Settings of a job.

    Attributes:
      hosts: the machines.
      instances_per_host: processes on each.
      command: the command line of each process, as words.
      folder: its working directory, the same on every host.
      environment: variables added to those of its host.
      ssh: command that runs a program on another host, as words.
      max_restarts: how often all processes are restarted after a loss.
      host_timeout_secs: how long to wait for a lost host before a restart.
    """

    hosts: list[Host]
    instances_per_host: int
    command: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    ssh: tuple[str, ...] = ("ssh",)
    max_restarts: int = 0
    host_timeout_secs: float = 600.0


class Rank:
    """A process that was started.

    Attributes:
      worker: its rank, host and port.
      code: its exit code, 128 + N after signal N; None while it runs.
      is_cut_off: whether it ended because its host could not be reached.
    """

    def __init__(self, job: Job, workers: list[Worker], rank: int):
        """Starts the process. Raises ConfigError if its program cannot be run."""
        self.worker = workers[rank]
        self.code: int | None = None
        self.is_cut_off = False
        pipe = subprocess.PIPE
        try:  # in a new session, since the launcher passes Ctrl-C on
            self._process = subprocess.Popen(
                _words(job.ssh, self.worker), 0, None, pipe, pipe, pipe, start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"{self.worker.name} cannot be started: {error.strerror}.") from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._line = self._process.stdin
        self.streams = [
            Stream(self._process.stdout, sys.stdout.buffer, rank, "stdout"),
            Stream(self._process.stderr, sys.stderr.buffer, rank, "stderr"),
        ]
        variables = {**job.environment, "TF_CONFIG": tf_config(workers, rank)}
        silence = None if self.worker.is_local else SILENCE_SECS
        values = {"command": job.command, "folder": job.folder, "environment": variables}
        self._tell(json.dumps({**values, "silence_secs": silence}))

    def send(self, number: int) -> None:
        """Sends a signal to the process."""
        if self.code is None:
            self._tell(f"signal {number}")

    def drop(self) -> None:
        """Kills the connection to the process, and thereby the process: at once on this machine, within
        `SILENCE_SECS` on a host without connection."""
        if self.code is None:
            self._process.kill()

    def keep_alive(self) -> None:
        """Tells a remote host that the launcher is alive; call it every `ALIVE_SECS`, in any thread."""
        if not self.worker.is_local and self.code is None:
            self._tell("alive")

    def poll(self) -> bool:
        """Returns whether the process has ended since the last call."""
        if self.code is not None or self._process.poll() is None:
            return False
        code = self._process.returncode
        self.code = 128 - code if code < 0 else code
        self.is_cut_off = not self.worker.is_local and (code < 0 or code == _SSH_FAILED)
        if self.worker.is_local:
            _kill_session(self._process.pid)
        self._line.close()  # ends a supervisor that is left on another host
        for stream in self.streams:
            stream.pass_rest_on()
        return True

    def close(self) -> None:
        """Ends the process if it still runs, and releases its resources."""
        self.drop()
        with self._process:  # closes its pipes, and waits
            pass

    def how_it_ended(self) -> str:
        """Returns how the process ended, as text: exit code, signal, or lost host."""
        assert self.code is not None
        if self.is_cut_off:
            return "cannot be reached: ssh has ended"
        if self.code > 128:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(self.code - 128).name}"
        return f"ended with exit code {self.code}"

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # `poll` notices a process that has ended
            self._line.write(f"{line}\n".encode())


class Stream:
    """The standard output or error of a process, passed on line by line with its rank in front."""

    def __init__(self, source: IO[bytes], target: IO[bytes], rank: int, name: str):
        os.set_blocking(source.fileno(), False)
        self.source = source
        self._target = target
        self._tag = f"[1,{rank}]<{name}>:".encode()
        self._text = b""

    def pass_on(self) -> bool:
        """Passes on the available output. Returns False at its end."""
        try:
            data = os.read(self.source.fileno(), 2**16)
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            data = b""
        self._write(data)
        return bool(data)

    def pass_rest_on(self) -> None:
        """Passes on the available output, without waiting for more, and ends the stream."""
        with contextlib.suppress(OSError, ValueError):  # also without any output
            while data := os.read(self.source.fileno(), 2**16):
                self._write(data)
        self._write(b"")

    def _write(self, data: bytes) -> None:
        """Writes the completed lines; at the end, called without data, the rest."""
        *lines, self._text = (self._text + data).split(b"\n")
        if len(self._text) > _LONGEST_LINE_BYTES or (self._text and not data):
            lines, self._text = [*lines, self._text], b""
        if lines:
            self._target.write(b"".join(self._tag + line + b"\n" for line in lines))
            self._target.flush()


def ssh_words(ssh: tuple[str, ...], host: str, command: str) -> list[str]:
    """Returns the words that run a shell command on another host; ssh never prompts for input."""
    options = [word for option in SSH_OPTIONS for word in ("-o", option)]
    return [*ssh, *options, host, command]


def answers(ssh: tuple[str, ...], host: str, stop: Callable[[], bool]) -> bool:
    """Returns whether a host can be reached through ssh. If `stop` returns true, the wait ends."""
    none, words = subprocess.DEVNULL, ssh_words(ssh, host, "true")
    with subprocess.Popen(words, stdin=none, stdout=none, stderr=none, start_new_session=True) as process:
        while process.poll() is None:
            if stop():
                process.kill()
            time.sleep(0.05)
        return process.returncode == 0


def _words(ssh: tuple[str, ...], worker: Worker) -> list[str]:
    supervisor = [sys.executable, "-I", "-S", _SUPERVISOR]
    if worker.is_local:
        return supervisor
    return ssh_words(ssh, worker.host, f"exec {shlex.join(supervisor)}")


def _kill_session(session: int) -> None:
    """Kills the remaining processes of a supervisor's session, which exist if the supervisor itself was
    killed."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == session:
                os.kill(int(name), signal.SIGKILL)


# -----------------------------------------------------------------------------------------------------------
# Job


# Exit codes with which a restarted run would end again.
OWN_CODES = (1, 2, 3, *(128 + number for number in signals.NUMBERS))
LOST_PEER = 4
_TOGETHER_SECS = 300.0  # for the others to save, report and end after one has ended normally
_CAUSE_SECS = 1.0  # for the process that caused the others' loss to end, too
_GRACE_SECS = 5.0  # from SIGTERM to SIGKILL for processes that cannot continue, and for unread last output
_ROUND_SECS = 0.1
_BETWEEN_CALLS_SECS = 2.0
_SIGPIPE = 128 + signal.SIGPIPE


def run(job: Job, say: Callable[[str], None]) -> int:
    """Runs a job to its end. Signals are passed on to all processes of the job; a second one kills them.

    Args:
      job: settings of the job.
      say: called with lines for the user.

    Returns:
      The exit code of the process that caused the end, or 4 if one was lost and `max_restarts` is used up.

    Raises:
      ConfigError: if a process cannot be started at all.
    """
    with _Inbox() as inbox, signals.noting(inbox.put):
        for restart in range(job.max_restarts + 1):
            code, cut_off = _run_once(job, inbox, say)
            if cut_off is None or restart == job.max_restarts:
                break
            say(f"restart {restart + 1} of {job.max_restarts}")
            ended = _wait_for_hosts(job, cut_off, inbox, say)
            if ended is not None:
                return ended
        return code


Ending = tuple[int, "tuple[str, ...] | None"]  # exit code; hosts cut off where one was lost, else None


class _Inbox:
    """Queue of the signals of this process, which can be waited for."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.reader, self._writer = os.pipe()

    def __enter__(self) -> _Inbox:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.reader)
        os.close(self._writer)

    def put(self, number: int) -> None:
        """Adds a signal; called in another thread."""
        self.received = number
        os.write(self._writer, b"!")

    def clear(self) -> None:
        os.read(self.reader, 64)


def _run_once(job: Job, inbox: _Inbox, say: Callable[[str], None]) -> Ending:
    """Starts the processes and waits for the end of all."""
    workers = make_workers(job.hosts, job.instances_per_host)
    ranks: list[Rank] = []
    ended = threading.Event()
    try:
        for worker in workers:
            ranks.append(Rank(job, workers, worker.rank))
        if not all(worker.is_local for worker in workers):
            threading.Thread(target=_keep_alive, args=(ranks, ended), daemon=True).start()
        return _Watch(ranks, inbox, say).to_the_end()
    finally:
        ended.set()
        for rank in ranks:  # all have ended, except after an error here
            rank.close()


def _keep_alive(ranks: list[Rank], ended: threading.Event) -> None:
    """Tells other hosts that the launcher is alive; in a thread, since unread output can block the main
    thread."""
    while not ended.wait(ALIVE_SECS):
        for rank in ranks:
            rank.keep_alive()


class _Watch:
    """Watches the running processes: passes their output on, and ends all when one has ended."""

    def __init__(self, ranks: list[Rank], inbox: _Inbox, say: Callable[[str], None]):
        self._ranks = ranks
        self._inbox = inbox
        self._say = say
        self._cause: Rank | None = None  # the first process that ended with another code than 0
        self._steps: list[tuple[float, int]] = []  # (time, signal) still to be sent; 0: drop the connection
        self._has_told = False  # whether the others were told to end: their exit is then not a cause
        self._passed_on: int | None = None
        self._unread_since: float | None = None  # since when the output has no reader

    def to_the_end(self) -> Ending:
        """Waits until all processes have ended, and returns the end of the job."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox.reader, selectors.EVENT_READ)
            for rank in self._ranks:
                for stream in rank.streams:
                    selector.register(stream.source, selectors.EVENT_READ, stream)
            while any(rank.code is None for rank in self._ranks):
                for key, _ in selector.select(_ROUND_SECS):
                    if key.data is None:
                        self._inbox.clear()
                        self._pass_signal_on(self._inbox.received or signal.SIGTERM)
                    elif not key.data.pass_on():
                        selector.unregister(key.fileobj)
                self._look_after(selector)
                if streams.is_unread():
                    self._end_unread()
        return self._ending()

    def _pass_signal_on(self, number: int) -> None:
        self._passed_on = number
        for rank in self._ranks:
            rank.send(number)

    def _end_unread(self) -> None:
        """Ends the job normally if its output has no reader, unless it is already ending."""
        now = time.monotonic()
        self._unread_since = self._unread_since or now
        if self._passed_on is None and now >= self._unread_since + _GRACE_SECS:
            self._pass_signal_on(signal.SIGTERM)

    def _look_after(self, selector: selectors.BaseSelector) -> None:
        ended = [rank for rank in self._ranks if rank.poll()]
        for rank in ended:
            for stream in rank.streams:
                if stream.source.fileno() in selector.get_map():
                    selector.unregister(stream.source)
        failed = [rank for rank in ended if rank.code]
        if failed and self._passed_on is None:
            first = min(failed, key=_weight)
            if self._cause is None:
                self._begin_the_end(first)
            elif not self._has_told:  # a process that ends just after the first may be the cause
                self._cause = min(self._cause, first, key=_weight)
        self._do_due_steps()

    def _begin_the_end(self, cause: Rank) -> None:
        """Schedules the end of the other processes: the signals and their times."""
        self._cause = cause
        first = _TOGETHER_SECS if cause.code in OWN_CODES and cause.code != 2 else _CAUSE_SECS
        start, numbers = time.monotonic() + first, (signal.SIGTERM, signal.SIGKILL, 0)
        self._steps = [(start + lap * _GRACE_SECS, number) for lap, number in enumerate(numbers)]
        left = sum(rank.code is None for rank in self._ranks)
        self._say(f"{cause.worker.name} {cause.how_it_ended()}" + (f"; ending {left} others" if left else ""))

    def _do_due_steps(self) -> None:
        while self._steps and time.monotonic() >= self._steps[0][0]:
            self._has_told = True
            number = self._steps.pop(0)[1]
            for rank in self._ranks:
                rank.send(number) if number else rank.drop()

    def _ending(self) -> Ending:
        codes = [rank.code or 0 for rank in self._ranks]
        if self._passed_on is not None:
            own = next((code for code in codes if code in OWN_CODES), 128 + self._passed_on)
            return (own if self._unread_since is None else _SIGPIPE) if any(codes) else 0, None
        code = self._cause.code or 0 if self._cause else 0
        if code == 0 or code in OWN_CODES:
            return code, None
        cut_off = sorted({rank.worker.host for rank in self._ranks if rank.is_cut_off})
        return code if LOST_PEER < code < 126 else LOST_PEER, tuple(cut_off)


def _weight(rank: Rank) -> tuple[bool, bool, int]:
    """Orders simultaneous ends: causes before consequences."""
    return rank.code not in OWN_CODES, rank.code == LOST_PEER, rank.worker.rank


def _wait_for_hosts(
    job: Job, cut_off: tuple[str, ...], inbox: _Inbox, say: Callable[[str], None]
) -> int | None:
    """Waits until hosts that lost their connection have killed their processes and can be reached again.
    Returns an exit code if the job ends meanwhile, else None."""
    if not cut_off:
        return None
    say(f"waiting for {', '.join(cut_off)}, at most {job.host_timeout_secs:g} s")
    began = time.monotonic()
    quiet = began + SILENCE_SECS + _GRACE_SECS  # by then their processes have ended
    missing, is_asked_to_end = list(cut_off), lambda: inbox.received is not None
    while time.monotonic() < began + job.host_timeout_secs or not missing:
        missing = [host for host in cut_off if not answers(job.ssh, host, is_asked_to_end)]
        if inbox.received is not None:
            return 128 + inbox.received
        if not missing and time.monotonic() >= quiet:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(inbox.reader, selectors.EVENT_READ)
            selector.select(_BETWEEN_CALLS_SECS)
    say(f"{', '.join(missing)}: no answer after --host_timeout_secs={job.host_timeout_secs:g}")
    return LOST_PEER

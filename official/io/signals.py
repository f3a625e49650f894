"""Handles Ctrl-C, SIGTERM and SIGHUP during the whole life of a process: one line, and exit code 130, 143 or
129. Under nohup, SIGHUP stays ignored.

The effect depends on the section: a signal ends the process at once (after `watch`, while modules are
loaded), becomes an exception (`raising`, if there are files to clean up), or is noted (`noting`, if there is
something to save). A second one always ends it at once.

Python runs signal handlers between two of its own instructions, and a call into TensorFlow can take minutes.
So the interpreter's C handler writes the signal's number to a pipe as well, and a thread reads it there.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
GRACE_SECS = 5.0  # for clean-up; a batch system kills 15 or 30 seconds later


class Interrupted(KeyboardInterrupt):
    """A signal interrupted the work. `signal` is its number."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.signal = number


@dataclasses.dataclass(eq=False)
class _Section:
    """Response to a signal in a part of the program.

    Attributes:
      raises: it becomes an exception in the main thread.
      secs: if the section lasts longer than this after a signal, the process ends; None: no limit.
      note: called with its number, in another thread.
      raised: the number of the signal that has become an exception.
    """

    raises: bool = False
    secs: float | None = None
    note: Callable[[int], None] = lambda number: None
    raised: int | None = None


@dataclasses.dataclass
class _State:
    """Current state of signal handling in this process."""

    section: _Section
    received: int | None = None  # the first signal
    seen: int | None = None  # last signal that the main thread saw, perhaps before the watching thread
    late: int | None = None  # a signal outside of all sections, which the thread may handle too late
    raised_in: _Section | None = None  # the section that raised it; the thread may see it later
    undo: Callable[[], None] | None = None  # None: nobody watches
    stderr: int = 2  # file descriptor for the line
    going_on: list[Callable[[], object]] = dataclasses.field(default_factory=list)  # wait for other threads


_NO_SECTION = _Section(secs=0.0)
_ending = threading.Lock()  # never released
_state = _State(_NO_SECTION)


def handled() -> tuple[signal.Signals, ...]:
    """Returns the signals that this process handles, without SIGHUP under nohup."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return tuple(each for each in NUMBERS if each != signal.SIGHUP or not is_ignored)


def watch() -> None:
    """Starts handling: a signal ends this process with one line, unless a section says otherwise. Does
    nothing outside of the main thread."""
    if _state.undo or threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous_fd = signal.set_wakeup_fd(writer)
    previous = {number: signal.signal(number, _in_main_thread) for number in handled()}

    def undo():
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(writer)
        listener.join()  # else it may take the last signal for one of the next watch
        _state.received = _state.seen = _state.raised_in = _state.undo = None

    _state.undo = undo
    listener = threading.Thread(target=_listen, args=(reader,), daemon=True)
    listener.start()


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Handles signals in its block, unless they are handled already."""
    is_first = not _state.undo
    watch()
    try:
        yield
    finally:
        if is_first and _state.undo:
            _state.undo()


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """In its block, a signal raises Interrupted; if other code turns that into another exception, it is
    Interrupted again after the block.

    If other code swallows it, as Python does in a destructor, it is raised at the end of the block. If that
    is not reached `GRACE_SECS` after the signal, the process ends.
    """
    section = _Section(raises=True, secs=GRACE_SECS, note=_state.section.note)
    with _having(section=section):
        check()
        try:
            yield
        except Exception as error:
            if section.raised is None:
                raise
            raise Interrupted(section.raised) from error
        if section.raised is not None:
            raise Interrupted(section.raised)


def check() -> None:
    """Raises Interrupted if a signal came: for the end of work in which it was only noted, perhaps too late
    to act on it."""
    number = _state.received if _state.received is not None else _state.seen
    if number is not None:
        raise Interrupted(number)


def noting(note: Callable[[int], None]) -> contextlib.AbstractContextManager:
    """In its block, a signal only calls `note` with its number, in another thread."""
    return _having(section=_Section(note=note))


def expendable() -> contextlib.AbstractContextManager:
    """Within `noting`, marks a block without anything to save: the process ends `GRACE_SECS` after a signal
    in it."""
    return _having(section=_Section(secs=GRACE_SECS, note=_state.section.note))


@contextlib.contextmanager
def waited_for(wait: Callable[[], object]) -> Iterator[None]:
    """During its block, in any thread, a signal that would end the process first calls `wait`, for a thread
    that writes. A second signal does not wait."""
    _state.going_on.append(wait)
    try:
        yield
    finally:
        _state.going_on.remove(wait)


def telling_on(descriptor: int) -> contextlib.AbstractContextManager:
    """In its block, the last line of a signal goes to a file descriptor: that of the real stderr, if stderr
    is redirected."""
    return _having(stderr=descriptor)


@contextlib.contextmanager
def _having(**values: Any) -> Iterator[None]:
    """Sets values of the state in its block."""
    previous = {name: getattr(_state, name) for name in values}
    vars(_state).update(values)
    try:
        yield
    finally:
        vars(_state).update(previous)


def _in_main_thread(number: int, frame: FrameType | None) -> None:
    section, _state.seen = _state.section, number
    if section is _NO_SECTION:
        _state.late = number
    if not section.raises or section.raised is not None:
        return
    section.raised, _state.raised_in = number, section
    # There is nothing to clean up here, and extension modules turn exceptions into tracebacks or crashes.
    if _is_importing(frame):
        end(number)
    raise Interrupted(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _listen(reader: int) -> None:
    while data := os.read(reader, 1):
        if data[0] not in NUMBERS:
            continue
        if _state.received is not None:
            os._exit(128 + data[0])  # pylint: disable=protected-access  # files are whole at any moment
        section, _state.received = _state.raised_in or _state.section, data[0]
        section.note(data[0])
        if section.secs is not None:
            rest = (section, section.secs, data[0])
            threading.Thread(target=_end_if_still_in, args=rest, daemon=True).start()
    os.close(reader)


def _end_if_still_in(section: _Section, secs: float, number: int) -> None:
    time.sleep(secs)
    if _state.section is section:
        for wait in list(_state.going_on):
            wait()
        end(number)


def end(number: int) -> None:
    """Ends this process from any thread, with the line of a signal."""
    while not _ending.acquire(blocking=False):  # another thread prints the line and ends the process
        time.sleep(1)
    with contextlib.suppress(OSError):  # the terminal that has hung up
        os.write(_state.stderr, _line(number).encode())
    os._exit(128 + number)  # pylint: disable=protected-access


def _line(number: int) -> str:
    return f"{os.path.basename(sys.argv[0])}: {_WORDS[signal.Signals(number)]}.\n"


def report(error: KeyboardInterrupt) -> int:
    """Prints the line that a signal ends with. Returns the exit code."""
    number = getattr(error, "signal", signal.SIGINT)
    sys.stderr.write(_line(number))
    return 128 + number


def _forget() -> None:
    """In a forked process: stops using the parent's pipe, so that its signals are its own."""
    if _state.undo:
        signal.set_wakeup_fd(-1)
        for number in handled():
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _state.section = _NO_SECTION
        _state.received = _state.seen = _state.raised_in = _state.undo = None


os.register_at_fork(after_in_child=_forget)


def _end_late() -> None:
    """At exit, ends the process by a signal that came during the exit, when the watching thread has stopped.
    From here on a signal has its default effect."""
    if _state.undo is None:
        return
    for number in handled():
        signal.signal(number, signal.SIG_DFL)
    if _state.late is not None:
        end(_state.late)


atexit.register(_end_late)  # this module is imported first, so it is called last

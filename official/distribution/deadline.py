"""A limit of time that ends the process while other code holds Python's lock.

No code of Python's can run then, and a signal's number, not an exit code, would say how the process has
ended. So the C library's timers call its own functions: one that prints a line, one that ends the process.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator

from absl import logging

_CLOCK_MONOTONIC = 1
_SIGEV_THREAD = 2
_SECS_TO_PRINT = 0.2


class _Event(ctypes.Structure):
    """Action at a timer's end: struct sigevent of Linux, 64 bytes. See timer_create(2) and sigevent(7)."""

    _fields_ = [
        ("value", ctypes.c_void_p),  # what the function is called with
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_byte * 32),
    ]


class _Times(ctypes.Structure):
    """Time at which a timer ends: struct itimerspec."""

    _fields_ = [
        ("interval_secs", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("secs", ctypes.c_long),
        ("ns", ctypes.c_long),
    ]


@contextlib.contextmanager
def ending(secs: float, code: int, message: str) -> Iterator[None]:
    """Ends the process where the block takes too long, whatever it does.

    Where the C library has no such timers (not Linux), the block may take as long as it likes.

    Args:
      secs: seconds that the block may take, above 0.
      code: the exit code, from 1 to 255.
      message: one line, printed on stderr before.
    """
    line = ctypes.create_string_buffer(message.replace("%", "%%").encode())
    with contextlib.ExitStack() as timers:
        try:
            libc = _libc()
            _start(timers, libc, secs, libc.warnx, ctypes.addressof(line))
            _start(timers, libc, secs + _SECS_TO_PRINT, libc._exit, code)  # pylint: disable=protected-access
        except (AttributeError, OSError) as error:
            logging.debug("No limit of time: %s", error)
        yield


def _libc() -> ctypes.CDLL:
    if sys.platform != "linux" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError("timers that call functions are known for Linux of 64 bits only")
    return ctypes.CDLL(None, use_errno=True)


def _start(timers: contextlib.ExitStack, libc: ctypes.CDLL, secs: float, function, value: int) -> None:
    """Starts a timer that calls function(value), and stops with `timers`."""
    timer = ctypes.c_void_p()
    address = ctypes.cast(function, ctypes.c_void_p).value
    event = _Event(value=value, notify=_SIGEV_THREAD, function=address)
    if libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    timers.callback(libc.timer_delete, timer)
    times = _Times(secs=int(secs), ns=int(secs % 1 * 1e9))
    if libc.timer_settime(timer, 0, ctypes.byref(times), None):
        raise OSError(ctypes.get_errno(), "timer_settime")

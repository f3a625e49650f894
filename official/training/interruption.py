"""Ctrl-C, SIGTERM and SIGHUP while a run trains: the first asks it to save and stop, a second stops it at
once."""

from __future__ import annotations

import contextlib
import signal

from absl import logging

from official.io import signals


class Interruption:
    """Context manager that notes a signal instead of ending with it. `signal` is its number, or None.

    Outside of the main thread, where signals cannot be handled, it does nothing.
    """

    def __init__(self):
        self.signal: int | None = None
        self._entered = contextlib.ExitStack()

    def __enter__(self):
        self._entered.enter_context(signals.watching())
        self._entered.enter_context(signals.noting(self._note))
        return self

    def __exit__(self, *_):
        self._entered.close()

    def _note(self, number: int) -> None:
        self.signal = number
        logging.warning("%s: saving, then stopping. A second one stops at once.", signal.Signals(number).name)

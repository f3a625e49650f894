"""Ctrl-C and SIGTERM: the first asks the run to save and stop, a second one stops it at once."""

import signal

from absl import logging


class Interruption:
    """Context manager that notes a signal instead of dying of it. `signal` is its number, or None."""

    def __init__(self):
        self.signal: int | None = None
        self._previous = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, _):
        self.signal = number
        logging.warning("%s: saving after this loop. A second one stops at once.", signal.Signals(number).name)
        for again in self._previous:
            signal.signal(again, signal.SIG_DFL)

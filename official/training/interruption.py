"""Ctrl-C and SIGTERM: the first asks the run to save and stop, a second one stops it at once."""

import os
import signal
import threading

from absl import logging

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Context manager that notes a signal instead of dying of it. `signal` is its number, or None.

    Python runs signal handlers between two of its own instructions, and an inner loop is one call that can take
    minutes. So the signal's number is written to a pipe by the interpreter's C handler, and a thread reads it there.
    Outside of the main thread, where signals cannot be handled, it does nothing.
    """

    def __init__(self):
        self.signal: int | None = None
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._previous_fd = signal.set_wakeup_fd(self._writer)
        self._previous = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        threading.Thread(target=self._watch, args=(self._reader,), daemon=True).start()
        return self

    def __exit__(self, *_):
        if not self._previous:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self._writer)  # ends the thread

    def _watch(self, reader: int) -> None:
        while data := os.read(reader, 1):
            number = data[0]
            if number not in _SIGNALS:
                continue
            if self.signal is not None:
                os._exit(128 + number)  # pylint: disable=protected-access  # files are whole at any moment: nothing to clean up
            self.signal = number
            logging.warning("%s: saving after this loop. A second one stops at once.", signal.Signals(number).name)
        os.close(reader)

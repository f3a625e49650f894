"""Progress bars that an error takes off the terminal, so that its line is the last one."""

from __future__ import annotations

import tqdm


class Bar(tqdm.tqdm):
    """tqdm's bar, to be used in a `with`: where the block fails, nothing of it stays."""

    leave: bool | None

    def __exit__(self, kind, error, trace) -> None:
        self.leave = self.leave and error is None
        self.close()

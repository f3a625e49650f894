"""A lock that is a file of a store: it says who holds it, and since when it has last been seen alive.

A store has no locks that end with their process. So whoever holds this one writes it anew now and then; one
that has not been written for long is nobody's. Two jobs that begin in the same second may miss each other:
both look again a moment later, and the one that wrote first gives way.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator

from official.io import store_paths
from official.io.errors import ConfigError
from official.io.stores import store_of

_BEAT_SECS = 15.0
_DEAD_SECS = 90.0
_LOOK_AGAIN_SECS = 1.0


@contextlib.contextmanager
def held(path: str, folder: str) -> Iterator[None]:
    """Holds the lock for the block.

    Args:
      path: of the lock.
      folder: what it guards, for messages.

    Raises:
      ConfigError: where another process holds it, or has taken it meanwhile.
      OSError: where the store does not answer.
    """
    own = store_paths.new_tag()
    _refuse(path, folder, own)
    _write(path, own)
    time.sleep(_LOOK_AGAIN_SECS)
    _refuse(path, folder, own)
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, own, ended), daemon=True)
    beating.start()
    try:
        yield
        _refuse(path, folder, own)
    finally:
        ended.set()
        beating.join()
        if _read(path).get("owner") == own:
            with contextlib.suppress(OSError):
                store_of(path).remove(path)


def _beat(path: str, own: str, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_SECS):
        with contextlib.suppress(OSError):
            if _read(path).get("owner") in (own, None):
                _write(path, own)


def _refuse(path: str, folder: str, own: str) -> None:
    """Raises ConfigError where somebody else, who is alive, holds the lock."""
    found = _read(path)
    owner = str(found.get("owner", own))
    silent_secs = time.time() - found.get("seen_at", 0)
    if owner == own or store_paths.is_dead(owner) or silent_secs > _DEAD_SECS:
        return
    raise ConfigError(
        f"--output_dir={folder} is being written to by another process ({owner}, seen {silent_secs:.0f} s"
        f" ago). Wait for it, or give another folder. One that was killed counts as alive for"
        f" {_DEAD_SECS:.0f} s."
    )


def _write(path: str, own: str) -> None:
    store_of(path).write(path, json.dumps({"owner": own, "seen_at": time.time()}).encode())


def _read(path: str) -> dict:
    """Returns the content of the lock; {} where there is none, or a damaged one."""
    try:
        with store_of(path).open(path) as file:
            found = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""The folder of a run, while the run writes to it: locked, and still there."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections.abc import Callable, Iterator
from typing import IO

import tensorflow as tf

from official.io.errors import ConfigError
from official.io.files import is_remote


@contextlib.contextmanager
def writing(model_dir: str) -> Iterator[Callable[[], None]]:
    """Locks the folder, and turns a full disk or a missing permission into one line. Yields what `locked`
    does."""
    with locked(model_dir) as check:
        try:
            yield check
        except OSError as error:
            raise _unwritable(model_dir, error) from None
        except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
            if error.node_def is not None:  # an operation of the model: memory, not the disk
                raise
            raise ConfigError(f"--model_dir={model_dir} cannot be written to: {error.message}.") from None


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[Callable[[], None]]:
    """Makes the folder and holds its lock, so that no second run writes to it. Remote folders have no lock.

    Yields what raises ConfigError once the lock is not the folder's any more: it was removed or moved, and
    another run may write to its name.
    """
    try:
        tf.io.gfile.makedirs(model_dir)
    except tf.errors.OpError as error:
        raise ConfigError(f"--model_dir={model_dir} cannot be made: {error.message}.") from None
    if is_remote(model_dir):
        yield unchecked
        return
    try:
        file = open(os.path.join(model_dir, ".lock"), "w", encoding="utf-8")
    except OSError as error:
        raise _unwritable(model_dir, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--model_dir={model_dir} is in use by another run. Wait for it, or choose another folder."
            ) from None
        yield functools.partial(_check, file, model_dir)


def unchecked() -> None:
    """Checks nothing: of a folder that this process has no lock of."""


def _check(lock: IO, model_dir: str) -> None:
    try:
        found = os.path.samestat(os.stat(lock.name), os.fstat(lock.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        found = False
    except OSError:  # a file system that does not answer says nothing about the folder
        found = True
    if not found:
        raise ConfigError(
            f"--model_dir={model_dir} was removed or moved while this run wrote to it, or its .lock was. "
            "The run has stopped; "
            "the same command begins anew, or goes on from what is there."
        )


def _unwritable(model_dir: str, error: OSError) -> ConfigError:
    return ConfigError(f"--model_dir={model_dir} cannot be written to: {error.strerror or error}.")

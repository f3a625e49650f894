"""The folder of a job that is not finished: what it has done already is found there when the same job is
started again.

What a task has done is written with a digest: a file that is damaged counts as not there, and the task is
done again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from absl import logging

from official.io import json_files, store_lock, work_folders, writing
from official.io.errors import ConfigError
from official.io.stores import is_remote, store_of

_FOLDER = ".unfinished"
_JOB = "job.json"
_LOCK = "lock"
_READERS = 16
_READ_AT_ONCE = 1024  # what so many tasks have done


@contextlib.contextmanager
def folder_of(output_dir: str, job: dict, overwrite: bool) -> Iterator[str]:
    """Holds the work folder of a job; it is removed when the body ends without an error.

    Args:
      output_dir: where the results go; the work folder is below it.
      job: what makes it this job, JSON values; of objects in it, messages name the keys that differ. A folder
        with the same job is gone on with.
      overwrite: whether what another job left unfinished is thrown away.

    Raises:
      ConfigError: where another job was left unfinished, a job is at work, or the folder cannot be made.
    """
    folder = os.path.join(output_dir, _FOLDER)
    with _locked(os.path.join(folder, _LOCK), output_dir):
        earlier = read_done(os.path.join(folder, _JOB))
        if earlier is not None and earlier == json.loads(json.dumps(job)):
            logging.info("Going on with what is done already in %s.", folder)
        else:
            if earlier is not None and not overwrite:
                raise ConfigError(
                    f"--output_dir={output_dir} holds an unfinished job with another"
                    f" {_differences(earlier, job)}. Give the same flags and input to go on with it, another"
                    " --output_dir, or throw it away with --overwrite."
                )
            _clear(folder)
            write_done(os.path.join(folder, _JOB), job)
        yield folder
        _remove(folder)


@contextlib.contextmanager
def _locked(path: str, output_dir: str) -> Iterator[None]:
    """Makes the work folder and holds its lock. Raises ConfigError where that is impossible."""
    if is_remote(path):
        with store_lock.held(path, output_dir):
            yield
        return
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = work_folders.open_lock(path)
    except OSError as error:
        raise ConfigError(f"--output_dir={output_dir}: {error.strerror or error}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"--output_dir={output_dir} is being written to by another process. Wait for it, or give"
                " another folder."
            ) from None
        yield


def _differences(earlier: dict, job: dict) -> str:
    names = sorted(name for name in {*earlier, *job} if earlier.get(name) != job.get(name))
    return ", ".join(name + _different_keys(earlier.get(name), job.get(name)) for name in names)


def _different_keys(earlier, value) -> str:
    if not isinstance(earlier, dict) or not isinstance(value, dict):
        return ""
    keys = sorted(key for key in {*earlier, *value} if earlier.get(key) != value.get(key))
    return f" ({keys[0]}" + f" and {len(keys) - 1:,} more" * (len(keys) > 1) + ")"


def remove_left(output_dir: str) -> None:
    """Removes the work folder of a finished job that was killed while it removed it."""
    folder = os.path.join(output_dir, _FOLDER)
    lock = os.path.join(folder, _LOCK)
    with contextlib.suppress(ConfigError, OSError):  # somebody else removes it, or nobody may
        if store_of(folder).exists(folder if is_remote(folder) else lock):
            with _locked(lock, output_dir):
                _remove(folder)


def _remove(folder: str) -> None:
    """Removes the work folder; on this machine the lock goes last, so that nobody takes it meanwhile."""
    if not is_remote(folder):
        _clear(folder)
    store_of(folder).remove_folder(folder)


def _clear(folder: str) -> None:
    store = store_of(folder)
    for name in store.names_in(folder):
        path = os.path.join(folder, name)
        if name == _LOCK:
            continue
        if store.is_folder(path) and not os.path.islink(path):
            store.remove_folder(path)
        else:
            store.remove(path)


def read_done(path: str) -> dict | None:
    """Returns the values that `write_done` wrote; None where there is no such file or it is damaged."""
    try:
        found = json_files.read_json(path)
    except ConfigError:
        return None
    text = found.get("done")
    is_whole = isinstance(text, str) and found.get("digest") == digest(text)
    return json_files.parse_json(text, path) if is_whole else None


def read_what_is_done(path: str) -> dict:
    """As `read_done`, of a task that has just been run. Raises OSError where what it wrote is gone."""
    found = read_done(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return found


def read_all_done(paths: Iterable[str]) -> list[dict]:
    """As `read_what_is_done`, of many tasks; several at a time where a store takes its time for each."""
    paths = list(paths)
    if not any(map(is_remote, paths[:1])):
        return list(map(read_what_is_done, paths))
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read_what_is_done, paths))


def each_done(paths: Iterable[str]) -> Iterator[dict]:
    """Yields what `read_all_done` returns; some of it is in memory at a time."""
    left = iter(paths)
    while some := list(itertools.islice(left, _READ_AT_ONCE)):
        yield from read_all_done(some)


def write_done(path: str, values: dict, durable: bool = False) -> None:
    """Writes what a task has done, after all its other files. It is not waited for: where the power of the
    machine takes it along, the task is done again. It has to be `durable` where that is impossible because
    what the task has read is removed."""
    text = json.dumps(values)  # a text: encoded once, without line breaks, also the counts of very many files
    write_json(path, {"done": text, "digest": digest(text)}, durable=durable)


def digest(values) -> str:
    """Returns a digest of JSON values."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def write_json(path: str, values: dict, durable: bool = True, sync_folder: bool = True) -> None:
    """Writes JSON; `durable` and `sync_folder` as of `writing.publish`."""
    writing.replace_file(path, json.dumps(values, indent=2) + "\n", durable, sync_folder)

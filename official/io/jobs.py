"""Jobs that write a folder of files: locked while running, resumed after an interruption, skipped when
finished."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from absl import logging

from official.io import files, json_files, writing
from official.io.errors import ConfigError
from official.io.files import is_remote, store_of

# -----------------------------------------------------------------------------------------------------------
# Times of the rounds


FILE_NAME = "speed.json"


# Each: doing and items_name, words of its progress bar ("Tokenising", "documents"); engine of its tasks;
# workers, their maximum number at a time; secs, wall-clock time; bytes of text or records, and items
# (documents or examples), that were processed in this call.
rounds: list[dict] = []


def take_rounds() -> list[dict]:
    """Returns the rounds since the last call."""
    taken, rounds[:] = list(rounds), []
    return taken


# -----------------------------------------------------------------------------------------------------------
# Lock
#
# A store has no locks that end with their process. So the holder rewrites the lock periodically, and a lock
# that has not been written for long is free. Two jobs that begin in the same second may miss each other: both
# check again a moment later, and the one that wrote first gives way.


_DEAD_SECS = 90.0
_LOOK_AGAIN_SECS = 1.0


@contextlib.contextmanager
def held(path: str, folder: str) -> Iterator[None]:
    """Holds the lock for the block.

    Args:
      path: of the lock.
      folder: what it guards, for messages.

    Raises:
      ConfigError: if another process holds it, or took it meanwhile.
      OSError: where the store does not answer.
    """
    own = files.new_tag()
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
    while not ended.wait(15.0):
        with contextlib.suppress(OSError):
            if _read(path).get("owner") in (own, None):
                _write(path, own)


def _refuse(path: str, folder: str, own: str) -> None:
    """Raises ConfigError if another living process holds the lock."""
    found = _read(path)
    owner = str(found.get("owner", own))
    silent_secs = time.time() - found.get("seen_at", 0)
    if owner == own or files.is_dead(owner) or silent_secs > _DEAD_SECS:
        return
    raise ConfigError(
        f"--output_dir={folder} is being written to by another process ({owner}, seen {silent_secs:.0f} s"
        f" ago). Wait for it, or give another folder. One that was killed counts as alive for"
        f" {_DEAD_SECS:.0f} s."
    )


def _write(path: str, own: str) -> None:
    writing.replace_file(path, json.dumps({"owner": own, "seen_at": time.time()}))


def _read(path: str) -> dict:
    """Returns the content of the lock; {} where there is none, or a damaged one."""
    try:
        with store_of(path).open(path) as file:
            found = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# -----------------------------------------------------------------------------------------------------------
# Finished jobs


MANIFEST = "manifest.json"  # written last; identifies the job
SAMPLES = "samples.json"  # samples of the output, for people


def write_manifest(folder: str, identity: dict, manifest: dict) -> dict:
    """Writes the manifest of a finished job, and returns it. `identity` identifies the job, in JSON
    values."""
    manifest = {**manifest, "job": digest(identity)}
    write_json(os.path.join(folder, MANIFEST), manifest)
    return manifest


def may_be_finished(folder: str, overwrite: bool) -> bool:
    """Tells whether a folder has the manifest of a finished job that must not be replaced."""
    return not overwrite and files.is_file(os.path.join(folder, MANIFEST))


def read_manifest(folder: str, identity: dict, overwrite: bool) -> dict | None:
    """Returns the manifest if the same job is finished; None if there is none, or it is to be replaced.
    Removes the remains of a finished job's work folder.

    Raises:
      ConfigError: where the folder has files of another job, or lacks some of this one.
    """
    if not may_be_finished(folder, overwrite):
        return None
    advice = "Give another --output_dir, or make the files anew with --overwrite."
    try:
        manifest = json_files.read_json(os.path.join(folder, MANIFEST))
    except ConfigError as error:
        raise ConfigError(f"{error} {advice}") from None
    if manifest.get("job") == digest(identity) and are_there(folder, manifest.get("file_bytes", {})):
        remove_left(folder)
        return manifest
    whose = f"an earlier run with other flags or input, or not all of them ({MANIFEST}, ..)"
    if "version" in manifest and manifest["version"] != identity.get("version"):
        whose = (
            f"another version of this program (version {manifest['version']} in {MANIFEST}, this one is"
            f" {identity.get('version')})"
        )
    raise ConfigError(f"--output_dir={folder} holds the files of {whose}. {advice}")


def are_there(folder: str, sizes: dict[str, int]) -> bool:
    """Tells whether a folder holds files of these names and sizes in bytes."""
    try:
        found = files.sizes(os.path.join(folder, name) for name in sizes)
    except ConfigError:  # names the one that is not
        return False
    return found == list(sizes.values())


# -----------------------------------------------------------------------------------------------------------
# Unfinished jobs
#
# The result of a task is written with a digest: a damaged file counts as missing, and the task is
# done again.


_FOLDER = ".unfinished"
_JOB = "job.json"
_LOCK = "lock"


def check_inputs(output_dir: str, pattern: str, inputs: Iterable[str]) -> None:
    """Raises ConfigError if an input is one of the files that a job removes before it writes its results:
    those of `pattern`, a glob below the folder of the results."""
    below, name = os.path.split(pattern)
    results = os.path.realpath(os.path.join(output_dir, below))
    folders = {
        os.path.dirname(path): path for path in inputs if fnmatch.fnmatch(os.path.basename(path), name)
    }
    for folder, path in folders.items():
        if os.path.realpath(folder) == results:
            told = f"--input_files has {path}, which is in --output_dir={output_dir} and would be replaced"
            raise ConfigError(f"{told}. Give another --output_dir.")


def check_leftovers(output_dir: str, pattern: str) -> None:
    """Checks that a job would remove only files of earlier jobs: those in the manifest of a finished job, or
    any file if the folder has the work folder of an unfinished one.

    Args:
      output_dir: folder of the results. A manifest without file names, or a damaged one, allows all files.
      pattern: glob of the job's results, below the folder.

    Raises:
      ConfigError: for a file of another origin.
    """
    own: dict = {}
    path = os.path.join(output_dir, MANIFEST)
    with writing.naming_output(output_dir, "output_dir"):
        if store_of(output_dir).exists(os.path.join(output_dir, _FOLDER, _JOB)):
            return
        is_done = files.is_file(path)
    if is_done:
        try:
            said = json_files.read_json(path)
        except ConfigError:
            return
        listed = said.get("files", None if "job" in said else {})
        if not isinstance(listed, dict):
            return
        own = listed
    folder, pattern = os.path.join(output_dir, os.path.dirname(pattern)), os.path.basename(pattern)
    found: list[str] = []
    with contextlib.suppress(OSError):  # no folder yet; the job reports other errors
        found = files_in(folder, pattern)
    if others := [path for path in found if os.path.basename(path) not in own]:
        raise ConfigError(
            f"--output_dir={output_dir} holds {others[0]}, which no job of this program has written, and this"
            " job would remove. Give another --output_dir, or move the file."
        )


def files_in(folder: str, pattern: str) -> list[str]:
    """Returns the files in a folder whose names fit a glob, in order."""
    found = fnmatch.filter(store_of(folder).names_in(folder), pattern)
    return [os.path.join(folder, name) for name in sorted(found)]


def remove_all_but(made: set[str], folder: str, pattern: str) -> None:
    """Removes the results of a job that was thrown away, or killed while it wrote: the files in the folder
    that fit a glob and are not in `made`."""
    for path in {*files_in(folder, pattern)} - made:
        store_of(folder).remove(path)


@contextlib.contextmanager
def unfinished_folder(output_dir: str, job: dict, overwrite: bool) -> Iterator[str]:
    """Holds the work folder of a job; it is removed when the body ends without an error.

    Args:
      output_dir: folder of the results; the work folder is below it.
      job: JSON values that identify the job; for objects in it, messages name the keys that differ. A folder
        with the same job is resumed.
      overwrite: whether the unfinished files of another job are discarded.

    Raises:
      ConfigError: if another job was left unfinished, a job is running, or the folder, or a file in the body,
        cannot be written.
    """
    folder = os.path.join(output_dir, _FOLDER)
    try:
        with _locked(os.path.join(folder, _LOCK), output_dir):
            earlier = read_done(os.path.join(folder, _JOB))
            if earlier is not None and earlier == json.loads(json.dumps(job)):
                logging.info("Resuming the unfinished job in %s.", folder)
            else:
                if earlier is not None and not overwrite:
                    raise ConfigError(
                        f"--output_dir={output_dir} holds an unfinished job with another"
                        f" {differences(earlier, job)}. Give the same flags and input to resume it,"
                        " another --output_dir, or --overwrite to discard it."
                    )
                _clear(folder)
                write_done(os.path.join(folder, _JOB), job)
            yield folder
            _remove(folder)
    except OSError as error:
        raise ConfigError(
            f"--output_dir={output_dir} cannot be written to: {error.strerror or error}. The same command"
            " resumes the job."
        ) from None


@contextlib.contextmanager
def _locked(path: str, output_dir: str) -> Iterator[None]:
    """Makes the work folder and holds its lock. Raises ConfigError where that is impossible."""
    if is_remote(path):
        with held(path, output_dir):
            yield
        return
    with contextlib.ExitStack() as stack:
        with writing.naming_output(output_dir, "output_dir"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                stack.enter_context(writing.locked(path))
            except BlockingIOError:
                raise ConfigError(
                    f"--output_dir={output_dir} is being written to by another process. Wait for it, or give"
                    " another folder."
                ) from None
        yield


def differences(earlier: dict, job: dict) -> str:
    """Returns the names of the values that differ; for objects also the first key and the number of
    others."""

    def differing(one: dict, other: dict) -> list[str]:
        return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))

    names = []
    for name in differing(earlier, job):
        if isinstance(earlier.get(name), dict) and isinstance(job.get(name), dict):
            keys = differing(earlier[name], job[name])
            name += f" ({keys[0]}" + f" and {len(keys) - 1:,} more" * (len(keys) > 1) + ")"
        names.append(name)
    return ", ".join(names)


def remove_left(output_dir: str) -> None:
    """Removes the work folder of a finished job that was killed while it removed it."""
    folder = os.path.join(output_dir, _FOLDER)
    lock = os.path.join(folder, _LOCK)
    with contextlib.suppress(ConfigError, OSError):  # another process removes it, or no permission
        if store_of(folder).exists(folder if is_remote(folder) else lock):
            with _locked(lock, output_dir):
                _remove(folder)


def _remove(folder: str) -> None:
    """Removes the work folder; on a local disk the lock is removed last, so that no other process takes it
    meanwhile."""
    if not is_remote(folder):
        _clear(folder)
    store_of(folder).remove_folder(folder)


def _clear(folder: str) -> None:
    store = store_of(folder)
    for path in (os.path.join(folder, name) for name in store.names_in(folder) if name != _LOCK):
        if store.is_folder(path) and not os.path.islink(path):
            store.remove_folder(path)
        else:
            store.remove(path)


def read_done(path: str) -> dict | None:
    """Returns the values of `write_done`; None if the file is missing or damaged."""
    try:
        found = json_files.read_json(path)
    except ConfigError:
        return None
    text = found.get("done")
    is_whole = isinstance(text, str) and found.get("digest") == digest(text)
    return json_files.parse_json(text, path) if is_whole else None


def read_what_is_done(path: str) -> dict:
    """As `read_done`, for a task that has just run. Raises OSError if its file is gone."""
    found = read_done(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return found


def each_done(paths: Iterable[str]) -> Iterator[dict]:
    """Yields the results of many tasks, a few in memory at a time; in remote stores, several are read
    concurrently."""
    left = iter(paths)
    with ThreadPoolExecutor(16) as pool:
        while some := list(itertools.islice(left, 1024)):
            yield from (pool.map if is_remote(some[0]) else map)(read_what_is_done, some)


def write_done(path: str, values: dict, durable: bool = False) -> None:
    """Writes the result of a task, after all its other files, without waiting for the disk: after a power
    failure the task runs again. It must be `durable` if the task's input is removed afterwards."""
    text = json.dumps(values)  # without line breaks, since it may hold the counts of very many files
    write_json(path, {"done": text, "digest": digest(text)}, durable=durable)


def digest(values) -> str:
    """Returns a digest of JSON values."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def write_json(path: str, values: dict, durable: bool = True) -> None:
    """Writes JSON; `durable` as of `writing.publish`."""
    writing.replace_file(path, json_files.written(values), durable)

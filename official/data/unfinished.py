"""The folder of a job that is not finished: what it has done already is found there when the same job is started again."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator

from absl import logging

from official.config import ConfigError
from official.io import json_files, writing

_FOLDER = ".unfinished"
_JOB = "job.json"
_LOCK = "lock"


@contextlib.contextmanager
def folder_of(output_dir: str, job: dict, overwrite: bool) -> Iterator[str]:
    """Holds the work folder of a job; it is removed when the body ends without an error.

    Args:
      output_dir: where the results go; the work folder is below it.
      job: what makes it this job, JSON values. A folder with the same job is gone on with.
      overwrite: whether what another job left unfinished is thrown away.

    Raises:
      ConfigError: where another job was left unfinished, a job is at work, or the folder cannot be made.
    """
    folder = os.path.join(output_dir, _FOLDER)
    try:
        os.makedirs(folder, exist_ok=True)
        lock = open(os.path.join(folder, _LOCK), "wb")
    except OSError as error:
        raise ConfigError(f"--output_dir={output_dir}: {error.strerror or error}.") from None
    with lock:
        _lock(lock, output_dir)
        earlier = _read(folder)
        if earlier is not None and earlier != json.loads(json.dumps(job)):
            _check_may_discard(output_dir, earlier, job, overwrite)
            _clear(folder)
        elif earlier is not None:
            logging.info("Going on with what is done already in %s.", folder)
        write_json(os.path.join(folder, _JOB), job)
        yield folder
        shutil.rmtree(folder)


def _lock(lock, output_dir: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"--output_dir={output_dir} is being written to by another process. Wait for it, or give another folder.") from None


def _read(folder: str) -> dict | None:
    return json_files.read_json_or_empty(os.path.join(folder, _JOB)) or None


def _check_may_discard(output_dir: str, earlier: dict, job: dict, overwrite: bool) -> None:
    if overwrite:
        return
    names = sorted(name for name in {*earlier, *job} if earlier.get(name) != job.get(name))
    raise ConfigError(f"--output_dir={output_dir} holds an unfinished job with another {', '.join(names)}. Give the same flags and input to go "
                      "on with it, another --output_dir, or throw it away with --overwrite.")


def _clear(folder: str) -> None:
    for name in os.listdir(folder):
        if name != _LOCK:
            os.remove(os.path.join(folder, name))


def read_json(path: str) -> dict:
    return json_files.read_json(path)


def write_json(path: str, values: dict) -> None:
    writing.replace_file(path, json.dumps(values, indent=2) + "\n")

"""The one way files are written: whole under a temporary name and renamed, or grown by a line at a time.

Nothing that was there before is lost: what a name stands for is replaced in one step, by something that is complete and on the disk.
"""

import contextlib
import os
from collections.abc import Iterator

from official.io.errors import ConfigError
from official.io.files import is_remote, tensorflow_files


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields a temporary name beside `path`, this process's own, for a file that the block writes and closes.

    After the block it is on the disk and renamed to `path`. Where the block fails, or a signal interrupts it, it is removed and `path`
    stays what it was. Raises OSError.
    """
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        yield temporary
        publish(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # it may not have been made
            _remove(temporary)
        raise


def publish(complete: str, path: str) -> None:
    """Renames a complete file to its final name, in the same folder, once its bytes are on the disk. Raises OSError."""
    if is_remote(path):
        with tensorflow_files(path) as gfile:
            gfile.rename(complete, path, overwrite=True)
        return
    sync(complete)
    os.replace(complete, path)
    sync(os.path.dirname(path) or ".")


def sync(path: str) -> None:
    """Waits until a file, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    if is_remote(path):
        with tensorflow_files(path) as gfile:
            gfile.remove(path)
    else:
        os.remove(path)


def replace_file(path: str, content: bytes | str) -> None:
    """Writes a whole file, of this machine or of a store. Readers, and who comes after a crash, find the old or the new one. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        if is_remote(path):
            with tensorflow_files(path) as gfile, gfile.GFile(temporary, "wb") as file:
                file.write(data)
        else:
            with open(temporary, "wb") as file:
                file.write(data)


@contextlib.contextmanager
def naming_output(path: str, flag: str = "") -> Iterator[None]:
    """Makes of an OSError in its block a ConfigError that names the file, and the flag that gave it."""
    try:
        yield
    except OSError as error:
        where = f"--{flag}={path}" if flag else f"{path} cannot be written"
        raise ConfigError(f"{where}: {error.strerror or error}.") from None


def check_output_file(path: str, flag: str, overwrite: bool) -> None:
    """Makes the folder of a file that is to be written. Raises ConfigError where the file is there already, or cannot be written."""
    if os.path.isdir(path):
        raise ConfigError(f"--{flag}={path} is a folder. Give the name of a file.")
    if os.path.exists(path) and not overwrite:
        raise ConfigError(f"--{flag}={path} exists. Give another --{flag}, or replace it with --overwrite.")
    with naming_output(path, flag):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        trial = f"{path}.tmp-{os.getpid()}"
        with open(trial, "wb"):  # the permissions alone do not tell: not for root, not on /proc
            pass
        os.remove(trial)


def read_lines(path: str) -> list[bytes]:
    """Returns the lines of a file with their ends; none where it does not exist. Raises OSError."""
    if not is_remote(path):
        try:
            with open(path, "rb") as file:
                return file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return []
    with tensorflow_files(path) as gfile:
        if not gfile.exists(path):
            return []
        with gfile.GFile(path, "rb") as file:
            return file.read().splitlines(keepends=True)


class LineFile:
    """A file of lines that grows.

    A line is with the operating system when `write` returns, so a killed process loses none. Filesystems behind a
    scheme (gs://, ram://) may not append: there the lines stay in memory and `flush` writes the whole file.
    """

    def __init__(self, path: str, kept: list[bytes]):
        """Opens `path`, whose lines are then `kept`, with their ends."""
        self._path, self._lines = path, list(kept)
        if read_lines(path) != kept:
            replace_file(path, b"".join(kept))
        self._file = None if is_remote(path) else open(path, "ab")

    def write(self, line: bytes) -> None:
        """Adds a line, which ends with a newline."""
        if self._file:
            self._file.write(line)
            self._file.flush()
        else:
            self._lines.append(line)

    def flush(self) -> None:
        """Writes out what is still in memory."""
        if not self._file:
            replace_file(self._path, b"".join(self._lines))

    def close(self) -> None:
        self.flush()
        if self._file:
            self._file.close()

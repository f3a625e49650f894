"""Files that are whole at any moment: replaced at once, or grown by a line at a time."""

import tensorflow as tf


def replace_file(path: str, data: str | bytes) -> None:
    """Writes a whole file so that a reader, or a kill half-way, sees the old or the new one and never a part."""
    temporary = f"{path}.tmp"
    with tf.io.gfile.GFile(temporary, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
    tf.io.gfile.rename(temporary, path, overwrite=True)


def read_lines(path: str) -> list[bytes]:
    """Returns the lines of a file with their ends; none where it does not exist."""
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path, "rb") as file:
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
        self._file = None if "://" in path else open(path, "ab")

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

"""Text files: what they are, the parts of them that are read in parallel, and how one is opened."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from official.data.text import bzip2_blocks, compressed, lines, parquet_files, text_kinds
from official.io import files
from official.io.errors import ConfigError

_BUFFER_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 16  # of the beginning, the middle and the end of a file tell it from others
_SMALL_BYTES = 1 << 16
_IDENTIFYING_THREADS, _IDENTIFIED_AT_ONCE = 8, 256  # files
_MOST_OPENED = 20_000  # files that are told from others by what they hold
_WAITED_SECS = 2e-4  # a file that is in memory takes a tenth of it
TEXT_OF_PACKED = 4  # bytes of text in a byte of bzip2, of English text


@dataclasses.dataclass(frozen=True)
class Split:
    """Part of a file: the bytes from `start` up to `end`, or to the end of the file. Of bzip2 it stands for
    the blocks that begin in it, of Parquet for the row groups; other compressed files are one split."""

    path: str
    start: int = 0
    end: int | None = None
    state: str | None = dataclasses.field(default=None, compare=False)  # of the file, see `files.states`

    @property
    def is_whole(self) -> bool:
        return not self.start and self.end is None


def read_in_part(splits: Iterable[Split]) -> set[str]:
    """Returns the files of which only a part is read."""
    return {split.path for split in splits if not split.is_whole}


@dataclasses.dataclass(frozen=True)
class TextFile:
    """An open split of a text file."""

    text: BinaryIO  # decompressed, its lines end in line feeds
    part: lines.Part  # positions in `text` at which the lines of the split begin
    head: bytes  # the first bytes of the text of the file; of Parquet of the file itself
    packed: "Packed | None"  # where the text is not the file's bytes


class Packed:
    """Progress of reading a split of a compressed file."""

    def __init__(self, file: BinaryIO, split: Split):
        self._file, self._start = file, split.start
        self.size = (file.seek(0, io.SEEK_END) if split.end is None else split.end) - split.start
        file.seek(0)

    def done(self) -> int:
        """Returns the bytes of the split that were read."""
        return min(max(self._file.tell() - self._start, 0), self.size)


# ------------------------------------------------------------------------------------------------------------
# Parts of files


def _sized_splits(sizes: dict[str, int], split_bytes: int) -> Iterator[tuple[Split, int]]:
    """Yields parts of files of about the same size, `split_bytes` of text at most, and their sizes in bytes.

    Args:
      sizes: {file: its bytes}.

    Raises:
      ConfigError: for a file that cannot be read.
    """
    for path, size in sizes.items():
        bounds, weight = [0, size], 1
        if size > split_bytes // TEXT_OF_PACKED:
            bounds, weight = _bounds(path, size, split_bytes)
        for start, end in zip(bounds, bounds[1:]):
            yield Split(path, start, None if end == size else end), (end - start) * weight


def _bounds(path: str, size: int, split_bytes: int) -> tuple[list[int], int]:
    """Returns the beginnings and ends of a file's splits, and the bytes of text in one of its bytes."""
    with open_text(Split(path)) as file:
        weight = 1
        if file.packed or text_kinds.is_parquet(file.head):
            weight = TEXT_OF_PACKED
        if text_kinds.is_parquet(file.head):
            return parquet_files.bounds(file.text, path, size, split_bytes // weight), weight
        if text_kinds.is_json_array(file.head) or (
            file.packed and not isinstance(file.part, bzip2_blocks.BlockText)
        ):
            return [0, size], 1
    count = max(1, -(-size * weight // split_bytes))
    return [size * number // count for number in range(count + 1)], weight


def plan_tasks(
    sizes: dict[str, int], task_bytes: int, states: Mapping[str, str] | None = None
) -> list[list[Split]]:
    """Deals files, {file: its bytes}, out to tasks of at most `task_bytes` of text: parts of a large file, or
    files that follow each other and are small. `states`, of `files.states` before anything was read, lets
    the tasks find out that a file was changed meanwhile. Raises ConfigError where all files are empty."""
    if sizes and not any(sizes.values()):
        others = f", and so are {len(sizes) - 1:,} others" if len(sizes) > 1 else ""
        raise ConfigError(f"--input_files: {next(iter(sizes))} is empty (0 bytes){others}. Give text.")
    tasks: list[list[Split]] = []
    left = 0
    for split, size in _sized_splits(sizes, task_bytes):
        if not tasks or size > left:
            tasks.append([])
            left = task_bytes
        tasks[-1].append(dataclasses.replace(split, state=states[split.path]) if states else split)
        left -= size
    return tasks


def check_unchanged(splits: Iterable[Split]) -> None:
    """Raises ConfigError where a file that was read in part is not any more as it was when it was planned."""
    files.check_unchanged({split.path: split.state for split in splits if split.state is not None})


# ------------------------------------------------------------------------------------------------------------
# Identity


def identify(paths: Iterable[str], versions: list[tuple[int, int]] | None = None) -> dict[str, str]:
    """Returns, for each file, what another content of it would change: size and samples, and the time of the
    last change where these are not all of it. Of a file in a store it is size and time. Of very many files it
    is one digest of names, sizes and times: to open all of them once more would take as long as to read them.

    Args:
      versions: as `files.versions` returns them, where they are known.

    Raises:
      ConfigError: for a file that cannot be read, or begins as no text does; of very many that is found when
        they are read.
    """
    paths = list(paths)
    if len(paths) > _MOST_OPENED:
        digest = hashlib.blake2b(digest_size=16)
        for path, version in zip(paths, versions or files.versions(paths)):
            digest.update(f"{path}\0{_describe(*version)}\0".encode("utf-8", "surrogateescape"))
        return {f"all {len(paths):,} files": digest.hexdigest()}
    remote = [path for path in paths if files.is_remote(path)]
    found = dict(zip(paths, versions)) if versions else dict(zip(remote, files.versions(remote)))
    known = {path: _describe(*found[path]) for path in remote}
    known.update(_identities_here([path for path in paths if path not in known]))
    return {path: known[path] for path in paths}


def _identities_here(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Yields (path, identity) of files of this machine: one file after the other, which is the quickest way
    to what is in memory; from the first files on that are waited for, several at a time."""
    firsts = range(0, len(paths), _IDENTIFIED_AT_ONCE)
    parts = [paths[first : first + _IDENTIFIED_AT_ONCE] for first in firsts]
    for number, part in enumerate(parts, 1):
        started = time.perf_counter()
        yield from _identities(part)
        if time.perf_counter() - started > _WAITED_SECS * len(part):
            with ThreadPoolExecutor(_IDENTIFYING_THREADS) as threads:
                for found in threads.map(_identities, parts[number:]):
                    yield from found
            return


def _identities(paths: list[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    try:
        for path in paths:
            found.append((path, _identity(path)))
    except OSError as error:
        raise files.unreadable(paths[len(found)], error) from None
    return found


def _describe(size: int, changed: int) -> str:
    return f"{size} bytes, {changed}"


def _identity(path: str) -> str:
    """Returns the identity of a file of this machine. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = os.fstat(descriptor)
        size, changed = found.st_size, found.st_mtime_ns
        is_large = size > 3 * _SAMPLE_BYTES
        head = os.pread(descriptor, _SAMPLE_BYTES if is_large else size, 0)
        text_kinds.refuse_archive(path, head)
        if not compressed.is_compressed(head) and not text_kinds.is_parquet(head):
            text_kinds.refuse_binary(path, head[:_SAMPLE_BYTES])
        digest = hashlib.blake2b(head, digest_size=16)
        for start in (size // 2, size - _SAMPLE_BYTES) if is_large else ():
            digest.update(os.pread(descriptor, _SAMPLE_BYTES, start))
    finally:
        os.close(descriptor)
    return f"{size} bytes, {digest.hexdigest()}" + (f", {changed}" if is_large else "")


# ------------------------------------------------------------------------------------------------------------
# Opening


@contextlib.contextmanager
def open_text(split: Split) -> Iterator[TextFile]:
    """Opens a split of a text file, decompressed by what it holds and not by its name.

    Raises:
      ConfigError: here and in the block, for a file that cannot be read or begins as no text does, and for a
        compressed one that is truncated or damaged. What such a file lacks cannot be counted, and training on
        an unknown part of the text is worse than a job that stops.
    """
    path = split.path
    try:
        with _open(path) as file:
            magic = file.read(compressed.MAGIC_BYTES)
            file.seek(0)
            text_kinds.refuse_archive(path, magic)
            yield _opened(file, magic, split)
    except compressed.DAMAGES as error:
        raise ConfigError(
            f"{path} is a truncated or damaged compressed file: {error}. Fetch or write it again, or leave"
            " it out."
        ) from None
    except OSError as error:
        raise files.unreadable(path, error) from None


def _opened(file: BinaryIO, magic: bytes, split: Split) -> TextFile:
    if text_kinds.is_parquet(magic):
        return TextFile(file, split, magic, None)
    text, packed = file, Packed(file, split) if compressed.is_compressed(magic) else None
    part: lines.Part = split
    if compressed.is_bzip2(magic):
        part = blocks = bzip2_blocks.BlockText(file, split.start, split.end)
        text = io.BufferedReader(blocks, _BUFFER_BYTES)
    elif packed:
        text = compressed.text_of(file, magic)
    if packed and split.start:
        head = _head_of(split.path, files.version(split.path))
    else:
        head = text.read(text_kinds.HEAD_BYTES)
        text.seek(0)
    text_kinds.refuse_binary(split.path, head)
    if text_kinds.ends_lines_with_returns(head):
        text = io.BufferedReader(lines.LineFeeds(text), _BUFFER_BYTES)
        head = lines.with_line_feeds(head)
    return TextFile(text, part, head, packed)


def _open(path: str) -> BinaryIO:
    """Opens a file; a small one of this machine is read at once."""
    if files.is_remote(path):
        return files.open_binary(path)
    content = _beginning(path)
    return io.BytesIO(content) if len(content) < _SMALL_BYTES else files.open_binary(path)


def _beginning(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _SMALL_BYTES)
    finally:
        os.close(descriptor)


def plain_content(split: Split) -> bytes | None:
    """Returns all of a small file of this machine, which is the cheapest way for very many of them; None
    where it is to be opened with `open_text`: it is larger, compressed, in a store, or a part of a file.

    Raises:
      ConfigError: for a file that cannot be read or is no text.
    """
    path = split.path
    if not split.is_whole or files.is_remote(path):
        return None
    try:
        content = _beginning(path)
    except OSError as error:
        raise files.unreadable(path, error) from None
    is_small = len(content) < _SMALL_BYTES
    if not is_small or compressed.is_compressed(content) or text_kinds.is_parquet(content):
        return None
    text_kinds.refuse_archive(path, content)
    text_kinds.refuse_binary(path, content)
    return None if text_kinds.ends_lines_with_returns(content) else content


@functools.lru_cache(maxsize=8)
def _head_of(path: str, version: tuple[int, int]) -> bytes:
    """Returns the first bytes of the text of a compressed file, once for its splits."""
    del version  # another one is another file
    with files.open_binary(path) as file:
        magic = file.read(compressed.MAGIC_BYTES)
        file.seek(0)
        return compressed.text_of(file, magic).read(text_kinds.HEAD_BYTES)

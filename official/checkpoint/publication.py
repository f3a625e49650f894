"""The end of a conversion: the result is written beside its place, read back, compared and published."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from official.checkpoint.errors import DamagedError
from official.checkpoint.format import Container, Format
from official.checkpoint.mapping.tensors import Tensor, Tensors
from official.checkpoint.options import Options
from official.io import vocabulary_files, writing
from official.io.errors import ConfigError, shortened

# Is called with the bytes written so far and in all.
ProgressOfAll = Callable[[int, int], None]
_BOOKKEEPING = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")


class MismatchError(Exception):
    """The written result differs from the tensors that it was made of."""


@contextlib.contextmanager
def work_folder(folder: str) -> Iterator[str]:
    """Yields a folder in which the result is made and checked, beside its place."""
    with contextlib.ExitStack() as stack:
        with writing_to(folder):
            work = stack.enter_context(writing.unpublished(folder))
        yield work


def publish(container: Container, work: str, location: str, obsolete: Iterable[str]) -> None:
    """Puts the result in its place, and takes away what is left of an older one.

    Args:
      container: of the result's format.
      work: of `work_folder`, in the folder of the result.
      location: of the result.
      obsolete: files beside the result, there or not, that the result has none in place of.
    """
    of_vocabulary = (
        vocabulary_files.VOCABULARY,
        vocabulary_files.TOKENIZER,
        vocabulary_files.TOKENIZER_CONFIG,
    )
    brings_one = os.path.exists(
        os.path.join(work, vocabulary_files.VOCABULARY)
    )  # otherwise an older one stays
    old = [
        path
        for path in (*container.files(location), *obsolete)
        if brings_one or os.path.basename(path) not in of_vocabulary
    ]
    with writing_to(location):
        writing.publish_all(work, os.path.dirname(work), container.LAST, old)


@contextlib.contextmanager
def writing_to(path: str) -> Iterator[None]:
    """Makes of what fails in its block a ConfigError that names the path."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), repr(error))
        raise ConfigError(f"{path} cannot be written: {reason}.") from None


def write(target: Format, tensors: Tensors, location: str, options: Options, progress: ProgressOfAll) -> None:
    """Writes the tensors; `progress` is called with the bytes written so far and in all. Raises
    ConfigError."""
    total, done = sum(tensor.nbytes for tensor in tensors.values()), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    with writing_to(location):
        target.write(tensors, location, options, count)


def read_back_and_compare(container: Container, wanted: Tensors, location: str) -> int:
    """Compares what was written with what was to be written. Returns the number of tensors."""
    try:
        written = container.read(location)
    except DamagedError as error:
        raise MismatchError(f"read back, the result is damaged ({error}).") from None
    return _compare(written, wanted)


def _compare(written: Tensors, wanted: Tensors) -> int:
    """Reads the result back and compares it bit by bit. Returns the number of tensors."""
    problems = [name for name in written.keys() ^ wanted.keys() if name not in _BOOKKEEPING]
    for name in written.keys() & wanted.keys():
        ours, theirs = wanted[name].read(), _read_back(name, written[name])
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape or ours.tobytes() != theirs.tobytes():
            problems.append(name)
    if problems:
        raise MismatchError(
            f"read back, these tensors differ from what was to be written: {shortened(sorted(problems))}."
        )
    return len(wanted)


def _read_back(name: str, tensor: Tensor) -> np.ndarray:
    try:
        return tensor.read()
    except DamagedError as error:
        raise MismatchError(f"read back, {name} is damaged ({error}).") from None

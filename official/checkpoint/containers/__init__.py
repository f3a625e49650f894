"""Kinds of files that hold tensors, one module each; they know no names of BERT's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from official.checkpoint.tensors import Tensors

Progress = Callable[[int], None]  # is called with the bytes written since the last call


class Container(Protocol):
    """A kind of files, a module of `containers`.

    Attributes:
      LAST: ending of the file without which the others count for nothing.
      IS_FOLDER: a checkpoint is a whole folder, not some files in one.
    """

    LAST: str
    IS_FOLDER: bool

    def locate(self, path: str) -> str | None:
        """Returns the location of the checkpoint that a file, prefix or folder means; None without one."""

    def read(self, location: str) -> Tensors:
        """Returns tensors that are read when they are asked for. Raises DamagedError for damaged files, also
        then."""

    def write(self, tensors: Tensors, location: str, progress: Progress) -> None:
        """Writes into a folder of its own, which the caller publishes."""

    def target(self, output_dir: str, source: str) -> str:
        """Returns the location of a conversion of `source`."""

    def files(self, location: str) -> list[str]:
        """Returns the files of a checkpoint that are there."""

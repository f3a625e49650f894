"""The input of packing, in parts that tasks read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from official.data.packing import spills
from official.data.pretraining import inspection
from official.data.pretraining.examples import Examples
from official.data.records.formats import packed
from official.io import files as io_files
from official.io import workers
from official.io.errors import ConfigError

_PARTS = 64  # at least, where the input is large
_FEWEST_PART_BYTES, _MOST_PART_BYTES = 8 << 20, 64 << 20


class Shape(NamedTuple):
    """Format and sizes of the records of all input files."""

    record_format: str
    max_seq_length: int
    max_predictions_per_seq: int


@dataclasses.dataclass(frozen=True)
class Part:
    """Input files that follow each other, which a task reads: (path, bytes) of each; and their states, of
    `files.states`, when the job was planned."""

    number: int
    files: tuple[tuple[str, int], ...]
    shape: Shape
    states: dict[str, str]

    def named(self) -> str:
        """Returns the name of the file, or the names of the first and the last one."""
        names = [path for path, _ in self.files]
        return names[0] if len(names) == 1 else f"{names[0]}, or a file up to {names[-1]},"


def parts_of(
    paths: list[str], sizes: list[int], shape: Shape, states: Mapping[str, str] | None = None
) -> list[Part]:
    """Puts small files that follow each other together: very many would make as many blocks, almost empty."""
    groups: list[list[tuple[str, int]]] = []
    most, left = min(max(sum(sizes) // _PARTS, _FEWEST_PART_BYTES), _MOST_PART_BYTES), 0
    for path, size in zip(paths, sizes):
        if not groups or size > left:
            groups.append([])
            left = most
        groups[-1].append((path, size))
        left -= size
    return [
        Part(number, tuple(group), shape, {path: states[path] for path, _ in group} if states else {})
        for number, group in enumerate(groups)
    ]


def shape_of(path: str) -> Shape:
    """Returns the shape of a file's first record. Raises ConfigError where that is none of ours."""
    return _shape(*inspection.describe_first(path, None))


def _shape(kind: str, features: dict) -> Shape:
    return Shape(kind, features["input_ids"].length, features["masked_lm_ids"].length)


def _features(path: str, shape: Shape) -> dict:
    """Returns the schema of a file's examples. Raises ConfigError where it holds records of another shape."""
    kind, features = inspection.describe_first(path, None)
    if (found := _shape(kind, features)) != shape:
        raise ConfigError(f"{path}, record 1: it is {_named(found)}; the first file's are {_named(shape)}.")
    for name in ("input_ids", "masked_lm_ids"):
        features[name] = dataclasses.replace(features[name], limit=packed.VOCABULARY_LIMIT)
    return features


def _named(shape: Shape) -> str:
    return "{}, {} tokens, {} predictions at most".format(*shape)


def examples(part: Part) -> Iterator[Examples]:
    """Yields the examples of a part, some at a time, and tells the bar which files are done.

    Raises:
      ConfigError: for records that are wrong, or of another shape; at the end for a file that was changed
        since the job was planned.
    """
    for path, size in part.files:
        features = _features(path, part.shape)
        for _, values in inspection.read_checked(path, part.shape.record_format, features):
            yield spills.examples_of(values)
        workers.report(size, 0)
    io_files.check_unchanged(part.states)

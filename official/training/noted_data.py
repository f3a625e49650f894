"""Data files that a run began with, saved in its folder and compared when it is resumed.

For each file its size and a digest of some of its bytes are kept, so that terabytes are compared in seconds.
The order of the files counts, their folders do not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from absl import logging

from official.config import Config, ConfigError
from official.io import files, json_files
from official.io.writing import replace_file

FILE_NAME = "data_files.json"
_WHOLE_BYTES = 1 << 20  # of a file that is read from its beginning to its end
_SAMPLE_BYTES = 1 << 16  # of others: at the beginning, in the middle and at the end
_READERS = 16
Notes = dict  # {split: list of its DataFiles}, in the order in which they are read


class DataFile(NamedTuple):
    """Name, size and digest of a data file."""

    name: str
    bytes: int
    digest: str

    def describe(self) -> str:
        return f"{self.name} ({self.bytes:,} bytes, {self.digest[:8]})"


def note(model_dir: str, data_files: Mapping[str, list[str]]) -> None:
    """Saves the data files, {split: paths}, that a run begins with. Raises OSError."""
    _write(model_dir, {split: _look_at(paths) for split, paths in data_files.items()}, False)


def have_changed(config: Config, data_files: Mapping[str, list[str]]) -> bool:
    """Tells whether a resumed run has, or once had, other data than it began with, and saves the present
    ones.

    Args:
      config: configuration of the run.
      data_files: {split: paths}.

    Raises:
      ConfigError: with --deterministic, where the data differ now; for a damaged file.
    """
    noted, changed = _read(config.model_dir)
    found: Notes = {split: _look_at(paths) for split, paths in data_files.items()}
    told = {split: _difference(found[split], noted[split]) for split in found if split in noted}
    differences = [f"{split}: {difference}" for split, difference in told.items() if difference]
    if differences and config.deterministic:
        raise ConfigError(
            f"--model_dir={config.model_dir} was begun with other data; {differences[0]}. Give the same"
            " files, drop --deterministic, or give another --model_dir."
        )
    if differences:
        logging.warning("The data are not those that this run began with; %s", "; ".join(differences))
    _write(config.model_dir, {**noted, **found}, changed or bool(differences))
    return changed or bool(differences)


def _write(model_dir: str, notes: Notes, changed: bool) -> None:
    values = {"changed": changed, "files": {split: list(map(list, own)) for split, own in notes.items()}}
    replace_file(os.path.join(model_dir, FILE_NAME), json.dumps(values) + "\n")


def _read(model_dir: str) -> tuple[Notes, bool]:
    """Returns ({split: data files}, whether they changed earlier), as saved by `_write`; empty where an older
    version began the run."""
    path = os.path.join(model_dir, FILE_NAME)
    if not files.is_file(path):
        return {}, False
    values = json_files.read_json(path)
    try:
        notes = {split: [DataFile(*own) for own in some] for split, some in values["files"].items()}
        return notes, bool(values["changed"])
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(f"{path} is damaged. Restore or remove it.") from None


def _look_at(paths: list[str]) -> list[DataFile]:
    sizes = files.sizes(paths)
    with ThreadPoolExecutor(_READERS) as readers:
        digests = readers.map(_digest, paths, sizes)
        names = map(os.path.basename, paths)
        return [DataFile(*about) for about in zip(names, sizes, digests)]


def _digest(path: str, size: int) -> str:
    """Returns a digest of a small file, or of the beginning, middle and end of a large one."""
    places = (0, size // 2, size - _SAMPLE_BYTES) if size > _WHOLE_BYTES else (0,)
    length = _SAMPLE_BYTES if len(places) > 1 else size
    digest = hashlib.blake2b(digest_size=16)
    try:
        with files.naming(path), files.reading_parts(path) as read:
            for place in places:
                digest.update(read(place, length))
    except ConfigError:
        raise
    except ValueError as error:  # it ends before
        raise ConfigError(f"{path} was changed while it was read ({error}).") from None
    return digest.hexdigest()


def _difference(ours: list[DataFile], noted: list[DataFile]) -> str | None:
    """Returns a description of the first difference between the files of a split and the saved ones; None
    where they are equal."""
    if [own[1:] for own in ours] == [own[1:] for own in noted]:
        return None
    if len(ours) != len(noted):
        names, earlier = ({own.name for own in some} for some in (ours, noted))
        told = [f"{name} is new" for name in sorted(names - earlier)]
        told += [f"{name} is missing" for name in sorted(earlier - names)]
        return f"{len(ours):,} files, there were {len(noted):,}" + (f" ({told[0]})" if told else "")
    own, before = next((own, before) for own, before in zip(ours, noted) if own[1:] != before[1:])
    return f"{own.describe()} in place of {before.describe()}"

"""Converts text to rows of tokens in memory, for the batches of `token_rows`, and caches them.

Every task on labelled text starts here: `encode` converts columns of text to rows, unless the task makes rows
itself; `kept` caches arrays that take long to compute.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from official.data.pretraining.examples import kept_lengths
from official.data.rows import ragged
from official.data.word_pieces.tokenizer import Tokenizer
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import json_files, writing
from official.io.errors import ConfigError

_SHOWN_PROBLEMS = 3  # maximum in a log line; `Table.problems` has all


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """N rows of T tokens in all: row n is ids[starts[n]:starts[n] + lengths[n]].

    Tokens before `first_lengths` have segment id 0, the others 1. `columns` are further values of rows,
    {name: [N, ...] array}, `token_columns` values of tokens, {name: [T] array}, -1 for padding. With a
    `group` G above 1, an example is G consecutive rows: features of a batch are [B, G, L], and `columns` are
    values of examples.
    """

    ids: np.ndarray  # [T] any integer type
    lengths: np.ndarray  # [N] integers, from 1 on
    first_lengths: np.ndarray  # [N] integers
    columns: dict[str, np.ndarray]
    token_columns: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    group: int = 1

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.lengths) // self.group

    @property
    def example_lengths(self) -> np.ndarray:
        """[examples]: number of tokens in the longest row of each."""
        return self.lengths if self.group == 1 else self.lengths.reshape(-1, self.group).max(axis=1)

    @property
    def starts(self) -> np.ndarray:
        return ragged.offsets(self.lengths)[:-1]


@dataclasses.dataclass(frozen=True)
class Table:
    """The N usable rows of a file, in its order."""

    path: str
    texts: tuple[list[str], ...]  # one list of N texts, or two for pairs
    labels: np.ndarray | None  # [N] int32 classes or float32 scores; None if not read
    # {line of a faulty row, from 1 with a header: fault}; skipped, or, without labels, kept with its fields
    problems: dict[int, str]

    def __len__(self) -> int:
        return len(self.texts[0])

    def describe(self) -> str:
        """Returns a line for the log: the number of rows, and the line numbers and faults of faulty ones."""
        text = f"{self.path}: {len(self):,} rows"
        if self.problems:
            shown = [f"line {line} {fault}" for line, fault in [*self.problems.items()][:_SHOWN_PROBLEMS]]
            more = ["..."] * (len(self.problems) > _SHOWN_PROBLEMS)
            kind = "malformed" if self.labels is None else "skipped"
            text += f"; {len(self.problems):,} {kind}: {'; '.join(shown + more)}"
        return text + "."


def encode(
    texts: Sequence[list[str]], tokenizer: Tokenizer, vocabulary: Vocabulary, max_seq_length: int
) -> tuple[TokenRows, np.ndarray]:
    """Returns [CLS] A [SEP], or [CLS] A [SEP] B [SEP], for each row of texts, and int32 [N], its number of
    tokens before truncation. Some vocabularies have two [SEP] between A and B.

    Args:
      texts: one column of N texts, or two for pairs.
      tokenizer: the tokenizer.
      vocabulary: the vocabulary, for the ids of [CLS] and [SEP].
      max_seq_length: maximum number of tokens in a row, 3 or more. The longer text of a pair (of equals: B)
        loses its last token until both fit.

    Source: `convert_single_example` and `_truncate_seq_pair` of Google's run_classifier.py.
    """
    tokens, lengths = zip(*map(tokenizer.tokenize, texts))
    pairs, special = len(texts) == 2, vocabulary.special_ids
    behind = (vocabulary.separators, 1) if pairs else (1,)  # number of [SEP] after each text
    room = max(max_seq_length - 1 - sum(behind), 0)
    kept = kept_lengths(lengths[0], lengths[1], room) if pairs else (np.minimum(lengths[0], room),)
    totals = np.asarray(1 + sum(behind) + np.sum(kept, axis=0, dtype=np.int32))
    starts = ragged.offsets(totals)[:-1]
    ids = np.full(totals.sum(), special.sep, tokens[0].dtype)
    ids[starts] = special.cls
    position = starts + 1
    for own_tokens, own_lengths, own_kept, separators in zip(tokens, lengths, kept, behind):
        source = ragged.ranges(ragged.offsets(own_lengths)[:-1], own_kept)
        ids[ragged.ranges(position, own_kept)] = own_tokens[source]
        position = position + own_kept + separators  # the separators are already in `ids`
    whole_lengths = np.asarray(1 + sum(behind) + np.sum(lengths, axis=0, dtype=np.int32))
    return TokenRows(ids, totals, (kept[0] + 1 + behind[0]).astype(np.int32), {}), whole_lengths


# -----------------------------------------------------------------------------------------------------------
# Cache


ARRAYS, MANIFEST = "features.npz", "manifest.json"


def kept(folder: str, wanted: dict, make: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns arrays from a cache folder; makes and writes them unless the folder has them completely, with
    the manifest `wanted`. Files are written atomically.

    Raises:
      ConfigError: for a folder that cannot be written to; also the errors of `make`.
    """
    paths = os.path.join(folder, ARRAYS), os.path.join(folder, MANIFEST)
    try:
        manifest = json_files.read_json_or_empty(paths[1])
        with open(paths[0], "rb") as file:
            content = file.read()
        if manifest == {**wanted, "features_sha256": hashlib.sha256(content).hexdigest()}:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return dict(arrays)
    except OSError:
        pass
    made: dict[str, Any] = dict(make())
    buffer = io.BytesIO()
    np.savez(buffer, **made)
    content = buffer.getvalue()
    manifest = {**wanted, "features_sha256": hashlib.sha256(content).hexdigest()}
    try:
        writing.put_file(paths[0], content)
        writing.replace_file(paths[1], json_files.written(manifest))
    except OSError as error:
        raise ConfigError(f"the features cannot be written to {folder}: {error.strerror or error}.") from None
    return made

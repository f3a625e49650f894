"""Text -> rows of tokens in memory, of which batches are made (`token_rows`), and their cache.

Every task on labelled text begins here, wherever its texts come from: columns of text become rows with
`encode`, or are cut into rows by the task itself; `kept` keeps arrays that take long to make.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from official.data.pretraining.examples import kept_lengths
from official.data.rows import ragged
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import Tokenizer
from official.io import json_files, writing
from official.io.errors import ConfigError

_SHOWN_PROBLEMS = 3  # in one line of a log; `Table.problems` has them all


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """N rows of T tokens altogether: row n is ids[starts[n]:starts[n] + lengths[n]].

    Tokens before `first_lengths` have segment id 0, the others 1. `columns` are what else a row has,
    {name: [N] array}.
    """

    ids: np.ndarray  # [T] any integer type
    lengths: np.ndarray  # [N] integers, from 1 on
    first_lengths: np.ndarray  # [N] integers
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        return ragged.offsets(self.lengths)[:-1]


class RowProblem(NamedTuple):
    """A row of a file that is not as it should be."""

    path: str
    line: int  # counted from 1, a header among them
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Table:
    """The N usable rows of one file, in its order."""

    path: str
    texts: tuple[list[str], ...]  # one list of N texts, or two for pairs
    labels: np.ndarray | None  # [N] int32 classes or float32 scores; None where they are not read
    problems: list[RowProblem]  # rows that were skipped, or, without labels, kept with what they have

    def __len__(self) -> int:
        return len(self.texts[0])

    def describe(self) -> str:
        """Returns one line for a log: how many rows, and what was wrong with how many others."""
        text = f"{self.path}: {len(self):,} rows"
        if self.problems:
            shown = [f"line {line} {reason}" for _, line, reason in self.problems[:_SHOWN_PROBLEMS]]
            more = ["..."] * (len(self.problems) > _SHOWN_PROBLEMS)
            kind = "malformed" if self.labels is None else "skipped"
            text += f"; {len(self.problems):,} {kind}: {'; '.join(shown + more)}"
        return text + "."


def encode(
    texts: Sequence[list[str]], tokenizer: Tokenizer, vocabulary: Vocabulary, max_seq_length: int
) -> tuple[TokenRows, int]:
    """Returns [CLS] A [SEP], or [CLS] A [SEP] B [SEP], of each row of texts, and how many rows lost tokens.

    Args:
      texts: one column of N texts, or two for pairs.
      tokenizer: makes ids of texts.
      vocabulary: has the ids of [CLS] and [SEP].
      max_seq_length: tokens of a row, at most, from 3 on. The longer text of a pair (of equals: B) loses its
        last token until both fit.

    Source: `convert_single_example` and `_truncate_seq_pair` of Google's run_classifier.py.
    """
    tokens, lengths = zip(*map(tokenizer.tokenize, texts))
    room = max(max_seq_length - 1 - len(texts), 0)
    pairs = len(texts) == 2
    kept = kept_lengths(lengths[0], lengths[1], room) if pairs else (np.minimum(lengths[0], room),)
    totals = np.asarray(1 + np.sum([count + 1 for count in kept], axis=0, dtype=np.int32))
    starts = ragged.offsets(totals)[:-1]
    ids = np.full(totals.sum(), vocabulary.id_of("[SEP]"), tokens[0].dtype)
    ids[starts] = vocabulary.id_of("[CLS]")
    position = starts + 1
    for own_tokens, own_lengths, own_kept in zip(tokens, lengths, kept):
        source = ragged.ranges(ragged.offsets(own_lengths)[:-1], own_kept)
        ids[ragged.ranges(position, own_kept)] = own_tokens[source]
        position = position + own_kept + 1  # over the [SEP] that is there already
    is_truncated = np.any([own < whole for own, whole in zip(kept, lengths)], axis=0)
    return TokenRows(ids, totals, (kept[0] + 2).astype(np.int32), {}), int(is_truncated.sum())


# -----------------------------------------------------------------------------------------------------------
# Cache


ARRAYS, MANIFEST = "features.npz", "manifest.json"


def kept(folder: str, wanted: dict, make: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns arrays from a folder that keeps them; makes and writes them where they are not there, whole,
    with the manifest `wanted`. Each file is there whole or not at all.

    Raises:
      ConfigError: for a folder that cannot be written to; and what `make` raises.
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
    made, buffer = dict(make()), io.BytesIO()
    np.savez(buffer, **made)
    content = buffer.getvalue()
    manifest = {**wanted, "features_sha256": hashlib.sha256(content).hexdigest()}
    try:
        os.makedirs(folder, exist_ok=True)
        writing.replace_file(paths[0], content)
        writing.replace_file(paths[1], json.dumps(manifest, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"the features cannot be written to {folder}: {error.strerror or error}.") from None
    return made

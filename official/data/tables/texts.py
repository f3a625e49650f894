"""Reads texts and labels of tables as token ids, for classification and embeddings.

Only token ids are kept in memory, for ten million rows. Texts for a report are read again.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from absl import logging

from official.data.rows.text_rows import TokenRows
from official.data.tables.files import Table
from official.data.tables.labels import MISSING, Labels, Reader
from official.io.errors import ConfigError, counted

SHOWN_PROBLEMS = 3  # maximum in a message
# Column and values of the rows in Prodigy's exports whose label an annotator did not accept.
ANSWER, REJECTED = "answer", ("reject", "ignore")
_MAX_SHARE_BAD = 0.5  # share of faulty rows; a file with more is probably misread


@dataclasses.dataclass(frozen=True)
class TextRows:
    """N usable rows of a table: their tokens, as of `text_rows.encode`, and labels.

    Attributes:
      ids: [T] tokens of all rows; a row has `group` pairs, or texts.
      lengths, first_lengths, whole_lengths: int32 [N x group].
      labels: see `labels.Reader.finish`; None if not read.
      numbers: int64 [N], number of the row in the table, from 1 on.
      row_ids: uint64 [N], as of `ids_of`.
      problems: {row of the table: fault} of the first rows that are left out.
      bad: number of rows that are left out.
      group: number of a row's pairs, one per text to choose from; or of its texts, if encoded separately.
      text_ids: int64 [N x group] of separately encoded texts, equal for equal texts; else empty.
    """

    ids: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray
    whole_lengths: np.ndarray
    labels: np.ndarray | None
    numbers: np.ndarray
    row_ids: np.ndarray
    problems: dict[int, str]
    bad: int
    group: int
    text_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def pick(self, chosen_N: np.ndarray) -> TextRows:
        """Returns the rows selected by a bool mask."""
        is_chosen = np.repeat(chosen_N, self.group)
        return dataclasses.replace(
            self,
            ids=self.ids[np.repeat(is_chosen, self.lengths)],
            **{
                name: getattr(self, name)[is_chosen] for name in ("lengths", "first_lengths", "whole_lengths")
            },
            labels=None if self.labels is None else self.labels[chosen_N],
            numbers=self.numbers[chosen_N],
            row_ids=self.row_ids[chosen_N],
            text_ids=self.text_ids[is_chosen[: len(self.text_ids)]],
        )

    def parts(self, share: float) -> tuple[TextRows, TextRows]:
        """Splits the rows by a hash of their texts into rows to train on and a held-out share. Raises
        ConfigError if either is empty."""
        is_held_N = self.row_ids / 2.0**64 < share  # as of `share_of`
        kept, held = self.pick(~is_held_N), self.pick(is_held_N)
        tell_held_out(len(kept), len(held), "row")
        return kept, held

    @property
    def truncated(self) -> int:
        """Number of truncated pairs, or texts."""
        return int((self.lengths < self.whole_lengths).sum())

    def facts(self) -> dict[str, Any]:
        """Returns the counts and problems of the rows."""
        return {
            "rows": len(self),
            "tokens": int(self.lengths.sum()),
            "truncated": self.truncated,
            "left_out": self.bad,
            "problems": [f"row {number}: {reason}" for number, reason in self.problems.items()],
        }

    def describe_problems(self) -> str:
        """Returns the number of rows left out, and the faults of the first ones."""
        shown = [f"row {number}: {reason}" for number, reason in list(self.problems.items())[:SHOWN_PROBLEMS]]
        return f"{self.bad:,} rows left out: {'; '.join(shown)}{'; ...' * (self.bad > len(shown))}"


def tell_held_out(kept: int, held: int, noun: str) -> None:
    """Logs the number of held-out rows, or sentences. Raises ConfigError if it is none or all."""
    if not (kept and held):
        problem = f"of {counted(kept + held, noun)} {held:,} are held out"
        raise ConfigError(f"{problem}. Raise --eval_share, or give --eval_file.")
    logging.info("%s held out for evaluation, %s to train on", counted(held, noun), f"{kept:,}")


def tell_shared(given: str, scored_N: np.ndarray, trained_N: np.ndarray, what: str = "rows") -> None:
    """Warns of rows that are both scored and trained on; both arguments are as of `ids_of`."""
    if shared := int(np.isin(scored_N, trained_N).sum()):
        warning = "%s: %s of %s %s are in --train_file, too: their scores are those of training data"
        logging.warning(warning, given, f"{shared:,}", f"{len(scored_N):,}", what)


def read_texts(
    table: Table,
    text_columns: Sequence[str],
    encode: Callable[[Sequence[list[str]]], tuple[TokenRows, np.ndarray]],
    reader: Reader | None = None,
    label_column: str | None = None,
    apart: bool = False,
    deciding: int | None = None,
) -> tuple[TextRows, Labels | None]:
    """Reads the rows of a table that have texts and, with a `reader`, a label.

    Args:
      text_columns: names of one column, or two for pairs; more are a text and the texts to choose from.
      encode: columns of texts -> tokens, and lengths before truncation.
      apart: whether each text of a row is encoded separately.
      deciding: number of first texts of a row that determine its id. None: all.

    Raises:
      ConfigError: if fewer than half of the rows, or none, are usable, or a text is the label.
    """
    if reader and label_column in text_columns:
        raise ConfigError(f"--label_column={label_column} is one of --text_columns: the text has the answer.")
    group = len(text_columns) if apart else max(len(text_columns) - 1, 1)
    parts: tuple[list[np.ndarray], ...] = ([], [], [], [], [], [], [])
    problems: dict[int, str] = {}
    bad, total = 0, 0
    missing: Counter[str] = Counter()  # {text that stands for a missing one: number of its rows}
    names = [*text_columns, *([label_column] if reader and label_column else [])]
    is_judged = reader is not None and ANSWER in table.columns and ANSWER not in names
    for batch in table.batches(list(dict.fromkeys([*names, *([ANSWER] if is_judged else [])]))):
        texts = [batch.columns[name] for name in text_columns]
        labels = batch.columns[label_column] if reader and label_column else [None] * len(texts[0])
        kept: list[tuple[str, ...]] = []
        own: list[int] = []  # numbers of the batch's rows, which become an array: there may be millions
        for number, (row, label) in enumerate(zip(zip(*texts), labels)):
            wrong = batch.problems.get(number) or wrong_text(row)
            if is_judged and wrong is None and (answer := batch.columns[ANSWER][number]) in REJECTED:
                wrong = f"answer is {answer!r}, of Prodigy"
            if wrong is None and reader:
                wrong = reader.read(label, row[1:])
            if wrong is not None:
                bad += 1
                if len(problems) < 100:
                    problems[batch.first + number + 1] = wrong
                continue
            if not MISSING.isdisjoint(row):
                missing.update(MISSING & set(row))
            kept.append(row)
            own.append(batch.first + number + 1)
        total += len(labels)
        if kept:
            columns = tuple(map(list, zip(*kept)))
            if apart:
                columns = ([text for row in kept for text in row],)
            elif group > 1:
                columns = (
                    [row[0] for row in kept for _ in row[1:]],
                    [text for row in kept for text in row[1:]],
                )
            encoded, whole_lengths = encode(columns)
            made = encoded.ids, encoded.lengths, encoded.first_lengths, whole_lengths
            text_ids = ids_of([text] for text in columns[0] if apart).view(np.int64)
            of_rows = np.array(own, np.int64), ids_of(row[:deciding] for row in kept), text_ids
            for arrays, array in zip(parts, (*made, *of_rows)):
                arrays.append(array)
    if bad > _MAX_SHARE_BAD * total or not parts[0]:
        shown = "; ".join(f"row {row}: {reason}" for row, reason in list(problems.items())[:SHOWN_PROBLEMS])
        raise ConfigError(f"--{table.flag}={table.given}: {bad:,} of {total:,} rows cannot be used: {shown}.")
    for text, rows in missing.items():
        warning = "%s: %s with the text %r, which many files have for a missing one"
        logging.warning(warning, table.given, counted(rows, "row"), text)
    known, values = reader.finish() if reader else (None, None)
    ids, lengths, first_lengths, whole_lengths, numbers, row_ids_N, text_ids = map(_joined, parts)
    tokens = ids, lengths, first_lengths, whole_lengths
    return TextRows(*tokens, values, numbers, row_ids_N, problems, bad, group, text_ids), known


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Concatenates arrays and frees them."""
    joined = np.concatenate(arrays)
    arrays.clear()
    return joined


def wrong_text(row: Sequence) -> str | None:
    """Returns the fault of the texts of a row; None if there is none."""
    for text in row:
        if text is None or isinstance(text, str) and not text.strip():
            return "has no text"
        if not isinstance(text, str):
            return f"text {str(text)[:40]} is not a text"
    return None


def share_of(texts: Sequence[str]) -> float:
    """Returns a number in [0, 1) that depends only on the texts of a row."""
    return _digest(texts) / 2**64


def ids_of(rows: Iterable[Sequence[str]]) -> np.ndarray:
    """Returns uint64 [N], hashes of rows, equal for equal texts."""
    return np.array([_digest(texts) for texts in rows], np.uint64)


def _digest(texts: Sequence[str]) -> int:
    """Returns a 64-bit hash of texts."""
    digest = hashlib.blake2b("\x1f".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def rows_again(table: Table, columns: Sequence[str], numbers: Collection[int]) -> dict[int, list]:
    """Reads a few rows again. Returns {row of the table: its values in the columns}."""
    wanted, found = set(numbers), {}
    for batch in table.batches(list(dict.fromkeys(columns)), 1 << 16):
        for number, row in enumerate(zip(*(batch.columns[name] for name in columns)), batch.first + 1):
            if number in wanted:
                found[number] = list(row)
        if len(found) == len(wanted):
            break
    return found

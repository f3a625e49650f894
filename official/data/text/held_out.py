"""Choice of the documents held out for evaluation: a function of a document's own text, and of nothing else.

Text that is added, files that are renamed, cut, compressed or read in another order, other tokens, other
workers: a document stays on its side. So do its copies. Of two shares, the smaller one's documents are among
the larger one's.
"""

import collections
import hashlib
from collections.abc import Iterator

import numpy as np

from official.data.text.sentences import Lines
from official.io.errors import ConfigError

SIDES = ("train", "eval")


def check(side: str | None, eval_share: float | None) -> None:
    """Raises ConfigError for a side or a share that is not allowed, and for one without the other."""
    if (side is None) != (eval_share is None):
        given, absent = ("eval_share", "side") if side is None else ("side", "eval_share")
        raise ConfigError(
            f"--{given} needs --{absent}: --side=train --eval_share=0.005 reads all documents but those held"
            " out, --side=eval --eval_share=0.005 these alone."
        )
    if side is not None and side not in SIDES:
        raise ConfigError(f"--side={side} is unknown. Allowed: {', '.join(SIDES)}.")
    if eval_share is not None and not 0 < eval_share < 1:
        raise ConfigError(f"--eval_share={eval_share} is out of range. Allowed: above 0, below 1.")


def side_of(text: str, eval_share: float) -> str:
    """Returns "train" or "eval" for a document, as it was read.

    White space makes no difference: neither where the text is split into sentences, nor how lines end.
    """
    return SIDES[digest_of(text) < eval_share * 2**64]


def digest_of(text: str, purpose: bytes = b"") -> int:
    """Returns 64 bits of a document's text without its white space; others for another purpose, of up to 16
    bytes."""
    plain = "".join(text.split()).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8, person=purpose).digest(), "little")


def of_side(
    parts: Iterator[Lines], side: str, eval_share: float, counts: collections.Counter
) -> Iterator[Lines]:
    """Yields the documents of one side.

    Args:
      parts: documents, some at a time.
      side, eval_share: which ones are wanted.
      counts: `other_side_documents` and `other_side_sentences` are brought up to date: what is left out.
    """
    for lines in parts:
        texts = document_texts(lines)
        wanted = np.array([side_of(text.decode(), eval_share) == side for text in texts], bool)
        others = lines.counts[~wanted]
        counts.update(
            other_side_documents=int(np.count_nonzero(others)), other_side_sentences=int(others.sum())
        )
        kept = b"".join(text for text, is_wanted in zip(texts, wanted) if is_wanted)
        yield Lines(kept, lines.counts[wanted])


def document_texts(lines: Lines) -> list[bytes]:
    """Returns the lines of each document."""
    ends = np.flatnonzero(np.frombuffer(lines.text, np.uint8) == ord("\n")) + 1
    bounds = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(lines.counts)]).astype(int)].tolist()
    return [lines.text[first:end] for first, end in zip(bounds, bounds[1:])]

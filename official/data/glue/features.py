"""GLUE's rows -> token ids: [CLS] A [SEP], or [CLS] A [SEP] B [SEP], of all rows in one array.

Source: `convert_single_example` and `_truncate_seq_pair` of Google's run_classifier.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from official.data.glue.tsv_files import GlueRows
from official.data.pretraining.pairs import kept_lengths
from official.data.rows import ragged
from official.data.word_pieces.tokenization import Tokenizer
from official.data.word_pieces.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class GlueFeatures:
    """N examples of T tokens altogether. Those of example n are ids[starts[n]:starts[n] + lengths[n]].

    Tokens before `first_lengths` have segment id 0, the others 1.
    """

    ids: np.ndarray  # [T] uint16, or int32 for vocabularies above 65,536 words
    lengths: np.ndarray  # [N] int32: tokens, at most max_seq_length, the special ones among them
    first_lengths: np.ndarray  # [N] int32: tokens of [CLS] A [SEP]
    labels: np.ndarray | None  # [N] int32 classes or float32 scores; None for the test set
    truncated: int  # examples that lost tokens

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """[N] int64: where the examples begin in `ids`."""
        return ragged.offsets(self.lengths)[:-1]


def make_features(
    rows: GlueRows, tokenizer: Tokenizer, vocabulary: Vocabulary, max_seq_length: int
) -> GlueFeatures:
    """Returns the features of all rows, in their order.

    Args:
      rows: texts, or pairs of texts, and labels.
      tokenizer: makes ids of texts.
      vocabulary: has the ids of [CLS] and [SEP].
      max_seq_length: tokens of an example, at most, from 3 on. The longer text of a pair (of equals: B) loses
        its last token until both fit.
    """
    tokens, lengths = zip(*(tokenizer.tokenize(texts) for texts in rows.texts))
    kept = _kept(lengths, max_seq_length)
    totals = np.asarray(1 + np.sum([count + 1 for count in kept], axis=0, dtype=np.int32))
    starts = ragged.offsets(totals)[:-1]
    ids = np.full(totals.sum(), vocabulary.id_of("[SEP]"), tokens[0].dtype)
    ids[starts] = vocabulary.id_of("[CLS]")
    position = starts + 1
    for part_tokens, part_lengths, part_kept in zip(tokens, lengths, kept):
        ids[ragged.ranges(position, part_kept)] = part_tokens[
            ragged.ranges(ragged.offsets(part_lengths)[:-1], part_kept)
        ]
        position = position + part_kept + 1  # over the [SEP] that is there already
    is_truncated = np.any(
        [part_kept < part_lengths for part_kept, part_lengths in zip(kept, lengths)], axis=0
    )
    return GlueFeatures(
        ids, totals, (kept[0] + 2).astype(np.int32), rows.labels, truncated=int(is_truncated.sum())
    )


def _kept(lengths: tuple[np.ndarray, ...], max_seq_length: int) -> tuple[np.ndarray, ...]:
    """Returns the number of tokens of each text that stay: [N] for one, or two of them for pairs."""
    room = max(max_seq_length - 1 - len(lengths), 0)
    return kept_lengths(*lengths, room) if len(lengths) == 2 else (np.minimum(lengths[0], room),)

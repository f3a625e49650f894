"""The formats in which examples are written, each a module of this package with the same functions.

plain    tf.train.Examples of Google's BERT and MLPerf
compact  blocks of examples, as 16-bit ids without padding
remask   tf.train.Examples of Graphcore's static mask: the predicted tokens first
"""

from __future__ import annotations

from types import ModuleType

from official.data.pretraining.examples import Examples
from official.data.records.encoding import compact, plain, remask
from official.data.word_pieces.vocabulary import Vocabulary
from official.io.errors import ConfigError

ENCODERS: dict[str, ModuleType] = {"plain": plain, "compact": compact, "remask": remask}


def check_vocabulary(vocabulary: Vocabulary, record_format: str) -> None:
    """Raises ConfigError for a vocabulary with more words than records of this format can hold."""
    limit = ENCODERS[record_format].VOCABULARY_LIMIT
    if vocabulary.size > limit:
        raise ConfigError(
            f"--record_format={record_format} holds up to {limit:,} words, the vocabulary has"
            f" {vocabulary.size:,}. Give a smaller"
            f" --vocab_file{', or write --record_format=plain' if record_format == 'compact' else ''}."
        )


def encode(examples: Examples, record_format: str, pad_position_value: int | None = None) -> list[bytes]:
    """Returns the records of a batch, in order, each of up to as many examples as its format's
    ROWS_PER_RECORD.

    A batch of about a thousand, a multiple of ROWS_PER_RECORD, is the fastest: it stays in the cache.

    Args:
      examples: N of them.
      record_format: one of ENCODERS.
      pad_position_value: `input_position` of unused slots in remask records, 0 to 2,097,151. None:
        max_seq_length.

    Raises:
      ConfigError: for a pad_position_value out of range.
      ValueError: for an id that the format cannot hold; `check_vocabulary` rules it out.
    """
    if record_format != "remask":
        return ENCODERS[record_format].encode(examples)
    value = examples.input_ids.shape[1] if pad_position_value is None else pad_position_value
    if not 0 <= value < remask.VOCABULARY_LIMIT:
        raise ConfigError(
            f"--pad_position_value={value} is out of range. Allowed: 0 to {remask.VOCABULARY_LIMIT - 1}."
        )
    return remask.encode(examples, value)

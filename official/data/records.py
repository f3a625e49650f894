"""Records of pre-training data in three formats, each a module of `official.data.record_formats`.

  plain    tf.train.Examples of Google's BERT and MLPerf
  compact  16-bit ids without padding
  remask   tf.train.Examples of Graphcore's static mask: the predicted tokens first

All are read into the same features, those of `schema.pretraining_schema`.
"""

import tensorflow as tf

from official.config import ConfigError
from official.data import schema as schema_lib
from official.data.examples import Examples
from official.data.record_formats import compact, plain, remask

FORMATS = {"plain": plain, "compact": compact, "remask": remask}


def check_vocabulary(vocabulary, record_format: str) -> None:
    """Raises ConfigError for a vocabulary with more words than records of this format can hold."""
    limit = FORMATS[record_format].VOCABULARY_LIMIT
    if vocabulary.size > limit:
        raise ConfigError(f"--record_format={record_format} holds up to {limit:,} words, the vocabulary has {vocabulary.size:,}. "
                          f"Give a smaller --vocab_file{', or write --record_format=plain' if record_format == 'compact' else ''}.")


def encode(examples: Examples, record_format: str, pad_position_value: int | None = None) -> list[bytes]:
    """Returns the records of a batch. A batch of about a thousand examples is the fastest: it stays in the cache.

    Args:
      examples: N of them.
      record_format: one of FORMATS.
      pad_position_value: `input_position` of unused slots in remask records, 0 to 2,097,151. None: max_seq_length.

    Raises:
      ConfigError: for a pad_position_value out of range.
      ValueError: for an id that the format cannot hold; `check_vocabulary` rules it out.
    """
    if record_format != "remask":
        return FORMATS[record_format].encode(examples)
    value = examples.input_ids.shape[1] if pad_position_value is None else pad_position_value
    if not 0 <= value < remask.VOCABULARY_LIMIT:
        raise ConfigError(f"--pad_position_value={value} is out of range. Allowed: 0 to {remask.VOCABULARY_LIMIT - 1}.")
    return remask.encode(examples, value)


def detect_format(record: bytes) -> str | None:
    """Returns the format of a record, or None where it has none of them. Only what tells the formats apart is looked at."""
    if record.startswith(compact.MAGIC):
        return "compact"
    features = schema_lib.read_example(record)
    if not features:
        return None
    return "remask" if "mask_padding_index" in features else "plain"


def parse_batch(serialized_B: tf.Tensor, schema: dict, record_format: str) -> dict[str, tf.Tensor]:
    """Parses a batch of records, shape [B], into {name: [B, length]}, the same for every format.

    Fails with InvalidArgumentError where one of them is of another format or has other lengths than the schema.
    """
    return FORMATS[record_format].parse_batch(serialized_B, schema)


def describe_mismatch(record: bytes, schema: dict, record_format: str) -> str | None:
    """Says how a record departs from the format and the schema, or None where it does not."""
    problem = FORMATS[record_format].describe_mismatch(record, schema)
    if problem is None:
        return None
    found = detect_format(record)
    return problem if found in (record_format, None) else f"it is a {found} record among {record_format} ones"


def sizes_of(record: bytes, record_format: str) -> tuple[int, int]:
    """Returns max_seq_length and max_predictions_per_seq of a record whose format was detected; 0 where it does not say."""
    return FORMATS[record_format].sizes_of(record)

"""What a run on IPUs trains on: plain or packed records, or random ones of their shape."""

from __future__ import annotations

import os
from typing import NamedTuple

import tensorflow as tf

from official.config import (
    UNKNOWN_WORD,
    Config,
    ConfigError,
    synthetic_sequences_per_pack,
    words_of_records,
)
from official.data import synthetic
from official.data.pipeline import TrainingOrder
from official.data.records import plain_batches
from official.data.records import schema as schema_lib
from official.data.records.streams import num_streams
from official.io import files as io_files
from official.io import vocabulary_files


class Records(NamedTuple):
    """Rows to train on.

    Attributes:
      config: of the run.
      files: of one format; none: random rows.
      schema: features of a row.
    """

    config: Config
    files: list
    schema: dict

    def num_rows(self) -> int | None:
        """Returns the rows of all files; None without files."""
        return plain_batches.num_rows(self.files) if self.files else None

    def batches(self, batch_size: int, order: TrainingOrder) -> tf.data.Dataset:
        """Returns endless batches {feature: [batch_size, ...]} with `example_weights`, behind what is
        done."""
        if self.files:
            streams = num_streams(len(self.files), batch_size)
            counts_path = os.path.join(self.config.model_dir, "record_counts.json")
            batches = plain_batches.training_dataset(
                self.files, self.schema, batch_size, order, streams, counts_path
            )
            return _fitted(self.config, batches) if self.config.fit_vocabulary else batches
        words, seed = self.config.model.vocab_size, self.config.seed
        if not schema_lib.is_packed(self.schema):
            return synthetic.synthetic_dataset(self.schema, words, batch_size, seed)
        average = synthetic_sequences_per_pack(self.config)
        return synthetic.endless(synthetic.packed_rows(self.schema, words, average, seed), batch_size)


def _fitted(config: Config, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Puts [UNK] where a record has a word beyond the model's vocabulary."""
    unknown = UNKNOWN_WORD
    if config.vocab_file:
        words = vocabulary_files.read(config.vocab_file).words
        vocabulary_files.check_words(words, f"--vocab_file={config.vocab_file}")
        unknown = words.index("[UNK]")
    return batches.map(lambda batch: schema_lib.with_known_words(batch, config.model.vocab_size, unknown))


def find(config: Config) -> Records:
    """Finds what a configuration trains on.

    Raises:
      ConfigError: for records that are missing, damaged or of another kind.
    """
    if config.static_mask:
        raise ConfigError(
            "static_mask=true does not go with --distribution_strategy=ipu, which reads plain and packed"
            " records. Write them without --remask."
        )
    words, depth = words_of_records(config), config.max_sequences_per_pack
    plain = schema_lib.pretraining_schema(config.max_seq_length, config.max_predictions_per_seq, words)
    if config.use_synthetic_data or config.generated_data or config.synthetic_input:
        slots = config.max_predictions_per_seq + (depth or 1) - 1
        packed = schema_lib.packed_schema(config.max_seq_length, slots, depth, words) if depth else plain
        return Records(config, [], packed)
    files = io_files.find_files(config.input_files or "", "input_files", in_folders="*.tfrecord")
    schema = plain_batches.find_schema(files, plain, "input_files")
    found = schema["cls_positions"].length if schema_lib.is_packed(schema) else None
    if depth not in (None, found):
        raise ConfigError(
            f"max_sequences_per_pack={depth}, but rows of --input_files hold up to {found or 1} sequences."
            " Drop --max_sequences_per_pack."
        )
    return Records(config, files, schema)

"""What a run on IPUs trains on: plain or packed records, or random ones of their shape."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.config import Config, ConfigError, synthetic_sequences_per_pack
from official.data import synthetic
from official.data.pipeline import TrainingOrder
from official.data.records import plain_batches, record_files
from official.data.records import schema as schema_lib


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

    def batches(self, batch_size: int, order: TrainingOrder) -> tf.data.Dataset:
        """Returns endless batches {feature: [batch_size, ...]} with `example_weights`, behind what is
        done."""
        if self.files:
            return plain_batches.plain_batches(self.files, self.schema, batch_size, order)
        words, seed = self.config.model.vocab_size, self.config.seed
        if not schema_lib.is_packed(self.schema):
            return synthetic.synthetic_dataset(self.schema, words, batch_size, seed)
        average = synthetic_sequences_per_pack(self.config)
        return synthetic.endless(synthetic.packed_rows(self.schema, words, average, seed), batch_size)


def find(config: Config) -> Records:
    """Finds what a configuration trains on.

    Raises:
      ConfigError: for records that are missing, damaged or of another kind.
    """
    sizes = config.max_seq_length, config.max_predictions_per_seq
    words = config.model.vocab_size
    made_up = config.use_synthetic_data or config.generated_data or config.synthetic_input
    files = [] if made_up else record_files.find_files(config.input_files, "input_files")
    if config.static_mask:
        raise ConfigError(
            "static_mask=true does not go with --distribution_strategy=ipu, which reads plain and packed"
            " records. Write them without --remask."
        )
    packed = record_files.row_sizes(files) if files else None
    depth = config.max_sequences_per_pack
    if packed is None and files and depth:
        raise ConfigError(
            f"max_sequences_per_pack={depth}, but the records of --input_files hold one sequence each. Drop"
            " --max_sequences_per_pack."
        )
    if packed is None and depth:  # random rows
        packed = config.max_predictions_per_seq + depth - 1, depth
    schema = schema_lib.pretraining_schema(*sizes, words)
    if packed:
        schema = schema_lib.packed_schema(config.max_seq_length, *packed, words)
    if files:
        record_files.check_first_record(files, schema, "input_files")
    return Records(config, files, schema)

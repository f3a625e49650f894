"""Pre-training of a run on IPUs, on plain or packed records, or random ones of their shape."""

from __future__ import annotations

import functools
import os

import tensorflow as tf

from official.config import encoder_options, synthetic_sequences_per_pack, words_of_records
from official.config.derived import num_streams
from official.config.table import Config
from official.data import synthetic
from official.data.pipeline import TrainingOrder
from official.data.records import batches as record_batches
from official.data.records import files as record_files
from official.data.records import schema as schema_lib
from official.io import files as io_files
from official.io.errors import ConfigError
from official.modeling import objectives
from official.modeling.models import BertPretrainer


class RecordsTask:
    """See `official.training.task.Task` for what each member means. It is `official.tasks.pretraining`
    through few modules; it shows no examples."""

    losses = objectives.PRETRAINING_LOSSES
    metrics = eval_metrics = objectives.PRETRAINING_METRICS
    output_names: tuple[str, ...] = ()
    target_metric = "mlm_accuracy"
    is_scored = False
    class_names = None
    local_epsilon = objectives.PRETRAINING_LOCAL_EPSILON

    def __init__(self, config: Config):
        self._config = config
        self.companions: dict[str, bytes] = {}
        self._files: dict[str, list] = {}  # by split; none: random rows
        self._schemas: dict[str, dict] = {}

    def find_data(self) -> list[str]:
        if self._config.generated_data:
            from official.data import generated  # late: it needs other packages

            self._config = generated.with_files(self._config)
        config = self._config
        if config.static_mask:
            raise ConfigError(
                "static_mask=true does not go with --distribution_strategy=ipu, which reads plain and packed"
                " records. Write them without --remask."
            )
        if config.do_train:
            self._find("train", "input_files")
        if config.do_eval:
            self._find("eval", "eval_files" if config.eval_files else "input_files")
        return sorted({path for files in self._files.values() for path in files})

    def _find(self, split: str, flag: str) -> None:
        config, depth = self._config, self._config.max_sequences_per_pack
        sizes = config.max_seq_length, config.max_predictions_per_seq, words_of_records(config)
        plain = schema_lib.pretraining_schema(*sizes)
        if config.use_synthetic_data or config.synthetic_input:
            length, slots, words = sizes
            packed = depth and schema_lib.packed_schema(length, slots + depth - 1, depth, words)
            self._files[split], self._schemas[split] = [], packed or plain
            return
        files = io_files.find_files(config[flag] or "", flag, in_folders="*.tfrecord")
        record_files.check_first_record(files, plain, flag)
        row_sizes = record_files.row_sizes(files, record_files.Wanted(*sizes[:2], depth))
        schema = schema_lib.packed_schema(sizes[0], *row_sizes, sizes[2]) if row_sizes else plain
        found = row_sizes[1] if row_sizes else None
        if depth not in (None, found):
            raise ConfigError(
                f"max_sequences_per_pack={depth}, but rows of --{flag} hold up to {found or 1} sequences."
                " Drop --max_sequences_per_pack."
            )
        self._files[split], self._schemas[split] = files, schema

    @functools.cached_property
    def train_samples(self) -> int | None:
        """Number of sequences in the training records, counted with --count_records; else None, and
        --num_steps_per_epoch sets the length of an epoch."""
        files = self._files.get("train")
        if not (self._config.count_records and self._config.do_train and files):
            return None
        return round(record_batches.num_rows(files, self._schemas["train"]) * (self.sequences_per_row or 1.0))

    @property
    def sequences_per_row(self) -> float | None:
        """Expected number of sequences per packed row, that of synthetic rows, as real rows are not counted
        beforehand; None for plain records."""
        schema = self._schemas.get("train", {})
        return synthetic_sequences_per_pack(self._config) if schema_lib.is_packed(schema) else None

    def build_model(self) -> BertPretrainer:
        return BertPretrainer(self._config.model, **encoder_options(self._config))

    # --------------------------------------------------------------------------------------------------------
    # Batches

    def train_dataset(self, global_batch: int, replica_batch: int, order: TrainingOrder) -> tf.data.Dataset:
        files = self._files["train"]
        if not files:
            return self.synthetic_dataset(replica_batch)
        streams = num_streams(len(files), global_batch)
        counts_path = os.path.join(self._config.model_dir, "record_counts.json")
        batches = record_batches.training_dataset(
            files, self._schemas["train"], replica_batch, order, streams, counts_path
        )
        return schema_lib.fitted(batches, self._config)

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        files, count = self._files["eval"], self._config.num_eval_samples
        if not files:
            return self.synthetic_dataset(batch_size, for_evaluation=True).take(-(-count // batch_size))
        batches = record_batches.evaluation_dataset(files, self._schemas["eval"], batch_size, count)
        return schema_lib.fitted(batches, self._config)

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        schema = self._schemas["eval" if for_evaluation else "train"]
        words, seed = self._config.model.vocab_size, self._config.seed
        if not schema_lib.is_packed(schema):
            return synthetic.synthetic_dataset(schema, words, batch_size, seed)
        average = synthetic_sequences_per_pack(self._config)
        return synthetic.endless(synthetic.packed_rows(schema, words, average, seed), batch_size)

    def explain_read_error(self) -> str | None:
        return None

    def data_files(self) -> dict[str, list[str]]:
        return {split: files for split, files in self._files.items() if files}

    def data_digest(self) -> dict:
        return {split: io_files.digest(files) for split, files in self.data_files().items()}

    # --------------------------------------------------------------------------------------------------------
    # Losses

    def weights(self, batch: dict) -> dict[str, tf.Tensor]:
        return objectives.pretraining_weights(batch, self._config.loss_averaging_basis)

    def terms(self, outputs: tuple, batch: dict) -> objectives.Terms:
        return objectives.pretraining_terms(outputs, batch, self._config.loss_averaging_basis)

    def evaluate(self, model, batch: dict) -> tuple[dict, dict]:
        return self.terms(model(batch), batch), {}

    def examples(self, outputs: dict) -> list[dict]:
        return []

    def constant_prediction(self) -> None:
        return None

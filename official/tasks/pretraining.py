"""The pre-training task: masked language modelling, next-sentence prediction, replaced-token detection."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.config import FIELDS, Config, ConfigError, encoder_options, kernels_of
from official.config.derived import VOCABULARY_ROUNDING, check_streams, num_streams
from official.data import generated, pipeline, synthetic
from official.data.records import batches as record_batches
from official.data.records import files as record_files
from official.data.records import record_formats
from official.data.records import schema as schema_lib
from official.data.records.masks import Masks
from official.data.records.on_the_fly import Packer
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text, load_vocabulary
from official.io import files as io_files
from official.io import model_folder, record_paths, vocabulary_files
from official.io.files import is_remote
from official.modeling import objectives
from official.modeling.electra import ElectraPretrainer
from official.modeling.models import BertPretrainer, MaskedLMModel
from official.tasks import examples as examples_lib
from official.tasks import known

_GUESSES = 3  # of a masked token, in the report
# Of records without masks; the share is that of ModernBERT and MosaicBERT (arXiv 2412.13663, 2312.17482).
_MASK_SHARE = 0.3
# BERT's, whatever a run trains with, so that losses of runs can be compared.
_EVAL_MASK_SHARE, _EVAL_SEED = 0.15, 0


@dataclasses.dataclass(frozen=True)
class _Split:
    """Data files of training or evaluation, and how their records become rows.

    Attributes:
      files: record files, all of one format.
      schema: features of a record: one sequence, or a packed row.
      row_schema: features of a row.
      packer: packs sequences into rows; None if they are not packed here.
      mask_share: share of the tokens for which masks are drawn; None if the records store masks.
    """

    files: list[str]
    schema: dict[str, schema_lib.Feature]
    row_schema: dict[str, schema_lib.Feature]
    packer: Packer | None = None
    mask_share: float | None = None


class PretrainingTask:
    """See `official.training.task.Task` and `ExampleTask` for what each member means."""

    output_names: tuple[str, ...] = ()
    target_metric = "mlm_accuracy"
    is_scored = False
    problem_type = model_folder.ONE_LABEL
    class_names = None
    local_epsilon = objectives.PRETRAINING_LOCAL_EPSILON
    compared = ()

    def __init__(self, config: Config):
        self._config = config
        self.losses = objectives.PRETRAINING_LOSSES[config.objective]
        accuracies = (name.replace("loss", "accuracy") for name in self.losses)
        self.metrics = self.eval_metrics = (*self.losses, *accuracies)
        self._schema = self._read_as(schema_lib.pretraining_schema)
        # As synthetic data are; those of a plan as the records, where they are here.
        share = config.mask_share or (_MASK_SHARE if config.plan and self._lacks_masks() else None)
        self._train = self._split([], "", share)
        self._eval = self._split([], "", share and _EVAL_MASK_SHARE)
        self.companions: dict[str, bytes] = {}

    def _lacks_masks(self) -> bool:
        """Tells whether the training records are known to store no masks: the first of them is read."""
        config = self._config
        if config.objective == "mlm_nsp" or config.use_synthetic_data or not config.input_files:
            return False
        if is_remote(config.input_files):  # a plan connects to nothing
            return False
        with contextlib.suppress(ConfigError):  # of another machine
            return not record_files.store_masks(record_files.find_files(config.input_files, "input_files"))
        return False

    def _read_as(self, schema_of: Callable, *sizes: int) -> dict[str, schema_lib.Feature]:
        """Returns the features of rows. `sizes` are the number of prediction slots and, for packed rows, of
        sequences. A model with one segment type gets no segments."""
        config = self._config
        sizes = sizes or (config.max_predictions_per_seq,)
        schema = schema_of(config.max_seq_length, *sizes, config_lib.words_of_records(config))
        types = 2 if config.model.takes_pairs else 1
        return {**schema, "segment_ids": dataclasses.replace(schema["segment_ids"], limit=types)}

    def find_data(self) -> list[str]:
        self._config = generated.with_files(self._config)
        if self._config.do_train:
            self._train = self._find("input_files", self._config.mask_share or _MASK_SHARE)
            check_streams(self._config, packs_anew=self._train.packer is not None)
        if self._config.do_eval:
            flag = "eval_files" if self._config.eval_files else "input_files"
            self._eval = self._find(flag, _EVAL_MASK_SHARE)
            self._check_rule()
        shared = sorted({*self._train.files} & {*self._eval.files}) if self._config.eval_files else []
        if shared:  # without --eval_files the training records are meant
            warning = "%s is in --eval_files and in --input_files: the evaluation uses training data."
            logging.warning(warning, shared[0])
        files = sorted({*self._train.files, *self._eval.files})
        if self._config.vocab_file:
            self.companions = self._kept_vocabulary(files)
        else:
            self._take_vocabulary(files)
        self._check_masks()
        return files

    def _check_rule(self) -> None:
        """Refuses held-out records that are fewer than --eval_rule evaluates on."""
        config, found = self._config, 0
        if not (config.eval_rule and config.eval_files) or config.generated_data:
            return
        if schema_lib.is_packed(self._eval.schema):  # whose sequences only a reader of all counts
            return
        for path in self._eval.files:
            found += record_batches.num_rows([path], self._eval.schema)
            if found >= config.num_eval_samples:
                return
        raise ConfigError(
            f"eval_rule={config.eval_rule} evaluates on {config.num_eval_samples:,} records, and"
            f" --eval_files={config.eval_files} hold {found:,}. Give all of them, or drop --eval_rule."
        )

    def _check_masks(self) -> None:
        """Raises ConfigError for mask settings that have no effect, and for masks without a vocabulary; logs
        the masks of the training."""
        config, splits = self._config, [split for split in (self._train, self._eval) if split.files]
        if self._train.files and self._train.mask_share is None and config.mask_share:
            raise ConfigError(
                f"mask_share={config.mask_share:g} draws masks, but the records of --input_files store masks:"
                f" {self._train.files[0]}. Drop --mask_share, or give records of bert data create"
                " --objective=mlm."
            )
        if not any(split.mask_share for split in splits):
            return
        most = config.max_predictions_per_seq
        if most != FIELDS["max_predictions_per_seq"].default and all(split.mask_share for split in splits):
            raise ConfigError(
                f"max_predictions_per_seq={most} is for records that store masks, and these do not:"
                f" {splits[0].files[0]}. Drop --max_predictions_per_seq; --mask_share sets the number."
            )
        if not (config.vocab_file or config.generated_data):
            raise ConfigError(
                "vocab_file is not set, and the folder of the records has no vocabulary of the model's size."
                " The records store no masks, and drawing masks needs a vocabulary. Give --vocab_file=PATH."
            )
        if share := self._train.mask_share:
            slots = self._train.row_schema["masked_lm_ids"].length
            note = "Masks: %g of the tokens of a row, at most %d, drawn again in every epoch (--mask_share)"
            logging.info(note, share, slots)

    def _masks(self, split: _Split, is_evaluation: bool) -> Masks | None:
        """Returns the `Masks` that draw those of a split; None if its records store masks."""
        config = self._config
        if split.mask_share is None:
            return None
        words = self._words
        most = min(words.size, config.model.vocab_size)
        if is_evaluation:
            return Masks(split.mask_share, words, _EVAL_SEED, most)
        of_words = config.do_whole_word_mask, config.mask_span_length
        return Masks(split.mask_share, words, config.seed, most, *of_words)

    @functools.cached_property
    def _words(self) -> Vocabulary:
        """The vocabulary that masks are drawn with; read once, for all evaluations."""
        config = self._config
        if config.generated_data:
            return generated.make_vocabulary(config.model.vocab_size, config.vocab_file)
        return load_vocabulary(known(config.vocab_file))

    def _take_vocabulary(self, files: list[str]) -> None:
        """Uses the vocabulary in the records' folder, if there is one that fits the model, for the report and
        to keep with the weights."""
        path = record_paths.find_vocabulary(files)
        if path is None:
            if self._config.export_dir and not self._config.plan:
                raise ConfigError(
                    "export_dir needs the vocabulary, because an export takes text, and the folder of the"
                    " records has none. Give --vocab_file=PATH, or drop --export_dir."
                )
            return
        size, words = self._config.model.vocab_size, len(vocabulary_files.read(path).words)
        if abs(size - words) >= VOCABULARY_ROUNDING:
            if self._config.export_dir:
                raise ConfigError(
                    f"{path}, next to the records, has {words} words, the model's vocab_size is {size}. Give"
                    " --vocab_file=PATH, or drop --export_dir."
                )
            logging.warning(
                "%s, next to the records, has %d words, but the model's vocab_size is %d: it is not saved"
                " with the weights. Give --vocab_file to use or export them.",
                path,
                words,
                size,
            )
            return
        self._config = config_lib.replaced(self._config, vocab_file=path)
        told = record_formats.casing_of(files)
        self.companions = vocabulary_files.companions(path, told, self._config.model.positions)

    def _kept_vocabulary(self, files: list[str]) -> dict[str, bytes]:
        """Returns {name: content} of the files to keep for --vocab_file, which must agree with the
        vocabularies beside the records. do_lower_case is that of the records' manifests, else the flag's."""
        config, told = self._config, record_formats.casing_of(files, self._config.do_lower_case)
        vocab_file = known(config.vocab_file)
        ours = vocabulary_files.read(vocab_file).words
        for beside in record_paths.find_vocabularies(files):
            # Of a model with a few words fewer or more (--fit_vocabulary) one begins as the other does.
            if any(word != other for word, other in zip(ours, vocabulary_files.read(beside).words)):
                raise ConfigError(
                    f"vocab_file={vocab_file} is not the vocabulary of the records, {beside}. Drop"
                    " --vocab_file to use that one, or give other --input_files."
                )
        vocabulary = load_for_text(vocab_file, told, config.init_checkpoint)
        _warn_of_first_tokens(files, vocabulary, vocab_file)
        return vocabulary_files.companions(vocab_file, vocabulary.do_lower_case, config.model.positions)

    def _find(self, flag: str, mask_share: float) -> _Split:
        """Finds the files of a flag. `mask_share` applies to records without masks."""
        if self._config.use_synthetic_data:
            return self._split([], flag, self._config.mask_share and mask_share)
        files = record_files.find_files(self._config[flag], flag)
        has_masks = record_files.store_masks(files)
        self._check_objective(files, flag, has_masks)
        record_files.check_first_record(files, self._schema if has_masks else self._bare_schema(), flag)
        return self._split(files, flag, None if has_masks else mask_share)

    def _check_objective(self, files: list[str], flag: str, has_masks: bool) -> None:
        """Raises ConfigError for records without pairs if the run learns next-sentence prediction. Records
        without masks have no pairs; for others their manifest says it, and without a manifest they pass."""
        if self._config.objective != "mlm_nsp":
            return
        for path in record_paths.first_of_folders(files):
            if not has_masks or record_formats.flags_of(path).get("objective") == "mlm":
                raise ConfigError(
                    f"objective=mlm_nsp needs pairs of segments, but --{flag} holds texts without pairs:"
                    f" {path}. Give --objective=mlm, or records of bert data create --objective=mlm_nsp."
                )

    def _bare_schema(self) -> dict[str, schema_lib.Feature]:
        """Returns the features of a sequence without masks."""
        return self._read_as(schema_lib.pretraining_schema, 0)

    def _split(self, files: list[str], flag: str, mask_share: float | None) -> _Split:
        config, schema, read = self._config, self._schema, self._schema
        if config.static_mask:
            return self._static_split(files, flag)
        if mask_share is not None:
            slots, read = config_lib.slots_of(mask_share, config.max_seq_length), self._bare_schema()
            schema = self._read_as(schema_lib.pretraining_schema, slots)
        told = config.max_seq_length, config.max_predictions_per_seq, config.max_sequences_per_pack
        sizes = None if config.pack_on_the_fly else record_files.row_sizes(files, record_files.Wanted(*told))
        if config.pack_on_the_fly:
            packer = Packer(schema, config_lib.pack_depth(config))
            return _Split(files, read, packer.schema, packer, mask_share)
        if sizes is None:
            self._check_not_told_of_packs(files, flag)
            return _Split(files, read, schema, mask_share=mask_share)
        if config.unpad:
            raise ConfigError(
                f"unpad is for rows of one sequence, but rows of --{flag} hold up to {sizes[1]} sequences,"
                " and little padding. Drop --unpad."
            )
        slots, depth = sizes
        if config.max_sequences_per_pack not in (None, depth):
            raise ConfigError(
                f"max_sequences_per_pack={config.max_sequences_per_pack}, but rows of --{flag} hold up to"
                f" {depth} sequences. Drop --max_sequences_per_pack, or give --pack_on_the_fly to pack anew."
            )
        if mask_share is not None:  # the sequences are packed anew, with masks
            packer = Packer(schema, depth)
            return _Split(files, read, packer.schema, packer, mask_share)
        schema = self._read_as(schema_lib.packed_schema, slots, depth)
        return _Split(files, schema, schema)

    def _static_split(self, files: list[str], flag: str) -> _Split:
        """Returns the split of --static_mask: rows with the predicted tokens first."""
        found = record_files.detect_format(files)
        if files and found not in record_formats.AS_STATIC:
            raise ConfigError(
                f"static_mask reads records with the predicted tokens first, --{flag} holds {found} records:"
                f" {files[0]}. Write them with --remask, or drop --static_mask."
            )
        schema = self._read_as(schema_lib.static_schema)
        return _Split(files, schema, schema)

    def _check_not_told_of_packs(self, files: list[str], flag: str) -> None:
        for name in ("max_sequences_per_pack", "average_sequences_per_pack"):
            if files and self._config[name]:
                raise ConfigError(
                    f"{name}={self._config[name]:g}, but the records of --{flag} hold one sequence each. Drop"
                    f" --{name}, or give --pack_on_the_fly."
                )

    @functools.cached_property
    def train_samples(self) -> int | None:
        """Number of sequences in the training records, counted with --num_steps_per_epoch=0; else
        None."""
        split = self._train
        if not (self._config.num_steps_per_epoch == 0 and self._config.do_train and split.files):
            return None
        rows = record_batches.num_rows(split.files, split.schema)
        return round(rows * (self.sequences_per_row or 1.0)) if split.packer is None else rows

    @functools.cached_property
    def sequences_per_row(self) -> float | None:
        split, told = self._train, self._config.average_sequences_per_pack
        if not (self._config.do_train and schema_lib.is_packed(split.row_schema)):
            return None
        if told or not split.files:
            return told or config_lib.synthetic_sequences_per_pack(self._config)
        masks = self._masks(split, is_evaluation=False)
        return record_batches.sequences_per_row(split.files, split.schema, split.packer, masks)

    def build_model(self) -> tf.keras.Model:
        config, options = self._config, encoder_options(self._config)
        if config.objective == "electra":
            return ElectraPretrainer(config.model, generator_share=config.generator_share, **options)
        return (BertPretrainer if config.objective == "mlm_nsp" else MaskedLMModel)(config.model, **options)

    def train_dataset(
        self, global_batch: int, replica_batch: int, order: pipeline.TrainingOrder
    ) -> tf.data.Dataset:
        if self._config.use_synthetic_data:
            return self.synthetic_dataset(replica_batch)
        split, files = self._train, self._train.files
        # Those of the smallest batch that there can be: the order of the data is that of all of them.
        shared = self._config.train_batch_size // self._config.num_accumulation_steps
        rows = shared if self._config.batch_warmup else global_batch
        streams = num_streams(len(files), rows, self._config.data_streams)
        folder = self._config.model_dir
        counts_path = os.path.join(folder, _counts_name(order)) if folder else ""
        masks = self._masks(split, is_evaluation=False)
        batches = record_batches.training_dataset(
            files, split.schema, replica_batch, order, streams, counts_path, split.packer, masks
        )
        return schema_lib.fitted(batches, self._config)

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        if self._config.use_synthetic_data:
            batches = -(-self._config.num_eval_samples // batch_size)
            return self.synthetic_dataset(batch_size, for_evaluation=True).take(batches)
        return self._evaluated(batch_size, self._eval.schema, self._eval.packer)

    def example_dataset(self, batch_size: int) -> tf.data.Dataset:
        schema = self._schema if self._eval.mask_share is None else self._eval.schema
        return self._evaluated(batch_size, schema, None)

    def _evaluated(self, batch_size: int, schema: dict, packer: Packer | None) -> tf.data.Dataset:
        files, count = self._eval.files, self._config.num_eval_samples
        masks = self._masks(self._eval, is_evaluation=True)
        batches = record_batches.evaluation_dataset(files, schema, batch_size, count, packer, masks)
        return schema_lib.fitted(batches, self._config)

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        config, split = self._config, self._eval if for_evaluation else self._train
        schema = split.row_schema
        if not schema_lib.is_packed(schema):
            return synthetic.synthetic_dataset(schema, config.model.vocab_size, batch_size, config.seed)
        average = config_lib.synthetic_sequences_per_pack(config)
        rows = synthetic.packed_rows(schema, config.model.vocab_size, average, config.seed)
        if split.packer and not for_evaluation:
            rows["streams"] = np.zeros(len(rows["input_ids"]), np.int32)
        return synthetic.endless(rows, batch_size)

    def explain_read_error(self) -> str | None:
        # Each split may have a format of its own.
        splits = {tuple(split.files): split for split in (self._train, self._eval) if split.files}
        return next(filter(None, map(self._explain_of, splits.values())), None)

    def _explain_of(self, split: _Split) -> str | None:
        schema = self._schema if split.mask_share is None else split.schema
        found = record_files.find_bad_record(split.files, schema)
        if found or not split.packer:
            return found
        from official.data.pretraining import inspection  # late: runs on IPUs, which do not pack, lack it

        return inspection.find_fault(split.files)  # packing needs more of a record than reading it does

    def weights(self, batch) -> dict[str, tf.Tensor]:
        return objectives.pretraining_weights(batch, self._config.loss_averaging_basis, self.losses)

    def terms(self, outputs, batch) -> objectives.Terms:
        basis = self._config.loss_averaging_basis
        return objectives.pretraining_terms(outputs, batch, basis, kernels_of(self._config))

    def evaluate(self, model, batch) -> tuple[dict, dict]:
        return self.terms(model(batch), batch), {}

    def data_files(self) -> dict[str, list[str]]:
        splits = {"train": self._train.files, "eval": self._eval.files}
        return {name: files for name, files in splits.items() if files}

    def data_digest(self) -> dict:
        return {name: io_files.digest(files) for name, files in self.data_files().items()}

    def example_outputs(self, model, batch) -> dict[str, tf.Tensor]:
        # Logits of all slots: without padding those are left out that have no weight.
        features = {name: value for name, value in batch.items() if name != "masked_lm_weights"}
        outputs = model(features)
        logits_BPV, *others = outputs if isinstance(outputs, tuple) else (outputs,)
        top = tf.math.top_k(tf.nn.softmax(tf.cast(logits_BPV, tf.float32)), _GUESSES)
        shown = {name: batch[name] for name in self._schema if name != "segment_ids"}
        shown.update(top_ids=top.indices, top_probabilities=top.values)
        for logits_B2 in others if self._config.objective == "mlm_nsp" else ():
            shown["random_probability"] = tf.nn.softmax(tf.cast(logits_B2, tf.float32))[:, 1]
        return shown

    def examples(self, outputs: dict[str, np.ndarray]) -> list[dict]:
        word = examples_lib.word_of(self._vocabulary())
        count = min(len(outputs.get("input_ids", ())), examples_lib.MAX_ITEMS)
        rows = [{name: values[row] for name, values in outputs.items()} for row in range(count)]
        return examples_lib.group(
            "Masked tokens and predictions",
            "The start of the evaluation set. Green: masked and predicted right; struck out: a wrong"
            " prediction, before the token that was masked, in blue. Below: the masked tokens with the"
            " likeliest predictions and their probabilities.",
            [examples_lib.masked_sequence(row, word) for row in rows],
        )

    def _vocabulary(self) -> Vocabulary | None:
        """Returns the vocabulary of the records; None where it is not known."""
        try:
            return load_vocabulary(self._config.vocab_file) if self._config.vocab_file else None
        except ConfigError as error:  # the run is over, and needed no words
            logging.warning("The report names tokens by their numbers: %s", error)
            return None

    def constant_prediction(self) -> tuple[str, float]:
        counts: np.ndarray = np.zeros(0)
        for batch in self.eval_dataset(self._config.eval_batch_size).as_numpy_iterator():
            new: np.ndarray = np.bincount(
                batch["masked_lm_ids"].ravel(), batch["masked_lm_weights"].ravel(), minlength=len(counts)
            )
            new[: len(counts)] += counts
            counts = new
        word = examples_lib.word_of(self._vocabulary())
        return word(int(counts.argmax())), float(counts.max() / max(counts.sum(), 1.0))


def _warn_of_first_tokens(files: list[str], vocabulary: Vocabulary, vocab_file: str) -> None:
    """Warns of records that begin with another token than [CLS] by the vocabulary: their ids seem to be those
    of another one, of which nothing else tells."""
    from official.data.pretraining import inspection  # late: runs on IPUs, which keep no words, lack it

    for path in record_paths.first_of_folders(files):
        try:
            shape, features = inspection.describe_first(path, None)
            records = next(record_files.read_batches(path, shape.record_format, 1))
            ids = record_formats.parse_records(tf.constant(records), features, shape.record_format)
        except (ValueError, tf.errors.OpError):  # whoever reads all of it says what is wrong
            continue
        first, expected = int(ids["input_ids"][0, 0]), vocabulary.special_ids.cls
        if first != expected:
            logging.warning(
                "%s begins with token %d, and %s is %d in %s: its records seem to be of another vocabulary.",
                path,
                first,
                vocabulary.special.cls,
                expected,
                vocab_file,
            )


def _counts_name(order: pipeline.TrainingOrder) -> str:
    """Returns the name of the file with the record counts of the data files that this process reads."""
    if order.reader is not None:
        return f"record_counts-{order.host}-of-{order.reader}.json"
    return f"record_counts-{order.host}.json" if order.host else "record_counts.json"

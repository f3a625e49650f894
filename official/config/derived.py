"""Values derived from the settings, which are never settings."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from typing import Any

from official.config.backends import BACKENDS
from official.config.model import BertConfig, bert_config_from_dict
from official.config.setting import OWN_DATA
from official.config.table import FIELDS, Config, replaced
from official.config.values import read_by_step
from official.io import files, model_folder, vocabulary_files
from official.io.errors import ConfigError
from official.io.json_files import read_json

# -----------------------------------------------------------------------------------------------------------
# Streams of files
#
# A step takes the same number of rows from every stream, and a host reads whole streams. So the data of a
# step does not depend on the number of hosts.


MOST_STREAMS = 32  # unless --data_streams asks for more


def num_streams(num_files: int, train_batch_size: int, asked: int | None = None) -> int:
    """Returns the number of streams that the training files are assigned to: the largest, up to 32, that
    divides both numbers, or --data_streams, which must divide them.

    Raises:
      ConfigError: if --data_streams does not divide one of them.
    """
    if asked is None:
        return max(
            count
            for count in range(1, MOST_STREAMS + 1)
            if train_batch_size % count == 0 and num_files % count == 0
        )
    for value, what in ((num_files, "files of --input_files"), (train_batch_size, "rows of a step")):
        if value % asked:
            raise ConfigError(
                f"data_streams={asked} does not divide the {value} {what}, expected a number that does."
                " Change --data_streams."
            )
    return asked


def check_hosts(num_files: int, streams: int, hosts: int, train_batch_size: int) -> None:
    """Raises ConfigError if the streams cannot be divided evenly among the hosts, or a host would have no
    file."""
    if num_files < hosts:
        raise ConfigError(
            f"input_files: {num_files} files for {hosts} hosts: host {num_files} and the following ones would"
            f" have none. Write a number of shards that is a multiple of {hosts}, or start at most"
            f" {num_files} hosts."
        )
    if streams % hosts == 0:
        return
    fits = num_files % hosts == 0 and train_batch_size % hosts == 0
    advice = (
        f"Give --data_streams={hosts}, from the beginning of the run: it is part of the order of the data."
        if fits
        else f"Write a number of shards that is a multiple of {hosts}, with a --train_batch_size that is one"
        " too."
    )
    raise ConfigError(
        f"input_files: {num_files} files make {streams} streams, which {hosts} hosts cannot share evenly."
        f" {advice}"
    )


def check_streams(config: Config, packs_anew: bool = False) -> None:
    """Refuses more streams than packing on the fly supports. `packs_anew`: packed records without masks are
    packed on the fly, too."""
    if not (config.pack_on_the_fly or packs_anew) or (config.data_streams or 0) <= MOST_STREAMS:
        return
    what, advice = "packed records without masks", "Lower --data_streams."
    if config.pack_on_the_fly:
        what, advice = "--pack_on_the_fly", "Pack the records beforehand: bert pack."
    problem = f"does not go with {what}, which count sequences of at most {MOST_STREAMS} streams"
    raise ConfigError(f"data_streams={config.data_streams} {problem}. {advice}")


# -----------------------------------------------------------------------------------------------------------
# Evaluation rules of MLPerf


def with_eval_rule(config: Config) -> Config:
    """Returns the configuration with the values of --eval_rule filled in.

    A setting at its default counts as not given: a saved config.json holds all of them.

    Raises:
      ConfigError: names every setting that contradicts the rule, with valid values.
    """
    if config.eval_rule is None:
        return config
    values = _RULES[config.eval_rule](_sequences_per_step(config))
    # A loop of all steps between two evaluations would not react to signals in between.
    every, loop = values["steps_between_eval"], config.steps_per_loop
    if not loop or every % loop:
        loop = max(steps for steps in range(1, MAX_STEPS_PER_LOOP + 1) if every % steps == 0)
    values["steps_per_loop"] = loop
    wrong = [name for name, value in values.items() if config[name] not in (value, FIELDS[name].default)]
    if wrong:
        loops = f" (steps_per_loop may be any divisor of {every})" if "steps_per_loop" in wrong else ""
        raise ConfigError(
            f"eval_rule={config.eval_rule} with {_sequences_per_step(config)} sequences a step means"
            f" {', '.join(f'{name}={_text(values[name])}' for name in wrong)}; received"
            f" {', '.join(_text(config[name]) for name in wrong)}. Give these values{loops}, or drop"
            " --eval_rule."
        )
    return replaced(config, **values)


def _sequences_per_step(config: Config) -> int:
    """Returns the sequences per step. Raises ConfigError if rows are packed and the number of sequences per
    row is unknown."""
    average = config.average_sequences_per_pack
    if config.pack_on_the_fly and not average:
        raise ConfigError(
            f"eval_rule={config.eval_rule} counts sequences, and with --pack_on_the_fly a row holds several."
            " Give --average_sequences_per_pack, such as 2 for Wikipedia in rows of 512 tokens."
        )
    return round(config.train_batch_size * (average or 1.0))


def _text(value) -> str:
    """Formats a value as on a command line."""
    return '""' if value is None else str(value)


def _mlperf_0_7(batch_size: int) -> dict:
    """From 3,000,000 sequences on, every 500,000, on the first 10,000 records of the training set.

    Source: MLPerf Training v0.7 rules; its submissions round both up to whole steps.
    """
    return {
        "do_eval": True,
        "steps_between_eval": _ceil(500_000, batch_size),
        "steps_before_eval_start": _ceil(3_000_000, batch_size),
        "eval_files": None,
        "num_eval_samples": 10_000,
        "stop_threshold": 0.712 if batch_size < 8192 else 0.706,
    }


def _mlperf_1_0(batch_size: int) -> dict:
    """Every floor(0.05 * (230.23 * batch + 3,000,000) / 25,000) * 25,000 sequences, on 10,000 held-out
    records.

    Source: MLPerf Training v1.0 rules.
    """
    interval = int(0.05 * (230.23 * batch_size + 3_000_000) / 25_000) * 25_000
    return {
        "do_eval": True,
        "steps_between_eval": _ceil(interval, batch_size),
        "steps_before_eval_start": 0,
        "num_eval_samples": 10_000,
        "stop_threshold": 0.720,
    }


def _ceil(samples: int, batch_size: int) -> int:
    return -(-samples // batch_size)


_RULES = {"mlperf_0.7": _mlperf_0_7, "mlperf_1.0": _mlperf_1_0}


# -----------------------------------------------------------------------------------------------------------
# Batches, steps and rates


VOCABULARY_ROUNDING = 128  # a vocabulary is padded, or cut, to a multiple of at most this
UNKNOWN_WORD = 100  # [UNK] in Google's vocabularies
_PACK_DEPTH = 12  # as in the published plans without a limit of 3; leaves 0.2 % padding on Wikipedia
_SYNTHETIC_PER_PACK = 2.0  # as for Wikipedia in rows of 512 tokens
MAX_STEPS_PER_LOOP = 200  # default limit
_LINES_OF_A_RUN = 20  # minimum lines of metrics of a run with enough steps
_PRETRAINING_STEPS_PER_EPOCH, _PRETRAINING_WARMUP_STEPS, _WARMUP_SHARE = 1000, 10000.0, 0.1
BUDGET_PARTS = 1_000_000  # parts of a time budget, which its schedule counts instead of steps
MAX_STEPS = 2**31 - 1  # limit with a time budget: dropout seeds hold such numbers
_BUDGET_CHECKPOINT_STEPS = 1000


def with_steps(
    config: Config, train_samples: int | None = None, sequences_per_row: float | None = None
) -> Config:
    """Returns the configuration with unset steps of an epoch, of the warm-up and between evaluations filled
    in, if they can be computed.

    Args:
      config: the configuration so far.
      train_samples: sequences of the training set, if it has been read and an epoch is one pass over it.
      sequences_per_row: sequences per row of that set if rows are packed; None: every row is a sequence.
    """
    fine_tuning = config.task != "pretrain"
    if config.num_steps_per_epoch is None and not fine_tuning and not knows_steps(config):
        config = replaced(config, num_steps_per_epoch=_PRETRAINING_STEPS_PER_EPOCH)
    if not knows_steps(config) and train_samples:
        rows, batch = round(train_samples / (sequences_per_row or 1.0)), config.train_batch_size
        steps = -(-rows // batch) if fine_tuning else max(1, rows // batch)
        config = replaced(config, num_steps_per_epoch=steps)
    is_free = config.warmup_proportion is config.warmup_steps is None
    if config.budget_hours and is_free and not read_by_step(config.lr_schedule, "lr_schedule"):
        config = replaced(config, warmup_proportion=_WARMUP_SHARE)
    if config.warmup_steps is None and knows_steps(config):
        config = replaced(config, warmup_steps=_warmup_steps(config))
    if config.steps_between_eval is None and fine_tuning and config.do_eval and config.do_train:
        config = replaced(config, steps_between_eval=config.num_steps_per_epoch or None)
    return config


def _warmup_steps(config: Config) -> float:
    if read_by_step(config.lr_schedule, "lr_schedule"):  # sets the rate of every step
        return 0.0
    if config.warmup_proportion is not None:
        return config.warmup_proportion * schedule_steps(config)
    return _PRETRAINING_WARMUP_STEPS if config.task == "pretrain" else _WARMUP_SHARE * schedule_steps(config)


def with_gradient_scopes(config: Config) -> Config:
    """Returns the configuration with unset scopes of losses and clipping filled in.

    --scale_loss alone means the MLPerf v0.7 reference: local losses, each micro batch clipped, or with
    --explicit_allreduce the reduced gradient.
    """
    is_reference = config.scale_loss and config.loss_normalization is None
    clips_first = is_reference and not config.explicit_allreduce
    if config.clip_scope is None:
        config = replaced(config, clip_scope="micro_batch" if clips_first else "global")
    if config.loss_normalization is None:
        config = replaced(config, loss_normalization="local" if is_reference else "global")
    return config


def words_of_records(config: Config) -> int:
    """Returns the allowed vocabulary size of records: the model's, or slightly more with --fit_vocabulary."""
    return config.model.vocab_size + (VOCABULARY_ROUNDING - 1 if config.fit_vocabulary else 0)


def slots_of(share: float, length: int) -> int:
    """Returns the slots for predicted tokens in a row of `length` tokens of which a share is predicted."""
    return math.ceil(round(share * length, 6))


def max_predictions(config: Config) -> int:
    """Returns the slots for predicted tokens in a training row: --max_predictions_per_seq, or as many as
    --mask_share needs."""
    if config.mask_share is None:
        return config.max_predictions_per_seq
    return slots_of(config.mask_share, config.max_seq_length)


def pack_depth(config: Config) -> int:
    """Returns the maximum number of sequences in a row that is packed on the fly."""
    return config.max_sequences_per_pack or _PACK_DEPTH


def synthetic_sequences_per_pack(config: Config) -> float:
    """Returns the mean number of random sequences in a packed row."""
    return min(config.average_sequences_per_pack or _SYNTHETIC_PER_PACK, float(pack_depth(config)))


def knows_steps(config: Config) -> bool:
    """Returns whether the settings determine the length of the schedule."""
    return bool(config.num_steps_per_epoch or config.budget_hours or config.decay_checkpoint)


def batch_stages(config: Config) -> dict[int, int]:
    """Returns {step: micro batches per replica from that step on}, several with --batch_warmup."""
    found = read_by_step(config.batch_warmup or "", "batch_warmup")
    return {step: int(count) for step, count in found.items()} or {0: config.num_accumulation_steps}


def whole_batches(config: Config) -> float:
    """Returns the length of the schedule in whole batches."""
    stages, last = batch_stages(config), schedule_steps(config)
    ends = [*stages, last][1:]
    done = sum(count * max(min(end, last) - start, 0) for (start, count), end in zip(stages.items(), ends))
    return done / config.num_accumulation_steps


def first_step(config: Config) -> int:
    """Returns the first step of a new run: that of --decay_checkpoint, otherwise 0. Raises ConfigError if
    its name has no step."""
    if not config.decay_checkpoint:
        return 0
    found = re.fullmatch(r"ckpt-(\d{1,10})", os.path.basename(config.decay_checkpoint))
    if not found:
        raise ConfigError(
            f"decay_checkpoint={config.decay_checkpoint}, expected a checkpoint of a run: FOLDER/ckpt-STEP."
        )
    return int(found[1])


def schedule_steps(config: Config) -> int:
    """Returns the steps over which the learning rate decays; for a time budget, its parts."""
    if config.budget_hours:
        return BUDGET_PARTS
    if config.decay_checkpoint:
        return first_step(config) + (config.decay_steps or 0)
    return config.num_steps_per_epoch * config.num_train_epochs


def decay_length(config: Config) -> int:
    """Returns the steps of the final decay: --decay_steps, or --decay_proportion of all steps; if unset, a
    tenth of the steps after the warm-up."""
    if config.decay_steps:
        return config.decay_steps
    if config.decay_proportion is not None:
        return max(round(config.decay_proportion * schedule_steps(config)), 1)
    left = schedule_steps(config) - config.start_warmup_step - int(config.warmup_steps or 0)
    return max(round(left / 10), 1)


def train_steps(config: Config) -> int:
    """Returns the last step to train: the end of the schedule, or --stop_steps; with a time budget
    MAX_STEPS."""
    if config.budget_hours:
        return MAX_STEPS
    return config.stop_steps or schedule_steps(config)


def steps_per_loop(config: Config) -> int:
    """Returns the steps per line of the metrics: --steps_per_loop, or 200, or a twentieth of a short run.

    Checkpoints fall on the end of a line, and calls of IPUs fit into one. Evaluations interrupt lines, so a
    slightly smaller number that divides the steps between them is preferred.
    """
    if config.steps_per_loop:
        return config.steps_per_loop
    new = train_steps(config) - first_step(config)
    most = max(1, min(MAX_STEPS_PER_LOOP, new // _LINES_OF_A_RUN))
    call, every = steps_per_call(config), config.steps_between_eval
    saves = config.checkpoint_every_steps or 0
    fitting = [steps for steps in range(call, most + 1, call) if saves % steps == 0] or [call]
    whole = [steps for steps in fitting if every and every % steps == 0 and 2 * steps > fitting[-1]]
    return max(whole or fitting)


def steps_per_call(config: Config) -> int:
    """Returns the minimum steps of a device call: on IPUs, device_iterations."""
    return config.ipu.device_iterations if BACKENDS[config.distribution_strategy].graphcore_rules else 1


def checkpoint_every_steps(config: Config) -> int:
    """Returns the steps between checkpoints: the setting, or a tenth of the run in whole loops; without
    --steps_per_loop at least 200, since a short run has little to lose. With a time budget, 1,000."""
    if config.checkpoint_every_steps:
        return config.checkpoint_every_steps
    loop, least = steps_per_loop(config), 1 if config.steps_per_loop else MAX_STEPS_PER_LOOP
    new = train_steps(config) - first_step(config)
    every = _BUDGET_CHECKPOINT_STEPS if config.budget_hours else max(new / 10, least)
    return loop * max(1, round(every / loop))


def compiles_first(config: Config) -> bool:
    """Returns whether the steps are compiled before the run starts, as in Graphcore's programs, so that the
    first line of the log has the throughput of steps alone."""
    return config.device_warmup or follows_graphcore_log(config) or config.predict_epochs is not None


# Modules of the log's styles, imported by a run that asks for one: with --log_style, or --predict_epochs.
LOG_STYLES = {"graphcore": "official.graphcore.log_style", "popart": "official.graphcore.popart_lines"}


def follows_graphcore_log(config: Config) -> bool:
    """Returns whether the log and the tags of metrics are those of Graphcore's programs."""
    return config.log_style == "graphcore"


def initial_loss_scale(config: Config) -> float | None:
    """Returns the fixed or the first dynamic loss scale; None without loss scaling."""
    by_step = read_by_step(config.loss_scale or "", "loss_scale")
    if by_step:
        return by_step[0]
    if config.loss_scale in (None, "dynamic"):
        return 2.0**15 if config.dtype == "fp16" or config.loss_scale else None
    return float(config.loss_scale)


def dynamic_loss_scale(config: Config) -> bool:
    """Returns whether the loss scale follows the gradients."""
    return config.loss_scale == "dynamic" or (config.loss_scale is None and config.dtype == "fp16")


def kernels_of(config: Config) -> str:
    """Returns --kernels as far as it depends on settings; `official.native.choose` resolves `auto` and
    `native` by devices and compiler."""
    backend = BACKENDS[config.distribution_strategy]
    if not backend.fused_operations:
        return "plain"
    whole_step = config.enable_xla or backend.whole_step
    return "fused" if whole_step and config.kernels == "auto" else config.kernels


def encoder_options(config: Config) -> dict[str, Any]:
    """Returns the options of the encoder: `kernels`, `shared`, `by_sequence`, `recompute`,
    `unpad` and `narrow` of `official.modeling`.

    A step that is compiled as a whole has no shared functions, no dynamic sizes and no custom operations;
    plain operations compute whole rows.
    """
    backend = BACKENDS[config.distribution_strategy]
    whole_step, kernels = config.enable_xla or backend.whole_step, kernels_of(config)
    return {
        "kernels": kernels,
        "shared": not whole_step,
        "by_sequence": kernels != "plain" and not whole_step,
        "recompute": config.recompute,
        "unpad": config.unpad,
        "narrow": not backend.graphcore_rules,
    }


# -----------------------------------------------------------------------------------------------------------
# The folder of the initial weights


_MAX_LENGTH = 512  # default number of tokens: the model's maximum would cost time and memory


def with_init_folder(config: Config, given: Collection[str]) -> Config:
    """Returns the configuration with unset sizes, vocabulary, and, for fine-tuning, sequence length taken
    from the folder of --init_checkpoint.

    Args:
      config: the configuration so far.
      given: names of the settings that were given.

    Raises:
      ConfigError: if the given vocabulary or casing differs from the folder's.
    """
    path = config.init_checkpoint
    if not path or config.generated_data or config.use_synthetic_data:
        return config
    if config.model is not None and files.is_remote(path) or not is_checkpoint(path):
        return config  # a plan does not fetch files for settings that are given
    folder = model_folder.folder_of(path)
    values: dict[str, Any] = {}
    if config.model is None:
        values["model"] = model = _model_beside(folder)
        if model is None:
            return config
    found = vocabulary_files.find(folder)
    if found is None:
        return replaced(config, **values)
    beside = vocabulary_files.read(found, "init_checkpoint")
    if config.vocab_file is None:
        values["vocab_file"] = found
    elif not config.fit_vocabulary and _is_there(config.vocab_file):
        given_file = vocabulary_files.read(config.vocab_file)
        if given_file.words != beside.words:
            raise ConfigError(
                f"--vocab_file={config.vocab_file} has other words than {found}, with which the weights of"
                " --init_checkpoint were trained. Drop --vocab_file."
            )
    theirs = beside.do_lower_case
    if None not in (config.do_lower_case, theirs) and config.do_lower_case != theirs:
        raise ConfigError(
            f"--do_lower_case={str(config.do_lower_case).lower()}, but the tokenizer of --init_checkpoint"
            f" has {str(theirs).lower()}. Drop --do_lower_case."
        )
    if "model" in values and "max_seq_length" not in given and config.task != "pretrain":
        positions = values["model"].positions
        values["max_seq_length"] = min(beside.max_length or positions, positions, _MAX_LENGTH)
    return replaced(config, **values)


def is_checkpoint(path: str) -> bool:
    """Returns whether a path is a folder, a file, or the prefix of a TensorFlow checkpoint."""
    return files.is_folder(path) or any(map(files.is_file, (path, f"{path}.index")))


def with_own_rate(config: Config, given: Collection[str]) -> Config:
    """Returns the configuration with the learning rate for own data, if unset, by the model's width: 5e-5 for
    BERT-base, more for narrower models."""
    sets_rate = "learning_rate" in given or read_by_step(config.lr_schedule, "lr_schedule")
    if config.task not in OWN_DATA or sets_rate or config.model is None:
        return config
    rate = FIELDS["learning_rate"].default * 768 / config.model.hidden_size
    return replaced(config, learning_rate=float(f"{rate:.1g}"))


def is_padded(words: int, rows: int) -> bool:
    """Returns whether a table has the rows of a vocabulary that was padded to a round number of words: 30,528
    for 30,522."""
    return any(rows == -(-words // number) * number for number in (8, 16, 32, 64, VOCABULARY_ROUNDING))


def is_vocabulary_of(path: str, model: BertConfig) -> bool:
    """Returns whether a vocabulary is in the folder of a model with at least as many rows of word embeddings.
    Then it is that model's, and further rows are never used."""
    beside = _model_beside(model_folder.folder_of(path))
    return beside is not None and beside.vocab_size == model.vocab_size


def _model_beside(folder: str) -> BertConfig | None:
    """Returns the sizes in a folder's bert_config.json or config.json, which is Hugging Face's or a run's;
    None without one."""
    for name in (model_folder.CONFIG, "bert_config.json"):
        path = os.path.join(folder, name)
        if files.is_file(path):
            values = model_folder.with_model_type(read_json(path, any_number=True), path)
            sizes = values["model"] if isinstance(values.get("model"), dict) else values
            return bert_config_from_dict(sizes, path)
    return None


# -----------------------------------------------------------------------------------------------------------
# Generated data


_FILES = tuple(FIELDS["use_synthetic_data"].excludes)


def with_generated_data(config: Config) -> Config:
    """Returns the configuration without the files that --generated_data or --synthetic_input replace.

    A base configuration may name files that are not on this machine. --compile_only without existing files
    generates them, except for tables, since shapes and steps follow from them. An existing vocabulary is
    kept; otherwise words are generated, too.
    """
    takes_others = config.use_synthetic_data or config.synthetic_input or config.task in OWN_DATA
    if config.compile_only and not takes_others and not _has_files(config):
        config = replaced(config, generated_data=True)
    if not (config.generated_data or config.synthetic_input):
        return config
    config = replaced(config, **dict.fromkeys(_FILES))
    if config.synthetic_input:
        config = replaced(config, use_synthetic_data=True)
    if config.vocab_file and not _is_there(config.vocab_file):
        config = replaced(config, vocab_file=None, do_lower_case=None)
    return config


def _has_files(config: Config) -> bool:
    """Returns whether data files are given and all of them exist."""
    given = [config[name] for name in _FILES if config[name]]
    try:
        return bool(given) and all(files.find_files(pattern, "") for pattern in given)
    except ConfigError:
        return False


def _is_there(path: str) -> bool:
    try:
        return files.is_file(path) or files.is_folder(path)
    except OSError:
        return False

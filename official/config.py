"""The configuration of a run: every setting defined once, validated as a whole, no TensorFlow.

`FIELDS` is the only table of settings; the command-line flags (`official.flags`), the defaults, the types, the help
text and the saved `config.json` all come from it. A setting that is not in the table does not exist.
"""

import dataclasses
import difflib
import json
import math
import os
from typing import Any

import ml_collections


class ConfigError(ValueError):
    """Bad input or configuration. Its message is one line: what, received, allowed, which flag. Exit code 2."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One setting: name of the flag, default (None = unset), type, allowed values and help text."""

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None


@dataclasses.dataclass(frozen=True)
class Section:
    title: str
    fields: tuple[Field, ...]


SECTIONS = (
    Section("Job", (
        Field("task", str, "pretrain", "What is trained.", choices=("pretrain",)),
        Field("do_train", bool, True, "Train. With --do_train=false --do_eval the run only evaluates."),
        Field("do_eval", bool, False, "Evaluate during training, and always at the last step."),
        Field("model_dir", str, None, "Folder of the run: checkpoints, metrics, result, report. Resumed where it holds a checkpoint."),
        Field("init_checkpoint", str, None, "Weights to start from: a checkpoint of this project or a Google TF1 one, as a prefix or a folder."),
        Field("seed", int, 12345, "Seeds initial weights, data order and dropout.", minimum=0, maximum=2**31 - 1),
    )),
    Section("Model", (
        Field("bert_config_file", str, None, "JSON file with Google's bert_config.json keys."),
        Field("vocab_file", str, None, "WordPiece vocabulary of the data; its size is checked against the model's vocab_size."),
        Field("dtype", str, "fp32", "Compute type. Weights, softmax, LayerNorm statistics, losses and optimizer state stay float32.",
              choices=("fp32", "fp16", "bf16")),
    )),
    Section("Data", (
        Field("input_files", str, None, "Training TFRecords: comma-separated files or globs (local, gs://, ram://)."),
        Field("eval_files", str, None, "Evaluation TFRecords; without it the first records of --input_files are used, as the MLPerf v0.7 rules did."),
        Field("use_synthetic_data", bool, False, "Train on random records of the right shape instead of files."),
        Field("max_seq_length", int, 128, "Tokens of a sequence.", minimum=8),
        Field("max_predictions_per_seq", int, 20, "Masked tokens of a sequence, at most.", minimum=1),
        Field("num_eval_samples", int, 10000, "Evaluate the first N records.", minimum=1),
    )),
    Section("Batch and steps (a step is one optimizer update)", (
        Field("train_batch_size", int, 32, "Sequences of one step: all replicas, all micro batches.", minimum=1),
        Field("eval_batch_size", int, 32, "Sequences of one evaluation batch over all replicas.", minimum=1),
        Field("num_accumulation_steps", int, 1, "Micro batches whose gradients make one step.", minimum=1),
        Field("num_steps_per_epoch", int, 1000, "Steps of an epoch; times --num_train_epochs it is the horizon of the learning-rate decay.", minimum=1),
        Field("num_train_epochs", int, 3, "Epochs of the schedule.", minimum=1),
        Field("stop_steps", int, None, "Train only this many steps of the schedule; the decay horizon stays.", minimum=1),
        Field("steps_per_loop", int, 200, "Steps that run on the device without returning to Python.", minimum=1),
        Field("steps_between_eval", int, None, "Evaluate every N steps; a multiple of --steps_per_loop. Unset: at the last step only.", minimum=1),
        Field("steps_before_eval_start", int, 0, "No evaluation before this step.", minimum=0),
        Field("stop_threshold", float, None, "Stop when the masked-LM accuracy of an evaluation reaches this.", minimum=0, maximum=1),
        Field("checkpoint_every_steps", int, None, "Save every N steps; a multiple of --steps_per_loop. Unset: ten times over the run. Also saved at the last step.", minimum=1),
        Field("keep_checkpoints", int, 3, "Keep this many newest checkpoints.", minimum=1),
    )),
    Section("Optimization", (
        Field("optimizer_type", str, "adamw", "Optimizer.", choices=("adamw", "lamb")),
        Field("learning_rate", float, 5e-5, "Peak learning rate.", minimum=0),
        Field("end_learning_rate", float, 0.0, "Learning rate at the end of the decay.", minimum=0),
        Field("poly_power", float, 1.0, "Power of the polynomial decay.", minimum=0),
        Field("warmup_steps", float, 10000.0, "Steps of linear warm-up; 0 for none.", minimum=0),
        Field("start_warmup_step", int, 0, "First step of the warm-up; the learning rate is 0 before it.", minimum=0),
        Field("decay_from", str, "step_0",
              "Where the decay is counted from. step_0: the rate drops at the end of the warm-up (the MLPerf v0.7 reference). "
              "warmup_end: it goes on from the peak.", choices=("step_0", "warmup_end")),
        Field("weight_decay_rate", float, 0.01, "Decoupled weight decay; not applied to biases and LayerNorm.", minimum=0),
        Field("beta_1", float, 0.9, "Decay rate of the first moment.", minimum=0, maximum=1),
        Field("beta_2", float, 0.999, "Decay rate of the second moment.", minimum=0, maximum=1),
        Field("epsilon", float, 1e-6, "Added to the root of the second moment.", minimum=0),
        Field("clip_norm", float, 1.0, "Global norm that --clip_scope clips gradients to.", minimum=0),
        Field("clip_scope", str, "global",
              "global: clip the step's gradient after the all-reduce. micro_batch: clip every replica's micro-batch gradient before "
              "it is averaged (the MLPerf v0.7 reference, with --loss_normalization=local). none: do not clip.",
              choices=("micro_batch", "global", "none")),
        Field("loss_normalization", str, "global",
              "global: losses are divided by the weights of the whole step over all replicas. local: by those of each replica's micro "
              "batch, and micro batches are averaged (the MLPerf v0.7 reference).", choices=("global", "local")),
        Field("scale_loss", bool, False,
              "With --loss_normalization=local: divide each replica's loss by the number of replicas, so that the all-reduced "
              "gradient is a mean and not a sum."),
        Field("loss_scale", str, None, "dynamic or a number. Unset: dynamic for fp16, none otherwise."),
    )),
    Section("Devices", (
        Field("distribution_strategy", str, "mirrored", "How replicas are made.", choices=("one_device", "mirrored", "tpu")),
        Field("num_gpus", int, None, "GPUs to use; 0 for the CPU. Unset: all GPUs there are, else the CPU.", minimum=0),
        Field("num_virtual_devices", int, None, "Replicas on this many logical CPUs (mirrored), to rehearse a multi-device job.", minimum=1),
        Field("tpu", str, None, "TPU name, grpc:// address or local, for --distribution_strategy=tpu."),
        Field("all_reduce_alg", str, None, "All-reduce of the mirrored strategy. Unset: TensorFlow's choice.", choices=("nccl", "hierarchical_copy")),
        Field("explicit_allreduce", bool, False, "All-reduce gradients in packs of --allreduce_bytes_per_pack; needs --clip_scope=global or none."),
        Field("allreduce_bytes_per_pack", int, 0, "Bytes of one pack with --explicit_allreduce; 0 = TensorFlow's choice.", minimum=0),
        Field("deterministic", bool, False, "Choose deterministic kernels only: the same command gives the same bits on the same machine; slower."),
        Field("enable_xla", bool, False, "Compile the forward and backward pass with XLA."),
        Field("device_warmup", bool, False,
              "Compile the training and the evaluation step on synthetic data before the clock starts; leaves all state bit-equal."),
    )),
    Section("Messages", (
        Field("verbosity", int, 0, "-1 warnings only, 0 progress, 1 debug.", minimum=-1, maximum=3),
    )),
)
FIELDS = {field.name: field for section in SECTIONS for field in section.fields}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT model under Google's bert_config.json names. Defaults are BERT-base's."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads


# Keys that published bert_config.json files carry beside the model's sizes, with the only value this model has
# (None: any, it describes the file and not the model).
_KNOWN_EXTRA_KEYS = {
    "directionality": "bidi", "pooler_fc_size": None, "pooler_num_attention_heads": None, "pooler_num_fc_layers": None,
    "pooler_size_per_head": None, "pooler_type": "first_token_transform", "layer_norm_eps": 1e-12, "model_type": "bert",
    "pad_token_id": 0, "position_embedding_type": "absolute", "architectures": None, "_name_or_path": None,
    "transformers_version": None, "gradient_checkpointing": None, "use_cache": None, "classifier_dropout": None, "torch_dtype": None,
}
_BERT_FIELDS = {field.name: field for field in dataclasses.fields(BertConfig)}


def suggest(name: str, known) -> str:
    """Returns ' (did you mean X?)' for the known name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def bert_config_from_dict(values: dict, source: str) -> BertConfig:
    """Checks Google's keys and returns the model's sizes. `source` names the file in messages. Raises ConfigError."""
    sizes = {}
    for key, value in values.items():
        if key in _BERT_FIELDS:
            sizes[key] = _checked_size(key, value, source)
        elif key not in _KNOWN_EXTRA_KEYS:
            raise ConfigError(f"{source}: unknown key {key!r}{suggest(key, _BERT_FIELDS)}.")
        elif _KNOWN_EXTRA_KEYS[key] not in (None, value):
            raise ConfigError(f"{source}: {key}={value!r} is not supported, only {_KNOWN_EXTRA_KEYS[key]!r}.")
    if "vocab_size" not in sizes:
        raise ConfigError(f"{source}: vocab_size is missing.")
    model = BertConfig(**sizes)
    if model.hidden_size % model.num_attention_heads:
        raise ConfigError(f"{source}: hidden_size={model.hidden_size} is not divisible by num_attention_heads={model.num_attention_heads}.")
    if model.hidden_act not in ("gelu", "relu"):
        raise ConfigError(f"{source}: hidden_act={model.hidden_act!r} is unknown. Allowed: gelu, relu.")
    return model


def _checked_size(key: str, value, source: str):
    kind = _BERT_FIELDS[key].type
    if kind is str:
        valid = isinstance(value, str)
    elif kind is int:
        valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    else:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
    if not valid:
        allowed = {str: "a string", int: "a positive integer", float: "a number in [0, 1)"}[kind]
        raise ConfigError(f"{source}: {key}={value!r}, expected {allowed}.")
    return value


def read_json(path: str, flag: str) -> dict:
    """Reads a JSON object. Raises ConfigError naming the flag that gave the path."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except OSError as error:
        raise ConfigError(f"--{flag}={path}: {error.strerror or error}.") from None
    except ValueError as error:
        raise ConfigError(f"--{flag}={path}: not a JSON file ({error}).") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--{flag}={path}: expected a JSON object, got a {type(values).__name__}.")
    return values


def default_config() -> ml_collections.ConfigDict:
    """Returns the configuration with every default, locked against unknown names."""
    config = ml_collections.ConfigDict({name: field.default for name, field in FIELDS.items()}, convert_dict=False)
    config.model = None
    return config.lock()


def build_config(layers: list[tuple[str, dict]]) -> ml_collections.FrozenConfigDict:
    """Builds, validates and freezes the configuration of a run.

    Args:
      layers: (source, {name: value}) pairs, applied in order over the defaults; later ones win. `source` is named in
        messages. The key `model` may hold the keys of a bert_config.json, as a saved config.json does.

    Raises:
      ConfigError: for an unknown name, a value of the wrong type or range, or settings that exclude each other.
    """
    config = default_config()
    for source, values in layers:
        for name, value in values.items():
            if name == "model":
                config.model = bert_config_from_dict(dict(value), f"{source}: model")
            elif name not in FIELDS:
                raise ConfigError(f"{source}: unknown setting {name!r}{suggest(name, FIELDS)}.")
            else:
                config[name] = _checked_value(FIELDS[name], value, source)
                if name == "bert_config_file" and value and "model" not in values:
                    config.model = bert_config_from_dict(read_json(value, name), value)
    validate(config)
    return ml_collections.FrozenConfigDict(config)


def _checked_value(field: Field, value, source: str):
    if value is None or value == "" and field.default is None:
        return field.default
    received = f"{source}: {field.name}={value}"
    if field.type in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        if field.type is int and value != int(value):
            raise ConfigError(f"{received}, expected an integer.")
        value = field.type(value)
        if not math.isfinite(value):
            raise ConfigError(f"{received}, expected a finite number.")
    elif field.type is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, field.type):
        raise ConfigError(f"{received}, expected a value of type {field.type.__name__}.")
    if field.choices and value not in field.choices:
        raise ConfigError(f"{received} is not one of {', '.join(field.choices)}{suggest(value, field.choices)}.")
    if field.minimum is not None and value < field.minimum:
        raise ConfigError(f"{received} is below the minimum of {field.minimum}.")
    if field.maximum is not None and value > field.maximum:
        raise ConfigError(f"{received} is above the maximum of {field.maximum}.")
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Derived values. Never flags.


def schedule_steps(config) -> int:
    """Returns the steps over which the learning rate decays."""
    return config.num_steps_per_epoch * config.num_train_epochs


def train_steps(config) -> int:
    """Returns the steps that are trained: the schedule, or --stop_steps of it."""
    return config.stop_steps or schedule_steps(config)


def checkpoint_every_steps(config) -> int:
    """Returns the steps between checkpoints: as asked, or a tenth of the run in whole loops."""
    tenth = train_steps(config) / 10
    return config.checkpoint_every_steps or config.steps_per_loop * max(1, round(tenth / config.steps_per_loop))


def initial_loss_scale(config) -> float | None:
    """Returns the fixed or the first dynamic loss scale, or None where losses are not scaled."""
    if config.loss_scale in (None, "dynamic"):
        return 2.0**15 if config.dtype == "fp16" or config.loss_scale else None
    return float(config.loss_scale)


def dynamic_loss_scale(config) -> bool:
    return config.loss_scale == "dynamic" or (config.loss_scale is None and config.dtype == "fp16")


# ---------------------------------------------------------------------------------------------------------------------
# Validation of the whole. Each check is one rule that no single field can know.


def nearest_multiples(value: int, divisor: int) -> str:
    """Returns the nearest positive multiples of `divisor` around `value`, as text: '440 or 528'."""
    below = value // divisor * divisor
    return f"{below} or {below + divisor}" if below else f"{divisor}"


def validate(config) -> None:
    """Raises ConfigError for settings that are missing or exclude each other."""
    for check in (_check_files, _check_lengths, _check_vocabulary, _check_steps, _check_optimization, _check_devices):
        check(config)


def _check_files(config) -> None:
    if not config.model_dir:
        raise ConfigError("model_dir is not set. Give the run a folder: --model_dir=DIR.")
    if not (config.do_train or config.do_eval):
        raise ConfigError("do_train=false and do_eval=false: nothing to do. Set --do_train or --do_eval.")
    if config.model is None:
        raise ConfigError("bert_config_file is not set. Choose a model: --bert_config_file=configs/models/bert_base.json.")
    if config.use_synthetic_data and (config.input_files or config.eval_files):
        raise ConfigError("use_synthetic_data excludes input_files and eval_files. Drop --use_synthetic_data or the files.")
    if not (config.use_synthetic_data or config.input_files) and (config.do_train or not config.eval_files):
        raise ConfigError("input_files is not set. Give --input_files=GLOB, or --use_synthetic_data for random records.")


def _check_lengths(config) -> None:
    if config.max_predictions_per_seq > config.max_seq_length:
        raise ConfigError(f"max_predictions_per_seq={config.max_predictions_per_seq} is larger than max_seq_length={config.max_seq_length}. "
                          "Lower --max_predictions_per_seq (the published recipes: 20 for 128, 56 for 384, 76 for 512).")
    if config.max_seq_length > config.model.max_position_embeddings:
        raise ConfigError(f"max_seq_length={config.max_seq_length} is larger than the model's max_position_embeddings="
                          f"{config.model.max_position_embeddings}. Lower --max_seq_length or change --bert_config_file.")


def _check_vocabulary(config) -> None:
    if not config.vocab_file:
        return
    try:
        with open(config.vocab_file, "rb") as file:
            words = sum(1 for _ in file)
    except OSError as error:
        raise ConfigError(f"--vocab_file={config.vocab_file}: {error.strerror or error}.") from None
    if words != config.model.vocab_size:
        raise ConfigError(f"vocab_file={config.vocab_file} has {words} words, the model's vocab_size is {config.model.vocab_size}. "
                          "Change --vocab_file or --bert_config_file.")


def _check_steps(config) -> None:
    if train_steps(config) > schedule_steps(config):
        raise ConfigError(f"stop_steps={config.stop_steps} is beyond num_steps_per_epoch x num_train_epochs = {config.num_steps_per_epoch} x "
                          f"{config.num_train_epochs} = {schedule_steps(config)}. Lower --stop_steps or raise --num_steps_per_epoch.")
    for name in ("steps_between_eval", "checkpoint_every_steps"):
        value = config[name]
        if value and value % config.steps_per_loop:
            raise ConfigError(f"{name}={value} is not a multiple of steps_per_loop={config.steps_per_loop}. "
                              f"Nearest valid: {nearest_multiples(value, config.steps_per_loop)}.")
    if config.stop_threshold is not None and not config.do_eval:
        raise ConfigError(f"stop_threshold={config.stop_threshold} needs evaluations. Add --do_eval or drop --stop_threshold.")
    if config.steps_between_eval and not config.do_eval:
        raise ConfigError(f"steps_between_eval={config.steps_between_eval} needs --do_eval.")


def _check_optimization(config) -> None:
    if config.end_learning_rate > config.learning_rate:
        raise ConfigError(f"end_learning_rate={config.end_learning_rate} is above learning_rate={config.learning_rate}. Lower --end_learning_rate.")
    if config.epsilon == 0:
        raise ConfigError("epsilon=0, expected a number above 0. Raise --epsilon.")
    for name in ("beta_1", "beta_2"):
        if config[name] >= 1:
            raise ConfigError(f"{name}={config[name]}, expected a number in [0, 1). Lower --{name}.")
    if config.clip_scope != "none" and config.clip_norm == 0:
        raise ConfigError("clip_norm=0 would clip every gradient to nothing. Raise --clip_norm or set --clip_scope=none.")
    if config.clip_scope == "micro_batch" and config.loss_normalization == "global":
        raise ConfigError("clip_scope=micro_batch clips a mean loss's gradient, loss_normalization=global makes none per micro batch. "
                          "Use --loss_normalization=local, or --clip_scope=global.")
    if config.scale_loss and config.loss_normalization == "global":
        raise ConfigError("scale_loss divides each replica's mean loss, loss_normalization=global has none: it already divides by the whole "
                          "step's weights. Drop --scale_loss, or use --loss_normalization=local.")
    if config.loss_scale not in (None, "dynamic"):
        try:
            valid = 0 < float(config.loss_scale) < math.inf
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(f"loss_scale={config.loss_scale}, expected dynamic or a number above 0.")
    if config.start_warmup_step and not config.warmup_steps:
        raise ConfigError(f"start_warmup_step={config.start_warmup_step} needs a warm-up. Set --warmup_steps above 0.")


def _check_devices(config) -> None:
    strategy = config.distribution_strategy
    if config.tpu is not None and strategy != "tpu":
        raise ConfigError(f"tpu={config.tpu} needs --distribution_strategy=tpu, received {strategy}.")
    if config.num_virtual_devices:
        if strategy != "mirrored":
            raise ConfigError(f"num_virtual_devices={config.num_virtual_devices} needs --distribution_strategy=mirrored, received {strategy}.")
        if config.num_gpus:
            raise ConfigError(f"num_virtual_devices={config.num_virtual_devices} are CPUs, num_gpus={config.num_gpus} asks for GPUs. Set one of the two flags.")
        if config.all_reduce_alg == "nccl":
            raise ConfigError("all_reduce_alg=nccl runs on GPUs only, num_virtual_devices are CPUs. Use --all_reduce_alg=hierarchical_copy.")
    if strategy == "one_device" and (config.num_gpus or 0) > 1:
        raise ConfigError(f"num_gpus={config.num_gpus} needs --distribution_strategy=mirrored; one_device takes 0 or 1.")
    if config.all_reduce_alg and strategy != "mirrored":
        raise ConfigError(f"all_reduce_alg={config.all_reduce_alg} needs --distribution_strategy=mirrored, received {strategy}.")
    if config.explicit_allreduce and config.clip_scope == "micro_batch":
        raise ConfigError("explicit_allreduce clips the reduced gradient, clip_scope=micro_batch clips before the reduction. "
                          "Use --clip_scope=global, or drop --explicit_allreduce.")
    if config.allreduce_bytes_per_pack and config.all_reduce_alg:
        raise ConfigError(f"allreduce_bytes_per_pack={config.allreduce_bytes_per_pack} sets TensorFlow's own all-reduce, all_reduce_alg="
                          f"{config.all_reduce_alg} has no packs. Drop one of the two flags.")
    if config.allreduce_bytes_per_pack and not config.explicit_allreduce:
        raise ConfigError(f"allreduce_bytes_per_pack={config.allreduce_bytes_per_pack} needs --explicit_allreduce.")


def to_json(config) -> str:
    """Returns the whole configuration as JSON; `--config=FILE` reads it back."""
    values = {name: config[name] for name in FIELDS}
    values["model"] = dataclasses.asdict(config.model)
    return json.dumps(values, indent=2) + os.linesep

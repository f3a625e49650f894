"""Keys of the configuration files of Graphcore's programs, a table each: what a key means here."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from official.config.model import KINDS
from official.config.settings.devices import PIPELINED
from official.config.table import FIELDS
from official.config.values import written_stages
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Rows, and readers of values


# Where a value goes: a setting of ours, `model.KEY` of the model's sizes, or, with @, a term of
# `official.graphcore.configuration_terms`, which makes settings of several terms.
IPU_ONLY = "IPU only"
NOT_NEEDED = "not needed"
_LARGEST = 2**63
# Name of a schedule of theirs -> ours, on IPUs.
SCHEDULES = {"Grouped": "grouped", "Interleaved": "interleaved", "Sequential": "sequential"}


@dataclasses.dataclass(frozen=True)
class Row:
    """Meaning of a foreign key.

    Attributes:
      to: a setting's name, `model.KEY`, `@TERM`, IPU_ONLY or NOT_NEEDED.
      read: their value -> ours; None: as it is.
      why: of NOT_NEEDED, for people.
      backends: of a term, the values of --distribution_strategy that know it; empty: all. Elsewhere the key
        is IPU_ONLY. Of a setting its own row in the table of settings says so.
    """

    to: str
    read: Callable[[Any], Any] | None = None
    why: str = ""
    backends: tuple[str, ...] = ()

    def is_known_to(self, backend: str) -> bool:
        """Tells whether a back end knows what the key means."""
        known = self.backends or (FIELDS[self.to].backends if self.to in FIELDS else ())
        return not known or backend in known


Table = dict[str, Row]


def ipu_only(keys: str) -> Table:
    """Returns rows of keys that place work and memory on IPUs, and mean nothing elsewhere."""
    return {key: Row(IPU_ONLY) for key in keys.split()}


def not_needed(why: str, keys: str) -> Table:
    """Returns rows of keys that need no setting here, for the same reason."""
    return {key: Row(NOT_NEEDED, why=why) for key in keys.split()}


def same(keys: str) -> Table:
    """Returns rows of keys that are settings of ours, too."""
    return {key: Row(key) for key in keys.split()}


def of_model(keys: str, prefix: str = "") -> Table:
    """Returns rows of keys of a model's sizes, that are ours, too; in their files behind a prefix."""
    return means(" ".join(f"{prefix}{key}=model.{key}" for key in keys.split()))


def may_lack_value(row: Row) -> bool:
    """Tells whether an option may stand on a command line without a value."""
    return row.read in (truth, truth_or_unsaid, inverse) or row.to in (IPU_ONLY, NOT_NEEDED)


# ------------------------------------------------------------------------------------------------------------
# Readers of values


def number(value: Any) -> float | int:
    """Returns a number that may be a text: YAML reads 5e-5 as one.

    Raises:
      ConfigError: for what is no number.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise ConfigError("expected a number")
    return value


def whole(value: Any) -> int:
    """Returns a whole number. Raises ConfigError for another value."""
    found = number(value)
    if found != int(found):
        raise ConfigError("expected a whole number")
    return int(found)


def count(value: Any) -> int:
    """Returns a whole number above 0. Raises ConfigError for another value."""
    found = whole(value)
    if not 0 < found < _LARGEST:
        raise ConfigError("expected a whole number of 1 or more, below 2^63")
    return found


def text(value: Any) -> str:
    """Returns a text, such as a path. Raises ConfigError for another value."""
    if not isinstance(value, str):
        raise ConfigError("expected a text")
    return value


def truth(value: Any) -> bool:
    """Returns a truth that may be a text. Raises ConfigError for another value."""
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ConfigError("expected true or false")
    return word == "true"


def truth_or_unsaid(value: Any) -> bool | None:
    """Returns True, or None for what is off."""
    return truth(value) or None


def inverse(value: Any) -> bool:
    """Returns the opposite of a truth."""
    return not truth(value)


def files(value: Any) -> str | None:
    """Returns paths, a list or a text, as our comma-separated list; None for none."""
    return ",".join(map(str, value)) if isinstance(value, list) else value or None


def as_json(value: Any) -> str | None:
    """Returns an object as the JSON of a setting; a text, such as a file's path, stays."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def counts(value: Any) -> list[int]:
    """Returns whole numbers of 0 or more, of a list or a text with commas. Raises ConfigError for others."""
    parts = value.strip("[]").split(",") if isinstance(value, str) else value
    found = [whole(each) for each in parts] if isinstance(parts, list) else []
    if not found or min(found) < 0:
        raise ConfigError("expected whole numbers of 0 or more")
    return found


def devices(value: Any) -> str:
    """Returns the devices of stages, a list or a text, as our setting has them: 0,1,2,3,0."""
    return ",".join(map(str, counts(value)))


def stages(value: Any) -> str:
    """Returns a list of lists of names, or a text, as our setting has it: emb+pos / hid*12 / mlm+nsp."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
        raise ConfigError("expected a list of lists of names")
    return written_stages([[text(name) for name in stage] for stage in value])


def placement(value: Any) -> list[tuple[int, int]]:
    """Returns (device, blocks) of each stage, of [[device, [blocks of attention, of feed-forward]], ...].

    Raises:
      ConfigError: for another value.
    """
    try:
        return [(whole(device), whole(attention)) for device, (attention, _) in value]
    except (TypeError, ValueError):
        raise ConfigError("expected [[stage, [attention layers, feed-forward layers]], ...]") from None


def powers(value: Any) -> list[float]:
    """Returns [power of the warm-up, power of the decay] of a list, or [power of both] of a number."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    found = [number(each) for each in value] if isinstance(value, list) else [number(value)]
    if len(found) not in (1, 2):
        raise ConfigError("expected a number, or two: of the warm-up and of the decay")
    return found


def of(names: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns a reader of one of several names, in any case."""

    def read(value: Any) -> Any:
        found = {name.lower(): ours for name, ours in names.items()}
        if str(value).lower() not in found:
            raise ConfigError(f"expected one of {', '.join(names)}")
        return found[str(value).lower()]

    return read


def loss_scale(value: Any) -> str | None:
    """Returns a loss scale as our setting has it, a text."""
    return None if value is None else f"{number(value):g}"


# -----------------------------------------------------------------------------------------------------------
# Rows by what a key means here


def shares(value: Any) -> str:
    """Returns a number, a list of them or a text of them as our setting has it: 0.1,0.2."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    found = value if isinstance(value, list) else [value]
    if not found:
        raise ConfigError("expected a number, or one for each stage")
    return ",".join(f"{number(each):g}" for each in found)


def half_or_float(value: Any) -> str:
    return "half" if truth(value) else "float"


# Reader -> the terms that it reads, and settings that it reads in place of the reader of their type.
_READ: dict[Callable[[Any], Any], str] = {
    count: """@micro @accumulation @replicas @global @steps @epochs @samples @duplication @vocab_size
        device_iterations predict_epochs""",
    whole: "@encoder_start @sequences_per_pack",
    number: "@warmup @warmup_share @dropout @clip",
    truth: """@recomputation @groupbert @nvlamb @mpclip @lamb_debiasing @dynamic_scale @packs @prepacked
        @packed_data @no_dropout @no_attention_dropout @no_model_save @no_validation @validation
        @inference""",
    text: "@folder @output_folder @dataset_dir @wandb_project executable_cache_path",
    files: "@files @predict_files @eval_files",
    as_json: "@loss_scale_by_step @rates_by_step",
    counts: "@layers_per_ipu",
    placement: "@placement",
    powers: "@powers",
    stages: "pipeline_stages",
    devices: "device_mapping",
    loss_scale: "loss_scale",
    shares: "available_memory_proportion",
    of({"half": "half", "float": "float"}): "partials_type",
    of({name: name for name in FIELDS["scheduler"].choices}): "scheduler",
    of(SCHEDULES): "@pipeline_schedule",
}
_READERS = {name: read for read, names in _READ.items() for name in names.split()}
_READERS_OF_TYPES: dict[Any, Callable[[Any], Any]] = {int: whole, float: number, bool: truth}
_BACKENDS = {
    "@recomputation": ("ipu",),
    **dict.fromkeys("@pipeline_schedule @layers_per_ipu @encoder_start @placement".split(), PIPELINED),
}


def means(pairs: str) -> Table:
    """Returns rows of pairs THEIRS=OURS, or of names that are ours, too. A value is read by what is ours: a
    term or a setting by its own reader or that of its type, as it is where there is none."""
    found: Table = {}
    for pair in pairs.split():
        theirs, _, ours = pair.rpartition("=")
        kind = KINDS[ours[len("model.") :]] if ours.startswith("model.") else None
        if ours in FIELDS:
            kind = FIELDS[ours].type
        read = _READERS.get(ours) or _READERS_OF_TYPES.get(kind)
        found[theirs or ours] = Row(ours, read, backends=_BACKENDS.get(ours, ()))
    return found


# -----------------------------------------------------------------------------------------------------------
# Settings of IPUs


_IPU_TF1: Table = {
    **means(
        """replicated_tensor_sharding stochastic_rounding no_outlining fp_exceptions min_remote_tensor_size
        available_memory_proportion variable_offloading=optimizer_state_offchip partials_type scheduler
        enable_recomputation=@recomputation"""
    ),
    "device_iterations": Row("device_iterations", whole),
}
# What the program does where a file says nothing. Source: options.py of Graphcore's TF1 BERT.
_IPU_TF1_DEFAULTS = {
    "available_memory_proportion": 0.23,
    "enable_recomputation": True,
    "partials_type": "half",
    "scheduler": "CLUSTERING",
}
_IPU_TF2: Table = {
    **means(
        """ipu_config.matmul_available_memory_proportion_per_pipeline_stage=available_memory_proportion
        ipu_config.replicated_tensor_sharding=replicated_tensor_sharding min_remote_tensor_size
        enable_recomputation=@recomputation optimizer_state_offchip matmul_partials_type=partials_type
        enable_stochastic_rounding=stochastic_rounding fp_exceptions"""
    ),
    "use_outlining": Row("no_outlining", inverse),
}
# Source: options.py of Graphcore's TF2 BERT.
_IPU_TF2_DEFAULTS = {
    "enable_recomputation": True,
    "matmul_partials_type": "half",
    "min_remote_tensor_size": 50000,
}
_IPU_POPART: Table = {
    **means(
        """device_iterations stochastic_rounding optimizer_state_offchip replicated_tensor_sharding
        available_memory_proportion engine_cache=executable_cache_path no_outlining
        recompute_checkpoint_every_layer=@recomputation floating_point_exceptions=fp_exceptions"""
    ),
    "enable_half_partials": Row("partials_type", half_or_float),
}
_IPU_PYTORCH: Table = {
    **means(
        """recompute_checkpoint_every_layer=@recomputation replicated_tensor_sharding optimizer_state_offchip
        matmul_proportion=available_memory_proportion device_iterations
        executable_cache_dir=executable_cache_path"""
    ),
    "enable_half_partials": Row("partials_type", half_or_float),
}
# Of all programs, on a command line.
IPU_OPTIONS = means("device_iterations replicated_tensor_sharding available_memory_proportion")


# -----------------------------------------------------------------------------------------------------------
# TensorFlow 1: flat JSON files, whose keys are the names of the options, too


TF1_OPTIMIZERS = {name: name for name in ("sgd", "momentum", "adam", "adamw", "mpadamw", "lamb")}
TF1_SCHEDULES = {
    "polynomial_decay": "polynomial",
    "polynomial": "polynomial",
    "cosine_decay": "cosine",
    "cosine": "cosine",
    "natural_exponential": "natural_exponential",
    "custom": "custom",
}
TF1_TASKS = {"pretraining": "pretrain", "SQuAD": "squad", "GLUE": "glue"}

# What their programs do where a file says nothing. `exponential` and `polynomial` as names of a schedule
# are not taken by them.
TF1_DEFAULTS = {
    "task": "pretraining",
    "base_learning_rate": 2e-5,
    "optimizer": "momentum",
    "lr_schedule": "polynomial_decay",
    "warmup": 0.1,
    "epsilon": 1e-4,
    "weight_decay_rate": 0.0,
    "use_debiasing": False,
    "use_qkv_bias": False,
    "layer_norm_eps": 1e-3,
    "precision": 16,
    "steps_per_logs": 1,
    **_IPU_TF1_DEFAULTS,
}

_TF1_BATCH = means(
    """micro_batch_size=@micro gradient_accumulation_count=@accumulation replicas=@replicas
    global_batch_size=@global num_train_steps=@steps epochs=@epochs steps_per_ckpts=checkpoint_every_steps
    max_to_keep=keep_checkpoints steps_per_logs=steps_per_loop"""
)
_TF1_OPTIMIZATION = {
    **means(
        """base_learning_rate=learning_rate momentum=@momentum beta1=beta_1 beta2=beta_2 weight_decay_rate epsilon
        lr_power=@powers lr_schedule_by_step=@rates_by_step decay_steps decay_rate warmup=@warmup
        loss_scaling=loss_scale loss_scaling_by_step=@loss_scale_by_step use_debiasing=@lamb_debiasing
        use_nvlamb=@nvlamb use_mpclip=@mpclip"""
    ),
    "optimizer": Row("optimizer_type", of(TF1_OPTIMIZERS)),
    "lr_schedule": Row("lr_schedule", of(TF1_SCHEDULES)),
    "reduction_type": Row("@reduction", of({"mean": "mean", "sum": "sum"})),
    "precision": Row("dtype", of({"16": "fp16", "32": "fp32"})),
}
_TF1_MODEL = {
    **of_model(
        """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
        hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size
        initializer_range layer_norm_eps use_qkv_bias use_attention_projection_bias use_cls_layer
        use_prediction_bias groupbert_ffn_output_groups groupbert_conv_kernel_size
        groupbert_conv_group_size"""
    ),
    **means("groupbert=@groupbert"),
}
_TF1_DATA = {
    **means(
        """seq_length=max_seq_length max_predictions_per_seq train_file=@files generated_data
        synthetic_data=synthetic_input static_mask do_evaluation=do_eval do_predict"""
    ),
    "task": Row("task", of(TF1_TASKS)),
    "task_name": Row("glue_task", lambda name: str(name).lower() or None),
    "tfrecord_dir": Row("cache_dir"),
    # Off is what a command line turns on: files hold this, do_evaluation and do_predict as false.
    "do_training": Row("@do_training", truth_or_unsaid),
    **same(
        """predict_file doc_stride do_lower_case version_2_with_negative null_score_diff_threshold
        max_query_length n_best_size max_answer_length vocab_file data_dir"""
    ),
}
_TF1_RUN = {
    **same("seed init_checkpoint wandb wandb_name"),
    **means("save_path=@folder output_dir=@output_folder restore_dir=init_checkpoint compile_only"),
}
_TF1_NOT_NEEDED = {
    **not_needed("a run goes on from its own --model_dir with all its state",
        "restore_optimiser_from_checkpoint save_optimiser_to_checkpoint"),
    **not_needed("--model_dir names the run and holds its logs, TensorBoard and report",
        "name name_suffix log_dir profile_dir steps_per_tensorboard log_all_workers"),
    **not_needed("POPLAR_ENGINE_OPTIONS in the environment asks for it",
        "execution_profile memory_profile sync_replicas_independently"),
    **not_needed("progress is shown on terminals", "progress_bar verbose_logging"),
    **not_needed("accuracies are always measured", "disable_acc"),
    **not_needed("optimizer state and rates are float32",
        "increase_optimiser_precision use_lr_fp32"),
    **not_needed("their program does not read it", "weight_norm_clip glue_dropout_prob"),
    **not_needed("query, key and value are three variables", "use_qkv_split"),
    **not_needed("data are read and shuffled in parallel, in an order that the seed decides",
        "parallel_io_threads sloppy_parallel_interleave buffer_size dataset_repeat"),
    **not_needed("it says how the data were made", "duplicate_factor"),
    **not_needed("--use_synthetic_data has its own number of sequences",
        "num_synthetic_dataset_samples"),
}  # fmt: skip
_TF1_IPU_ONLY = ipu_only(
    """max_cross_replica_sum_buffer_size max_reduce_scatter_buffer_size
    ipu_replica_identical_seed recomputation_mode matmul_serialize_factor embedded_runtime
    dump_raw_timings num_iter num_inference_thread"""
)

_TF1_PIPELINE = means("pipeline_stages device_mapping pipeline_schedule=@pipeline_schedule")

TF1_ROWS = {
    **_TF1_BATCH,
    **_TF1_OPTIMIZATION,
    **_TF1_MODEL,
    **_TF1_DATA,
    **_TF1_RUN,
    **_TF1_PIPELINE,
    **_TF1_NOT_NEEDED,
    **_TF1_IPU_ONLY,
    **_IPU_TF1,
}


# -----------------------------------------------------------------------------------------------------------
# TensorFlow 2: nested JSON files; a nested key is written here with dots


TF2_OPTIMIZERS = {"LAMB": "lamb", "AdamW": "adamw", "Adam": "adam"}
TF2_MODELS = {
    "bert-base-uncased": {},
    "bert-large-uncased": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
# What their programs do where a file says nothing.
TF2_DEFAULTS = {
    "use_qkv_bias": False,
    "use_projection_bias": False,
    "use_cls_layer": False,
    **_IPU_TF2_DEFAULTS,
}
TF2_NESTED = ("bert_config", "global_batch", "ipu_config", "optimizer_opts")

_TF2_KEYS = {
    **means(
        """dataset_dir=@dataset_dir max_seq_length max_predictions_per_seq
        global_batch.micro_batch_size=@micro global_batch.replicas=@replicas
        global_batch.grad_acc_steps_per_replica=@accumulation total_num_train_samples=@samples
        num_epochs=@epochs optimizer_opts.weight_decay_rate=weight_decay_rate
        optimizer_opts.loss_scaling=loss_scale optimizer_opts.learning_rate.max_learning_rate=learning_rate
        optimizer_opts.learning_rate.warmup_frac=@warmup use_qkv_bias=model.use_qkv_bias
        use_projection_bias=model.use_attention_projection_bias use_cls_layer=model.use_cls_layer
        use_prediction_bias=model.use_prediction_bias seed global_batches_per_log=steps_per_loop
        ckpt_every_n_steps_per_execution=checkpoint_every_steps save_ckpt_path=@folder
        output_dir=@output_folder pretrained_ckpt_path=init_checkpoint glue_task do_training=do_train
        do_validation=do_eval do_test=do_predict generated_dataset=generated_data compile_only
        wandb_project_name=@wandb_project"""
    ),
    "optimizer_opts.name": Row("optimizer_type", of(TF2_OPTIMIZERS)),
    "optimizer_opts.learning_rate.schedule_name": Row("lr_schedule", of({"up_down": "up_down"})),
    "bert_model_name": Row("@model_name", of(TF2_MODELS)),
}
_TF2_MODEL = of_model(
    """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
    hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size
    initializer_range layer_norm_eps""",
    "bert_config.",
)
_TF2_NOT_NEEDED = {
    **not_needed("positions are absolute", "bert_config.position_embedding_type"),
    **not_needed("accuracies are always measured", "show_accuracy"),
    **not_needed("--wandb on the command line sends metrics there",
        "enable_wandb wandb_tags wandb_entity_name"),
    **not_needed("--model_dir names the run, --verbosity says how much is said", "name logging"),
    **not_needed("query, key and value are three variables", "use_qkv_split"),
}  # fmt: skip
_TF2_IPU_ONLY = ipu_only("""replace_layers embedding_serialization_factor""")

_TF2_PIPELINE = means(
    "ipu_config.pipeline_stages=pipeline_stages ipu_config.pipeline_device_mapping=device_mapping"
)

TF2_ROWS = {**_TF2_KEYS, **_TF2_MODEL, **_TF2_PIPELINE, **_TF2_NOT_NEEDED, **_TF2_IPU_ONLY, **_IPU_TF2}


# -----------------------------------------------------------------------------------------------------------
# PyTorch: YAML files, in which a name has its keys


# Name of an optimizer -> (ours, whether moments are corrected).
PYTORCH_OPTIMIZERS = {
    "LAMB": ("lamb", True),
    "LAMBNoBiasCorrection": ("lamb", False),
    "AdamW": ("adamw", True),
}
PYTORCH_SCHEDULES = {"linear": "polynomial", "constant": "constant"}
PYTORCH_DATASETS = {"pretraining": ("pretrain", False), "generated": (None, True), "squad": ("squad", False)}
PYTORCH_DEFAULTS = {"lr_schedule": "linear"}

_PYTORCH_KEYS = {
    **of_model(
        """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size layer_norm_eps
        attention_probs_dropout_prob hidden_dropout_prob max_position_embeddings"""
    ),
    **means(
        """random_seed=seed pred_head_transform=model.use_cls_layer sequence_length=max_seq_length
        mask_tokens=max_predictions_per_seq micro_batch_size=@micro replication_factor=@replicas
        gradient_accumulation=@accumulation training_steps=@steps num_epochs=@epochs
        weight_decay=weight_decay_rate learning_rate lr_warmup=@warmup_share loss_scaling=loss_scale
        auto_loss_scaling=@dynamic_scale packed_data=@packed_data packing_factor=@packing_factor
        max_sequences_per_pack=@sequences_per_pack synthetic_data=synthetic_input input_files=@files
        checkpoint_output_dir=@folder pretrained_checkpoint=init_checkpoint squad_do_training=do_train
        squad_do_validation=@validation compile_only wandb"""
    ),
    "dataset": Row("@dataset", of(PYTORCH_DATASETS)),
    "optimizer": Row("@optimizer", of(PYTORCH_OPTIMIZERS)),
    "lr_schedule": Row("@schedule", of(PYTORCH_SCHEDULES)),
}
_PYTORCH_NOT_NEEDED = {
    **not_needed("data are read in parallel, in an order that the seed decides",
        "dataloader_workers async_dataloader file_buffer_size"),
    **not_needed("--kernels takes operations of our own", "custom_ops"),
    **not_needed("moments are float32", "enable_half_first_order_momentum"),
}  # fmt: skip
_PYTORCH_IPU_ONLY = ipu_only("""ipus_per_replica embedding_serialization_factor profile profile_dir""")

_PYTORCH_PIPELINE = means("layers_per_ipu=@layers_per_ipu")

PYTORCH_ROWS = {
    **_PYTORCH_KEYS,
    **_PYTORCH_PIPELINE,
    **_PYTORCH_NOT_NEEDED,
    **_PYTORCH_IPU_ONLY,
    **_IPU_PYTORCH,
}


# -----------------------------------------------------------------------------------------------------------
# PopART: flat JSON files; the packed ones of MLPerf 2.0 have some keys of their own


# Name of an optimizer -> (ours, whether moments are corrected).
POPART_OPTIMIZERS = {
    "LAMB": ("lamb", True),
    "LAMB_NO_BIAS": ("lamb", False),
    "ADAM": ("adamw", True),
    "ADAM_NO_BIAS": ("adamw", False),
}
POPART_TASKS = {"PRETRAINING": "pretrain", "SQUAD": "squad"}
POPART_TYPES = {"FLOAT16": "fp16", "FLOAT": "fp32"}
POPART_DEFAULTS = {"task": "PRETRAINING"}

_POPART_KEYS = {
    **means(
        """num_layers=model.num_hidden_layers hidden_size=model.hidden_size
        attention_heads=model.num_attention_heads vocab_length=model.vocab_size
        layer_norm_eps=model.layer_norm_eps projection_bias=model.use_prediction_bias no_dropout=@no_dropout
        no_attn_dropout=@no_attention_dropout dropout_prob=@dropout sequence_length=max_seq_length
        mask_tokens=max_predictions_per_seq micro_batch_size=@micro global_batch_size=@global
        replication_factor=@replicas gradient_accumulation_factor=@accumulation training_steps=@steps
        epochs=@epochs epochs_inference=predict_epochs duplication_factor=@duplication
        steps_per_log=steps_per_loop steps_per_save=checkpoint_every_steps no_model_save=@no_model_save
        no_validation=@no_validation loss_scaling=loss_scale beta1=beta_1 beta2=beta_2
        weight_decay=weight_decay_rate learning_rate input_files=@files vocab_file do_lower_case
        checkpoint_dir=@folder checkpoint_output_dir=@folder checkpoint_input_dir=init_checkpoint
        onnx_checkpoint=init_checkpoint tf_checkpoint=init_checkpoint seed inference=@inference
        generated_data synthetic_data=synthetic_input compile_only wandb use_packed_sequence_format=@packs
        max_sequences_per_pack=@sequences_per_pack validation_config.input_files=@predict_files"""
    ),
    "task": Row("task", of(POPART_TASKS)),
    "no_cls_layer": Row("model.use_cls_layer", inverse),
    "popart_dtype": Row("dtype", of(POPART_TYPES)),
    "optimizer": Row("@optimizer", of(POPART_OPTIMIZERS)),
    "gradient_reduction_type": Row("@reduction", of({"Mean": "mean", "Sum": "sum"})),
    "learning_rate_function": Row("lr_schedule", of({"Linear": "polynomial"})),
    "lr_warmup_steps": Row("@warmup", whole),
}
_POPART_NOT_NEEDED = {
    **not_needed("a run saves ten times and at its end; --checkpoint_every_steps=N is more",
        "epochs_per_save"),
    **not_needed("metrics of a line are those of its steps",
        "aggregate_metrics_over_steps validation_config.steps_per_log"),
    **not_needed("query, key and value are three variables", "split_qkv split_linear_layers"),
    **not_needed("the rate follows every step", "lr_steps_per_decay_update"),
    **not_needed("a warm-up begins at 0", "lr_warmup_start"),
    **not_needed("records are shuffled by the seed and streamed", "shuffle epochs_to_cache"),
    **not_needed("no example is dropped in an evaluation",
        "no_drop_remainder validation_config.no_drop_remainder"),
    **not_needed("answers lie in --model_dir; scores are computed here",
        "validation_config.squad_results_dir validation_config.squad_evaluate_script"),
}  # fmt: skip
_POPART_IPU_ONLY = ipu_only(
    """embedding_serialization_vocab_steps pipeline use_half_optimizer_state squad_wrap_final_layer
    minimum_latency_inference host_embedding use_default_available_memory_proportion max_copy_merge_size
    group_host_syncs validation_config.device_iterations validation_config.squad_wrap_final_layer
    execution_mode low_latency_inference buffering_depth variable_weights_inference
    disable_fully_connected_pass realtime_scheduler report_hw_cycle_count"""
)

_POPART_PIPELINE = means("encoder_start_ipu=@encoder_start layers_per_ipu=@layers_per_ipu")

POPART_NESTED = ("validation_config",)
POPART_ROWS = {**_POPART_KEYS, **_POPART_NOT_NEEDED, **_POPART_IPU_ONLY, **_POPART_PIPELINE, **_IPU_POPART}

# ------------------------------------------------------------------------------------------------------------
# MLPerf 2.0: whole packed rows, one more level of JSON for the schedule.

PACKED_NESTED = ("lr_bert_schedule",)
_PACKED_KEYS = {
    **means(
        """batch_size=@micro use_prepacked_pretraining_dataset=@prepacked
        avg_seq_per_pack=average_sequences_per_pack loss_averaging_basis
        lr_bert_schedule.init_lr=learning_rate lr_bert_schedule.num_training_steps=@steps
        gradient_clipping_norm=@clip on_the_spot_validation_files=@eval_files submission_division
        submission_platform"""
    ),
    "lr_bert_schedule.num_warmup_steps": Row("@warmup", whole),
}
_PACKED_NOT_NEEDED = {
    **not_needed("accuracies are those of all predicted tokens", "accuracy_averaging_basis"),
    **not_needed("--stop_steps=N ends a run early", "max_training_sequences"),
    **not_needed("moments are float32", "lamb_accl_dtype"),
}
_PACKED_IPU_ONLY = ipu_only("""activation_checkpoint_dtype reduce_nsp_overhead merge_collectives""")
_PACKED_PIPELINE = means("encoder_start_pipeline_stage=@encoder_start att_ffn_placement=@placement")
PACKED_ROWS = {**POPART_ROWS, **_PACKED_PIPELINE, **_PACKED_KEYS, **_PACKED_NOT_NEEDED, **_PACKED_IPU_ONLY}


# -----------------------------------------------------------------------------------------------------------
# Older spellings, and programs whose files are not read


# Family -> {key of an earlier version of its program: key of today}.
OLDER: dict[str, dict[str, str]] = {
    "tf1": {
        "batch_size": "micro_batch_size",
        "batches_per_step": "device_iterations",
        "do_eval": "do_evaluation",
    },
    "tf2": {  # that of SDK 2.4, with other nesting
        "cache_dir": "dataset_dir",
        "bert_config.max_seq_length": "max_seq_length",
        "bert_config.max_predictions_per_seq": "max_predictions_per_seq",
        "micro_batch_size": "global_batch.micro_batch_size",
        "replicas": "global_batch.replicas",
        "grad_acc_steps_per_replica": "global_batch.grad_acc_steps_per_replica",
        "pipeline_stages": "ipu_config.pipeline_stages",
        "device_mapping": "ipu_config.pipeline_device_mapping",
        "matmul_available_memory_proportion_per_pipeline_stage": (
            "ipu_config.matmul_available_memory_proportion_per_pipeline_stage"
        ),
        "replicated_tensor_sharding": "ipu_config.replicated_tensor_sharding",
        "loss_scaling": "optimizer_opts.loss_scaling",
        "optimizer_opts.params.weight_decay_rate": "optimizer_opts.weight_decay_rate",
        "learning_rate.lr_schedule": "optimizer_opts.learning_rate.schedule_name",
        "learning_rate.lr_schedule_params.max_learning_rate": (
            "optimizer_opts.learning_rate.max_learning_rate"
        ),
        "learning_rate.lr_schedule_params.warmup_frac": "optimizer_opts.learning_rate.warmup_frac",
        "wandb_opts.log_to_wandb": "enable_wandb",
        "wandb_opts.init.project": "wandb_project_name",
        "wandb_opts.init.tags": "wandb_tags",
        "wandb_opts.init.notes": "wandb_tags",
        "wandb_opts.init.name": "name",
    },
    "popart": {
        "batches_per_step": "device_iterations",
        "validation_config.batches_per_step": "validation_config.device_iterations",
    },
    "pytorch": {"batch_size": "micro_batch_size", "batches_per_step": "device_iterations"},
}
OLDER["packed"] = OLDER["popart"]

# (Program, what its files hold and no others: a key, as a pattern, and its values, any where there are none).
_UNREAD: tuple[tuple[str, str, tuple], ...] = (
    ("PopART with phased execution", r"execution_mode", ("PHASED", "PINGPONG")),
    ("PopART with phased execution", r"layers_per_phase|batch_serialize", ()),
    (
        "PopART on mk1, whose pipelines update weights after every micro batch",
        r"continuous_pipeline_optimizer_scaling|pipeline_(lr|momentum)_scaling",
        (True,),
    ),
    ("PopART on mk1, with its SGD", r"velocity_scaling|dampening", ()),
    ("PopXL", r"model\.layers|training\.global_batch_size|execution\.micro_batch_size", ()),
)


def with_older(family: str, table: Table) -> Table:
    """Returns a family's table with its older spellings beside the keys that they mean."""
    return {**{old: table[new] for old, new in OLDER[family].items()}, **table}


def check_program(values: Mapping[str, Any], source: str) -> None:
    """Raises ConfigError for a file of a program of Graphcore's that is not read.

    Args:
      values: of the file, with dots in nested keys.
      source: names it in messages.
    """
    for program, pattern, meant in _UNREAD:
        for key, value in values.items():
            if re.fullmatch(rf"(.*\.)?({pattern})", key) and (not meant or value in meant):
                raise ConfigError(
                    f"{source}: {key}={value!r} is of Graphcore's {program}, whose files are not read."
                    " Read are those of TensorFlow 1, TensorFlow 2, PyTorch, MLPerf 2.0 and PopART with"
                    " pipelines."
                )

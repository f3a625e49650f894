"""Validation of the whole configuration: each check covers several settings."""

from __future__ import annotations

import math
import os

from official.config.backends import BACKENDS
from official.config.cluster import read_cluster
from official.config.derived import (
    UNKNOWN_WORD,
    VOCABULARY_ROUNDING,
    check_streams,
    decay_length,
    first_step,
    initial_loss_scale,
    is_checkpoint,
    is_vocabulary_of,
    knows_steps,
    pack_depth,
    schedule_steps,
    train_steps,
)
from official.config.model import BertConfig
from official.config.setting import OWN_DATA
from official.config.settings.devices import PIPELINED, SCHEDULES
from official.config.table import FIELDS, Config
from official.config.values import (
    device_bytes,
    gpu_memory_bytes,
    read_by_step,
    read_devices,
    read_host_counts,
    read_stages,
    read_steps,
)
from official.io import vocabulary_files
from official.io.errors import ConfigError, nearest_multiples

# -----------------------------------------------------------------------------------------------------------
# Inputs


def check_rows(config: Config) -> None:
    """Refuses settings that have no effect with the rest of the configuration, according to their rows."""
    for name, field in FIELDS.items():
        if config[name] == field.default:
            continue
        if field.tasks and config.task not in field.tasks:
            raise ConfigError(
                f"{name}={config[name]} needs --task={' or --task='.join(field.tasks)}, received"
                f" --task={config.task}."
            )
        if field.backends and config.distribution_strategy not in field.backends:
            raise ConfigError(
                f"{name}={config[name]} needs"
                f" --distribution_strategy={' or --distribution_strategy='.join(field.backends)}, received"
                f" {config.distribution_strategy}."
            )
        for needed in field.needs:
            if config[needed] is None or config[needed] is False:
                raise ConfigError(
                    f"{name}={config[name]} needs --{needed}. Add --{needed}, or"
                    f" --{name}={'' if field.default is None else str(field.default).lower()} to unset it."
                )
        for other, why in field.excludes.items():
            setting, is_one, value = other.partition("=")
            is_set = config[setting] and config[setting] != FIELDS[setting].default
            if str(config[setting]) == value if is_one else is_set:
                raise ConfigError(f"{name} excludes {other}: {why}. Drop one of the two flags.")
        if field.only_with and (config[name] or config[name] is False):
            by, allowed = field.only_with
            if config[by] not in allowed:
                raise ConfigError(
                    f"{name}={str(config[name])[:100]} is not read by {by}={str(config[by])[:100]}, but by"
                    f" {', '.join(allowed)}. Drop --{name}, or change --{by}."
                )


def check_files(config: Config) -> None:
    """Raises ConfigError for a missing file, and for one that the run would ignore."""
    if not (config.model_dir or config.compile_only or config.plan):
        raise ConfigError("model_dir is not set. Give the run a folder: --model_dir=DIR.")
    if not (config.do_train or config.do_eval or config.do_predict):
        raise ConfigError("do_train=false and do_eval=false: nothing to do. Set --do_train or --do_eval.")
    if config.model is None and config.task in OWN_DATA and not config.init_checkpoint:
        raise ConfigError(
            "init_checkpoint is not set. Give the folder of an encoder: one of Hugging Face's (config.json,"
            " vocab.txt, model.safetensors), Google's BERT, unpacked, or a run: --init_checkpoint=FOLDER."
        )
    if config.model is None and config.init_checkpoint:
        lacks = "has no config.json or bert_config.json with the sizes of the model"
        what = lacks if is_checkpoint(config.init_checkpoint) else "does not exist"
        raise ConfigError(
            f"--init_checkpoint={config.init_checkpoint} {what}. Correct the path, or give"
            " --bert_config_file=FILE."
        )
    if config.model is None:
        raise ConfigError(
            "bert_config_file is not set. Choose a model: --bert_config_file=configs/models/bert_base.json."
        )
    if config.generated_data:
        _check_glue_task(config)
    elif config.task == "pretrain":
        _check_pretraining_files(config)
    elif config.use_synthetic_data:
        for name in ("do_eval", "do_predict"):
            if config[name]:
                why = "random sequences are only for training. Drop one of the two flags"
                raise ConfigError(f"use_synthetic_data excludes {name}: {why}.")
    else:
        _check_fine_tuning_files(config)


def _check_pretraining_files(config: Config) -> None:
    made_up = config.use_synthetic_data or config.generated_data or config.synthetic_input
    if config.plan or config.compile_only:  # these read no data
        return
    if not (made_up or config.input_files) and (config.do_train or not config.eval_files):
        raise ConfigError(
            "input_files is not set. Give --input_files=GLOB, --use_synthetic_data for random records, or"
            " --generated_data for generated ones that are read like files."
        )


def _check_fine_tuning_files(config: Config) -> None:
    """Raises ConfigError for a missing file, except for a plan, which reads none."""
    evaluates_alone = config.do_eval and not config.do_train
    needed = {
        "squad": [("train_file", config.do_train), ("predict_file", config.do_eval or config.do_predict)],
        "glue": [("data_dir", True)],
        **dict.fromkeys(
            OWN_DATA,
            [
                ("train_file", config.do_train),
                ("eval_file", evaluates_alone),
                ("predict_file", config.do_predict),
            ],
        ),
    }[config.task]
    for name, is_needed in (*needed, ("vocab_file", True)):
        if is_needed and not config[name] and not config.plan:
            raise ConfigError(f"{name} is not set. --task={config.task} needs it: --{name}=PATH.")
    if config.task in OWN_DATA and config.do_eval and not (config.eval_file or config.eval_share):
        raise ConfigError(
            "eval_share=0 holds out no rows for evaluation. Raise --eval_share, give --eval_file, or"
            " --do_eval=false."
        )
    holds_out = config.do_eval and not config.eval_file
    if config.do_train and config.eval_share not in (0, FIELDS["eval_share"].default) and not holds_out:
        why = "--eval_file has the rows to evaluate on" if config.eval_file else "do_eval=false"
        raise ConfigError(
            f"eval_share={config.eval_share:g} holds out no rows: {why}. All rows of --train_file would be"
            " trained on. Drop --eval_share, or the other flag."
        )
    _check_glue_task(config)


def _check_glue_task(config: Config) -> None:
    if config.task == "glue" and not config.glue_task:
        raise ConfigError(
            f"glue_task is not set. Choose one of {', '.join(FIELDS['glue_task'].choices)}: --glue_task=NAME."
        )


def check_lengths(config: Config) -> None:
    """Refuses sequences longer than the model allows, and more predictions than tokens."""
    reads_most = config.task == "pretrain" and config.mask_share is None
    if reads_most and config.max_predictions_per_seq > config.max_seq_length:
        raise ConfigError(
            f"max_predictions_per_seq={config.max_predictions_per_seq} is larger than "
            f"max_seq_length={config.max_seq_length}. "
            "Lower --max_predictions_per_seq (the published recipes: 20 for 128, 56 for 384, 76 for 512)."
        )
    if config.task == "squad" or config.task == "pretrain" and config.objective == "mlm_nsp":
        check_segment_types(config)
    if config.max_seq_length > config.model.positions:
        offset = config.model.position_offset
        reserved = f", less the {offset} rows before the first token's" if offset else ""
        raise ConfigError(
            f"max_seq_length={config.max_seq_length} is larger than the model's max_position_embeddings="
            f"{config.model.max_position_embeddings}{reserved}. Lower --max_seq_length or change"
            " --bert_config_file."
        )


def check_electra(config: Config) -> None:
    """Refuses ELECTRA's objective for models of other families, and with incompatible settings."""
    if config.objective != "electra":
        return
    title, family, blocks = "objective=electra", config.model.family, config.model.block_type
    if (family, blocks) != ("electra", BertConfig.block_type):
        raise ConfigError(
            f"{title} trains ELECTRA, and the model has family={family} and block_type={blocks}. Give"
            " --bert_config_file=configs/models/electra_small.json, or one with"
            f' "family": "electra" and "block_type": "{BertConfig.block_type}", or another --objective.'
        )
    if not config.model.use_cls_layer or not config.model.use_prediction_bias:
        raise ConfigError(f"{title} needs use_cls_layer and use_prediction_bias in --bert_config_file.")
    if config.distribution_strategy in PIPELINED:
        raise ConfigError(
            f"{title} does not go with distribution_strategy={config.distribution_strategy}: both its models"
            " have the embeddings. Change --distribution_strategy."
        )


def check_segment_types(config: Config, marks_pairs: bool = True) -> None:
    """Refuses pairs of texts for a model that cannot distinguish them, and the next-sentence task for
    families without it. `marks_pairs`: see `BertConfig.why_no_pairs`."""
    if config.task == "pretrain" and not config.model.family_row.has_next_sentence:
        raise ConfigError(
            f"objective=mlm_nsp: {config.model.family_row.title} has no next-sentence task. Pre-train it with"
            " --objective=mlm."
        )
    if why := config.model.why_no_pairs(marks_pairs):
        job = " ".join(filter(None, (config.task, config.glue_task if config.task == "glue" else None)))
        raise ConfigError(f"--task={job} has pairs of texts, and the model {why} Change --bert_config_file.")


def check_vocabulary(config: Config) -> None:
    """Refuses a vocabulary whose size differs from the model's; only in the model's folder it may have fewer
    words."""
    if config.do_lower_case is not None and not config.vocab_file:
        raise ConfigError(
            f"do_lower_case={str(config.do_lower_case).lower()} needs a vocabulary. Give --vocab_file, or"
            " drop --do_lower_case."
        )
    if config.fit_vocabulary and not config.vocab_file and config.model.vocab_size <= UNKNOWN_WORD:
        raise ConfigError(
            f"fit_vocabulary without a vocabulary takes id {UNKNOWN_WORD} as [UNK], and the model's"
            f" vocab_size is {config.model.vocab_size}. Give --vocab_file."
        )
    if not config.vocab_file or config.plan and not os.path.exists(config.vocab_file):  # a plan needs no data
        return
    words, rows = len(vocabulary_files.read(config.vocab_file).words), config.model.vocab_size
    is_near = abs(words - rows) < VOCABULARY_ROUNDING
    if words == rows or is_near and config.fit_vocabulary:
        return
    if words > rows or not is_vocabulary_of(config.vocab_file, config.model):
        fitted = ", or give --fit_vocabulary" if is_near else ""
        raise ConfigError(
            f"vocab_file={config.vocab_file} has {words} words, the model's vocab_size is {rows}. Change"
            f" --vocab_file or --bert_config_file{fitted}."
        )


# -----------------------------------------------------------------------------------------------------------
# Steps


def check_schedule(config: Config) -> None:
    """Raises ConfigError if --stop_steps is beyond the schedule, or --profile_steps beyond the run."""
    if config.budget_hours:
        return
    if train_steps(config) > schedule_steps(config):
        raise ConfigError(
            f"stop_steps={config.stop_steps} is beyond num_steps_per_epoch x num_train_epochs ="
            f" {config.num_steps_per_epoch} x {config.num_train_epochs} = {schedule_steps(config)}. Lower"
            " --stop_steps or raise --num_steps_per_epoch."
        )
    if config.profile_steps and read_steps(config.profile_steps)[1] > train_steps(config):
        raise ConfigError(
            f"profile_steps={config.profile_steps} is beyond the last step of the run, {train_steps(config)}."
            " Lower --profile_steps or train longer."
        )


def check_steps(config: Config) -> None:
    """Refuses steps that are not multiples of loops, evaluations that never happen, a --batch_warmup that
    does not end with the whole batch, and step counts that assume one batch size."""
    if knows_steps(config):
        check_schedule(config)
    for name in ("steps_between_eval", "checkpoint_every_steps"):
        value = config[name]
        if value and config.steps_per_loop and value % config.steps_per_loop:
            raise ConfigError(
                f"{name}={value} is not a multiple of steps_per_loop={config.steps_per_loop}. "
                f"Nearest valid: {nearest_multiples(value, config.steps_per_loop)}."
            )
    made_up = config.use_synthetic_data or config.generated_data
    if config.eval_rule == "mlperf_1.0" and not config.eval_files and not made_up:
        raise ConfigError(
            "eval_rule=mlperf_1.0 evaluates held-out records. Give --eval_files, e.g. one made by"
            " scripts/make_eval_set.py."
        )
    if config.batch_warmup is None:
        return
    counts = [*read_by_step(config.batch_warmup, "batch_warmup").values()]
    whole = all(count == int(count) > 0 for count in counts)
    if not whole or counts != sorted(set(counts)) or len(counts) < 2:
        raise ConfigError(
            f"batch_warmup={config.batch_warmup[:100]}, expected rising numbers of micro batches by step,"
            ' such as {"0": 1, "500": 2, "2000": 4}.'
        )
    if counts[-1] != config.num_accumulation_steps:
        raise ConfigError(
            f"batch_warmup={config.batch_warmup[:100]} ends with {counts[-1]:g} micro batches,"
            f" num_accumulation_steps={config.num_accumulation_steps} is the whole batch. Change one of them."
        )


# -----------------------------------------------------------------------------------------------------------
# Optimization


def check_optimization(config: Config) -> None:
    """Refuses contradictions within the update, the schedule, and the scales of losses and gradients."""
    if config.end_learning_rate > config.learning_rate:
        raise ConfigError(
            f"end_learning_rate={config.end_learning_rate} is above learning_rate={config.learning_rate}."
            " Lower --end_learning_rate."
        )
    if config.epsilon == 0:
        raise ConfigError("epsilon=0, expected a number above 0. Raise --epsilon.")
    for name in ("beta_1", "beta_2", "momentum"):
        if config[name] >= 1:
            raise ConfigError(f"{name}={config[name]}, expected a number in [0, 1). Lower --{name}.")
    if config.clip_scope != "none" and config.clip_norm == 0:
        raise ConfigError(
            "clip_norm=0 would set every gradient to zero. Raise --clip_norm or set --clip_scope=none."
        )
    _check_rates(config)
    if config.clip_scope == "micro_batch" and config.loss_normalization == "global":
        raise ConfigError(
            "clip_scope=micro_batch needs a mean loss per micro batch, which loss_normalization=global lacks."
            " Use --loss_normalization=local, or --clip_scope=global."
        )
    if config.loss_scale and config.loss_scale != "dynamic":
        by_step = read_by_step(config.loss_scale, "loss_scale")
        try:
            valid = min(by_step.values()) > 0 if by_step else 0 < float(config.loss_scale) < math.inf
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(
                f"loss_scale={config.loss_scale[:100]}, expected dynamic or a number above 0, or such numbers"
                " by step."
            )
    share = config.warmup_proportion
    if (
        share is not None
        and config.warmup_steps is not None
        and (not knows_steps(config) or config.warmup_steps != share * schedule_steps(config))
    ):
        raise ConfigError(
            f"warmup_steps={config.warmup_steps:g} and warmup_proportion={config.warmup_proportion:g} both"
            " set the warm-up. Drop one."
        )
    if config.budget_hours and share is None and config.warmup_steps:
        raise ConfigError(
            f"warmup_steps={config.warmup_steps:g} counts steps, and budget_hours={config.budget_hours:g}"
            " time. Give --warmup_proportion in its place."
        )
    if share is None and 0 < (config.warmup_steps or 0) < 1:
        raise ConfigError(
            f"warmup_steps={config.warmup_steps:g} is less than a step. Give --warmup_proportion="
            f"{config.warmup_steps:g} for that share of all steps."
        )
    if config.start_warmup_step and config.warmup_steps == 0:
        raise ConfigError(
            f"start_warmup_step={config.start_warmup_step} needs a warm-up. Set --warmup_steps above 0."
        )


def _check_rates(config: Config) -> None:
    by_step = read_by_step(config.lr_schedule, "lr_schedule")
    if config.budget_hours and (by_step or config.lr_schedule == "natural_exponential"):
        raise ConfigError(
            f"lr_schedule={config.lr_schedule[:100]} counts steps, budget_hours={config.budget_hours:g}"
            " counts time. Change --lr_schedule, or drop --budget_hours."
        )
    if by_step:
        for name in ("warmup_steps", "start_warmup_step"):
            if config[name]:
                raise ConfigError(
                    f"{name}={config[name]:g}, but rates by step in lr_schedule have no warm-up. Drop"
                    f" --{name}."
                )
    for name in ("decay_steps", "decay_rate"):
        if config.lr_schedule == "natural_exponential" and config[name] is None:
            raise ConfigError(f"lr_schedule=natural_exponential needs --{name}.")
    warmed_up = config.start_warmup_step + int(config.warmup_steps or 0)
    if config.decay_checkpoint and first_step(config) < warmed_up:
        raise ConfigError(
            f"decay_checkpoint={config.decay_checkpoint} is in the warm-up, which ends at step {warmed_up}."
            " Give the --warmup_steps of its run, or a later checkpoint."
        )
    if config.lr_schedule.startswith("wsd") and knows_steps(config):
        left = schedule_steps(config) - warmed_up
        if decay_length(config) > left:
            share = config.decay_proportion
            name = "decay_steps" if share is None else "decay_proportion"
            whole, unit = (1, "steps") if share is None else (schedule_steps(config), "of the schedule")
            raise ConfigError(
                f"{name}={config[name] or 1:g}, but {max(left, 0) / whole:g} {unit} are left after the"
                f" warm-up. Lower --{name}, or the warm-up."
            )
    if config.warmup_power == 0:
        raise ConfigError("warmup_power=0 means no warm-up. Raise --warmup_power, or set --warmup_steps=0.")


# -----------------------------------------------------------------------------------------------------------
# Packing


def check_packing(config: Config) -> None:
    """Refuses a static mask for blocks that need tokens in order, a loss over padding without padding, and
    contradictory or unused numbers of sequences per row."""
    if config.static_mask and config.model.block_type != "bert":
        raise ConfigError(
            "static_mask moves the predicted tokens away from their neighbours, which"
            f" block_type={config.model.block_type} needs. Drop --static_mask."
        )
    for name in ("unpad", "pack"):  # neither has padding only at the end of a row
        if config.span_places == "row" and config.do_train and config[name]:
            raise ConfigError(
                f"span_places=row includes the padding behind a sequence, which {name} removes. Drop"
                f" --{name}, or give --span_places=tokens."
            )
    average = config.average_sequences_per_pack
    packs = config.pack or config.pack_on_the_fly
    if packs and average and average > pack_depth(config):
        raise ConfigError(
            f"average_sequences_per_pack={average:g} is above max_sequences_per_pack={pack_depth(config)}."
            " Lower the first or raise the second."
        )
    may_be_packed = config.task == "pretrain" and not config.use_synthetic_data  # it depends on the files
    for name in ("max_sequences_per_pack", "average_sequences_per_pack"):
        if config[name] and not (packs or may_be_packed):
            flag = "--pack_on_the_fly" if config.task == "pretrain" else "--pack"
            raise ConfigError(f"{name}={config[name]:g} needs {flag}. Give it, or drop --{name}.")


# -----------------------------------------------------------------------------------------------------------
# Devices


def check_batches(config: Config) -> None:
    """Refuses batches of several shapes for back ends that compile a step as a whole."""
    backend = BACKENDS[config.distribution_strategy]
    if config.length_buckets == "always" and backend.whole_step:
        raise ConfigError(
            f"length_buckets=always makes batches of different shapes, but {backend.label} needs a single"
            " shape. Use --length_buckets=never."
        )


def check_devices(config: Config) -> None:
    """Refuses types, kernels, memory, pipelines and all-reduces that the back end does not support."""
    backend = BACKENDS[config.distribution_strategy]
    if config.dtype in backend.refused_dtypes:
        raise ConfigError(
            f"dtype={config.dtype} does not go with --distribution_strategy={backend.name}:"
            f" {backend.refused_dtypes[config.dtype]}"
        )
    if config.kernels == "native" and (config.enable_xla or backend.whole_step):
        which = "enable_xla" if config.enable_xla else f"distribution_strategy={backend.name}"
        raise ConfigError(
            f"kernels=native has operations that XLA cannot compile, and {which} compiles a step as a whole."
            " Use --kernels=auto."
        )
    backend.check(config)
    if gpu_memory_bytes(config.gpu_memory) and config.num_gpus == 0:
        raise ConfigError(
            f"gpu_memory={config.gpu_memory} limits the memory of GPUs, but num_gpus=0 uses none. Drop"
            " --gpu_memory, or --num_gpus."
        )
    if config.pipeline_stages:
        read_stages(config.pipeline_stages)
    if config.device_mapping:
        read_devices(config.device_mapping)
    known = SCHEDULES.get(backend.name, ())
    if config.pipeline_schedule and config.pipeline_schedule not in known:
        raise ConfigError(
            f"pipeline_schedule={config.pipeline_schedule} does not go with"
            f" --distribution_strategy={backend.name}. Use one of {', '.join(known)}."
        )
    if config.all_reduce_alg and config.all_reduce_alg not in backend.all_reduce_algorithms:
        raise ConfigError(
            f"all_reduce_alg={config.all_reduce_alg} does not go with distribution_strategy={backend.name},"
            f" which takes {' or '.join(backend.all_reduce_algorithms) or 'none'}. Change --all_reduce_alg."
        )
    if config.allreduce_dtype == "float16" and "fp16" in backend.refused_dtypes:
        raise ConfigError(
            f"allreduce_dtype=float16 does not go with --distribution_strategy={backend.name}, which computes"
            " in bfloat16. Use --allreduce_dtype=bfloat16."
        )
    if config.allreduce_dtype == "float16" and initial_loss_scale(config) is None:
        raise ConfigError(
            "allreduce_dtype=float16 needs a loss scale: small gradients would become 0, and overflows would"
            " not be detected. Add --loss_scale=dynamic, or use --allreduce_dtype=bfloat16."
        )


# -----------------------------------------------------------------------------------------------------------
# Plan and metrics


def check_plan(config: Config) -> None:
    """Refuses speeds of 0, invalid devices, measurements that this process cannot run alone, and numbers of
    hosts that are invalid or lack the time of a step."""
    for name in ("plan_tflops", "plan_gbps"):
        if config[name] == 0:
            raise ConfigError(f"{name}=0, expected a number above 0. Raise --{name}.")
    if config.plan_device is not None:
        device_bytes(config.plan_device)
    if config.plan_gbps and not (config.plan_tflops or config.plan_hosts):
        raise ConfigError(
            f"plan_gbps={config.plan_gbps} is added to the time of the matrix products. Add --plan_tflops."
        )
    if config.plan_picture and not (config.plan_hosts or config.distribution_strategy in PIPELINED):
        raise ConfigError(
            f"plan_picture={config.plan_picture} draws the schedule of a pipeline or the curves of"
            f" --plan_hosts, and distribution_strategy={config.distribution_strategy} has no pipeline. Add"
            " --plan_hosts, or drop --plan_picture."
        )
    backend = BACKENDS[config.distribution_strategy]
    hosts = len(read_cluster(config).hosts) if config.measure and backend.several_processes else 1
    if config.measure and (backend.program or hosts > 1):
        of = f" of {hosts} processes" if hosts > 1 else ""
        raise ConfigError(
            f"measure=true runs steps in this process; distribution_strategy={backend.name}{of} needs others."
            " Measure one host with --distribution_strategy=mirrored and add --plan_hosts, or give"
            " --plan_tflops."
        )
    if config.plan_hosts is None:
        return
    read_host_counts(config.plan_hosts)
    if not (config.plan_tflops or config.measure):
        raise ConfigError(
            f"plan_hosts={config.plan_hosts} needs the time of a step. Add --measure, which runs three steps"
            " here, or --plan_tflops=N, TFLOP/s of a replica."
        )


# -----------------------------------------------------------------------------------------------------------
# Export


def check_export(config: Config) -> None:
    """Refuses an export without a vocabulary."""
    if not config.export_dir:
        return
    may_lie_beside_records = config.task == "pretrain" and config.input_files  # where the task finds one
    if not (config.plan or config.vocab_file or may_lie_beside_records):
        raise ConfigError(
            "export_dir needs the vocabulary: an export takes text. Give --vocab_file=PATH, or drop"
            " --export_dir."
        )


# -----------------------------------------------------------------------------------------------------------
# All


# In order of importance for users.
_CHECKS = (
    check_rows,
    check_batches,
    check_files,
    check_lengths,
    check_electra,
    check_vocabulary,
    check_packing,
    check_streams,
    check_steps,
    check_optimization,
    check_devices,
    check_export,
    check_plan,
)


def validate(config: Config) -> None:
    """Raises ConfigError for missing or incompatible settings."""
    for check in _CHECKS:
        check(config)

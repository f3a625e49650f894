"""Validation of the whole: each check is one rule that no single field can know."""

import math
import os

from official.config.cluster import read_cluster
from official.config.derived import schedule_steps, train_steps
from official.config.fields import FIELDS
from official.io import vocabulary_files
from official.io.errors import ConfigError, nearest_multiples
from official.io.files import is_remote


def validate(config) -> None:
    """Raises ConfigError for settings that are missing or exclude each other."""
    for check in (
        _check_task,
        _check_files,
        _check_wandb,
        _check_lengths,
        _check_vocabulary,
        _check_steps,
        _check_optimization,
        _check_workers,
        _check_devices,
        _check_plan,
    ):
        check(config)


def _check_task(config) -> None:
    """Refuses settings that the task would ignore."""
    for name, field in FIELDS.items():
        if field.tasks and config.task not in field.tasks and config[name] != field.default:
            raise ConfigError(
                f"{name}={config[name]} needs --task={' or --task='.join(field.tasks)}, received"
                f" --task={config.task}."
            )
    if config.num_runs > 1 and not config.do_train:
        raise ConfigError(
            f"num_runs={config.num_runs} repeats a training, do_train=false. Drop --num_runs, or set"
            " --do_train."
        )
    if config.num_runs > 1 and config.distribution_strategy == "multi_worker_mirrored":
        raise ConfigError(
            f"num_runs={config.num_runs} does not go with --distribution_strategy=multi_worker_mirrored."
            " Start one run a seed."
        )
    if config.length_buckets == "always" and config.distribution_strategy == "tpu":
        raise ConfigError(
            "length_buckets=always makes batches of different shapes, a TPU takes one. Use"
            " --length_buckets=never."
        )


def _check_files(config) -> None:
    if not config.model_dir:
        raise ConfigError("model_dir is not set. Give the run a folder: --model_dir=DIR.")
    if not (config.do_train or config.do_eval or config.do_predict):
        raise ConfigError("do_train=false and do_eval=false: nothing to do. Set --do_train or --do_eval.")
    if config.model is None:
        raise ConfigError(
            "bert_config_file is not set. Choose a model: --bert_config_file=configs/models/bert_base.json."
        )
    if config.task == "pretrain":
        _check_pretraining_files(config)
    elif config.use_synthetic_data:
        given = [name for name in ("train_file", "predict_file", "data_dir") if config[name]] or [
            name for name in ("do_eval", "do_predict") if config[name]
        ]
        if given:
            raise ConfigError(
                f"use_synthetic_data excludes {given[0]}: random sequences are only trained on. Drop one of"
                " the two flags."
            )
    else:
        _check_fine_tuning_files(config)


def _check_pretraining_files(config) -> None:
    if config.use_synthetic_data and (config.input_files or config.eval_files):
        raise ConfigError(
            "use_synthetic_data excludes input_files and eval_files. Drop --use_synthetic_data or the files."
        )
    if not (config.use_synthetic_data or config.input_files) and (config.do_train or not config.eval_files):
        raise ConfigError(
            "input_files is not set. Give --input_files=GLOB, or --use_synthetic_data for random records."
        )


def _check_fine_tuning_files(config) -> None:
    """Names the file that is missing, except for a plan, which reads none."""
    needed = {
        "squad": [("train_file", config.do_train), ("predict_file", config.do_eval or config.do_predict)],
        "glue": [("data_dir", True)],
    }[config.task]
    for name, is_needed in (*needed, ("vocab_file", True)):
        if is_needed and not config[name] and not config.plan:
            raise ConfigError(f"{name} is not set. --task={config.task} needs it: --{name}=PATH.")
    if config.task == "glue" and not config.glue_task:
        raise ConfigError(
            f"glue_task is not set. Choose one of {', '.join(FIELDS['glue_task'].choices)}: --glue_task=NAME."
        )


def _check_wandb(config) -> None:
    for name in ("wandb_project", "wandb_name"):
        if config[name] is not None and not config.wandb:
            raise ConfigError(f"{name}={config[name]} needs --wandb.")


def _check_lengths(config) -> None:
    if config.task == "pretrain" and config.max_predictions_per_seq > config.max_seq_length:
        raise ConfigError(
            f"max_predictions_per_seq={config.max_predictions_per_seq} is larger than "
            f"max_seq_length={config.max_seq_length}. "
            "Lower --max_predictions_per_seq (the published recipes: 20 for 128, 56 for 384, 76 for 512)."
        )
    if config.max_seq_length > config.model.max_position_embeddings:
        raise ConfigError(
            f"max_seq_length={config.max_seq_length} is larger than the model's max_position_embeddings="
            f"{config.model.max_position_embeddings}. Lower --max_seq_length or change --bert_config_file."
        )


def _check_vocabulary(config) -> None:
    if config.do_lower_case is not None and not config.vocab_file:
        raise ConfigError(
            f"do_lower_case={str(config.do_lower_case).lower()} says how text becomes the words of a"
            " vocabulary, and there is none. Give --vocab_file, or drop --do_lower_case."
        )
    if not config.vocab_file or config.plan and not os.path.exists(config.vocab_file):  # a plan needs no data
        return
    words = len(vocabulary_files.read(config.vocab_file).words)
    if words != config.model.vocab_size:
        raise ConfigError(
            f"vocab_file={config.vocab_file} has {words} words, the model's vocab_size is"
            f" {config.model.vocab_size}. Change --vocab_file or --bert_config_file."
        )


def check_schedule(config) -> None:
    """Raises ConfigError where --stop_steps is beyond the schedule."""
    if train_steps(config) > schedule_steps(config):
        raise ConfigError(
            f"stop_steps={config.stop_steps} is beyond num_steps_per_epoch x num_train_epochs ="
            f" {config.num_steps_per_epoch} x {config.num_train_epochs} = {schedule_steps(config)}. Lower"
            " --stop_steps or raise --num_steps_per_epoch."
        )


def _check_steps(config) -> None:
    if config.num_steps_per_epoch is not None:
        check_schedule(config)
    for name in ("steps_between_eval", "checkpoint_every_steps"):
        value = config[name]
        if value and value % config.steps_per_loop:
            raise ConfigError(
                f"{name}={value} is not a multiple of steps_per_loop={config.steps_per_loop}. "
                f"Nearest valid: {nearest_multiples(value, config.steps_per_loop)}."
            )
    if config.stop_threshold is not None and not config.do_eval:
        raise ConfigError(
            f"stop_threshold={config.stop_threshold} needs evaluations. Add --do_eval or drop"
            " --stop_threshold."
        )
    if config.eval_rule == "mlperf_1.0" and not config.eval_files and not config.use_synthetic_data:
        raise ConfigError(
            "eval_rule=mlperf_1.0 evaluates held-out records. Give --eval_files, e.g. one made by"
            " scripts/make_eval_set.py."
        )
    for name in ("steps_between_eval", "steps_before_eval_start", "eval_files"):
        if config[name] and not config.do_eval:
            unset = "" if FIELDS[name].default is None else FIELDS[name].default
            raise ConfigError(
                f"{name}={config[name]} needs --do_eval. Add --do_eval, or --{name}={unset} to unset it."
            )


def _check_optimization(config) -> None:
    if config.end_learning_rate > config.learning_rate:
        raise ConfigError(
            f"end_learning_rate={config.end_learning_rate} is above learning_rate={config.learning_rate}."
            " Lower --end_learning_rate."
        )
    if config.epsilon == 0:
        raise ConfigError("epsilon=0, expected a number above 0. Raise --epsilon.")
    for name in ("beta_1", "beta_2"):
        if config[name] >= 1:
            raise ConfigError(f"{name}={config[name]}, expected a number in [0, 1). Lower --{name}.")
    if config.clip_scope != "none" and config.clip_norm == 0:
        raise ConfigError(
            "clip_norm=0 would clip every gradient to nothing. Raise --clip_norm or set --clip_scope=none."
        )
    if config.clip_scope == "micro_batch" and config.loss_normalization == "global":
        raise ConfigError(
            "clip_scope=micro_batch clips a mean loss's gradient, loss_normalization=global makes none per"
            " micro batch. Use --loss_normalization=local, or --clip_scope=global."
        )
    if config.scale_loss and config.loss_normalization == "global":
        raise ConfigError(
            "scale_loss divides each replica's mean loss, loss_normalization=global has none: it already"
            " divides by the whole step's weights. Drop --scale_loss, or use --loss_normalization=local."
        )
    if config.loss_scale not in (None, "dynamic"):
        try:
            valid = 0 < float(config.loss_scale) < math.inf
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(f"loss_scale={config.loss_scale}, expected dynamic or a number above 0.")
    share = config.warmup_proportion
    if None not in (share, config.warmup_steps) and (
        config.num_steps_per_epoch is None or config.warmup_steps != share * schedule_steps(config)
    ):
        raise ConfigError(
            f"warmup_steps={config.warmup_steps:g} and warmup_proportion={config.warmup_proportion:g} both"
            " set the warm-up. Drop one."
        )
    if config.start_warmup_step and config.warmup_steps == 0:
        raise ConfigError(
            f"start_warmup_step={config.start_warmup_step} needs a warm-up. Set --warmup_steps above 0."
        )


_ALL_REDUCE_ALGORITHMS = {
    "mirrored": ("nccl", "hierarchical_copy"),
    "multi_worker_mirrored": ("nccl", "ring"),
}


def _check_workers(config) -> None:
    if config.distribution_strategy != "multi_worker_mirrored":
        for name in ("worker_hosts", "task_index"):
            if config[name] is not None:
                raise ConfigError(
                    f"{name}={config[name]} needs --distribution_strategy=multi_worker_mirrored."
                )
        return
    read_cluster(config)


def _check_devices(config) -> None:
    strategy = config.distribution_strategy
    if config.tpu is not None and strategy != "tpu":
        raise ConfigError(f"tpu={config.tpu} needs --distribution_strategy=tpu, received {strategy}.")
    if config.num_tpu_cores and strategy != "tpu":
        raise ConfigError(
            f"num_tpu_cores={config.num_tpu_cores} needs --distribution_strategy=tpu, received {strategy}."
        )
    if strategy == "tpu":
        _check_tpu(config)
    if config.num_virtual_devices:
        if strategy != "mirrored":
            raise ConfigError(
                f"num_virtual_devices={config.num_virtual_devices} needs --distribution_strategy=mirrored,"
                f" received {strategy}."
            )
        if config.num_gpus:
            raise ConfigError(
                f"num_virtual_devices={config.num_virtual_devices} are CPUs, num_gpus={config.num_gpus} asks"
                " for GPUs. Set one of the two flags."
            )
        if config.all_reduce_alg == "nccl":
            raise ConfigError(
                "all_reduce_alg=nccl runs on GPUs only, num_virtual_devices are CPUs. Use "
                "--all_reduce_alg=hierarchical_copy."
            )
    if strategy == "one_device" and (config.num_gpus or 0) > 1:
        raise ConfigError(
            f"num_gpus={config.num_gpus} needs --distribution_strategy=mirrored; one_device takes 0 or 1."
        )
    algorithms = _ALL_REDUCE_ALGORITHMS.get(strategy, ())
    if config.all_reduce_alg and config.all_reduce_alg not in algorithms:
        raise ConfigError(
            f"all_reduce_alg={config.all_reduce_alg} does not go with distribution_strategy={strategy}, which"
            f" takes {' or '.join(algorithms) or 'none'}. Change --all_reduce_alg."
        )
    if config.explicit_allreduce and config.clip_scope == "micro_batch":
        raise ConfigError(
            "explicit_allreduce clips the reduced gradient, clip_scope=micro_batch clips before the"
            " reduction. Use --clip_scope=global, or drop --explicit_allreduce."
        )
    if config.allreduce_bytes_per_pack and not config.explicit_allreduce:
        raise ConfigError(
            f"allreduce_bytes_per_pack={config.allreduce_bytes_per_pack} needs --explicit_allreduce."
        )


def _check_tpu(config) -> None:
    if config.num_gpus:
        raise ConfigError(
            f"num_gpus={config.num_gpus} does not go with --distribution_strategy=tpu. Drop --num_gpus."
        )
    if config.dtype == "fp16":
        raise ConfigError(
            "dtype=fp16 does not go with --distribution_strategy=tpu: TPUs multiply bfloat16 numbers. Use"
            " --dtype=bf16."
        )
    if config.plan or config.tpu in (None, "local"):
        return
    for name in ("input_files", "eval_files"):
        local = [
            path for path in map(str.strip, (config[name] or "").split(",")) if path and not is_remote(path)
        ]
        if local:
            raise ConfigError(
                f"{name}={local[0][:100]} is a path of this machine, which the hosts of tpu={config.tpu} do"
                f" not see. Copy the files to a bucket: --{name}=gs://BUCKET/PATH."
            )


def _check_plan(config) -> None:
    for name in ("plan_file", "plan_tflops", "plan_gbps"):
        if config[name] is not None and not config.plan:
            raise ConfigError(f"{name}={config[name]} needs --plan. Add --plan or drop --{name}.")
        if config[name] == 0:
            raise ConfigError(f"{name}=0, expected a number above 0. Raise --{name}.")
    if config.plan_gbps and not config.plan_tflops:
        raise ConfigError(
            f"plan_gbps={config.plan_gbps} is added to the time of the matrix products. Add --plan_tflops."
        )

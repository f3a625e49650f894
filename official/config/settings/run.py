"""Settings of a run: its job, its messages, MLPerf's rules and log, its plan, its profile."""

from __future__ import annotations

import dataclasses

from official.config.setting import FINE_TUNING, IDENTITY, PRETRAIN, RECIPE, TRACED, Section, setting
from official.config.values import DEVICE_BYTES

# -----------------------------------------------------------------------------------------------------------
# Job


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings of the job: what it does, and in which folders."""

    task: str = setting("pretrain", "What is trained.", choices=("pretrain", *FINE_TUNING), training=IDENTITY)
    do_train: bool = setting(True, "Train. With --do_train=false --do_eval the run only evaluates.")
    do_eval: bool = setting(False, "Evaluate during training, and always at the last step.")
    do_predict: bool = setting(
        False,
        "Fine-tuning: write predictions with the best weights: answers to --predict_file, labels of the "
        "test set.",
        tasks=FINE_TUNING,
    )
    compile_only: bool = setting(
        False,
        "Build and compile the steps, print the time that took, the memory and the plan, and stop. Needs no "
        "data, writes no checkpoint.",
        needs="do_train",
    )
    model_dir: str = setting(
        None,
        "Folder of the run: checkpoints, metrics, result, report. Resumed where it holds a checkpoint; a run "
        "in it that is over takes more steps and evaluations, and no other settings.",
    )
    overwrite: bool = setting(
        False,
        "Train afresh where --model_dir holds a run: its folder is renamed to MODEL_DIR.1, or the next "
        "number that is free. A run that this very command line has begun, and that is not over, goes on.",
        needs="do_train",
    )
    export_dir: str | None = setting(
        None,
        "Write the best, or else the newest, weights as a SavedModel that takes text to this folder when the "
        "run has ended, see bert export. It must not be there.",
    )
    init_checkpoint: str | None = setting(
        None,
        "Weights to start from: a checkpoint of any format, as a prefix or a folder. Sizes, vocabulary, "
        "casing and length that are not given are those that lie with it.",
        training=IDENTITY,
        files=True,
    )
    seed: int = setting(
        12345,
        "Seeds initial weights, data order and dropout.",
        minimum=0,
        maximum=2**31 - 1,
        training=RECIPE,
        evaluation=lambda config: config.use_synthetic_data or config.generated_data,
    )


JOB = Section("Job", Job, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Messages


@dataclasses.dataclass(frozen=True)
class Messages:
    """Settings of the log, and of Weights & Biases."""

    verbosity: int = setting(
        0, "-1 warnings only, 0 progress, 1 debug: configuration and parameters, too.", minimum=-1, maximum=3
    )
    log_style: str = setting(
        "plain",
        "How progress is told: plain lines or a bar, in the words of Graphcore's programs, with their tags "
        "for TensorBoard and W&B beside ours.",
        choices=("plain", "graphcore"),
    )
    wandb: bool = setting(
        False,
        "Send metrics to Weights & Biases, too (pip install '.[wandb]'; WANDB_MODE=offline keeps them here).",
    )
    wandb_name: str | None = setting(
        None,
        "With --wandb: name of the run, or PROJECT/NAME, or PROJECT/. Unset: the name of --model_dir's "
        "folder in bert-tf2, with --log_style=graphcore in tf-bert.",
        needs="wandb",
    )


MESSAGES = Section("Messages", Messages, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# MLPerf


@dataclasses.dataclass(frozen=True)
class MLPerf:
    """MLPerf's evaluation rules and its log."""

    eval_rule: str | None = setting(
        None,
        "Evaluate by a published rule, which fills in do_eval, steps_between_eval, "
        "steps_before_eval_start, steps_per_loop, num_eval_samples and stop_threshold. mlperf_0.7: from "
        "3,000,000 sequences on, every 500,000, first 10,000 records, 0.712 (0.706 from a batch of 8192). "
        "mlperf_1.0: every floor(0.05 * (230.23 * batch + 3,000,000) / 25,000) * 25,000 sequences, 10,000 "
        "records of --eval_files, 0.720.",
        choices=("mlperf_0.7", "mlperf_1.0"),
        tasks=PRETRAIN,
    )
    mllog_file: str | None = setting(
        None, "Where the MLPerf log is written. Unset: mllog.txt in --model_dir.", tasks=PRETRAIN
    )
    submission_org: str = setting("unspecified", "MLPerf log: organisation.")
    submission_platform: str | None = setting(
        None, "MLPerf log: platform. Unset: kind and number of the devices, e.g. gpu-8."
    )
    submission_division: str = setting("closed", "MLPerf log: division.", choices=("closed", "open"))
    submission_status: str = setting(
        "research", "MLPerf log: status.", choices=("cloud", "onprem", "preview", "research")
    )


MLPERF = Section("MLPerf", MLPerf, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Plan


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of --plan."""

    plan: bool = setting(
        False,
        "Print what the run would be (sizes, memory, steps, evaluations, time) and stop. Needs no data "
        "and no devices.",
    )
    measure: bool = setting(
        False,
        "With --plan: also run three steps on generated data, on the devices of the run, for its hours and "
        "its sequences a second. Saves nothing.",
        needs="plan",
    )
    plan_file: str | None = setting(
        None,
        "With --plan: also write it as JSON, with the whole configuration, which python -m "
        "official.graphcore FILE runs.",
        needs="plan",
    )
    plan_picture: str | None = setting(
        None,
        "With --plan of a pipeline: also draw its schedule, time by device, as .png, .svg or .pdf; with "
        "--plan_hosts the curves of efficiency instead.",
        needs="plan",
    )
    plan_tflops: float | None = setting(
        None,
        "With --plan: expected TFLOP/s of one replica's matrix products, for the expected time.",
        minimum=0,
        needs="plan",
    )
    plan_gbps: float | None = setting(
        None,
        "With --plan: expected GB/s of one replica's all-reduce traffic, for the expected time; with "
        "--plan_hosts those of a host's link to the others, each way.",
        minimum=0,
        needs="plan",
    )
    plan_hosts: str | None = setting(
        None,
        "With --plan: also predict a step on other numbers of hosts, each like the one that is planned: "
        "1..4096 is 1, 2, 4 and so on; also 1,3,6. Needs --plan_gbps, and the time of a step: --measure or "
        "--plan_tflops.",
        needs="plan",
    )
    plan_device: str | None = setting(
        None,
        f"With --plan: what a device can hold, to say whether the run fits: {', '.join(DEVICE_BYTES)}, or "
        "bytes, such as 16e9 or 16GB.",
        needs="plan",
    )


PLAN = Section("Plan", Plan, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Profile


@dataclasses.dataclass(frozen=True)
class Profiling:
    """Settings of the profile of a run that trains."""

    profile_steps: str | None = setting(
        None,
        "Profile from one step to another, such as 10,20, as the run counts them: a trace for TensorBoard, "
        "and a table of the operations by time, in --model_dir and in the report.",
        backends=TRACED,
        needs="do_train",
    )
    profile_memory: bool = setting(
        False,
        "Measure which layers hold the memory at its peak, and the peak of each, in the steps of "
        "--profile_steps, or in the second step of the process: in --model_dir and in the report.",
        backends=TRACED,
        needs="do_train",
    )


PROFILING = Section("Profile", Profiling, evaluation=False)

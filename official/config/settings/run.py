"""Settings of a run: its job, its messages, MLPerf's rules and log, its plan, its profile."""

from __future__ import annotations

import dataclasses

from official.config.setting import (
    FINE_TUNING,
    IDENTITY,
    PREDICTING,
    PRETRAIN,
    RECIPE,
    TENSORFLOWS,
    TRACED,
    Section,
    setting,
)

# -----------------------------------------------------------------------------------------------------------
# Job


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings of the job: what it does, and in which folders.

    Attributes:
      task: What the run trains.
      objective: Pre-training objective. mlm_nsp: masked words and next-sentence prediction, as BERT. mlm:
        masked words alone, as RoBERTa. electra: replaced-token detection with a small generator, as ELECTRA.
      generator_share: With --objective=electra: size of the generator, as a share of the model's attention
        heads and hidden and feed-forward sizes. Source: 1/4 of ELECTRA-small and -large, 1/3 of -base.
      do_train: Train. With --do_train=false --do_eval the run only evaluates.
      do_eval: Evaluate during training, and always at the last step. Unset: true for classify, tag and embed,
        false for other tasks.
      do_predict: Fine-tuning: write predictions with the best weights: answers to --predict_file, or labels
        of the test set.
      compile_only: Build and compile the steps, print the compilation time, the memory and the plan, and
        stop. Needs no data and writes no checkpoint.
      model_dir: Folder of the run: checkpoints, metrics, result, report. The run resumes if the folder holds
        a checkpoint; a finished run may only get more steps and evaluations, no other settings.
      overwrite: Train afresh if --model_dir holds a run: the old folder is renamed to MODEL_DIR.1, or to the
        next free number. An unfinished run of the same command line is resumed instead.
      export_dir: Export the best weights, or the newest if there was no evaluation, to this folder at the end
        of the run, as a SavedModel that takes text (see bert export). The folder must not exist.
      init_checkpoint: Checkpoint to start from, of any format: a file, a prefix or a folder. Sizes,
        vocabulary, casing and length that are not set are read from its folder.
      seed: Seed of initial weights, data order and dropout.
    """

    task: str = setting("pretrain", choices=("pretrain", *FINE_TUNING), training=IDENTITY)
    objective: str = setting(
        "mlm_nsp",
        choices=("mlm_nsp", "mlm", "electra"),
        tasks=PRETRAIN,
        backends=TENSORFLOWS,
        evaluation=True,
        training=IDENTITY,
    )
    generator_share: float = setting(
        0.25,
        minimum=0.01,
        maximum=1,
        only_with=("objective", ("electra",)),
        evaluation=True,
        training=IDENTITY,
    )
    do_train: bool = setting(True)
    do_eval: bool = setting(False)
    do_predict: bool = setting(False, tasks=PREDICTING)
    compile_only: bool = setting(False, needs=("do_train",))
    model_dir: str = setting(None)
    overwrite: bool = setting(False, needs=("do_train",))
    export_dir: str | None = setting(
        None, backends=TENSORFLOWS, excludes={"num_runs": "export one of the runs with bert export"}
    )
    init_checkpoint: str | None = setting(None, training=IDENTITY, files=True)
    seed: int = setting(
        12345,
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
    """Settings of the log, and of Weights & Biases.

    Attributes:
      verbosity: -1: warnings only, 0: progress, 1: debug, which also logs configuration and parameters.
      log_style: Format of the progress. plain: lines, or a progress bar. graphcore: the lines of Graphcore's
        programs, with their tags for TensorBoard and W&B in addition to ours.
      wandb: Also send metrics to Weights & Biases (pip install '.[wandb]'; WANDB_MODE=offline keeps them on
        this machine).
      wandb_name: With --wandb: NAME of the run, PROJECT/NAME, or PROJECT/. Unset: the name of the folder
        --model_dir, in the project bert-tf2, or tf-bert with --log_style=graphcore.
    """

    verbosity: int = setting(0, minimum=-1, maximum=3)
    log_style: str = setting("plain", choices=("plain", "graphcore"))
    wandb: bool = setting(False)
    wandb_name: str | None = setting(None, needs=("wandb",))


MESSAGES = Section("Messages", Messages, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# MLPerf


@dataclasses.dataclass(frozen=True)
class MLPerf:
    """MLPerf's evaluation rules and its log.

    Attributes:
      eval_rule: Evaluate by a published rule, which fills in do_eval, steps_between_eval,
        steps_before_eval_start, steps_per_loop, num_eval_samples and stop_threshold. mlperf_0.7: from
        3,000,000 sequences on, every 500,000, first 10,000 records, 0.712 (0.706 from a batch of 8192).
        mlperf_1.0: every floor(0.05 * (230.23 * batch + 3,000,000) / 25,000) * 25,000 sequences, 10,000
        records of --eval_files, 0.720.
      mllog_file: File for the MLPerf log. Unset: mllog.txt in --model_dir.
      submission_org: MLPerf log: organisation.
      submission_platform: MLPerf log: platform. Unset: kind and number of the devices, e.g. gpu-8.
      submission_division: MLPerf log: division.
      submission_status: MLPerf log: status.
    """

    eval_rule: str | None = setting(None, choices=("mlperf_0.7", "mlperf_1.0"), tasks=PRETRAIN)
    mllog_file: str | None = setting(None, tasks=PRETRAIN)
    submission_org: str = setting("unspecified")
    submission_platform: str | None = setting(None)
    submission_division: str = setting("closed", choices=("closed", "open"))
    submission_status: str = setting("research", choices=("cloud", "onprem", "preview", "research"))


MLPERF = Section("MLPerf", MLPerf, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Plan


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of --plan.

    Attributes:
      plan: Print sizes, memory, steps, evaluations and time of the run, and stop. Needs no data and no
        devices.
      measure: With --plan: also run three steps on generated data, on the run's devices, and plan hours and
        sequences per second with their time. Saves nothing.
      plan_file: With --plan: also write the plan as JSON, with the whole configuration, which --config=FILE
        and python -m official.graphcore FILE read.
      plan_picture: With --plan of a pipeline: also draw its schedule as .png, .svg or .pdf; with --plan_hosts
        draw the efficiency curves instead.
      plan_tflops: With --plan: speed of one replica's matrix products in TFLOP/s, for the expected time.
      plan_gbps: With --plan: bandwidth of one replica's all-reduce in GB/s, for the expected time; with
        --plan_hosts that of a host's network link, in each direction.
      plan_hosts: With --plan: also predict the step time on other numbers of hosts, each like the planned
        one: 1..4096 means 1, 2, 4 and so on; 1,3,6 is a list. Needs --plan_gbps, and --measure or
        --plan_tflops for the time of a step.
      plan_device: With --plan: check whether the run fits the memory of this device: v100-16gb, v100-32gb,
        a100-40gb, a100-80gb, h100, tpu-v3-core, tpu-v4, ipu-mk2, or a number of bytes, such as 16e9 or 16GB.
    """

    plan: bool = setting(False)
    measure: bool = setting(False, needs=("plan", "do_train"))
    plan_file: str | None = setting(None, needs=("plan",))
    plan_picture: str | None = setting(None, needs=("plan",))
    plan_tflops: float | None = setting(None, minimum=0, needs=("plan",))
    plan_gbps: float | None = setting(None, minimum=0, needs=("plan",))
    plan_hosts: str | None = setting(None, needs=("plan", "do_train", "plan_gbps"))
    plan_device: str | None = setting(None, needs=("plan",))


PLAN = Section("Plan", Plan, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Profile


@dataclasses.dataclass(frozen=True)
class Profiling:
    """Settings of the profile of a run that trains.

    Attributes:
      profile_steps: Profile from the first to the second of these steps, such as 10,20: a trace for
        TensorBoard, and a table of operations by time, in --model_dir and in the report.
      profile_memory: Measure the memory of each layer at the peak of the step, and the largest of each,
        during --profile_steps, or in the second step of the process: in --model_dir and in the report.
    """

    profile_steps: str | None = setting(None, backends=TRACED, needs=("do_train",))
    profile_memory: bool = setting(False, backends=TRACED, needs=("do_train",))


PROFILING = Section("Profile", Profiling, evaluation=False)

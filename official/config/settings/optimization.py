"""Settings of the optimization: batches and steps, optimizer and schedule."""

from __future__ import annotations

import dataclasses
from typing import Any

from official.config.setting import (
    IDENTITY,
    LENGTH,
    PRETRAIN,
    RECIPE,
    REPLICATED,
    TENSORFLOWS,
    TPU,
    Section,
    setting,
)

# -----------------------------------------------------------------------------------------------------------
# Batches and steps


def _of_micro_batches(config: Any) -> str | None:
    """Returns the effect on training of settings that divide a step into micro batches: none, like devices,
    if losses are normalized and gradients clipped over the whole step."""
    is_global = config.loss_normalization == "global" and config.clip_scope != "micro_batch"
    return None if is_global else RECIPE


_BY_TIME = "the run ends when its hours are used"
_BY_DECAY = "the run ends --decay_steps after the checkpoint"
_OF_TIME = "with a time budget all parts of the schedule are shares"


@dataclasses.dataclass(frozen=True)
class Batch:
    """Settings of batches and steps, and of the intervals of all else.

    Attributes:
      train_batch_size: Sequences per step, over all replicas and micro batches.
      eval_batch_size: Sequences per evaluation batch, over all replicas. On IPUs the default is the next
        larger number that the pipeline can compute.
      num_accumulation_steps: Number of micro batches per step whose gradients are accumulated.
      batch_warmup: Batch-size warm-up: number of micro batches per step, from each of these steps on: {"0":
        1, "500": 2, "2000": 4}. The size of a micro batch is constant. The last number is
        --num_accumulation_steps; --train_batch_size is the final batch size.
      logical_workers: Lay a new run out for this many processes, each with --num_accumulation_steps micro
        batches, independently of how many compute it: the results are those of this many. Unset: the number
        of processes at the start.
      num_steps_per_epoch: Steps per epoch. Times --num_train_epochs it is the horizon of the learning-rate
        decay. 0: one pass through the data, whose records are counted first; in pre-training an incomplete
        last batch is dropped. Unset: 1000 for pre-training, 0 for fine-tuning.
      num_train_epochs: Epochs of the schedule.
      stop_steps: Stop after this many steps of the schedule; the decay horizon stays.
      budget_hours: Train for this many hours instead of a number of steps, summed over restarts; compilation,
        evaluations and checkpoints count. The learning rate follows the used share of the hours. result.json
        has the rates by step.
      steps_per_loop: Steps per line of the metrics. Independently of it, a device call runs as many steps as
        take about five seconds. Unset: 200, or a twentieth of the steps of a short run.
      steps_between_eval: Evaluate every N steps; a multiple of --steps_per_loop. Unset: at the last step; for
        fine-tuning after each epoch.
      steps_before_eval_start: Do not evaluate before this step.
      stop_threshold: Stop when an evaluation reaches this score, 0 to 1: masked-LM accuracy, or for
        fine-tuning the main score of the task.
      checkpoint_every_steps: Save a checkpoint every N steps; a multiple of --steps_per_loop. Unset: ten
        times per run, and without --steps_per_loop at least 200 steps apart; with --budget_hours every 1000
        steps. The last step is always saved.
      keep_checkpoints: Number of newest checkpoints to keep; the checkpoint of the best evaluation is kept in
        addition.
      async_checkpoints: Write checkpoints in the background, from a copy of the state in host memory. false:
        the training waits, and on a CPU there is no copy.
    """

    train_batch_size: int = setting(32, minimum=1, training=RECIPE)
    eval_batch_size: int = setting(32, minimum=1, evaluation=lambda config: config.use_synthetic_data)
    num_accumulation_steps: int = setting(1, minimum=1, training=_of_micro_batches)
    batch_warmup: str | None = setting(
        None,
        by_step=True,
        tasks=PRETRAIN,
        backends=(*REPLICATED, *TPU),
        training=RECIPE,
        excludes={
            "eval_rule": "it counts steps of one batch",
            "logical_workers": "its micro batches are those of one batch",
            "num_steps_per_epoch=0": "with which the steps of an epoch cannot be counted",
            "synthetic_input": "one batch stays on the devices",
        },
    )
    logical_workers: int | None = setting(None, minimum=1, backends=REPLICATED, training=_of_micro_batches)
    num_steps_per_epoch: int = setting(None, minimum=0, training=LENGTH)
    num_train_epochs: int = setting(3, minimum=1, training=LENGTH)
    stop_steps: int | None = setting(None, minimum=1, training=LENGTH)
    budget_hours: float | None = setting(
        None,
        minimum=1e-4,
        tasks=PRETRAIN,
        backends=TENSORFLOWS,
        training=RECIPE,
        needs=("do_train",),
        excludes={
            **dict.fromkeys(("num_steps_per_epoch", "num_train_epochs", "stop_steps"), _BY_TIME),
            **dict.fromkeys(("start_warmup_step", "decay_steps"), _OF_TIME),
            "deterministic": "the number of steps in a given time varies",
            "log_style": "Graphcore's lines contain the last step",
        },
    )
    steps_per_loop: int | None = setting(None, minimum=1)
    steps_between_eval: int | None = setting(None, minimum=1, needs=("do_eval",))
    steps_before_eval_start: int = setting(0, minimum=0, needs=("do_eval",))
    stop_threshold: float | None = setting(None, minimum=0, maximum=1, training=LENGTH, needs=("do_eval",))
    checkpoint_every_steps: int | None = setting(None, minimum=1)
    keep_checkpoints: int = setting(3, minimum=1)
    async_checkpoints: bool = setting(True)


BATCH = Section("Batch and steps (a step is one optimizer update)", Batch, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Optimizer and schedule


_ADAM = ("adam", "adamw", "mpadamw", "stable_adamw")
_WITH_MOMENTS = ("optimizer_type", ("lamb", *_ADAM))
_SCHEDULES = ("polynomial", "cosine", "natural_exponential", "up_down", "wsd_linear", "wsd_sqrt")
_WARMED_UP = ("lr_schedule", _SCHEDULES)
_EXPONENTIAL = ("lr_schedule", ("natural_exponential",))
_WITH_PLATEAU = ("lr_schedule", ("wsd_linear", "wsd_sqrt"))
_STEPWISE = ("lr_schedule", ("natural_exponential", *_WITH_PLATEAU[1]))


@dataclasses.dataclass(frozen=True)
class Optimization:
    """Settings of the updates of the weights.

    Attributes:
      optimizer_type: Optimizer. mpadamw: adamw with its first moment in float16. stable_adamw: adamw with
        per-variable update clipping, for high rates. docs/optimization.md has the formulas.
      bias_correction: Bias correction of the moments, for LAMB and all kinds of Adam. false: as Google's
        BERT, and as PopART's LAMB_NO_BIAS.
      lamb_decays_gamma: LAMB applies weight decay, but no trust ratio, to the gamma of LayerNorm, as
        Graphcore's TensorFlow programs do for BERT.
      momentum: With --optimizer_type=momentum: share of the last update that is kept.
      learning_rate: Peak learning rate. Unset: for classify, tag and embed about 5e-5 x 768 / hidden size.
      end_learning_rate: Learning rate at the end of the decay.
      lr_schedule: Learning rate after the warm-up. cosine: half a cosine to --end_learning_rate.
        up_down: linear, down to 0 in the last step. wsd_linear, wsd_sqrt: warm-up, stable, decay: constant,
        then down to 0 in the last --decay_steps. Or a piecewise constant rate without a warm-up, from each of
        these steps on: {"0": 1e-4, "1000": 1e-5}. docs/optimization.md has the formulas.
      poly_power: Power of the polynomial decay.
      warmup_power: Power of the warm-up: rate * (step / steps) ^ power.
      decay_steps: With --lr_schedule=natural_exponential: steps from one decay to the next. With wsd_linear
        and wsd_sqrt: steps of the final decay; unset: a tenth of the steps after the warm-up.
      decay_proportion: With --lr_schedule=wsd_linear and wsd_sqrt: the final decay as a share of all steps,
        in place of --decay_steps.
      decay_checkpoint: With --lr_schedule=wsd_linear and wsd_sqrt: start with the decay, of --decay_steps,
        from the checkpoint .../ckpt-N of another run's stable phase, with its weights, optimizer state and
        position in the data. The other settings must be those of that run.
      decay_rate: With --lr_schedule=natural_exponential: each decay multiplies the rate by exp(-decay_rate).
      warmup_steps: Steps of linear warm-up; 0 for none. Unset: 10000 for pre-training; a tenth of the steps
        for fine-tuning, and of the time with --budget_hours.
      warmup_proportion: Linear warm-up as a share of all steps, in place of --warmup_steps.
      start_warmup_step: First step of the warm-up; the learning rate is 0 before it.
      decay_from: Start of the polynomial decay. step_0: the decay is counted from step 0, so the rate drops
        at the end of the warm-up (the MLPerf v0.7 reference). warmup_end: it is counted from the end of the
        warm-up, without a drop.
      weight_decay_rate: Decoupled weight decay, not applied to biases and LayerNorm (but see
        --lamb_decays_gamma).
      beta_1: Decay rate of the first moment.
      beta_2: Decay rate of the second moment.
      epsilon: Added to the root of the second moment.
      clip_norm: Global norm that --clip_scope clips gradients to.
      clip_scope: Gradients that share a norm for clipping. global: the step's gradient, after the all-reduce.
        replicas: the same, with --clip_norm times the number of replicas (Graphcore's use_mpclip).
        micro_batch: each micro batch's gradient of each replica, before averaging (the MLPerf v0.7 reference,
        with --loss_normalization=local). none: do not clip. Unset: micro_batch if --scale_loss alone asks for
        that reference, otherwise global.
      loss_normalization: global: losses are divided by the weights of the whole step over all replicas.
        local: by the weights of each replica's micro batch, and the micro batches are averaged (the MLPerf
        v0.7 reference). local_sum: the same, but the gradients of the micro batches are summed. Unset: local
        with --scale_loss, otherwise global.
      scale_loss: Divide each replica's loss by the number of replicas, so that the all-reduced gradient is a
        mean instead of a sum. Needs --loss_normalization=local, and sets it if it is unset.
      loss_scale: dynamic, a number, or a schedule of numbers, from each of these steps on: {"0": 128, "1000":
        512}. Unset: dynamic for fp16, none otherwise.
    """

    optimizer_type: str = setting(
        "adamw", choices=("adamw", "lamb", "adam", "mpadamw", "stable_adamw", "sgd", "momentum")
    )
    bias_correction: bool = setting(True, only_with=_WITH_MOMENTS)
    lamb_decays_gamma: bool = setting(False, only_with=("optimizer_type", ("lamb",)))
    momentum: float = setting(0.984375, minimum=0, maximum=1, only_with=("optimizer_type", ("momentum",)))
    learning_rate: float = setting(5e-05, minimum=0, only_with=_WARMED_UP)
    end_learning_rate: float = setting(0.0, minimum=0, only_with=_WARMED_UP)
    lr_schedule: str = setting("polynomial", choices=_SCHEDULES, by_step=True)
    poly_power: float = setting(1.0, minimum=0, only_with=("lr_schedule", ("polynomial",)))
    warmup_power: float = setting(1.0, minimum=0, only_with=_WARMED_UP)
    decay_steps: int | None = setting(None, minimum=1, only_with=_STEPWISE)
    decay_proportion: float | None = setting(
        None,
        minimum=0,
        maximum=1,
        only_with=_WITH_PLATEAU,
        excludes={"decay_steps": "both set the length of the decay"},
    )
    decay_checkpoint: str | None = setting(
        None,
        tasks=PRETRAIN,
        backends=TENSORFLOWS,
        training=IDENTITY,
        files=True,
        only_with=_WITH_PLATEAU,
        needs=("do_train", "decay_steps"),
        excludes={
            **dict.fromkeys(("num_steps_per_epoch", "num_train_epochs", "stop_steps"), _BY_DECAY),
            "warmup_proportion": "give the --warmup_steps of the run that it continues",
            "budget_hours": "a decay has a number of steps",
        },
    )
    decay_rate: float | None = setting(None, minimum=0, only_with=_EXPONENTIAL)
    warmup_steps: float = setting(
        None,
        minimum=0,
        # A share of all steps follows from these.
        training=lambda config: RECIPE if config.warmup_proportion is None else None,
    )
    warmup_proportion: float | None = setting(None, minimum=0, maximum=1, only_with=_WARMED_UP)
    start_warmup_step: int = setting(0, minimum=0)
    decay_from: str = setting("step_0", choices=("step_0", "warmup_end"))
    weight_decay_rate: float = setting(
        0.01, minimum=0, only_with=("optimizer_type", ("lamb", "adamw", "mpadamw", "stable_adamw"))
    )
    beta_1: float = setting(0.9, minimum=0, maximum=1, only_with=_WITH_MOMENTS)
    beta_2: float = setting(0.999, minimum=0, maximum=1, only_with=_WITH_MOMENTS)
    epsilon: float = setting(1e-06, minimum=0, only_with=_WITH_MOMENTS)
    clip_norm: float = setting(
        1.0, minimum=0, only_with=("clip_scope", ("micro_batch", "global", "replicas"))
    )
    clip_scope: str = setting(None, choices=("micro_batch", "global", "replicas", "none"))
    loss_normalization: str = setting(None, choices=("global", "local", "local_sum"))
    scale_loss: bool = setting(False, only_with=("loss_normalization", ("local",)))
    loss_scale: str | None = setting(None, by_step=True)


OPTIMIZATION = Section("Optimization", Optimization, evaluation=False, training=RECIPE)

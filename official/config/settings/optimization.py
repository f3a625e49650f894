"""Settings of the optimization: batches and steps, optimizer and schedule."""

from __future__ import annotations

import dataclasses
from typing import Any

from official.config.setting import LENGTH, RECIPE, REPLICATED, Section, setting

# -----------------------------------------------------------------------------------------------------------
# Batches and steps


def _of_micro_batches(config: Any) -> str | None:
    """Returns the part of what divides a step into micro batches: none, as of devices, where what is clipped
    and divided by is of the whole step."""
    is_global = config.loss_normalization == "global" and config.clip_scope != "micro_batch"
    return None if is_global else RECIPE


@dataclasses.dataclass(frozen=True)
class Batch:
    """Settings of batches and steps, and of the intervals of all else."""

    train_batch_size: int = setting(
        32, "Sequences of one step: all replicas, all micro batches.", minimum=1, training=RECIPE
    )
    eval_batch_size: int = setting(
        32,
        "Sequences of one evaluation batch over all replicas; on IPUs at the default the next number above "
        "that the pipeline takes.",
        minimum=1,
        evaluation=lambda config: config.use_synthetic_data,
    )
    num_accumulation_steps: int = setting(
        1, "Micro batches whose gradients make one step.", minimum=1, training=_of_micro_batches
    )
    logical_workers: int | None = setting(
        None,
        "Lay a new run out for so many processes, --num_accumulation_steps of each, however many compute it: "
        "its results are then those of so many. Unset: as many as it begins with.",
        minimum=1,
        backends=REPLICATED,
        training=_of_micro_batches,
    )
    num_steps_per_epoch: int = setting(
        None,
        "Steps of an epoch; times --num_train_epochs it is the horizon of the learning-rate decay. 0: once "
        "through the data, whose records are counted first; of pre-training, what fills no whole batch is "
        "left out. Unset: 1000 for pre-training, 0 for fine-tuning.",
        minimum=0,
        training=LENGTH,
    )
    num_train_epochs: int = setting(3, "Epochs of the schedule.", minimum=1, training=LENGTH)
    stop_steps: int | None = setting(
        None,
        "Train only this many steps of the schedule; the decay horizon stays.",
        minimum=1,
        training=LENGTH,
    )
    steps_per_loop: int | None = setting(
        None,
        "Steps that a line of the metrics sums up. The devices are called for about five seconds at a "
        "time, whatever this says. Unset: 200, of a short run a twentieth of its steps.",
        minimum=1,
    )
    steps_between_eval: int | None = setting(
        None,
        "Evaluate every N steps; a multiple of --steps_per_loop. Unset: at the last step, for fine-tuning "
        "after each epoch.",
        minimum=1,
        needs="do_eval",
    )
    steps_before_eval_start: int = setting(0, "No evaluation before this step.", minimum=0, needs="do_eval")
    stop_threshold: float | None = setting(
        None,
        "Stop when an evaluation reaches this, 0 to 1: masked-LM accuracy, for fine-tuning the task's "
        "main metric.",
        minimum=0,
        maximum=1,
        training=LENGTH,
        needs="do_eval",
    )
    checkpoint_every_steps: int | None = setting(
        None,
        "Save every N steps; a multiple of --steps_per_loop. Unset: ten times over the run, without "
        "--steps_per_loop after 200 steps at least. Also saved at the last step.",
        minimum=1,
    )
    keep_checkpoints: int = setting(
        3, "Keep this many newest checkpoints; that of the best evaluation is kept, too.", minimum=1
    )
    async_checkpoints: bool = setting(
        True,
        "Write checkpoints beside the training, from a copy of the state in the host's memory. false: the "
        "training waits; on a CPU there is no copy then.",
    )


BATCH = Section("Batch and steps (a step is one optimizer update)", Batch, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Optimizer and schedule


_ADAM = ("adam", "adamw", "mpadamw")
_WITH_MOMENTS = ("optimizer_type", ("lamb", *_ADAM))
_WARMED_UP = ("lr_schedule", ("polynomial", "cosine", "natural_exponential", "up_down"))
_EXPONENTIAL = ("lr_schedule", ("natural_exponential",))


@dataclasses.dataclass(frozen=True)
class Optimization:
    """Settings of the updates of the weights."""

    optimizer_type: str = setting(
        "adamw",
        "Optimizer. mpadamw: adamw with its first moment in float16. docs/optimization.md has the formulas.",
        choices=("adamw", "lamb", "adam", "mpadamw", "sgd", "momentum"),
    )
    bias_correction: bool = setting(
        True,
        "LAMB, Adam, AdamW and mpadamw correct their moments for having started at 0. false: as Google's "
        "BERT, and as LAMB_NO_BIAS of PopART.",
        only_with=_WITH_MOMENTS,
    )
    lamb_decays_gamma: bool = setting(
        False,
        "LAMB decays the gamma of LayerNorm, too, and does not adapt it: as Graphcore's TensorFlow programs "
        "do for BERT.",
        only_with=("optimizer_type", ("lamb",)),
    )
    learning_rate: float = setting(5e-05, "Peak learning rate.", minimum=0, only_with=_WARMED_UP)
    end_learning_rate: float = setting(
        0.0, "Learning rate at the end of the decay.", minimum=0, only_with=_WARMED_UP
    )
    lr_schedule: str = setting(
        "polynomial",
        "Learning rate after the warm-up. up_down: a straight line that is at 0 one step after the last. Or "
        'rates without a warm-up, each from its step on: {"0": 1e-4, "1000": 1e-5}. docs/optimization.md has '
        "the formulas.",
        choices=("polynomial", "cosine", "natural_exponential", "up_down"),
        by_step=True,
    )
    poly_power: float = setting(
        1.0, "Power of the polynomial decay.", minimum=0, only_with=("lr_schedule", ("polynomial",))
    )
    warmup_power: float = setting(
        1.0, "Power of the warm-up: rate * (step / steps) ^ power.", minimum=0, only_with=_WARMED_UP
    )
    decay_steps: int | None = setting(
        None,
        "With --lr_schedule=natural_exponential: steps from one decay to the next.",
        minimum=1,
        only_with=_EXPONENTIAL,
    )
    decay_rate: float | None = setting(
        None,
        "With --lr_schedule=natural_exponential: each decay multiplies the rate by e^-this.",
        minimum=0,
        only_with=_EXPONENTIAL,
    )
    warmup_steps: float = setting(
        None,
        "Steps of linear warm-up; 0 for none. Unset: 10000 for pre-training, a tenth of the steps for "
        "fine-tuning.",
        minimum=0,
        # Of a share of all steps it follows from these.
        training=lambda config: RECIPE if config.warmup_proportion is None else None,
    )
    warmup_proportion: float | None = setting(
        None,
        "Linear warm-up as a share of all steps, in place of --warmup_steps.",
        minimum=0,
        maximum=1,
        only_with=_WARMED_UP,
    )
    start_warmup_step: int = setting(
        0, "First step of the warm-up; the learning rate is 0 before it.", minimum=0
    )
    decay_from: str = setting(
        "step_0",
        "Where the polynomial decay is counted from. step_0: the rate drops at the end of the warm-up (the "
        "MLPerf v0.7 reference). warmup_end: it goes on from the peak.",
        choices=("step_0", "warmup_end"),
    )
    weight_decay_rate: float = setting(
        0.01,
        "Decoupled weight decay; not applied to biases and LayerNorm, but see --lamb_decays_gamma.",
        minimum=0,
        only_with=("optimizer_type", ("lamb", "adamw", "mpadamw")),
    )
    beta_1: float = setting(
        0.9,
        "Decay rate of the first moment; of momentum, the share of the last update that is kept.",
        minimum=0,
        maximum=1,
        only_with=("optimizer_type", ("lamb", *_ADAM, "momentum")),
    )
    beta_2: float = setting(
        0.999, "Decay rate of the second moment.", minimum=0, maximum=1, only_with=_WITH_MOMENTS
    )
    epsilon: float = setting(
        1e-06, "Added to the root of the second moment.", minimum=0, only_with=_WITH_MOMENTS
    )
    clip_norm: float = setting(1.0, "Global norm that --clip_scope clips gradients to.", minimum=0)
    clip_scope: str = setting(
        None,
        "global: clip the step's gradient after the all-reduce. replicas: likewise, to --clip_norm times the "
        "number of replicas (Graphcore's use_mpclip). micro_batch: clip every replica's micro-batch gradient "
        "before it is averaged (the MLPerf v0.7 reference, with --loss_normalization=local). none: do not "
        "clip. Unset: micro_batch where --scale_loss alone asks for that reference, else global.",
        choices=("micro_batch", "global", "replicas", "none"),
    )
    loss_normalization: str = setting(
        None,
        "global: losses are divided by the weights of the whole step over all replicas. local: by those "
        "of each replica's micro batch, and micro batches are averaged (the MLPerf v0.7 reference). "
        "local_sum: likewise, and their gradients are added up. Unset: local with --scale_loss, else global.",
        choices=("global", "local", "local_sum"),
    )
    scale_loss: bool = setting(
        False,
        "Divide each replica's loss by the number of replicas, so that the all-reduced gradient is a mean "
        "and not a sum. Needs --loss_normalization=local, which it sets where that is unset.",
    )
    loss_scale: str | None = setting(
        None,
        'dynamic, a number, or numbers, each from its step on: {"0": 128, "1000": 512}. Unset: dynamic for '
        "fp16, none otherwise.",
        by_step=True,
    )


OPTIMIZATION = Section("Optimization", Optimization, evaluation=False, training=RECIPE)

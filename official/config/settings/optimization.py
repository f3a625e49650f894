"""Settings: how weights are updated."""

from __future__ import annotations

import dataclasses

from official.config.setting import RECIPE, Section, setting


@dataclasses.dataclass(frozen=True)
class Optimization:
    """Settings of the updates of the weights."""

    optimizer_type: str = setting(
        "adamw",
        "Optimizer. mpadamw: adamw with its first moment in float16. docs/optimization.md has the formulas.",
        choices=("adamw", "lamb", "adam", "mpadamw", "sgd", "momentum"),
    )
    lamb_variant: str = setting(
        "lamb",
        "With --optimizer_type=lamb, how the step's gradient is clipped. lamb: as --clip_scope says. "
        "nvlamb: to a global norm of 1. mpclip: to a global norm of the number of replicas.",
        choices=("lamb", "nvlamb", "mpclip"),
    )
    lamb_bias_correction: bool = setting(
        True, "LAMB corrects its moments for having started at 0. false: as LAMB_NO_BIAS of PopART."
    )
    lamb_decays_gamma: bool = setting(
        False,
        "LAMB decays the gamma of LayerNorm, too, and does not adapt it: as Graphcore's TensorFlow programs "
        "do for BERT.",
    )
    adam_bias_correction: bool = setting(
        True,
        "adam, adamw and mpadamw correct their moments for having started at 0. false: as Google's BERT.",
    )
    momentum: float = setting(
        0.984375,
        "With --optimizer_type=momentum: share of the last update that is kept.",
        minimum=0,
        maximum=1,
    )
    learning_rate: float = setting(5e-05, "Peak learning rate.", minimum=0)
    end_learning_rate: float = setting(0.0, "Learning rate at the end of the decay.", minimum=0)
    lr_schedule: str = setting(
        "polynomial",
        "Learning rate after the warm-up. up_down: a straight line that is at 0 one step after the last. "
        "custom: --lr_schedule_by_step, without a warm-up. docs/optimization.md has the formulas.",
        choices=("polynomial", "cosine", "natural_exponential", "up_down", "custom"),
    )
    lr_schedule_by_step: str | None = setting(
        None,
        'Learning rates of --lr_schedule=custom, each from its step on: {"0": 1e-4, "1000": 1e-5}.',
    )
    poly_power: float = setting(1.0, "Power of the polynomial decay.", minimum=0)
    warmup_power: float = setting(1.0, "Power of the warm-up: rate * (step / steps) ^ power.", minimum=0)
    decay_steps: int | None = setting(
        None, "With --lr_schedule=natural_exponential: steps from one decay to the next.", minimum=1
    )
    decay_rate: float | None = setting(
        None, "With --lr_schedule=natural_exponential: each decay multiplies the rate by e^-this.", minimum=0
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
        None, "Linear warm-up as a share of all steps, in place of --warmup_steps.", minimum=0, maximum=1
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
    )
    beta_1: float = setting(0.9, "Decay rate of the first moment.", minimum=0, maximum=1)
    beta_2: float = setting(0.999, "Decay rate of the second moment.", minimum=0, maximum=1)
    epsilon: float = setting(1e-06, "Added to the root of the second moment.", minimum=0)
    clip_norm: float = setting(1.0, "Global norm that --clip_scope clips gradients to.", minimum=0)
    clip_scope: str = setting(
        None,
        "global: clip the step's gradient after the all-reduce. micro_batch: clip every replica's "
        "micro-batch gradient before it is averaged (the MLPerf v0.7 reference, with "
        "--loss_normalization=local). none: do not clip. Unset: micro_batch where --scale_loss alone asks "
        "for that reference, else global.",
        choices=("micro_batch", "global", "none"),
    )
    loss_normalization: str = setting(
        None,
        "global: losses are divided by the weights of the whole step over all replicas. local: by those "
        "of each replica's micro batch, and micro batches are averaged (the MLPerf v0.7 reference). Unset: "
        "local with --scale_loss, else global.",
        choices=("global", "local"),
    )
    scale_loss: bool = setting(
        False,
        "Divide each replica's loss by the number of replicas, so that the all-reduced gradient is a mean "
        "and not a sum. Needs --loss_normalization=local, which it sets where that is unset.",
    )
    gradient_reduction: str = setting(
        "mean",
        "With --loss_normalization=local: whether the gradients of a replica's micro batches are averaged or "
        "added up.",
        choices=("mean", "sum"),
    )
    loss_scale: str | None = setting(None, "dynamic or a number. Unset: dynamic for fp16, none otherwise.")
    loss_scale_by_step: str | None = setting(
        None,
        'Loss scales, each from its step on, in place of --loss_scale: {"0": 128, "1000": 512}.',
    )


SECTION = Section("Optimization", Optimization, evaluation=False, training=RECIPE)

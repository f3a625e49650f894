"""Settings: how weights are updated."""

from __future__ import annotations

import dataclasses

from official.config.setting import Section, setting


@dataclasses.dataclass(frozen=True)
class Optimization:
    """How weights are updated."""

    optimizer_type: str = setting("adamw", "Optimizer.", choices=("adamw", "lamb"))
    learning_rate: float = setting(5e-05, "Peak learning rate.", minimum=0)
    end_learning_rate: float = setting(0.0, "Learning rate at the end of the decay.", minimum=0)
    poly_power: float = setting(1.0, "Power of the polynomial decay.", minimum=0)
    warmup_steps: float = setting(
        None,
        "Steps of linear warm-up; 0 for none. Unset: 10000 for pre-training, a tenth of the steps for "
        "fine-tuning.",
        minimum=0,
    )
    warmup_proportion: float | None = setting(
        None, "Linear warm-up as a share of all steps, in place of --warmup_steps.", minimum=0, maximum=1
    )
    start_warmup_step: int = setting(
        0, "First step of the warm-up; the learning rate is 0 before it.", minimum=0
    )
    decay_from: str = setting(
        "step_0",
        "Where the decay is counted from. step_0: the rate drops at the end of the warm-up (the MLPerf "
        "v0.7 reference). warmup_end: it goes on from the peak.",
        choices=("step_0", "warmup_end"),
    )
    weight_decay_rate: float = setting(
        0.01, "Decoupled weight decay; not applied to biases and LayerNorm.", minimum=0
    )
    beta_1: float = setting(0.9, "Decay rate of the first moment.", minimum=0, maximum=1)
    beta_2: float = setting(0.999, "Decay rate of the second moment.", minimum=0, maximum=1)
    epsilon: float = setting(1e-06, "Added to the root of the second moment.", minimum=0)
    clip_norm: float = setting(1.0, "Global norm that --clip_scope clips gradients to.", minimum=0)
    clip_scope: str = setting(
        "global",
        "global: clip the step's gradient after the all-reduce. micro_batch: clip every replica's "
        "micro-batch gradient before it is averaged (the MLPerf v0.7 reference, with "
        "--loss_normalization=local). none: do not clip.",
        choices=("micro_batch", "global", "none"),
    )
    loss_normalization: str = setting(
        "global",
        "global: losses are divided by the weights of the whole step over all replicas. local: by those "
        "of each replica's micro batch, and micro batches are averaged (the MLPerf v0.7 reference).",
        choices=("global", "local"),
    )
    scale_loss: bool = setting(
        False,
        "With --loss_normalization=local: divide each replica's loss by the number of replicas, so that "
        "the all-reduced gradient is a mean and not a sum.",
    )
    loss_scale: str | None = setting(None, "dynamic or a number. Unset: dynamic for fp16, none otherwise.")


SECTION = Section("Optimization", Optimization, evaluation=False)

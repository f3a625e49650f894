"""Settings: how much is computed, and how often something else happens."""

from __future__ import annotations

import dataclasses
from typing import Any

from official.config.setting import LENGTH, PRETRAIN, RECIPE, Section, setting

_LAID_OUT = ("one_device", "mirrored", "multi_worker_mirrored")


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
        backends=_LAID_OUT,
        training=_of_micro_batches,
    )
    num_steps_per_epoch: int = setting(
        None,
        "Steps of an epoch; times --num_train_epochs it is the horizon of the learning-rate decay. Unset: "
        "1000 for pre-training (but see --count_records), once through the data for fine-tuning.",
        minimum=1,
        training=LENGTH,
    )
    num_train_epochs: int = setting(3, "Epochs of the schedule.", minimum=1, training=LENGTH)
    count_records: bool = setting(
        False,
        "With --num_steps_per_epoch unset: an epoch of pre-training is once through the records of "
        "--input_files, which are counted first; what fills no whole batch is left out.",
        tasks=PRETRAIN,
        training=LENGTH,
    )
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
    )
    steps_before_eval_start: int = setting(0, "No evaluation before this step.", minimum=0)
    stop_threshold: float | None = setting(
        None,
        "Stop when an evaluation reaches this, 0 to 1: masked-LM accuracy, for fine-tuning the task's "
        "main metric.",
        minimum=0,
        maximum=1,
        training=LENGTH,
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


SECTION = Section("Batch and steps (a step is one optimizer update)", Batch, evaluation=False)

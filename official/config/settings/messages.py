"""Settings: what is said of the run, and to whom."""

from __future__ import annotations

import dataclasses

from official.config.setting import Section, setting


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
    wandb_project: str | None = setting(
        None, "With --wandb: project. Unset: bert-tf2, with --log_style=graphcore tf-bert."
    )
    wandb_name: str | None = setting(
        None, "With --wandb: name of the run. Unset: the name of --model_dir's folder."
    )


SECTION = Section("Messages", Messages, evaluation=False)

"""Settings: what is to be done, and where."""

from __future__ import annotations

import dataclasses

from official.config.setting import FINE_TUNING, IDENTITY, RECIPE, Section, setting


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings of the job: what it does, and in which folders."""

    task: str = setting(
        "pretrain", "What is trained.", choices=("pretrain", "squad", "glue"), training=IDENTITY
    )
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
    )
    export_dir: str | None = setting(
        None,
        "Write the best, or else the newest, weights as a SavedModel that takes text to this folder when the "
        "run has ended, see bert export. It must not be there.",
    )
    init_checkpoint: str | None = setting(
        None,
        "Weights to start from: a checkpoint of this project or a Google TF1 one, as a prefix or a folder.",
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


SECTION = Section("Job", Job, evaluation=False)

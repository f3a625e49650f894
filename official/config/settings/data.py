"""Settings: what is read."""

from __future__ import annotations

import dataclasses

from official.config.setting import IDENTITY, PRETRAIN, RECIPE, Section, setting


@dataclasses.dataclass(frozen=True)
class Data:
    """Settings of the data."""

    input_files: str | None = setting(
        None,
        "Training TFRecords: comma-separated files, folders or globs (local, gs://, ram://); without listing "
        "a folder NAME@4096.tfrecord for NAME-00000-of-04096.tfrecord and so on, or its manifest.json.",
        tasks=PRETRAIN,
        evaluation=lambda config: not config.eval_files,
        files=True,
    )
    data_streams: int | None = setting(
        None,
        "Streams that training files are dealt out to, each with an order of its own; a host reads whole "
        "ones. It must divide files and batch, and hosts must divide it. Unset: the most, up to 32, that "
        "does; more hosts need it.",
        minimum=1,
        maximum=1 << 16,
        tasks=PRETRAIN,
        backends=("one_device", "mirrored", "multi_worker_mirrored", "tpu", "pipeline"),
        evaluation=False,
    )
    eval_files: str | None = setting(
        None,
        "Evaluation TFRecords; without it the first records of --input_files are used, as the MLPerf v0.7 "
        "rules did.",
        tasks=PRETRAIN,
        training=None,
        files=True,
    )
    use_synthetic_data: bool = setting(
        False, "Train on random records of the right shape instead of files.", training=IDENTITY
    )
    generated_data: bool = setting(
        False,
        "In place of all files of data, records that are made up here and then read like files: the whole "
        "input pipeline works. Files that are given are not read.",
        training=IDENTITY,
    )
    synthetic_input: bool = setting(
        False,
        "Train on one random batch that stays on the devices: no input pipeline at all. Files that are given "
        "are not read.",
        training=IDENTITY,
    )
    max_seq_length: int = setting(128, "Tokens of a sequence.", minimum=8)
    max_predictions_per_seq: int = setting(
        20, "Masked tokens of a sequence, at most.", minimum=1, tasks=PRETRAIN
    )
    static_mask: bool = setting(
        False,
        "Records written with --remask are trained on as they stand, predicted tokens first: the masked-LM "
        "head cuts them off and gathers nothing.",
        tasks=PRETRAIN,
    )
    num_eval_samples: int = setting(
        10000, "Evaluate the first N records.", minimum=1, tasks=PRETRAIN, training=None
    )


SECTION = Section("Data", Data, evaluation=True, training=RECIPE)

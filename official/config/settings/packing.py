"""Settings: several sequences in one row."""

from __future__ import annotations

import dataclasses

from official.config.setting import FINE_TUNING, PRETRAIN, RECIPE, Section, setting


@dataclasses.dataclass(frozen=True)
class Packing:
    """Several sequences in one row. Records that are packed rows need none of it."""

    pack_on_the_fly: bool = setting(
        False,
        "Put several sequences into each row of --max_seq_length tokens while the records are read. "
        "--train_batch_size and --eval_batch_size then count rows.",
        tasks=PRETRAIN,
    )
    pack: bool = setting(
        False,
        "Put several sequences into each row of --max_seq_length tokens, for training, evaluation and "
        "prediction. --train_batch_size and --eval_batch_size then count rows.",
        tasks=FINE_TUNING,
    )
    max_sequences_per_pack: int | None = setting(
        None, "Sequences of a row, at most. Unset: 12; of packed records, what they have.", minimum=1
    )
    average_sequences_per_pack: float | None = setting(
        None,
        "Sequences of a row, on average: what the plan, evaluation rules and logs count with before the "
        "data are read. Unset: what the data say; without data, one.",
        minimum=1,
        training=None,
    )
    loss_averaging_basis: str = setting(
        "pertoken",
        "pertoken: the masked-LM loss is the mean over all predicted tokens. persequence: the mean over "
        "sequences of the means over their predicted tokens (Graphcore's packed BERT has both).",
        choices=("pertoken", "persequence"),
        tasks=PRETRAIN,
        evaluation=True,
    )


SECTION = Section("Packing (several sequences in one row)", Packing, evaluation=False, training=RECIPE)

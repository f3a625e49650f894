"""Settings: what only fine-tuning knows."""

from __future__ import annotations

import dataclasses

from official.config.setting import FINE_TUNING, GLUE, IDENTITY, RECIPE, SQUAD, Section, setting


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Settings of fine-tuning alone."""

    train_file: str | None = setting(
        None,
        "squad: questions to train on, a SQuAD 1.1 or 2.0 JSON file.",
        tasks=SQUAD,
        evaluation=False,
        training=IDENTITY,
        files=True,
    )
    predict_file: str | None = setting(
        None,
        "squad: questions to answer; --do_eval compares with the answers in it.",
        tasks=SQUAD,
        training=None,
        files=True,
    )
    version_2_with_negative: bool = setting(
        False, "squad: some questions have no answer (SQuAD 2.0).", tasks=SQUAD, training=IDENTITY
    )
    doc_stride: int = setting(
        128, "squad: word pieces between the windows of a long context.", minimum=1, tasks=SQUAD
    )
    max_query_length: int = setting(64, "squad: word pieces of a question, at most.", minimum=1, tasks=SQUAD)
    n_best_size: int = setting(
        20,
        "squad: answers of a question in nbest_predictions.json, at most.",
        minimum=1,
        tasks=SQUAD,
        training=None,
    )
    max_answer_length: int = setting(
        30, "squad: word pieces of an answer, at most.", minimum=1, tasks=SQUAD, training=None
    )
    null_score_diff_threshold: float = setting(
        0.0,
        "squad, version 2: no answer is given where its score is above that of the best answer by more "
        "than this.",
        tasks=SQUAD,
        training=None,
    )
    span_places: str = setting(
        "tokens",
        "squad: the places among which the loss has an answer begin and end. tokens: those of the window. "
        "row: all of its row, padding, too, as in Google's run_squad.py and Hugging Face's run_qa.py.",
        choices=("tokens", "row"),
        tasks=SQUAD,
        evaluation=False,
    )
    data_dir: str | None = setting(
        None,
        "glue: folder of the tasks' folders (CoLA, MRPC, ...), or of the one task.",
        tasks=GLUE,
        training=IDENTITY,
        files=True,
    )
    glue_task: str | None = setting(
        None,
        "glue: which task.",
        choices=("cola", "mnli", "mnli-mm", "ax", "mrpc", "sst2", "stsb", "qqp", "qnli", "rte", "wnli"),
        tasks=GLUE,
        training=IDENTITY,
    )
    cache_dir: str | None = setting(
        None,
        "squad: where features are kept between runs. Unset: features/ in --model_dir.",
        tasks=SQUAD,
        evaluation=False,
        training=None,
    )
    length_buckets: str = setting(
        "auto",
        "Batches of sequences of about one length, as long as their longest, instead of --max_seq_length. "
        "auto: on CPUs, where no shape is compiled for, unless --unpad leaves padding out.",
        choices=("auto", "always", "never"),
        tasks=FINE_TUNING,
        evaluation=False,
    )
    predict_epochs: int | None = setting(
        None,
        "With --do_predict: predict so many times, and tell throughput and latency of each in the words of "
        "PopART's inference. Unset: once, without them.",
        minimum=1,
        tasks=FINE_TUNING,
        evaluation=False,
    )
    num_runs: int = setting(
        1,
        "Repeat the run with seeds --seed, --seed + 1, ... in folders run-1, run-2, ...; report mean and "
        "deviation.",
        minimum=1,
        tasks=FINE_TUNING,
        evaluation=False,
        training=IDENTITY,
    )


SECTION = Section("Fine-tuning", FineTuning, evaluation=True, training=RECIPE)

"""Settings of the data: files, packing, fine-tuning."""

from __future__ import annotations

import dataclasses

from official.config.setting import (
    ALONE,
    CLASSIFY,
    EMBED,
    FINE_TUNING,
    GLUE,
    IDENTITY,
    LABELLED,
    LENGTH,
    OWN_DATA,
    PREDICTING,
    PRETRAIN,
    RECIPE,
    SQUAD,
    TENSORFLOWS,
    TPU,
    Section,
    setting,
)

# -----------------------------------------------------------------------------------------------------------
# Files


@dataclasses.dataclass(frozen=True)
class Data:
    """Settings of the data.

    Attributes:
      input_files: Training TFRecords: comma-separated files, folders or globs (local, gs://, ram://). To
        avoid listing a folder, NAME@4096.tfrecord means NAME-00000-of-04096.tfrecord and so on; or give its
        manifest.json.
      data_streams: Number of streams (data shards) that the training files are assigned to, each with its own
        order; each stream is read by one host. It must divide the number of files and the batch, and be a
        multiple of the number of hosts. Unset: the largest such number up to 32; set it for more hosts.
      eval_files: Evaluation TFRecords; without it the first records of --input_files are used, as the MLPerf
        v0.7 rules did.
      use_synthetic_data: Train on random records of the right shape instead of files.
      generated_data: Train on generated records instead of data files. They are read like files, so the whole
        input pipeline runs. Data files that are set are not read.
      synthetic_input: Train on one random batch that stays on the devices, without an input pipeline. Data
        files that are set are not read.
      max_seq_length: Maximum number of tokens of a sequence. Unset, for fine-tuning without
        --bert_config_file: that of the folder of --init_checkpoint, up to 512.
      max_predictions_per_seq: Maximum number of masked tokens of a sequence, for records that store masks.
      mask_share: Share of the tokens to predict, for records without masks (bert data create
        --objective=mlm). Masks are drawn anew in every epoch: 80 % [MASK], 10 % random words, 10 % unchanged.
        Unset: 0.3 for such records. Evaluation always masks the same 15 %.
      do_whole_word_mask: With --mask_share: predict all word pieces of a word or none.
      mask_span_length: With --mask_share: mean length of the masked spans in tokens, or in words with
        --do_whole_word_mask.
      static_mask: Train on records written with --remask, which have the predicted tokens first: the
        masked-LM head slices them instead of gathering.
      num_eval_samples: Number of records to evaluate on, the first ones of the files.
    """

    input_files: str | None = setting(
        None, tasks=PRETRAIN, evaluation=lambda config: not config.eval_files, files=True
    )
    data_streams: int | None = setting(
        None, minimum=1, maximum=1 << 16, tasks=PRETRAIN, backends=TENSORFLOWS, evaluation=False
    )
    eval_files: str | None = setting(None, tasks=PRETRAIN, needs=("do_eval",), training=None, files=True)
    use_synthetic_data: bool = setting(
        False,
        training=IDENTITY,
        excludes=dict.fromkeys(
            (
                "input_files",
                "eval_files",
                "train_file",
                "eval_file",
                "predict_file",
                "corpus_file",
                "data_dir",
            ),
            "random sequences replace those of files",
        ),
    )
    generated_data: bool = setting(
        False,
        tasks=(*PRETRAIN, *SQUAD, *GLUE),
        training=IDENTITY,
        excludes=dict.fromkeys(("synthetic_input", "use_synthetic_data"), "it reads records like files"),
    )
    synthetic_input: bool = setting(False, training=IDENTITY)
    max_seq_length: int = setting(128, minimum=8)
    max_predictions_per_seq: int = setting(20, minimum=1, tasks=PRETRAIN)
    mask_share: float | None = setting(
        None,
        minimum=0.01,
        maximum=1,
        tasks=PRETRAIN,
        only_with=("objective", ("mlm", "electra")),
        excludes={"static_mask": "it draws masks, static_mask uses those of the records"},
        evaluation=False,
    )
    do_whole_word_mask: bool = setting(False, tasks=PRETRAIN, needs=("mask_share",), evaluation=False)
    mask_span_length: float = setting(
        1.0, minimum=1, maximum=64, tasks=PRETRAIN, needs=("mask_share",), evaluation=False
    )
    static_mask: bool = setting(
        False,
        tasks=PRETRAIN,
        excludes=dict.fromkeys(
            ("pack_on_the_fly", "max_sequences_per_pack", "average_sequences_per_pack"),
            "it uses stored rows of one sequence unchanged",
        ),
    )
    num_eval_samples: int = setting(10000, minimum=1, tasks=PRETRAIN, training=None)


DATA = Section("Data", Data, evaluation=True, training=RECIPE)


# -----------------------------------------------------------------------------------------------------------
# Packing


@dataclasses.dataclass(frozen=True)
class Packing:
    """Several sequences in one row. Records that are packed rows need none of it.

    Attributes:
      pack_on_the_fly: Pack several sequences into each row of --max_seq_length tokens while records are read.
        --train_batch_size and --eval_batch_size then count rows.
      pack: Pack several sequences into each row of --max_seq_length tokens, in training, evaluation and
        prediction. --train_batch_size and --eval_batch_size then count rows.
      max_sequences_per_pack: Maximum number of sequences per row. Unset: 12; with packed records, that of the
        records.
      average_sequences_per_pack: Expected number of sequences per row, for the plan, evaluation rules and
        logs, which are computed before data are read. Unset: estimated from the data; without data, 1.
      loss_averaging_basis: pertoken: the masked-LM loss is the mean over all predicted tokens. persequence:
        the mean over sequences of the means over their predicted tokens (Graphcore's packed BERT has both).
    """

    pack_on_the_fly: bool = setting(False, tasks=PRETRAIN)
    pack: bool = setting(
        False,
        tasks=FINE_TUNING,
        excludes={"length_buckets=always": "which cuts rows to their longest sequence"},
    )
    max_sequences_per_pack: int | None = setting(None, minimum=1)
    average_sequences_per_pack: float | None = setting(None, minimum=1, training=None)
    loss_averaging_basis: str = setting(
        "pertoken",
        choices=("pertoken", "persequence"),
        tasks=PRETRAIN,
        only_with=("objective", ("mlm_nsp", "mlm")),
        evaluation=True,
    )


PACKING = Section("Packing (several sequences in one row)", Packing, evaluation=False, training=RECIPE)


# -----------------------------------------------------------------------------------------------------------
# Fine-tuning


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Settings of fine-tuning alone.

    Attributes:
      train_file: Rows to train on. classify: a table with texts and labels (CSV, TSV, JSON lines, Parquet, a
        folder written by datasets' save_to_disk; globs). embed: such a table with pairs of texts. tag: CoNLL
        columns or JSON lines. squad: SQuAD's JSON, or JSON lines.
      eval_file: Rows to evaluate on, in the format of --train_file. Unset: the share --eval_share of
        --train_file.
      predict_file: squad: questions to answer; --do_eval scores them against the answers in the file. Other
        tasks: rows for --do_predict.
      eval_share: Without --eval_file: share of the rows of --train_file to hold out, by a hash of their
        texts: duplicates land on the same side, and adding rows moves no other row.
      text_columns: Column with the text, or comma-separated columns with the two texts of a pair: names, or
        numbers from 1 on if the table has no header. embed: a query, a passage that answers it, and any
        number of wrong passages; with --label_column two texts. Unset: text; for tag tokens, or text; for
        embed query,positive, or sentence1,sentence2.
      label_column: Column with the label. Unset: label; for tag tags, or entities. embed: column with the
        similarity score of the two texts; unset: the first two texts of a row belong together.
      label_kind: one: single-label classification. several: multi-label classification. number: regression.
        choice: multiple choice, which of the texts after the first is right.
      class_weights: balanced: rare labels count as much as frequent ones, by the weights rows / (labels x
        rows of the label).
      label_smoothing: Share of each label that is spread over all labels.
      teacher: Folder of a model that was fine-tuned for this task, to distil from: half of the loss is then
        the divergence from its outputs on the training rows. It may have another size, vocabulary and family,
        but must have the same labels.
      distill_temperature: With --teacher: temperature that both models' logits are divided by in the loss. A
        higher one gives more weight to the labels that the teacher finds unlikely.
      distill_share: With --teacher: weight of the teacher's part of the loss; 1 ignores the labels.
      pooling: embed: the vector of a text is the mean of its token vectors, the vector of [CLS], or the
        maximum of each component. Unset: from the folder of --init_checkpoint, otherwise mean.
      query_prompt: embed: text to prepend to each text of the first column, such as "query: ". Unset: from
        the folder of --init_checkpoint, otherwise none.
      passage_prompt: embed: text to prepend to each text of the other columns. Unset: from the folder of
        --init_checkpoint, otherwise none.
      temperature: embed: cosines are divided by it before the softmax or exponential of the loss. Lower
        values make the loss concentrate on the nearest texts.
      score_loss: embed, with scores: cosent ranks the cosines of the pairs of a batch like their scores.
        cosine: squared difference of cosine and score, which lies between -1 and 1.
      matryoshka_sizes: embed: comma-separated sizes: the first N components of a vector are trained as a
        separate vector, for each size N, in addition to the whole vector.
      corpus_file: embed: table with more passages for an evaluation to search, in the column of the positive.
      early_stopping_metric: Evaluation score that selects the best weights. Unset: the main score of the
        task.
      early_stopping_patience: Stop after this many evaluations in a row that do not improve the best score.
        Unset: never.
      freeze_layers: Number of lowest layers that are not trained, together with the embeddings.
      layer_decay: Layer-wise learning-rate decay: each layer has this share of the learning rate of the layer
        above it; 1: the same rate for all.
      version_2_with_negative: squad: some questions have no answer (SQuAD 2.0).
      doc_stride: squad: distance between the starts of two windows of a long context, in word pieces.
      max_query_length: squad: maximum number of word pieces of a question.
      n_best_size: squad: maximum number of answers per question in nbest_predictions.json.
      max_answer_length: squad: maximum number of word pieces of an answer.
      null_score_diff_threshold: squad, version 2: predict no answer if its score exceeds that of the best
        answer by more than this.
      score_by: squad: the units of F1. words: as SQuAD. characters: as CMRC 2018. Unset: characters if most
        letters of the answers are Chinese, Japanese or Korean.
      span_places: squad: the positions that the softmax of the loss covers. tokens: those of the window. row:
        the whole row, including padding, as in Google's run_squad.py and Hugging Face's run_qa.py.
      data_dir: glue: folder that contains the tasks' folders (CoLA, MRPC, ...), or the folder of the task
        itself.
      glue_task: glue: the task.
      cache_dir: Folder in which squad's features and a --teacher's logits are kept between runs. Unset:
        features/ in --model_dir.
      length_buckets: Batch sequences of similar length, padded to the longest of the batch instead of
        --max_seq_length. auto: only on CPUs, where nothing is compiled per shape, and only without --unpad
        and --span_places=row.
      predict_epochs: With --do_predict: predict this many times, and log throughput and latency of each time
        in the format of PopART's inference. Unset: once, without these lines.
      num_runs: Repeat the run with seeds --seed, --seed + 1, ... in folders run-1, run-2, ...; report mean
        and standard deviation.
    """

    train_file: str | None = setting(
        None, tasks=(*SQUAD, *OWN_DATA), evaluation=False, training=IDENTITY, files=True
    )
    eval_file: str | None = setting(None, tasks=OWN_DATA, files=True)
    predict_file: str | None = setting(None, tasks=(*SQUAD, *LABELLED), training=None, files=True)
    eval_share: float = setting(0.1, minimum=0, maximum=0.9, tasks=OWN_DATA, training=IDENTITY)
    text_columns: str | None = setting(None, tasks=OWN_DATA, training=IDENTITY)
    label_column: str | None = setting(None, tasks=OWN_DATA, training=IDENTITY)
    label_kind: str = setting(
        "one", choices=("one", "several", "number", "choice"), tasks=CLASSIFY, training=IDENTITY
    )
    class_weights: str = setting("none", choices=("none", "balanced"), tasks=CLASSIFY, evaluation=False)
    label_smoothing: float = setting(0.0, minimum=0, maximum=0.9, tasks=(*GLUE, *LABELLED), evaluation=False)
    teacher: str | None = setting(
        None,
        tasks=(*GLUE, *CLASSIFY),
        backends=("one_device", "mirrored", *TPU),
        needs=("do_train",),
        excludes=dict.fromkeys(
            ("use_synthetic_data", "generated_data", "synthetic_input"), "the teacher needs texts"
        ),
        evaluation=False,
        training=IDENTITY,
        files=True,
    )
    distill_temperature: float = setting(
        2.0, minimum=1, tasks=(*GLUE, *CLASSIFY), needs=("teacher",), evaluation=False
    )
    distill_share: float = setting(
        0.5, minimum=0, maximum=1, tasks=(*GLUE, *CLASSIFY), needs=("teacher",), evaluation=False
    )
    pooling: str | None = setting(None, choices=("mean", "cls", "max"), tasks=EMBED, training=IDENTITY)
    query_prompt: str | None = setting(None, tasks=EMBED, training=IDENTITY)
    passage_prompt: str | None = setting(None, tasks=EMBED, training=IDENTITY)
    temperature: float = setting(0.05, minimum=0.001, maximum=10, tasks=EMBED, evaluation=False)
    score_loss: str = setting(
        "cosent", choices=("cosent", "cosine"), tasks=EMBED, needs=("label_column",), evaluation=False
    )
    matryoshka_sizes: str | None = setting(None, tasks=EMBED)
    corpus_file: str | None = setting(
        None,
        tasks=EMBED,
        needs=("do_eval",),
        excludes={"label_column": "pairs with scores are not evaluated by search"},
        training=None,
        files=True,
    )
    early_stopping_metric: str | None = setting(None, tasks=FINE_TUNING, needs=("do_eval",), evaluation=False)
    early_stopping_patience: int | None = setting(
        None, minimum=1, tasks=FINE_TUNING, needs=("do_eval",), evaluation=False, training=LENGTH
    )
    freeze_layers: int = setting(0, minimum=0, tasks=FINE_TUNING, evaluation=False, training=IDENTITY)
    layer_decay: float = setting(1.0, minimum=0.1, maximum=1, tasks=FINE_TUNING, evaluation=False)
    version_2_with_negative: bool = setting(False, tasks=SQUAD, training=IDENTITY)
    doc_stride: int = setting(128, minimum=1, tasks=SQUAD)
    max_query_length: int = setting(64, minimum=1, tasks=SQUAD)
    n_best_size: int = setting(20, minimum=1, tasks=SQUAD, training=None)
    max_answer_length: int = setting(30, minimum=1, tasks=SQUAD, training=None)
    null_score_diff_threshold: float = setting(
        0.0, tasks=SQUAD, needs=("version_2_with_negative",), training=None
    )
    score_by: str | None = setting(None, choices=("words", "characters"), tasks=SQUAD, training=None)
    span_places: str = setting("tokens", choices=("tokens", "row"), tasks=SQUAD, evaluation=False)
    data_dir: str | None = setting(None, tasks=GLUE, training=IDENTITY, files=True)
    glue_task: str | None = setting(
        None,
        choices=("cola", "mnli", "mnli-mm", "ax", "mrpc", "sst2", "stsb", "qqp", "qnli", "rte", "wnli"),
        tasks=GLUE,
        training=IDENTITY,
    )
    cache_dir: str | None = setting(None, tasks=(*SQUAD, *GLUE, *CLASSIFY), evaluation=False, training=None)
    length_buckets: str = setting(
        "auto", choices=("auto", "always", "never"), tasks=FINE_TUNING, evaluation=False
    )
    predict_epochs: int | None = setting(
        None, minimum=1, needs=("do_predict",), tasks=PREDICTING, evaluation=False
    )
    num_runs: int = setting(
        1,
        minimum=1,
        needs=("do_train",),
        tasks=FINE_TUNING,
        backends=ALONE,
        evaluation=False,
        training=IDENTITY,
    )


FINE_TUNING_SECTION = Section("Fine-tuning", FineTuning, evaluation=True, training=RECIPE)

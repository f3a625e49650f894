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
      input_files: Training TFRecords: comma-separated files, folders or globs (local, gs://, ram://); without
        listing a folder NAME@4096.tfrecord for NAME-00000-of-04096.tfrecord and so on, or its manifest.json.
      data_streams: Streams that training files are dealt out to, each with an order of its own; a host reads
        whole ones. It must divide files and batch, and hosts must divide it. Unset: the most, up to 32, that
        does; more hosts need it.
      eval_files: Evaluation TFRecords; without it the first records of --input_files are used, as the MLPerf
        v0.7 rules did.
      use_synthetic_data: Train on random records of the right shape instead of files.
      generated_data: In place of all files of data, records that are made up here and then read like files:
        the whole input pipeline works. Files that are given are not read.
      synthetic_input: Train on one random batch that stays on the devices: no input pipeline at all. Files
        that are given are not read.
      max_seq_length: Tokens of a sequence.
      max_predictions_per_seq: Masked tokens of a sequence, at most, of records that store masks.
      mask_share: Share of the tokens that are predicted, of records without masks (bert data create
        --objective=mlm): drawn anew for every epoch, 80 % [MASK], 10 % random words, 10 % unchanged. Unset:
        0.3 of such records. Evaluation always draws 0.15, in the same way every time.
      do_whole_word_mask: With --mask_share: predict all pieces of a word or none.
      mask_span_length: With --mask_share: mean length of the spans that are predicted, in tokens, or in words
        with --do_whole_word_mask.
      static_mask: Records written with --remask are trained on as they stand, predicted tokens first: the
        masked-LM head cuts them off and gathers nothing.
      num_eval_samples: Evaluate the first N records.
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
            ("input_files", "eval_files", "train_file", "predict_file", "data_dir"),
            "random sequences, or those of files",
        ),
    )
    generated_data: bool = setting(
        False,
        training=IDENTITY,
        excludes=dict.fromkeys(("synthetic_input", "use_synthetic_data"), "records that are read, or none"),
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
        excludes={"static_mask": "records with masks are read as they stand, or masks are drawn"},
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
            "it takes rows of one sequence as they stand",
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
      pack_on_the_fly: Put several sequences into each row of --max_seq_length tokens while the records are
        read. --train_batch_size and --eval_batch_size then count rows.
      pack: Put several sequences into each row of --max_seq_length tokens, for training, evaluation and
        prediction. --train_batch_size and --eval_batch_size then count rows.
      max_sequences_per_pack: Sequences of a row, at most. Unset: 12; of packed records, what they have.
      average_sequences_per_pack: Sequences of a row, on average: what the plan, evaluation rules and logs
        count with before the data are read. Unset: what the data say; without data, one.
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
        folder that datasets saved; globs). embed: such a table of pairs of texts. tag: CoNLL columns or JSON
        lines. squad: SQuAD's JSON, or JSON lines.
      eval_file: Rows to evaluate on, in the form of --train_file. Unset: --eval_share of its rows.
      predict_file: squad: questions to answer; --do_eval compares with the answers in it. Else rows for
        --do_predict.
      eval_share: Without --eval_file: share of the rows of --train_file that is held out, by a hash of their
        texts: duplicates stay on one side, and added rows move none.
      text_columns: Columns with the text, or with the two texts of a pair, comma-separated: names, or numbers
        from 1 on of a table without a header. embed: a query, a passage that answers it, and any number of
        passages that do not; with --label_column two texts. Unset: text; of tags tokens, or text; of embed
        query,positive, or sentence1,sentence2.
      label_column: Column with the label. Unset: label; of tags tags, or entities. embed: column with the
        score of how alike two texts are; unset: the first two texts of a row belong together.
      label_kind: one of many; several at once; a number; choice: which of the texts behind the first is
        right.
      class_weights: balanced: a rare label counts as much as a frequent one, by rows / (labels x rows of the
        label).
      label_smoothing: Share of a label that is spread over all labels.
      teacher: Folder of a model that was fine-tuned for this task. Half of the loss is then the difference to
        what it says of the training rows; a small model learns more from that than from the labels alone. It
        may be of another size, vocabulary and family; its labels must be the same.
      distill_temperature: With --teacher: what its logits and the model's are divided by in the loss: the
        higher, the more the labels count that it finds unlikely.
      distill_share: With --teacher: its share of the loss; 1 where labels are not to be trusted.
      pooling: embed: the vector of a text is the mean of its tokens' vectors, the vector of [CLS], or the
        largest number at each place. Unset: as the folder of --init_checkpoint says, else mean.
      query_prompt: embed: text set before each text of the first column, such as "query: ". Unset: as the
        folder of --init_checkpoint says, else none.
      passage_prompt: embed: text set before each text of the other columns. Unset: likewise.
      temperature: embed: cosines are divided by it before the softmax, or exponential, of the loss. Small
        numbers make the loss look at the nearest texts alone.
      score_loss: embed, with scores: cosent orders the cosines of the pairs of a batch as their scores are
        ordered. cosine: squared difference of cosine and score, from -1 to 1.
      matryoshka_sizes: embed: comma-separated sizes; the first so many numbers of a vector are trained to be
        vectors by themselves, beside the whole.
      corpus_file: embed: a table of more passages that an evaluation searches, in the column of the positive.
      early_stopping_metric: Score of an evaluation by which the best weights are chosen. Unset: the task's
        main one.
      early_stopping_patience: Stop after so many evaluations in a row that are not better than the best.
        Unset: never.
      freeze_layers: Layers, from the lowest on, that are not trained, and the embeddings with them.
      layer_decay: Learning rate of a layer as a share of that of the layer above it; 1: one rate for all.
      version_2_with_negative: squad: some questions have no answer (SQuAD 2.0).
      doc_stride: squad: word pieces between the windows of a long context.
      max_query_length: squad: word pieces of a question, at most.
      n_best_size: squad: answers of a question in nbest_predictions.json, at most.
      max_answer_length: squad: word pieces of an answer, at most.
      null_score_diff_threshold: squad, version 2: no answer is given where its score is above that of the
        best answer by more than this.
      score_by: squad: what F1 counts. words: as SQuAD; characters: as CMRC 2018. Unset: characters where most
        letters of the answers are Chinese, Japanese or Korean.
      span_places: squad: the places among which the loss has an answer begin and end. tokens: those of the
        window. row: all of its row, padding, too, as in Google's run_squad.py and Hugging Face's run_qa.py.
      data_dir: glue: folder of the tasks' folders (CoLA, MRPC, ...), or of the one task.
      glue_task: glue: which task.
      cache_dir: Where features of squad, and what a --teacher says, are kept between runs. Unset: features/
        in --model_dir.
      length_buckets: Batches of sequences of about one length, as long as their longest, instead of
        --max_seq_length. auto: on CPUs, where no shape is compiled for, unless --unpad leaves padding out.
      predict_epochs: With --do_predict: predict so many times, and tell throughput and latency of each in the
        words of PopART's inference. Unset: once, without them.
      num_runs: Repeat the run with seeds --seed, --seed + 1, ... in folders run-1, run-2, ...; report mean
        and deviation.
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
            ("use_synthetic_data", "generated_data", "synthetic_input"), "it is asked for texts"
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
        excludes={"label_column": "pairs with scores are not searched for"},
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
    null_score_diff_threshold: float = setting(0.0, tasks=SQUAD, training=None)
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

"""The table of GLUE tasks: files, columns, labels and metrics of each task, and the name of its file of
predictions.

Columns are found by their names in a file's first line, because train, dev and test have different layouts.

Source: https://gluebenchmark.com/tasks (files, labels, metrics) and the GLUE paper, arXiv 1804.07461.
"""

from __future__ import annotations

import dataclasses
import os

from official.config import ConfigError, suggest


@dataclasses.dataclass(frozen=True)
class SplitFiles:
    """The file of one part of a task's data."""

    files: tuple[str, ...]  # below data_dir; the first existing one is read
    rows: int  # number of rows of the published file
    columns: tuple[str, ...] | None = None  # names of the columns, for a file without a header line


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
      splits: {train, dev, test}.
      submission_file: name of the file of predictions.
      labels: labels in the order of their class numbers; None for a task that predicts a score.
      text_columns: names of one column, or of two for pairs.
      metrics: names of the metrics. The last one selects the best checkpoint: the metric in BERT's paper, F1
        for MRPC and QQP, Spearman for STS-B. Source: arXiv 1810.04805, table 1.
      words_in_submission: whether the file of predictions has labels by name, not class numbers or scores.
      class_words: names of labels that are numbers, as in the data set "glue" of Hugging Face.
    """

    name: str
    splits: dict[str, SplitFiles]
    submission_file: str
    labels: tuple[str, ...] | None
    text_columns: tuple[str, ...] = ("sentence1", "sentence2")
    label_column: str = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    words_in_submission: bool = False
    class_words: tuple[str, ...] = ()

    @property
    def is_regression(self) -> bool:
        return self.labels is None

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels; empty for a task that predicts a score."""
        return self.labels or ()

    @property
    def submitted_labels(self) -> tuple[str, ...]:
        """The text of each class in a file of predictions."""
        return self.classes if self.words_in_submission else tuple(map(str, range(len(self.classes))))

    @property
    def class_names(self) -> list[tuple[str, ...]] | None:
        """All names of each class, its word last, to recognize the outputs of a model; None for a task that
        predicts a score."""
        if self.labels is None:
            return None
        numbered = [(label, f"LABEL_{number}") for number, label in enumerate(self.labels)]
        words = self.class_words or self.labels
        return [(*names, word) for names, word in zip(numbered, words)]

    def find_file(self, split: str, data_dir: str) -> str:
        """Returns the path of a split's file; `data_dir` is the folder of all tasks, or of this task.

        Raises:
          ConfigError: if the file exists under none of its names.
        """
        names = self.splits[split].files
        candidates = [os.path.join(data_dir, name) for name in (*names, *map(os.path.basename, names))]
        for path in candidates:
            if os.path.isfile(path):
                return path
        raise ConfigError(
            f"--data_dir={data_dir} has no {split} file of {self.name}, expected {' or '.join(names)}."
            f" scripts/download_glue_data.py --data_dir={data_dir} --tasks={self.name} downloads it."
        )


MAX_SCORE = 5.0  # largest score of STS-B; the smallest one is 0
# The corpus as published, including the rows that GLUE held out as the dev set.
MRPC_TRAIN_AND_DEV = "msr_paraphrase_train.txt"

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_COLA_COLUMNS = ("source", "label", "mark", "sentence")


def _splits(
    folder: str, *rows: int, names: tuple[str, ...] = ("train", "dev", "test"), columns=(None, None, None)
) -> dict[str, SplitFiles]:
    files = [SplitFiles((f"{folder}/{name}.tsv",), *of) for name, *of in zip(names, rows, columns)]
    return dict(zip(("train", "dev", "test"), files))


_MNLI = GlueTask(
    "mnli",
    _splits("MNLI", 392702, 9815, 9796, names=("train", "dev_matched", "test_matched")),
    "MNLI-m.tsv",
    ("contradiction", "entailment", "neutral"),
    label_column="gold_label",
    words_in_submission=True,
)


def _of_mnli(name: str, submission_file: str, **splits: SplitFiles) -> GlueTask:
    """Returns a task with MNLI's labels and other files."""
    return dataclasses.replace(
        _MNLI, name=name, submission_file=submission_file, splits={**_MNLI.splits, **splits}
    )


_TASKS = (
    GlueTask(
        "cola",
        _splits("CoLA", 8551, 1043, 1063, columns=(_COLA_COLUMNS, _COLA_COLUMNS, None)),
        "CoLA.tsv",
        _BINARY,
        ("sentence",),
        metrics=("matthews_correlation",),
        class_words=("unacceptable", "acceptable"),
    ),
    _MNLI,
    _of_mnli(
        "mnli-mm",
        "MNLI-mm.tsv",
        dev=SplitFiles(("MNLI/dev_mismatched.tsv",), 9832),
        test=SplitFiles(("MNLI/test_mismatched.tsv",), 9847),
    ),
    _of_mnli(
        "ax",
        "AX.tsv",
        test=SplitFiles(("AX/diagnostic.tsv", "AX.tsv", "AX/AX.tsv", "diagnostic/diagnostic.tsv"), 1104),
    ),
    GlueTask(
        "mrpc",
        {
            "train": SplitFiles(("MRPC/train.tsv", f"MRPC/{MRPC_TRAIN_AND_DEV}"), 3668),
            "dev": SplitFiles(("MRPC/dev.tsv",), 408),
            "test": SplitFiles(("MRPC/test.tsv", "MRPC/msr_paraphrase_test.txt"), 1725),
        },
        "MRPC.tsv",
        _BINARY,
        ("#1 String", "#2 String"),
        "Quality",
        ("accuracy", "f1"),
        class_words=("not_equivalent", "equivalent"),
    ),
    GlueTask(
        "sst2",
        _splits("SST-2", 67349, 872, 1821),
        "SST-2.tsv",
        _BINARY,
        ("sentence",),
        class_words=("negative", "positive"),
    ),
    GlueTask(
        "stsb",
        _splits("STS-B", 5749, 1500, 1379),
        "STS-B.tsv",
        None,
        label_column="score",
        metrics=("pearson", "spearman"),
    ),
    GlueTask(
        "qqp",
        _splits("QQP", 363846, 40430, 390965),
        "QQP.tsv",
        _BINARY,
        ("question1", "question2"),
        "is_duplicate",
        ("accuracy", "f1"),
        class_words=("not_duplicate", "duplicate"),
    ),
    GlueTask(
        "qnli",
        _splits("QNLI", 104743, 5463, 5463),
        "QNLI.tsv",
        _ENTAILMENT,
        ("question", "sentence"),
        words_in_submission=True,
    ),
    GlueTask("rte", _splits("RTE", 2490, 277, 3000), "RTE.tsv", _ENTAILMENT, words_in_submission=True),
    GlueTask("wnli", _splits("WNLI", 635, 71, 146), "WNLI.tsv", _BINARY, class_words=_ENTAILMENT[::-1]),
)
TASKS = {task.name: task for task in _TASKS}


def find_task(name: str, flag: str = "glue_task") -> GlueTask:
    """Returns a task by its name. Raises ConfigError if there is no such task."""
    if name not in TASKS:
        raise ConfigError(
            f"--{flag}={name} is not a GLUE task{suggest(name.lower(), TASKS)}. Allowed: {', '.join(TASKS)}."
        )
    return TASKS[name]

"""Classification of texts: one label of many, several labels, a number, or a choice; for the tasks of GLUE
and user tables."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import FIELDS, Config, ConfigError, encoder_options
from official.config.checks import check_segment_types
from official.data.glue import files as glue_files
from official.data.glue import tasks as glue_tasks
from official.data.rows import text_rows
from official.data.rows.text_rows import TokenRows
from official.data.tables import files as tables
from official.data.tables import labels as labels_lib
from official.data.tables import predictions
from official.data.tables import texts as texts_lib
from official.data.tables.labels import CHOICE, NUMBER, ONE, SEVERAL, Labels
from official.data.word_pieces.tokenizer import tokenizer_of
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import model_folder
from official.io.errors import counted, shortened
from official.modeling import objectives
from official.modeling.models import ChoiceModel, SequenceModel
from official.tasks import examples as examples_lib
from official.tasks import known
from official.tasks.fine_tuning import FULL_DEVIATION, FineTuning, TableTask, tell_truncated

Outputs = dict  # {output: [rows, ...]}
_LENGTHS = (64, 128, 256, 512)  # tokens, in the table of lengths
_SUSPICIOUS = 20  # maximum number of rows in the report's table


class Classification(FineTuning):
    """Base of all tasks with labels; see `official.training.task.Task` and `ScoredTask`.

    A task sets `labels`, at the latest in `_read_splits`; `_truths` returns the true labels of its evaluation
    set, and `_shown` its rows for the report.
    """

    losses = {"label_loss": 1.0}
    output_names = ("logits",)
    labels: Labels
    ask_teacher: Callable[..., np.ndarray] | None = None  # see `inference.teacher`
    _scored: Labels | None = None  # labels of the last scores, with thresholds for several labels

    def _prepare(self, labels: Labels) -> None:
        """Sets the labels, which determine the names of metrics and files. Raises ConfigError for settings
        that do not apply to the loss of numbers."""
        config = self._config
        for name in ("label_smoothing", "distill_temperature") if labels.kind == NUMBER else ():
            if config.do_train and config[name] != FIELDS[name].default:
                why = "numbers, whose loss is the squared difference"
                raise ConfigError(f"--{name}={config[name]:g} is not for {why}. Drop it.")
        self.labels = labels
        self.eval_metrics = tuple(self.losses)
        self.metrics = self.eval_metrics + (("label_accuracy",) if labels.kind in (ONE, CHOICE) else ())

    # --------------------------------------------------------------------------------------------------------
    # Model and loss

    def _make_model(self) -> SequenceModel:
        options = {"head_scale": self.head_scale, **encoder_options(self._config)}
        if self.labels.kind == CHOICE:
            return ChoiceModel(self._config.model, **options)
        return SequenceModel(self._config.model, self.labels.outputs, **options)

    def terms(self, outputs, batch) -> objectives.Terms:
        config, distillation = self._config, None
        if config.teacher:
            distillation = objectives.Distillation(config.distill_temperature, config.distill_share)
        return objectives.label_terms(outputs, batch, self.labels.kind, config.label_smoothing, distillation)

    def _with_teacher(self, rows: TokenRows, texts: list[list[str]]) -> TokenRows:
        """Returns the rows of the training set with the teacher's logits."""
        if self.ask_teacher is None:
            raise ValueError("a task with a teacher is made by inference.teacher.make_task")
        logits_NC = self.ask_teacher(texts, self.labels, self.class_names)
        if self.labels.kind in (ONE, CHOICE):
            agreed = np.mean(logits_NC.argmax(axis=1) == rows.columns["labels"])
            logging.info("The teacher predicts the label of %.1f %% of the training rows", 100 * agreed)
        return dataclasses.replace(rows, columns={**rows.columns, "teacher_logits": logits_NC})

    def evaluate(self, model, batch) -> tuple[dict, dict[str, tf.Tensor]]:
        logits = model(batch)
        return objectives.label_terms(logits, batch, self.labels.kind), {"logits": logits}

    def _no_labels(self, count: int) -> np.ndarray:
        shape = (count, self.labels.outputs) if self.labels.kind == SEVERAL else (count,)
        return np.zeros(shape, self.labels.dtype)

    def _random_labels(
        self, generator: np.random.Generator, length: int, count: int
    ) -> dict[str, np.ndarray]:
        empty = self._no_labels(count)
        highest = 2 if self.labels.kind == SEVERAL else max(self.labels.outputs, 1)
        found = {"labels": generator.integers(0, highest, empty.shape).astype(empty.dtype)}
        if self._config.teacher:
            outputs = self.rows_of_example if self.labels.kind == CHOICE else self.labels.outputs
            found["teacher_logits"] = generator.normal(size=(count, outputs)).astype(np.float32)
        return found

    # --------------------------------------------------------------------------------------------------------
    # Scores

    def _truths(self) -> np.ndarray:
        """Returns the labels of the evaluation set."""
        raise NotImplementedError

    def _shown(self, rows: Sequence[int]) -> list[tuple[Sequence[str], str]]:
        """Returns (texts, place) of some rows of the evaluation set; the place, for the report, is '' if the
        texts are enough."""
        raise NotImplementedError

    def score(self, outputs: Outputs) -> dict[str, float]:
        self._scored = labels = self._with_thresholds(outputs)
        return labels_lib.scores(labels, outputs["logits"], self._truths())

    def _with_thresholds(self, outputs: Outputs) -> Labels:
        """Returns the labels; after training, `several` have the thresholds that are best on the evaluation
        set. A model that is only evaluated keeps its own, which do not depend on the set."""
        if self.labels.kind != SEVERAL or not self._config.do_train:
            return self.labels
        chances_NC = labels_lib.probabilities(self.labels, outputs["logits"])
        return dataclasses.replace(
            self.labels, thresholds=labels_lib.choose_thresholds(chances_NC, self._truths())
        )

    def tables(self, outputs: Outputs) -> dict[str, list[list]]:
        labels, logits_NC, truths = self._with_thresholds(outputs), outputs["logits"], self._truths()
        if not labels.names:
            return {}
        found = {"Scores by label": labels_lib.by_label(labels, logits_NC, truths)}
        if labels.kind == ONE:
            calls = labels_lib.predicted(labels, logits_NC)
            counts = np.zeros((len(labels.names),) * 2, np.int64)
            np.add.at(counts, (truths, calls), 1)
            head = ["label", *(f"predicted {name}" for name in labels.names)]
            rows = [[name, *row] for name, row in zip(labels.names, counts.tolist())]
            found = {"Confusion matrix": [head, *rows], **found}
        return found

    def examples(self, outputs: Outputs) -> list[dict]:
        labels, truths = self.labels, self._truths()
        if labels.kind == SEVERAL:
            return []
        if labels.kind == NUMBER:
            title, note = "Largest errors", "The rows of the evaluation set whose scores are missed by most."
            values = labels_lib.predicted(labels, outputs["logits"])
            order = examples_lib.farthest(values, truths)
            both = [("predicted", values), ("score", truths)]
            facts = [[[what, f"{values_N[row]:.2f}"] for what, values_N in both] for row in order]
        else:
            title = "Confident mistakes"
            note = "The wrong predictions that the model gives the highest probabilities."
            chances_NC = labels_lib.probabilities(labels, outputs["logits"])
            order = examples_lib.surest_mistakes(chances_NC, truths)
            names = labels.names or tuple(f"text {number + 1}" for number in range(chances_NC.shape[1]))
            both = [("predicted", chances_NC.argmax(axis=1)), ("label", truths)]
            facts = [
                [
                    [what, f"{names[label_N[row]]} \u00b7 probability {chances_NC[row, label_N[row]]:.2f}"]
                    for what, label_N in both
                ]
                for row in order
            ]
        rows = zip(self._shown(order), facts)
        items = [examples_lib.row(texts, own, place) for (texts, place), own in rows]
        return examples_lib.group(title, note, items)

    def constant_prediction(self) -> tuple[str, float] | None:
        truths, labels = self._truths(), self.labels
        if labels.kind == NUMBER:
            return f"{np.mean(truths):.2f}", 0.0
        if labels.kind == SEVERAL:
            everything = dataclasses.replace(labels, thresholds=(0.0,) * len(labels.names))
            scores = labels_lib.scores(everything, np.zeros(truths.shape), truths)
            return "every label", scores[self.target_metric]
        counts = np.bincount(truths, minlength=1)
        logits_NC = np.zeros((len(truths), len(labels.names) or self.texts - 1))
        logits_NC[:, counts.argmax()] = 1.0
        name = labels.names[counts.argmax()] if labels.names else f"text {counts.argmax() + 1}"
        return name, labels_lib.scores(labels, logits_NC, truths)[self.target_metric]


# -----------------------------------------------------------------------------------------------------------
# GLUE


class GlueTask(Classification):
    """A GLUE task: its files, its published scores, and predictions for GLUE's server."""

    def __init__(self, config: Config):
        super().__init__(config)
        self._glue_task = task = glue_tasks.find_task(known(config.glue_task))
        self._prepare(Labels(NUMBER if task.is_regression else ONE, task.classes))
        self.class_names, self.texts = task.class_names, len(task.text_columns)
        if self.texts == 2:
            check_segment_types(config)
        self._take_scores(task.metrics[::-1])
        self._files: dict[str, text_rows.Table] = {}  # {train, dev, test: table}
        self._digests: dict[str, dict[str, int]] = {}  # digests of their tokens
        self.companions = {model_folder.LABELS: model_folder.labels_json(task.labels).encode()}

    def _read_splits(self, vocabulary: Vocabulary) -> None:
        config, tokenizer = self._config, tokenizer_of(vocabulary)
        needed = {"train": config.do_train, "dev": config.do_eval, "test": config.do_predict}
        for split in [name for name, is_needed in needed.items() if is_needed]:
            rows = self._files[split] = glue_files.read_split(self._glue_task, split, known(config.data_dir))
            encoded, whole_lengths = text_rows.encode(
                rows.texts, tokenizer, vocabulary, config.max_seq_length
            )
            truncated = int((encoded.lengths < whole_lengths).sum())
            labels = self._no_labels(len(rows)) if rows.labels is None else rows.labels
            name = "eval" if split == "dev" else split
            self._rows[name] = dataclasses.replace(encoded, columns={"labels": labels})
            if split == "train" and config.teacher:
                self._rows[name] = self._with_teacher(self._rows[name], list(map(list, zip(*rows.texts))))
            self._digests[split] = {"tokens": int(encoded.lengths.sum()), "truncated": truncated}
            self._paths[split] = [rows.path]
            (logging.warning if rows.problems else logging.info)("%s", rows.describe())
            tell_truncated(rows.path, truncated, len(rows), config.max_seq_length)

    def _facts(self, split: str) -> dict[str, Any]:
        rows = self._files[split]
        problems = [f"{rows.path}:{line}: {fault}" for line, fault in rows.problems.items()]
        return {"rows": len(rows), **self._digests[split], "problems": problems}

    def _truths(self) -> np.ndarray:
        return known(self._files["dev"].labels)

    def _shown(self, rows: Sequence[int]) -> list[tuple[Sequence[str], str]]:
        return [([column[row] for column in self._files["dev"].texts], "") for row in rows]

    def _predictions(self, outputs: Outputs) -> np.ndarray:
        return outputs["logits"][:, 0] if self.labels.kind == NUMBER else outputs["logits"].argmax(axis=1)

    def score(self, outputs: Outputs) -> dict[str, float]:
        return glue_files.score(self._glue_task, self._predictions(outputs), self._truths())

    def constant_prediction(self) -> tuple[str, float] | None:
        truths, names = self._truths(), self.labels.names
        name = names[np.bincount(truths).argmax()] if names else f"{np.mean(truths):.2f}"
        return name, glue_files.baseline(self._glue_task, truths)[self.target_metric]

    def write_predictions(self, outputs: Outputs, folder: str) -> list[str]:
        return [glue_files.write_predictions(self._glue_task, self._predictions(outputs), folder)]


# -----------------------------------------------------------------------------------------------------------
# User tables


class ClassifyTask(Classification, TableTask):
    """Labels of texts in a table; its classes are those of the training rows."""

    head_scale = FULL_DEVIATION

    def __init__(self, config: Config):
        super().__init__(config)
        self._text_columns = (config.text_columns or "text").split(",")
        self._label_column = config.label_column or "label"
        kind, self.texts = config.label_kind, len(self._text_columns)
        self.problem_type = model_folder.PROBLEM_TYPE_OF[kind]
        least, most = (3, 100) if kind == CHOICE else (1, 2)
        if not least <= self.texts <= most:
            allowed = (
                "a text and those to choose from, 3 or more" if kind == CHOICE else "one, or two for pairs"
            )
            raise ConfigError(
                f"--text_columns={config.text_columns} names {counted(self.texts, 'column')}. Allowed with"
                f" --label_kind={kind}: {allowed}."
            )
        if kind == CHOICE:
            self._refuse("--label_kind=choice", pack=config.pack, unpad=config.unpad)
        if kind != ONE and config.class_weights != "none":
            raise ConfigError(
                f"--class_weights is not for --label_kind={kind}: it weighs one of many. Drop it."
            )
        if self.texts > 1:
            check_segment_types(config)
        self.rows_of_example = max(self.texts - 1, 1)
        # Placeholders for a plan and synthetic data; the data define the labels.
        self._prepare(Labels(kind, ("0", "1") if kind in (ONE, SEVERAL) else ()))
        self._take_scores(labels_lib.SCORES[kind])

    def _read_splits(self, vocabulary: Vocabulary) -> None:
        config = self._config
        tokenizer = tokenizer_of(vocabulary)
        self._encode = lambda texts: text_rows.encode(texts, tokenizer, vocabulary, config.max_seq_length)
        if config.do_train:
            self._read_table("train", "train_file", None)
            if config.do_eval and not config.eval_file:
                self._hold_out()
        else:
            self._prepare(self._known_labels())
        if config.do_eval and "eval" not in self._read:
            self._read_table("eval", "eval_file", self.labels)
            self._tell_shared()
        if config.do_predict:
            self._read_table("test", "predict_file", None, labelled=False)
        for split, rows in self._read.items():
            self._rows[split] = self._token_rows(split, rows)
        if config.teacher:
            numbers = self._read["train"].numbers.tolist()
            found = texts_lib.rows_again(self._tables["train"], self._text_columns, numbers)
            texts = [found[number] for number in numbers]
            self._rows["train"] = self._with_teacher(self._rows["train"], texts)
        self.class_names = [(name,) for name in self.labels.names] or None
        self.companions[model_folder.LABELS] = self._labels_json(self.labels)

    def _labels_json(self, labels: Labels) -> bytes:
        scale = labels.scale if labels.kind == NUMBER else ()
        return model_folder.labels_json(
            labels.names or None, self.problem_type, labels.thresholds, scale
        ).encode()

    def _known_labels(self) -> Labels:
        """Returns the labels of the evaluated run or weights."""
        folder, found = self._saved_labels()
        kind = found["kind"]
        if kind != self._config.label_kind:
            raise ConfigError(
                f"--label_kind={self._config.label_kind}, and the labels of {folder} are of kind {kind}. Give"
                f" --label_kind={kind}."
            )
        return Labels(kind, found["labels"] or (), found["thresholds"], found["scale"])

    def _read_table(self, split: str, flag: str, labels: Labels | None, labelled: bool = True) -> None:
        config, label = self._config, self._label_column
        wanted = [*self._text_columns, *([label] if labelled else [])]
        table = tables.open_table(known(config[flag]), flag, wanted, all_columns=not labelled)
        reader = labels_lib.Reader(config.label_kind, labels, self._text_columns[1:]) if labelled else None
        rows, found = texts_lib.read_texts(table, self._text_columns, self._encode, reader, label)
        if found is not None and (labels is None or found.kind == NUMBER):
            self._check_differ(table, label, found, known(rows.labels))
        if reader is not None and labels is None:
            found = known(found)
            self._check_labels(found, reader.counts, known(rows.labels))
            if found.kind == NUMBER:
                spread = float(np.std(known(rows.labels), dtype=np.float64))
                found = dataclasses.replace(
                    found, scale=(float(np.mean(known(rows.labels), dtype=np.float64)), spread or 1.0)
                )
            self._prepare(found)
        if reader is not None and reader.unknown:
            raise ConfigError(
                f"--{flag}={table.given}: {labels_lib.describe_unknown(reader.unknown, self.labels.names)}"
            )
        source = f", label from {label!r}" if labelled else ""
        columns = " and ".join(map(repr, self._text_columns))
        self._take(split, table, rows, f"{counted(len(rows), 'row')}, text from {columns}{source}")
        fitting = [f"{share:.1%} fit into {length}" for length, share in self._length_shares(rows)]
        logging.info("Texts: %s tokens", ", ".join(fitting))

    def _check_labels(self, labels: Labels, counts: Counter, rows: np.ndarray) -> None:
        """Logs the labels; `rows` are those of all rows."""
        if labels.kind in (NUMBER, CHOICE):
            return
        if labels.kind == SEVERAL and rows.sum(axis=1).max() < 2:
            logging.warning("No row has several labels: write lists, or one of , ; | between labels")
        shown = [f"{name} ({counts[name]:,})" for name in labels.names]
        logging.info("%d labels: %s", len(shown), shortened(shown, 400))
        if once := [name for name in labels.names if counts[name] == 1]:
            logging.warning("Labels with a single row: %s", shortened(once, 200))
        labels_lib.tell_doubtful(labels.names, labels.kind)

    def _hold_out(self) -> None:
        super()._hold_out()
        for what, split in (("held-out", "eval"), ("training", "train")):
            there: Any = known(self._read[split].labels)
            there = (
                there.any(axis=0) if there.ndim == 2 else np.isin(np.arange(len(self.labels.names)), there)
            )
            if missing := [name for name, is_there in zip(self.labels.names, there) if not is_there]:
                flags = "Raise --eval_share, or give --eval_file"
                logging.warning("Labels without a %s row: %s. %s", what, shortened(missing, 200), flags)

    def _length_shares(self, rows: texts_lib.TextRows) -> list[tuple[int, float]]:
        """Returns [(tokens, share of the texts that fit)]."""
        lengths = [length for length in _LENGTHS if length <= self._config.model.positions]
        return [(length, float((rows.whole_lengths <= length).mean())) for length in lengths]

    def _token_rows(self, split: str, rows: texts_lib.TextRows) -> TokenRows:
        labels = self._no_labels(len(rows)) if rows.labels is None else rows.labels
        if self.labels.kind == NUMBER:
            labels = ((labels - self.labels.scale[0]) / self.labels.scale[1]).astype(np.float32)
        columns = {"labels": labels}
        if split == "train" and self._config.class_weights == "balanced":
            counts = np.bincount(labels, minlength=len(self.labels.names))
            columns["class_weights"] = (len(labels) / (np.count_nonzero(counts) * counts[labels])).astype(
                np.float32
            )
        return TokenRows(rows.ids, rows.lengths, rows.first_lengths, columns, group=rows.group)

    # --------------------------------------------------------------------------------------------------------
    # Scores and predictions

    def _truths(self) -> np.ndarray:
        return known(self._read["eval"].labels)

    def _shown(self, rows: Sequence[int]) -> list[tuple[Sequence[str], str]]:
        numbers = self._read["eval"].numbers[list(rows)].tolist()
        found = texts_lib.rows_again(self._tables["eval"], self._text_columns, numbers)
        return [(found[number], f"row {number:,}") for number in numbers]

    def tables(self, outputs: Outputs) -> dict[str, list[list]]:
        rows: list[list] = [["tokens", "share of the texts that fit"]]
        rows += [[length, share] for length, share in self._length_shares(self._read["eval"])]
        return {**super().tables(outputs), **self._suspicious(outputs), "Lengths of the texts": rows}

    def _suspicious(self, outputs: Outputs) -> dict[str, list[list]]:
        """Returns the table of held-out rows whose label looks wrong: another label has a higher probability
        than the average over the rows with that label. Source: Northcutt et al. 2021, arXiv 1911.00068."""
        if self.labels.kind != ONE:
            return {}
        truths, chances_NC = self._truths(), labels_lib.probabilities(self.labels, outputs["logits"])
        usual = [
            chances_NC[truths == number, number].mean() if (truths == number).any() else 1.0
            for number in range(len(self.labels.names))
        ]
        called = chances_NC.argmax(axis=1)
        sure_N = chances_NC.max(axis=1)
        odd = np.flatnonzero((called != truths) & (sure_N >= np.array(usual)[called]))
        odd = odd[np.argsort(-sure_N[odd], kind="stable")][:_SUSPICIOUS]
        names, numbers = self.labels.names, self._read["eval"].numbers
        rows = [
            [int(numbers[row]), names[truths[row]], names[called[row]], float(sure_N[row])]
            for row in odd.tolist()
        ]
        head = ["row of the table", "label", "predicted", "probability"]
        return {"Rows whose label looks wrong": [head, *rows]} if rows else {}

    def assets(self, outputs: Outputs) -> dict[str, bytes]:
        """Returns the files to save next to the scored weights: labels with their thresholds."""
        return {model_folder.LABELS: self._labels_json(self._with_thresholds(outputs))}

    def write_predictions(self, outputs: Outputs, folder: str) -> list[str]:
        table, rows = self._tables["test"], self._read["test"]
        path = os.path.join(folder, "predictions.csv")
        labels = self._scored or self.labels
        ours = predictions.columns_of(labels, outputs["logits"], True, self._text_columns[1:])
        places = {int(number): place for place, number in enumerate(rows.numbers)}
        with open(path, "wb") as file:
            for batch in table.batches():
                first, count = batch.first + 1, len(next(iter(batch.columns.values())))
                own = [places.get(number) for number in range(first, first + count)]
                named = predictions.beside(table.columns, ours, own)
                columns = {**batch.columns, **named}
                file.write(predictions.encode(".csv", columns, not batch.first, named.keys()))
        return [path]

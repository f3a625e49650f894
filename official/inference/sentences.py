"""The label, or the score, of a sentence or of a pair of them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from official.data.glue import files, tasks
from official.data.word_pieces.wordpiece import Tokenizer
from official.inference import backends, batching, calibration
from official.inference.rows import Rows
from official.inference.source import Source, Truncation
from official.io import model_folder
from official.io.errors import ConfigError


class Label(NamedTuple("_Label", [("label", str | None), ("score", float)])):
    """Label of a row, with the probability or score of every output.

    Attributes:
      label: the most probable one; None of a model whose outputs are scores.
      score: its probability; of such a model, its first output.
      scores: {name of an output: probability, or score} of all outputs, in their order.
    """

    scores: dict[str, float]

    def __new__(cls, label: str | None, score: float, scores: dict[str, float]):
        made = super().__new__(cls, label, score)
        made.scores = scores
        return made


class Classes(NamedTuple):
    """Classes of a classifier.

    Attributes:
      texts: of a row: 1 or 2; None where nothing says it.
      kind: of label, one of KINDS.
      labels: names of the outputs.
      length: tokens of a row, at most.
    """

    texts: int | None
    kind: str
    labels: tuple[str, ...]
    length: int


# Kinds of labels: one of many (softmax), several at once (a sigmoid for each), numbers (as they are).
ONE, SEVERAL, NUMBER = KINDS = ("one", "several", "number")
_KIND_OF = {
    model_folder.ONE_LABEL: ONE,
    model_folder.SEVERAL_LABELS: SEVERAL,
    model_folder.REGRESSION: NUMBER,
}


def classes_of(source: Source) -> Classes:
    """Returns the labels of a model's classifier, and their kind. A single output is a number, unless the
    model says that it is one of several labels."""
    outputs = source.tensors["output_weights"].shape[0]
    task = tasks.find_task(source.run.glue_task) if source.run else None
    labels, kind = source.labels, _KIND_OF.get(str(source.problem_type), ONE)
    if task:
        labels, kind = task.labels, NUMBER if task.is_regression else ONE
    return Classes(
        len(task.text_columns) if task else None,
        NUMBER if outputs == 1 and kind == ONE else kind,
        labels or tuple(f"LABEL_{number}" for number in range(outputs)),
        source.length(),
    )


def rows_of(a: Sequence[Any], b: Sequence[str] | None = None) -> list[list[str]]:
    """Returns a row of one or two texts for each of several sentences, or pairs of them. Raises ConfigError
    for what is neither."""
    if isinstance(a, str) or isinstance(b, str):
        raise ConfigError(
            "one text and several to classify: give two texts, or two lists of the same length."
        )
    if b is not None and len(a) != len(b):
        raise ConfigError(f"{len(a)} and {len(b)} texts to classify, expected as many second texts as first.")
    given: Iterable[Any] = a if b is None else zip(a, b)
    rows = [list(row) if isinstance(row, (list, tuple)) else [row] for row in given]
    for number, row in enumerate(rows):
        if len(row) not in (1, 2) or not all(isinstance(text, str) for text in row):
            raise ConfigError(f"row {number} to classify is {str(row)[:100]}, expected a text or two.")
    return rows


class Classifier:
    """Labels rows as the predictions of --task=glue do.

    Attributes:
      texts: of a row: 1 or 2; None where nothing says it.
      kind: of label, one of KINDS.
    """

    def __init__(self, source: Source, settings: backends.Settings, calibration_file: str | None = None):
        source.check_can("classify")
        self.texts, self.kind, self._labels, self._length = classes_of(source)
        self._source, self.cut = source, Truncation(source.name)
        self._vocabulary, self._tokenizer = source.vocabulary, Tokenizer(source.vocabulary)
        read = calibration.sentences(source, calibration_file)
        self.settings = calibration.calibrated(settings, lambda: self.rows_of(read()))
        self.network = backends.build(source, "classify", self.settings)

    def __call__(self, rows: Sequence[Sequence[str]]) -> list[Label]:
        """Returns the label of each row of 1 or 2 texts. Raises ConfigError for another number of texts than
        the task's."""
        for texts in rows:
            if self.texts not in (None, len(texts)):
                received = f"{len(texts)} text{'s' * (len(texts) > 1)}"
                raise ConfigError(f"{received} to classify, expected {self.texts} as in training.")
            if len(texts) > 1:
                self._source.check_pairs()
        if not rows:
            return []
        labels: list[Label] = [None] * len(rows)  # type: ignore[list-item]  # all are filled below
        for count in {len(texts) for texts in rows}:
            chosen = [number for number, texts in enumerate(rows) if len(texts) == count]
            made = self.rows_of([rows[number] for number in chosen])
            logits_NC = batching.run(self.network, "classify", made)["logits"]
            for number, logits_C in zip(chosen, logits_NC):
                labels[number] = self._label_of(logits_C)
        return labels

    def rows_of(self, texts: Sequence[Sequence[str]]) -> Rows:
        """Returns rows of as many texts each, end to end."""
        table = files.GlueRows("", tuple(map(list, zip(*texts))), None, [])
        made = files.make_features(table, self._tokenizer, self._vocabulary, self._length)
        self.cut.report(made.truncated, self._length)
        firsts_T = np.repeat(made.starts + made.first_lengths, made.lengths)
        segments_T = (np.arange(len(made.ids)) >= firsts_T).astype(np.int32)
        return Rows(made.ids.astype(np.int32), segments_T, made.lengths)

    def _label_of(self, logits_C: np.ndarray) -> Label:
        values_C = logits_C
        if self.kind == ONE:
            powers_C = np.exp(logits_C - logits_C.max())
            values_C = powers_C / powers_C.sum()
        elif self.kind == SEVERAL:
            values_C = expit(logits_C)
        best = 0 if self.kind == NUMBER else int(values_C.argmax())
        scores = dict(zip(self._labels, map(float, values_C)))
        return Label(None if self.kind == NUMBER else self._labels[best], float(values_C[best]), scores)

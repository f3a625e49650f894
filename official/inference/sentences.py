"""The label, or the score, of a sentence or of a pair of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from official.data.glue import features, tasks, tsv_files
from official.data.word_pieces.tokenization import Tokenizer
from official.inference import backends, batching, calibration
from official.inference.rows import Rows
from official.inference.source import Source
from official.io.errors import ConfigError

_USUAL_LENGTH = 128  # tokens of a row, of a model without a run


class Label(NamedTuple):
    """A label and its probability; of a task whose labels are scores, None and the score."""

    label: str | None
    score: float


class Classes(NamedTuple):
    """What a classifier tells apart.

    Attributes:
      texts: of a row: 1 or 2; None where nothing says it.
      is_score: whether its output is a score instead of classes.
      labels: names of the classes.
      outputs: how many.
      length: tokens of a row, at most.
    """

    texts: int | None
    is_score: bool
    labels: tuple[str, ...]
    outputs: int
    length: int


def classes_of(source: Source) -> Classes:
    """Returns what the classifier of a model tells apart."""
    outputs = source.tensors["output_weights"].shape[0]
    task = tasks.find_task(source.run.glue_task) if source.run else None
    labels = task.labels if task else source.labels
    return Classes(
        len(task.text_columns) if task else None,
        task.is_regression if task else source.is_score or outputs == 1,
        labels or tuple(f"LABEL_{number}" for number in range(outputs)),
        outputs,
        source.setting("max_seq_length", min(_USUAL_LENGTH, source.bert.max_position_embeddings)),
    )


class Classifier:
    """Labels rows as the predictions of --task=glue do.

    Attributes:
      texts: of a row: 1 or 2; None where nothing says it.
    """

    def __init__(self, source: Source, settings: backends.Settings, calibration_file: str | None = None):
        source.check_can("classify")
        self.texts, self._is_score, self._labels, _, self._length = classes_of(source)
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
        table = tsv_files.GlueRows("", tuple(map(list, zip(*texts))), None, [])
        made = features.make_features(table, self._tokenizer, self._vocabulary, self._length)
        firsts_T = np.repeat(made.starts + made.first_lengths, made.lengths)
        segments_T = (np.arange(len(made.ids)) >= firsts_T).astype(np.int32)
        return Rows(made.ids.astype(np.int32), segments_T, made.lengths)

    def _label_of(self, logits_C: np.ndarray) -> Label:
        if self._is_score:
            return Label(None, float(logits_C[0]))
        powers_C = np.exp(logits_C - logits_C.max())
        best = int(powers_C.argmax())
        return Label(self._labels[best], float(powers_C[best] / powers_C.sum()))

"""The label, or the score, of a sentence or of a pair of them."""

from typing import NamedTuple

import tensorflow as tf

from official.config import ConfigError
from official.data.glue import features, tasks, tsv_files
from official.data.rows import token_rows
from official.data.word_pieces.tokenization import Tokenizer
from official.inference.source import Source
from official.modeling.fine_tuning import SequenceModel

_USUAL_LENGTH = 128  # tokens of a row, of a model without a run


class Label(NamedTuple):
    """A label and its probability; of a task whose labels are scores, None and the score."""

    label: str | None
    score: float


class Classifier:
    """Labels rows as the predictions of --task=glue do.

    Attributes:
      texts: of a row: 1 or 2; None where nothing says it.
    """

    def __init__(self, source: Source):
        source.check_can("classify")
        outputs = source.tensors["output_weights"].shape[0]
        task = tasks.find_task(source.run.glue_task) if source.run else None
        self.texts = len(task.text_columns) if task else None
        self._is_score = task.is_regression if task else source.is_score or outputs == 1
        labels = task.labels if task else source.labels
        self._labels = labels or tuple(f"LABEL_{number}" for number in range(outputs))
        self._length = source.setting(
            "max_seq_length", min(_USUAL_LENGTH, source.bert.max_position_embeddings)
        )
        self._vocabulary, self._tokenizer = source.vocabulary, Tokenizer(source.vocabulary)
        self._model = SequenceModel(source.bert, outputs)
        source.fill(self._model)

    def __call__(self, texts: list[str]) -> Label:
        """Returns the label of a row. Raises ConfigError for another number of texts than the task's."""
        if self.texts not in (None, len(texts)):
            received = f"{len(texts)} text{'s' * (len(texts) > 1)}"
            raise ConfigError(f"{received} to classify, expected {self.texts} as in training.")
        rows = tsv_files.GlueRows("", tuple([text] for text in texts), None, [])
        made = features.make_features(rows, self._tokenizer, self._vocabulary, self._length)
        tokens = token_rows.TokenRows(made.ids, made.lengths, made.first_lengths, {})
        shape = token_rows.BatchShape(1, 1, self._length, bucketed=True)
        batch = next(iter(token_rows.evaluation_dataset(tokens, shape)))
        logits_C = self._model(batch)[0]
        if self._is_score:
            return Label(None, float(logits_C[0]))
        probabilities_C = tf.nn.softmax(logits_C).numpy()
        best = int(probabilities_C.argmax())
        return Label(self._labels[best], float(probabilities_C[best]))

"""Questions about a context: windows, their logits, and the answers that they give."""

from typing import NamedTuple

import numpy as np

from official.data.squad import answers, features, squad_files
from official.inference.source import Source
from official.modeling.fine_tuning import SpanModel

_BATCH = 16  # windows that are read at once
_USUAL_LENGTH = 384  # tokens of a window, of a model without a run


class Answer(NamedTuple):
    """A stretch of the context, '' for no answer, and its probability among the n-best answers."""

    text: str
    probability: float


class Reader:
    """Answers questions as the predictions of --task=squad do."""

    def __init__(self, source: Source):
        source.check_can("answer")
        length = source.setting("max_seq_length", min(_USUAL_LENGTH, source.bert.max_position_embeddings))
        self._windows = features.WindowRules(
            length, source.setting("doc_stride", length // 3), source.setting("max_query_length", length // 6)
        )
        self._rules = answers.AnswerRules(
            source.setting("n_best_size", answers.AnswerRules.n_best_size),
            source.setting("max_answer_length", answers.AnswerRules.max_answer_length),
            source.setting("version_2_with_negative", False),
            source.setting("null_score_diff_threshold", 0.0),
        )
        self._vocabulary = source.vocabulary
        self._model = SpanModel(source.bert)
        source.fill(self._model)

    def __call__(self, question: str, context: str) -> list[Answer]:
        """Returns answers, the prediction first, then the others of the n-best list, best first."""
        data = _data_of(question, context, self._rules.version_2_with_negative)
        rows = features.make_features(data, self._vocabulary, self._windows)
        if not len(rows):
            return [Answer("", 1.0)]
        longest = int(rows.lengths.max())
        starts = range(0, len(rows), _BATCH)
        logits = [self._model(rows.batch(slice(first, first + _BATCH), longest)) for first in starts]
        start, end = (np.concatenate([batch[part].numpy() for batch in logits]) for part in (0, 1))
        found = answers.answer_questions(start, end, rows, data, self._rules)
        # Stable: the prediction, then the others.
        best = sorted(found.nbest["0"], key=lambda entry: entry.text != found.predictions["0"])
        return [Answer(entry.text, entry.probability) for entry in best]


def _data_of(question: str, context: str, with_negative: bool) -> squad_files.SquadData:
    asked = squad_files.Question("0", question, 0, (), (), False)
    return squad_files.SquadData("", "", "", False, with_negative, [""], [context], [asked], {}, [])

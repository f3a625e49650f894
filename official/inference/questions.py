"""Questions about a context: windows, their logits, and the answers that they give."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from official.data.squad import answers, features, squad_files
from official.data.word_pieces.wordpiece import Tokenizer
from official.inference import backends, batching, calibration
from official.inference.rows import Rows
from official.inference.source import Source, Truncation

_USUAL_LENGTH = 384  # tokens of a window, of a model without a run


class Answer(NamedTuple):
    """A stretch of the context, '' for no answer, and its probability among the n-best answers.

    Attributes:
      text: of the answer.
      probability: in [0, 1].
      start, end: its first character in the context, and the one behind its last; 0 and 0 for no answer.
    """

    text: str
    probability: float
    start: int = 0
    end: int = 0


def rules_of(source: Source) -> tuple[features.WindowRules, answers.AnswerRules]:
    """Returns the rules for the windows of a model, and those for its answers."""
    length = source.length(_USUAL_LENGTH)
    stride, query = source.setting("doc_stride", length // 3), source.setting("max_query_length", length // 6)
    if source.max_seq_length:  # the others were said for another length
        stride, query = min(stride, length // 3), min(query, length // 2)
    windows = features.WindowRules(length, stride, query)
    rules = answers.AnswerRules(
        source.setting("n_best_size", answers.AnswerRules.n_best_size),
        source.setting("max_answer_length", answers.AnswerRules.max_answer_length),
        source.setting("version_2_with_negative", False),
        source.setting("null_score_diff_threshold", 0.0),
    )
    return windows, rules


class Reader:
    """Answers questions as the predictions of --task=squad do."""

    def __init__(self, source: Source, settings: backends.Settings, calibration_file: str | None = None):
        source.check_can("answer")
        source.check_pairs()
        self._windows, self._rules = rules_of(source)
        self._vocabulary, self._tokenizer = source.vocabulary, Tokenizer(source.vocabulary)
        self.cut = Truncation(f"{source.name}, questions", "max_query_length")
        read = calibration.questions(source, calibration_file)
        self.settings = calibration.calibrated(settings, lambda: self.rows_of(self._make(read())[1]))
        self.network = backends.build(source, "answer", self.settings)

    def __call__(self, asked: Sequence[tuple[str, str]]) -> list[list[Answer]]:
        """Answers questions.

        Args:
          asked: (question, context) each; windows of one context are made once.

        Returns:
          For each question its answers, the prediction first, then the others of the n-best list, best first.
        """
        data, windows = self._make(asked)
        self._report_cut(asked, windows)
        start, end = self._logits(windows)
        found = answers.answer_questions(start, end, windows, data, self._rules)
        return [answers_of(found, str(number)) for number in range(len(asked))]

    def _make(self, asked: Sequence[tuple[str, str]]) -> tuple[squad_files.SquadData, features.Features]:
        data = data_of(asked, self._rules.version_2_with_negative)
        made = features.make_features(data, self._vocabulary, self._windows, self._tokenizer)
        return data, made

    def _report_cut(self, asked: Sequence[tuple[str, str]], windows: features.Features) -> None:
        most = self._windows.max_query_length
        if (windows.first_lengths >= most + 2).any():  # as long as it may be, or cut
            _, counts = self._tokenizer.tokenize([question for question, _ in asked])
            self.cut.report(int((counts > most).sum()), most)

    def rows_of(self, windows: features.Features) -> Rows:
        """Returns windows end to end."""
        places_L = np.arange(windows.input_ids.shape[1])
        is_token_NL = places_L < windows.lengths[:, None]
        is_context_NL = places_L >= windows.first_lengths[:, None]
        ids_T = windows.input_ids[is_token_NL].astype(np.int32)
        return Rows(ids_T, is_context_NL[is_token_NL].astype(np.int32), windows.lengths)

    def _logits(self, windows: features.Features) -> tuple[np.ndarray, np.ndarray]:
        """Returns start and end logits, float32 [N, longest window], 0 behind the end of a window."""
        is_token_NL = np.arange(windows.lengths.max(initial=0)) < windows.lengths[:, None]
        start_NL, end_NL = (np.zeros(is_token_NL.shape, np.float32) for _ in range(2))
        if len(windows):
            outputs = batching.run(self.network, "answer", self.rows_of(windows))
            start_NL[is_token_NL], end_NL[is_token_NL] = outputs["start_logits"], outputs["end_logits"]
        return start_NL, end_NL


def answers_of(found: answers.Answers, identity: str) -> list[Answer]:
    """Returns the answers of the n-best list of a question, the prediction first, then the others."""
    # Stable.
    best = sorted(found.nbest[identity], key=lambda entry: entry.text != found.predictions[identity])
    spans = found.spans[identity]
    return [Answer(entry.text, entry.probability, *spans.get(entry.text, (0, 0))) for entry in best]


def data_of(asked: Sequence[tuple[str, str]], with_negative: bool) -> squad_files.SquadData:
    """Returns questions as a file of them: those of a context one after the other. Their numbers are their
    names."""
    contexts = list(dict.fromkeys(context for _, context in asked))
    numbers = {context: number for number, context in enumerate(contexts)}
    questions = [
        squad_files.Question(str(number), question, numbers[context], (), (), False)
        for number, (question, context) in enumerate(asked)
    ]
    questions.sort(key=lambda question: question.context)
    titles = [""] * len(contexts)
    return squad_files.SquadData("", "", "", False, with_negative, titles, contexts, questions, {}, [])

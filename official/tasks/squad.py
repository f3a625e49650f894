"""Extractive question answering on SQuAD 1.1 and 2.0: predicts the span of the answer in a context."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, encoder_options
from official.data.squad import answers as answers_lib
from official.data.squad import evaluation, squad_files
from official.data.squad import features as features_lib
from official.data.tables import texts as texts_lib
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import files
from official.modeling import objectives
from official.modeling.models import SpanModel
from official.tasks import examples as examples_lib
from official.tasks import known
from official.tasks.fine_tuning import FineTuning

_SHOWN_QUESTIONS = 3  # maximum in a line of the log; the result has all

Outputs = dict  # {output: [windows, ...]}


@dataclasses.dataclass(frozen=True)
class _Split:
    """A file of questions, and its windows."""

    data: squad_files.SquadData
    features: features_lib.Features


class SquadTask(FineTuning):
    """SQuAD; `official.training.task.Task` and `ScoredTask` document the members."""

    losses = {"span_loss": 1.0}
    metrics = ("span_loss", "start_accuracy", "end_accuracy")
    output_names = ("start_logits", "end_logits")
    texts = 2
    predicts_evaluation_set = True

    def __init__(self, config: Config):
        super().__init__(config)
        self._take_scores(("f1", "exact_match"))
        self._windows = features_lib.WindowRules(
            config.max_seq_length, config.doc_stride, config.max_query_length
        )
        self._answers = answers_lib.AnswerRules(
            config.n_best_size,
            config.max_answer_length,
            config.version_2_with_negative,
            config.null_score_diff_threshold,
        )
        self._splits: dict[str, _Split] = {}  # {train, eval}
        self._gold: squad_files.GoldAnswers | None = None
        self._unit = evaluation.WORDS
        # Cache of the last outputs and their answers, which scores, tables and files share.
        self._answered: tuple[Outputs, answers_lib.Answers] | None = None

    # --------------------------------------------------------------------------------------------------------
    # Data

    def _read_splits(self, vocabulary: Vocabulary) -> None:
        config = self._config
        if config.do_train:
            features = self._read("train", "train_file", vocabulary).features
            if not len(features):
                raise ConfigError(f"--train_file={config.train_file} has no questions usable for training.")
            positions = {"start_positions": features.start_positions, "end_positions": features.end_positions}
            self._rows["train"] = features.rows(positions)
        if config.do_eval or config.do_predict:
            features = self._read("eval", "predict_file", vocabulary).features
            self._rows["eval"] = features.rows({})
        if config.do_eval:
            self._gold = squad_files.read_gold_answers(known(config.predict_file))
            if not any(self._gold.answers.values()):
                raise ConfigError(
                    f"--predict_file={config.predict_file} has no answers to compare with. Drop --do_eval to"
                    " only predict."
                )
            self._unit = config.score_by or evaluation.unit_of(self._gold.answers)
            logging.info("%s: scored by %s (--score_by)", config.predict_file, self._unit)
        if config.do_eval and config.do_train:
            scored, trained = (
                texts_lib.ids_of((each.text, data.contexts[each.context]) for each in data.questions)
                for data in (self._splits[name].data for name in ("eval", "train"))
            )
            texts_lib.tell_shared(known(config.predict_file), scored, trained, "questions")

    def _read(self, name: str, flag: str, vocabulary: Vocabulary) -> _Split:
        config = self._config
        data = squad_files.read_squad(config[flag], flag, name == "train", config.version_2_with_negative)
        skipped = [f"{name} ({why})" for name, why in data.skipped_questions.items()]
        for what, questions in (("skipped", skipped), ("without text", data.empty_questions)):
            if questions:
                shown = ", ".join(questions[:_SHOWN_QUESTIONS])
                more = ", ..." * (len(questions) > _SHOWN_QUESTIONS)
                logging.warning("%s: %d questions %s: %s%s", data.path, len(questions), what, shown, more)
        folder = config.cache_dir or os.path.join(config.model_dir, "features")
        features = features_lib.load_or_make_features(
            data, vocabulary, self._windows, None if files.is_remote(folder) else folder
        )
        self._splits[name], self._paths[name] = _Split(data, features), [data.path]
        return self._splits[name]

    predict_dataset = FineTuning.eval_dataset

    def _random_labels(
        self, generator: np.random.Generator, length: int, count: int
    ) -> dict[str, np.ndarray]:
        positions = generator.integers(0, length, (2, count)).astype(np.int32)
        return {"start_positions": positions.min(axis=0), "end_positions": positions.max(axis=0)}

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        dataset = super().synthetic_dataset(batch_size)
        return dataset.map(_without_answers) if for_evaluation else dataset

    def _facts(self, split: str) -> dict[str, Any]:
        data, features = self._splits[split].data, self._splits[split].features
        return {
            "questions": len(data.questions),
            "windows": len(features),
            "tokens": int(features.lengths.sum()),
            "skipped_questions": data.skipped_questions,
            "empty_questions": data.empty_questions,
        }

    # --------------------------------------------------------------------------------------------------------
    # Model and loss

    def _make_model(self) -> SpanModel:
        return SpanModel(self._config.model, **encoder_options(self._config))

    def terms(self, outputs, batch) -> objectives.Terms:
        return objectives.span_terms(outputs, batch, self._config.span_places == "row")

    def evaluate(self, model, batch) -> tuple[dict, dict[str, tf.Tensor]]:
        logits = (self._of_each_sequence(logits_BL, batch) for logits_BL in model(batch))
        return {}, dict(zip(self.output_names, logits))

    # --------------------------------------------------------------------------------------------------------
    # Scores

    def _answer(self, outputs: Outputs) -> answers_lib.Answers:
        if self._answered is None or self._answered[0] is not outputs:
            split = self._splits["eval"]
            answers = answers_lib.answer_questions(
                outputs["start_logits"], outputs["end_logits"], split.features, split.data, self._answers
            )
            self._answered = outputs, answers
        return self._answered[1]

    def score(self, outputs: Outputs) -> dict[str, float]:
        """Returns the official measures as fractions, and the thresholds unchanged."""
        return {
            name: value if name.endswith("_thresh") else value / 100
            for name, value in self._official_scores(outputs).items()
        }

    def _official_scores(self, outputs: Outputs) -> dict[str, float]:
        answers, gold = self._answer(outputs), known(self._gold).answers
        if self._unit == evaluation.CHARACTERS:
            return evaluation.of_all(gold, evaluation.score_characters(gold, answers.predictions))
        if not self._config.version_2_with_negative:
            return evaluation.evaluate_v1(gold, answers.predictions)
        official = evaluation.evaluate_v2(gold, answers.predictions)
        # Search for the best --null_score_diff_threshold.
        null_odds = known(answers.null_odds)
        best = evaluation.best_thresholds(
            gold, answers.best_texts, null_odds, lowest=min(null_odds.values()) - 1
        )
        exact = official.pop("exact")
        others = {name: value for name, value in official.items() if not name.endswith("total")}
        return {"exact_match": exact, **others, **best}

    @property
    def _score(self) -> Callable:
        if self._unit == evaluation.CHARACTERS:
            return evaluation.score_characters
        return evaluation.score_v2 if self._config.version_2_with_negative else evaluation.score_v1

    def _scores(self, outputs: Outputs) -> evaluation.Scores:
        return self._score(known(self._gold).answers, self._answer(outputs).predictions)

    def tables(self, outputs: Outputs) -> dict[str, list[list]]:
        gold, scores = known(self._gold), self._scores(outputs)
        kinds = {
            "Score by question word": evaluation.by_question_word(gold.questions, scores),
            "Score by length of the answer": evaluation.by_answer_length(gold.answers, scores),
        }
        tables: dict[str, list[list]] = {}
        for title, table in kinds.items():
            tables[title] = [["", "questions", "exact match", "F1"]]
            for name, values in table.items():
                tables[title].append([name, values["count"], values["exact"] / 100, values["f1"] / 100])
        return tables

    def examples(self, outputs: Outputs) -> list[dict]:
        answers, scores = self._answer(outputs), self._scores(outputs)
        data = self._splits["eval"].data
        questions = {question.id: question for question in data.questions}
        gold = known(self._gold).answers

        def item(identity):
            question, predicted = questions[identity], answers.predictions[identity]
            known_ones = (entry.probability for entry in answers.nbest[identity] if entry.text == predicted)
            texts = question.text, data.contexts[question.context], gold[identity], predicted
            return examples_lib.answered_question(*texts, next(known_ones, 0.0), scores.f1[identity])

        wrong = [identity for identity, value in scores.f1.items() if value < 0.5 and identity in questions]
        right = [identity for identity, value in scores.exact.items() if value and identity in questions]
        note = "Spread over the evaluation set."
        colours = " Blue: the accepted answer; struck out: the model's answer; green: the common part."
        return [
            *examples_lib.group("Wrong answers", note + colours, list(map(item, examples_lib.evenly(wrong)))),
            *examples_lib.group("Right answers", note, list(map(item, examples_lib.evenly(right)))),
        ]

    def constant_prediction(self) -> tuple[str, float] | None:
        """Returns the better of two baselines, never answering and answering with the whole sentence of the
        answer, and its F1: a model with no higher score has not learned to find answers."""
        gold, data = known(self._gold).answers, self._splits["eval"].data
        found = {question.id: data.sentence_of(question) for question in data.questions}
        sentences = {**dict.fromkeys(gold, ""), **found}
        answers = {"the whole sentence": sentences, "no answer": dict.fromkeys(gold, "")}
        scores = {
            name: float(np.mean(list(self._score(gold, texts).f1.values())))
            for name, texts in answers.items()
        }
        best = max(scores, key=scores.__getitem__)
        return best, scores[best]

    def write_predictions(self, outputs: Outputs, folder: str) -> list[str]:
        return answers_lib.write_answers(self._answer(outputs), folder)


def _without_answers(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: value for name, value in batch.items() if name not in ("start_positions", "end_positions")}

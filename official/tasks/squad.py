"""Question answering on SQuAD 1.1 and 2.0: where in its context the answer to a question stands."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, encoder_options
from official.data import generated
from official.data.pipeline import TrainingOrder
from official.data.rows import token_rows
from official.data.squad import answers as answers_lib
from official.data.squad import cache, evaluation, squad_files
from official.data.squad import features as features_lib
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text
from official.io import files, vocabulary_files
from official.modeling import layers, objectives
from official.modeling.models import SpanModel
from official.tasks import examples as examples_lib
from official.tasks.known import known

_SYNTHETIC_SEQUENCES = 1000
_SHOWN_QUESTIONS = 3  # in one line of the log; the result has them all

Outputs = dict  # {output: [windows, ...]}


@dataclasses.dataclass(frozen=True)
class _Split:
    """A file of questions, and the windows that are made of it."""

    data: squad_files.SquadData
    features: features_lib.Features


class SquadTask:
    """See `official.training.task.Task` and `ScoredTask` for what each member means."""

    losses = ("span_loss",)
    metrics = losses + ("start_accuracy", "end_accuracy")
    eval_metrics: tuple[str, ...] = ()  # windows of the evaluation set have no labels
    output_names = ("start_logits", "end_logits")
    target_metric = "f1"
    local_epsilon = {"span_loss": 0.0}
    is_scored = True
    class_names = None
    predicts_evaluation_set = True

    def __init__(self, config: Config):
        self._config = config
        self._windows = features_lib.WindowRules(
            config.max_seq_length, config.doc_stride, config.max_query_length
        )
        self._answers = answers_lib.AnswerRules(
            config.n_best_size,
            config.max_answer_length,
            config.version_2_with_negative,
            config.null_score_diff_threshold,
        )
        self._train: _Split | None = None
        self._eval: _Split | None = None
        self._gold: squad_files.GoldAnswers | None = None
        self.companions: dict[str, bytes] = {}
        # The last outputs and their answers: scores, tables and files are made of the same ones.
        self._answered: tuple[Outputs, answers_lib.Answers] | None = None

    # --------------------------------------------------------------------------------------------------------
    # Data

    def find_data(self) -> list[str]:
        config = self._config = generated.with_files(self._config)
        if config.use_synthetic_data:
            return []
        self._windows.check()
        vocab_file = known(config.vocab_file)
        vocabulary = load_for_text(
            vocab_file, config.do_lower_case, config.init_checkpoint, size=config.model.vocab_size
        )
        self.companions = vocabulary_files.companions(
            vocab_file, vocabulary.do_lower_case, config.model.max_position_embeddings
        )
        if config.do_train:
            self._train = self._read("train_file", True, vocabulary)
            if not len(self._train.features):
                raise ConfigError(f"--train_file={config.train_file} has no question that can be trained on.")
        if config.do_eval or config.do_predict:
            self._eval = self._read("predict_file", False, vocabulary)
        if config.do_eval:
            self._gold = squad_files.read_gold_answers(known(config.predict_file))
            if not any(self._gold.answers.values()):
                raise ConfigError(
                    f"--predict_file={config.predict_file} has no answers to compare with. Drop --do_eval to"
                    " only predict."
                )
        return [split.data.path for split in (self._train, self._eval) if split]

    def _read(self, flag: str, for_training: bool, vocabulary: Vocabulary) -> _Split:
        config = self._config
        data = squad_files.read_squad(config[flag], flag, for_training, config.version_2_with_negative)
        skipped = [f"{name} ({why})" for name, why in data.skipped_questions.items()]
        for what, questions in (("skipped", skipped), ("without text", data.empty_questions)):
            if questions:
                shown = ", ".join(questions[:_SHOWN_QUESTIONS])
                more = ", ..." * (len(questions) > _SHOWN_QUESTIONS)
                logging.warning("%s: %d questions %s: %s%s", data.path, len(questions), what, shown, more)
        folder = config.cache_dir or os.path.join(config.model_dir, "features")
        features = cache.load_or_make_features(
            data, vocabulary, self._windows, None if files.is_remote(folder) else folder, os.cpu_count() or 1
        )
        return _Split(data, features)

    @property
    def train_samples(self) -> int | None:
        return len(self._train.features) if self._train else None

    @property
    def sequences_per_row(self) -> float | None:
        lengths = self._train.features.lengths if self._train else None
        return token_rows.sequences_per_row(lengths, self._config)

    def train_dataset(self, global_batch: int, replica_batch: int, order: TrainingOrder) -> tf.data.Dataset:
        if self._config.use_synthetic_data:
            return self.synthetic_dataset(replica_batch)
        features = known(self._train).features
        rows = _token_rows(
            features, {"start_positions": features.start_positions, "end_positions": features.end_positions}
        )
        shape = token_rows.shape_of(self._config, global_batch, replica_batch)
        return token_rows.training_dataset(rows, shape, order)

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        shape = token_rows.shape_of(self._config, batch_size, batch_size)
        return token_rows.evaluation_dataset(_token_rows(known(self._eval).features, {}), shape)

    predict_dataset = eval_dataset

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        config = self._config
        length = token_rows.synthetic_length(config)
        positions = (
            np.random.default_rng(config.seed).integers(0, length, (2, _SYNTHETIC_SEQUENCES)).astype(np.int32)
        )
        columns = {"start_positions": positions.min(axis=0), "end_positions": positions.max(axis=0)}
        dataset = token_rows.synthetic_dataset(columns, batch_size, config)
        return dataset.map(_without_answers) if for_evaluation else dataset

    def explain_read_error(self) -> str | None:
        return None  # all data are in memory

    def data_files(self) -> dict[str, list[str]]:
        splits = {"train": self._train, "eval": self._eval}
        return {name: [split.data.path] for name, split in splits.items() if split}

    def data_digest(self) -> dict:
        return {
            name: {
                **files.digest([split.data.path]),
                "questions": len(split.data.questions),
                "windows": len(split.features),
                "tokens": int(split.features.lengths.sum()),
                "skipped_questions": split.data.skipped_questions,
                "empty_questions": split.data.empty_questions,
            }
            for name, split in (("train", self._train), ("eval", self._eval))
            if split
        }

    # --------------------------------------------------------------------------------------------------------
    # Model and loss

    def build_model(self) -> SpanModel:
        return SpanModel(self._config.model, **encoder_options(self._config))

    def weights(self, batch) -> dict[str, tf.Tensor]:
        return {"span_loss": tf.reduce_sum(batch["example_weights"])}

    def terms(self, outputs, batch) -> objectives.Terms:
        return objectives.span_terms(outputs, batch, self._config.span_places == "row")

    def evaluate(self, model, batch) -> tuple[dict, dict[str, tf.Tensor]]:
        start_BL, end_BL = model(batch)
        if "cls_positions" in batch:
            cut = objectives.cut_out(start_BL, batch), objectives.cut_out(end_BL, batch)
            return {}, dict(zip(("start_logits", "end_logits"), cut))
        missing = [[0, 0], [0, self._config.max_seq_length - layers.sizes(start_BL)[1]]]
        return {}, {"start_logits": tf.pad(start_BL, missing), "end_logits": tf.pad(end_BL, missing)}

    # --------------------------------------------------------------------------------------------------------
    # Scores

    def _answer(self, outputs: Outputs) -> answers_lib.Answers:
        if self._answered is None or self._answered[0] is not outputs:
            split = known(self._eval)
            answers = answers_lib.answer_questions(
                outputs["start_logits"], outputs["end_logits"], split.features, split.data, self._answers
            )
            self._answered = outputs, answers
        return self._answered[1]

    def score(self, outputs: Outputs) -> dict[str, float]:
        """Returns the official measures as fractions, and the thresholds as they are."""
        return {
            name: value if name.endswith("_thresh") else value / 100
            for name, value in self._official_scores(outputs).items()
        }

    def _official_scores(self, outputs: Outputs) -> dict[str, float]:
        answers, gold = self._answer(outputs), known(self._gold).answers
        if not self._config.version_2_with_negative:
            return evaluation.evaluate_v1(gold, answers.predictions)
        official = evaluation.evaluate_v2(gold, answers.predictions)
        # The threshold search: what --null_score_diff_threshold would have been best.
        null_odds = known(answers.null_odds)
        best = evaluation.best_thresholds(
            gold, answers.best_texts, null_odds, lowest=min(null_odds.values()) - 1
        )
        exact = official.pop("exact")
        others = {name: value for name, value in official.items() if not name.endswith("total")}
        return {"exact_match": exact, **others, **best}

    def _scores(self, outputs: Outputs) -> evaluation.Scores:
        score = evaluation.score_v2 if self._config.version_2_with_negative else evaluation.score_v1
        return score(known(self._gold).answers, self._answer(outputs).predictions)

    def tables(self, outputs: Outputs) -> dict[str, list[list]]:
        gold, scores = known(self._gold), self._scores(outputs)
        kinds = {
            "Score by question word": evaluation.by_question_word(gold.questions, scores),
            "Score by length of the answer": evaluation.by_answer_length(gold.answers, scores),
        }
        return {
            title: [
                ["", "questions", "exact match", "F1"],
                *(
                    [name, values["count"], values["exact"] / 100, values["f1"] / 100]
                    for name, values in table.items()
                ),
            ]
            for title, table in kinds.items()
        }

    def examples(self, outputs: Outputs) -> list[dict]:
        answers, scores = self._answer(outputs), self._scores(outputs)
        data = known(self._eval).data
        questions = {question.id: question for question in data.questions}
        gold = known(self._gold).answers

        def item(identity):
            question, predicted = questions[identity], answers.predictions[identity]
            probability = next(
                (entry.probability for entry in answers.nbest[identity] if entry.text == predicted), 0.0
            )
            return examples_lib.answered_question(
                question.text,
                data.contexts[question.context],
                gold[identity],
                predicted,
                probability,
                scores.f1[identity],
            )

        wrong = [identity for identity, value in scores.f1.items() if value < 0.5 and identity in questions]
        right = [identity for identity, value in scores.exact.items() if value and identity in questions]
        note = (
            "Spread over the evaluation set. Blue: the accepted answer; struck out: what the model says;"
            " green: what both have."
        )
        return [
            *examples_lib.group("Wrong answers", note, list(map(item, examples_lib.evenly(wrong)))),
            *examples_lib.group(
                "Right answers",
                "Spread over the evaluation set.",
                list(map(item, examples_lib.evenly(right))),
            ),
        ]

    def constant_prediction(self) -> tuple[str, float] | None:
        """Returns the better one of never answering and of answering with the whole sentence in which the
        answer stands, and its F1: a model that scores no more has not found where answers begin and end."""
        gold, data = known(self._gold).answers, known(self._eval).data
        score = evaluation.score_v2 if self._config.version_2_with_negative else evaluation.score_v1
        found = {question.id: data.sentence_of(question) for question in data.questions}
        sentences = {**dict.fromkeys(gold, ""), **found}
        answers = {"the whole sentence": sentences, "no answer": dict.fromkeys(gold, "")}
        scores = {
            name: float(np.mean(list(score(gold, texts).f1.values()))) for name, texts in answers.items()
        }
        best = max(scores, key=scores.__getitem__)
        return best, scores[best]

    def write_predictions(self, outputs: Outputs, folder: str) -> list[str]:
        return answers_lib.write_answers(self._answer(outputs), folder)


def _token_rows(features: features_lib.Features, columns: dict[str, np.ndarray]) -> token_rows.TokenRows:
    is_token_NL = np.arange(features.input_ids.shape[1]) < features.lengths[:, None]
    return token_rows.TokenRows(
        features.input_ids[is_token_NL], features.lengths, features.first_lengths, columns
    )


def _without_answers(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: value for name, value in batch.items() if name not in ("start_positions", "end_positions")}

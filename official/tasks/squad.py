"""Question answering on SQuAD 1.1 and 2.0: where in its context the answer to a question stands."""

import os

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import ConfigError, encoder_options
from official.data.pipeline import TrainingOrder
from official.data.rows import token_rows
from official.data.squad import answers as answers_lib
from official.data.squad import cache, evaluation, squad_files
from official.data.squad import features as features_lib
from official.data.word_pieces.vocabulary import load_for_text
from official.io import files, vocabulary_files
from official.modeling import losses
from official.modeling.fine_tuning import SpanModel
from official.tasks import examples as examples_lib

_SYNTHETIC_ROWS = 1000
_SHOWN_QUESTIONS = 3  # in one line of the log; the result has them all


class SquadTask:
    """See `official.training.task.Task` for what each member means."""

    losses = ("span_loss",)
    metrics = losses + ("start_accuracy", "end_accuracy")
    eval_metrics = ()  # windows of the evaluation set have no labels
    target_metric = "f1"
    local_epsilon = {"span_loss": 0.0}
    keeps_best = True
    predicts_evaluation_set = True

    def __init__(self, config):
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
        self._bucketed = config.length_buckets == "always"
        self._train = self._eval = self._gold = None
        self._train_features = self._eval_features = None
        self.companions = {}
        self._answered = (
            None,
            None,
        )  # the last outputs and their answers: scores, tables and files are made of the same ones

    # -------------------------------------------------------------------------------------------------------------
    # Data

    def find_data(self) -> list[str]:
        config = self._config
        if config.use_synthetic_data:
            return []
        self._windows.check()
        vocabulary = load_for_text(config.vocab_file, config.do_lower_case, config.init_checkpoint)
        self.companions = vocabulary_files.companions(
            config.vocab_file, vocabulary.do_lower_case, config.model.max_position_embeddings
        )
        if config.do_train:
            self._train = self._read("train_file", True)
            self._train_features = self._make_features(self._train, vocabulary)
            if not len(self._train_features):
                raise ConfigError(f"--train_file={config.train_file} has no question that can be trained on.")
        if config.do_eval or config.do_predict:
            self._eval = self._read("predict_file", False)
            self._eval_features = self._make_features(self._eval, vocabulary)
        if config.do_eval:
            self._gold = squad_files.read_gold_answers(config.predict_file)
            if not any(self._gold.answers.values()):
                raise ConfigError(
                    f"--predict_file={config.predict_file} has no answers to compare with. Drop --do_eval to"
                    " only predict."
                )
        return [data.path for data in (self._train, self._eval) if data]

    def _read(self, flag: str, for_training: bool) -> squad_files.SquadData:
        data = squad_files.read_squad(
            self._config[flag], flag, for_training, self._config.version_2_with_negative
        )
        for what, questions in (("skipped", data.skipped_questions), ("without text", data.empty_questions)):
            if questions:
                shown = [
                    f"{name} ({questions[name]})" if what == "skipped" else name
                    for name in list(questions)[:_SHOWN_QUESTIONS]
                ]
                logging.warning(
                    "%s: %d questions %s: %s%s",
                    data.path,
                    len(questions),
                    what,
                    ", ".join(shown),
                    ", ..." * (len(questions) > _SHOWN_QUESTIONS),
                )
        return data

    def _make_features(self, data: squad_files.SquadData, vocabulary) -> features_lib.Features:
        folder = self._config.cache_dir or os.path.join(self._config.model_dir, "features")
        return cache.load_or_make_features(
            data, vocabulary, self._windows, None if files.is_remote(folder) else folder, os.cpu_count() or 1
        )

    @property
    def train_samples(self) -> int | None:
        return len(self._train_features) if self._train else None

    def train_dataset(self, batch_size: int, samples_done: int, host: int, num_hosts: int) -> tf.data.Dataset:
        if self._config.use_synthetic_data:
            return self.synthetic_dataset(batch_size)
        features = self._train_features
        rows = _token_rows(
            features, {"start_positions": features.start_positions, "end_positions": features.end_positions}
        )
        return token_rows.training_dataset(
            rows,
            token_rows.BatchShape(
                self._config.train_batch_size, batch_size, self._config.max_seq_length, self._bucketed
            ),
            TrainingOrder(self._config.seed, samples_done, host, num_hosts),
        )

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        return token_rows.evaluation_dataset(
            _token_rows(self._eval_features, {}), batch_size, self._config.max_seq_length, self._bucketed
        )

    predict_dataset = eval_dataset

    def synthetic_dataset(self, batch_size: int) -> tf.data.Dataset:
        positions = (
            np.random.default_rng(self._config.seed)
            .integers(0, self._config.max_seq_length, (2, _SYNTHETIC_ROWS))
            .astype(np.int32)
        )
        columns = {"start_positions": positions.min(axis=0), "end_positions": positions.max(axis=0)}
        rows = token_rows.synthetic_rows(
            columns,
            _SYNTHETIC_ROWS,
            self._config.max_seq_length,
            self._config.model.vocab_size,
            self._config.seed,
        )
        return token_rows.training_dataset(
            rows,
            token_rows.BatchShape(batch_size, batch_size, self._config.max_seq_length, self._bucketed),
            TrainingOrder(self._config.seed),
        )

    def explain_read_error(self) -> str | None:
        return None  # all data are in memory

    def data_digest(self) -> dict:
        return {
            name: {
                **files.digest([data.path]),
                "questions": len(data.questions),
                "windows": len(features),
                "skipped_questions": data.skipped_questions,
                "empty_questions": data.empty_questions,
            }
            for name, data, features in (
                ("train", self._train, self._train_features),
                ("eval", self._eval, self._eval_features),
            )
            if data
        }

    # -------------------------------------------------------------------------------------------------------------
    # Model and loss

    def build_model(self) -> SpanModel:
        return SpanModel(self._config.model, **encoder_options(self._config))

    def weights(self, batch) -> dict[str, tf.Tensor]:
        return {"span_loss": tf.reduce_sum(batch["example_weights"])}

    def loss(self, model, batch, dropout_seed) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        # Padding is no answer: what a sequence costs does not depend on the length of its batch.
        logits = [
            tf.where(batch["input_mask"] > 0, logits_BL, logits_BL.dtype.min)
            for logits_BL in model(batch, dropout_seed=dropout_seed)
        ]
        parts = [
            (part, batch[name], batch["example_weights"])
            for part, name in zip(logits, ("start_positions", "end_positions"))
        ]
        weight = self.weights(batch)["span_loss"]
        return {
            "span_loss": (sum(losses.cross_entropy(*part) for part in parts) / 2.0, weight),
            "start_accuracy": (losses.correct(*parts[0]), weight),
            "end_accuracy": (losses.correct(*parts[1]), weight),
        }

    def evaluate(self, model, batch) -> tuple[dict, dict[str, tf.Tensor]]:
        start_BL, end_BL = model(batch)
        missing = [[0, 0], [0, self._config.max_seq_length - tf.shape(start_BL)[1]]]
        return {}, {"start_logits": tf.pad(start_BL, missing), "end_logits": tf.pad(end_BL, missing)}

    # -------------------------------------------------------------------------------------------------------------
    # Scores

    def _answer(self, outputs: dict[str, np.ndarray]) -> answers_lib.Answers:
        if self._answered[0] is not outputs:
            answers = answers_lib.answer_questions(
                outputs["start_logits"], outputs["end_logits"], self._eval_features, self._eval, self._answers
            )
            self._answered = outputs, answers
        return self._answered[1]

    def score(self, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Returns the official measures as fractions, and the thresholds as they are."""
        return {
            name: value if name.endswith("_thresh") else value / 100
            for name, value in self._official_scores(outputs).items()
        }

    def _official_scores(self, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        answers, gold = self._answer(outputs), self._gold.answers
        if not self._config.version_2_with_negative:
            return evaluation.evaluate_v1(gold, answers.predictions)
        official = evaluation.evaluate_v2(gold, answers.predictions)
        # The threshold search: what --null_score_diff_threshold would have been best.
        best = evaluation.best_thresholds(
            gold, answers.best_texts, answers.null_odds, lowest=min(answers.null_odds.values()) - 1
        )
        return (
            {"exact_match": official.pop("exact")}
            | {name: value for name, value in official.items() if not name.endswith("total")}
            | best
        )

    def _scores(self, outputs: dict[str, np.ndarray]) -> evaluation.Scores:
        score = evaluation.score_v2 if self._config.version_2_with_negative else evaluation.score_v1
        return score(self._gold.answers, self._answer(outputs).predictions)

    def tables(self, outputs: dict[str, np.ndarray]) -> dict[str, list[list]]:
        gold, scores = self._gold, self._scores(outputs)
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

    def examples(self, outputs: dict[str, np.ndarray]) -> list[dict]:
        answers, scores = self._answer(outputs), self._scores(outputs)
        questions = {question.id: question for question in self._eval.questions}

        def item(identity):
            question, predicted = questions[identity], answers.predictions[identity]
            probability = next(
                (entry.probability for entry in answers.nbest[identity] if entry.text == predicted), 0.0
            )
            return examples_lib.answered_question(
                question.text,
                self._eval.contexts[question.context],
                self._gold.answers[identity],
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
        """Returns the score of never answering, where that is right for some questions."""
        if not self._config.version_2_with_negative:
            return None
        gold = self._gold.answers
        return "no answer", float(
            np.mean(list(evaluation.score_v2(gold, dict.fromkeys(gold, "")).f1.values()))
        )

    def write_predictions(self, outputs: dict[str, np.ndarray], folder: str) -> list[str]:
        return answers_lib.write_answers(self._answer(outputs), folder)


def _token_rows(features: features_lib.Features, columns: dict[str, np.ndarray]) -> token_rows.TokenRows:
    is_token_NL = np.arange(features.input_ids.shape[1]) < features.lengths[:, None]
    return token_rows.TokenRows(
        features.input_ids[is_token_NL], features.lengths, features.first_lengths, columns
    )

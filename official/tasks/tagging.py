"""Tagging of words, such as named-entity recognition, on CoNLL columns or JSON."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, encoder_options
from official.data.rows.text_rows import TokenRows
from official.data.tables import predictions
from official.data.tables import tags as tags_lib
from official.data.tables import texts as texts_lib
from official.data.tables.labels import sort_key, tell_doubtful
from official.data.tables.tags import OUTSIDE, Sentence, Windows
from official.data.word_pieces.tokenizer import tokenizer_of
from official.data.word_pieces.vocabulary import Vocabulary
from official.io import files, model_folder
from official.io.errors import counted, shortened
from official.modeling import objectives
from official.modeling.models import TagModel
from official.tasks import examples as examples_lib
from official.tasks import known
from official.tasks.fine_tuning import FULL_DEVIATION, FineTuning

Outputs = dict  # {output: [windows, ...]}


class TagTask(FineTuning):
    """Tags of words; `official.training.task.Task` and `ScoredTask` document the members.

    The first piece of a word has its tag. A sentence that is longer than a row becomes several windows.
    """

    head_scale = FULL_DEVIATION
    losses = {"tag_loss": 1.0}
    metrics = ("tag_loss", "tag_accuracy")
    eval_metrics = ("tag_loss",)
    output_names = ("tags", "chances")
    problem_type = model_folder.PROBLEM_TYPE_OF["tag"]

    def __init__(self, config: Config):
        super().__init__(config)
        self._take_scores(("f1", *tags_lib.SCORES))
        self._tags: tuple[str, ...] = (OUTSIDE, "B-X", "I-X")  # for a plan; the data define them
        self._scheme = tags_lib.IOB2
        self._sentences: dict[str, list[Sentence]] = {}
        self._windows: dict[str, Windows] = {}

    # --------------------------------------------------------------------------------------------------------
    # Data

    def _read_splits(self, vocabulary: Vocabulary) -> None:
        config = self._config
        columns = config.text_columns, config.label_column
        for split, flag, is_needed in (
            ("train", "train_file", config.do_train),
            ("eval", "eval_file", config.do_eval and config.eval_file),
            ("test", "predict_file", config.do_predict),
        ):
            if not is_needed:
                continue
            given = known(config[flag])
            self._paths[split] = files.find_files(given, flag)
            read = tags_lib.read_sentences(given, flag, split != "test", columns)
            self._sentences[split] = read
            logging.info("%s: %s, %s", given, counted(len(read), "sentence"), counted(_words(read), "word"))
        if config.do_train:
            self._learn_tags(f"--train_file={config.train_file}")
            if config.do_eval and not config.eval_file:
                self._hold_out()
            elif config.do_eval:
                parts = (self._sentences[split] for split in ("eval", "train"))
                scored, trained = (texts_lib.ids_of(sentence.words for sentence in part) for part in parts)
                texts_lib.tell_shared(known(config.eval_file), scored, trained, "sentences")
        else:
            self._tags = self._saved_labels(with_names=True)[1]["labels"]
            self._scheme = tags_lib.scheme_of(self._tags, self._sentences.get("eval", ()))
        if problem := tags_lib.breaches(self._sentences.get("eval", ()), self._scheme)[1]:
            logging.warning("--eval_file, %s: strict scores and accuracy compare two schemes", problem)
        ids = {tag: number for number, tag in enumerate(self._tags)}
        tokenizer = tokenizer_of(vocabulary)
        for split, sentences in self._sentences.items():
            words, most = [sentence.words for sentence in sentences], config.max_seq_length
            windows = self._windows[split] = tags_lib.make_windows(words, tokenizer, vocabulary, most)
            labels_T = windows.labels([self._numbers(sentence, ids, split) for sentence in sentences])
            lengths_N = windows.lengths_N
            self._rows[split] = TokenRows(windows.ids_T, lengths_N, lengths_N, {}, {"tags": labels_T})
            if (more := len(lengths_N) - len(sentences)) > 0:
                logging.info("Sentences longer than %d tokens: %s more", most, counted(more, "window"))
        self.class_names = [(tag,) for tag in self._tags]
        labels = model_folder.labels_json(self._tags, self.problem_type)
        self.companions[model_folder.LABELS] = labels.encode()

    def _learn_tags(self, source: str) -> None:
        sentences = self._sentences["train"]
        self._scheme = tags_lib.find_scheme(sentences, source)
        counts = Counter(tag for sentence in sentences for tag in sentence.tags or ())
        self._tags = tuple(sorted(counts, key=lambda tag: (tag != OUTSIDE, *_order(tag))))
        if len(self._tags) < 2:
            raise ConfigError(
                f"{source} has only the tag {self._tags[0]!r}. Give sentences with two or more."
            )
        shown = [f"{tag} ({counts[tag]:,})" for tag in self._tags]
        logging.info("%d tags, %s: %s", len(shown), self._scheme, shortened(shown, 400))
        tell_doubtful(self._tags)
        is_numbered = all(tag.isdecimal() for tag in self._tags)
        if self._scheme == tags_lib.WORDS and (is_numbered or OUTSIDE in self._tags):
            logging.warning(
                "The tags have no B- and I-: each of them but O is an entity of one word in precision, recall"
                " and f1. Give names, such as B-PER, or the Parquet file of datasets, which has them"
            )

    def _hold_out(self) -> None:
        """Splits the evaluation set off the training set, by a hash of the words."""
        share = self._config.eval_share
        parts: tuple[list[Sentence], list[Sentence]] = ([], [])
        for sentence in self._sentences["train"]:
            parts[texts_lib.share_of(sentence.words) < share].append(sentence)
        kept, held = map(len, parts)
        texts_lib.tell_held_out(kept, held, "sentence")
        self._sentences["train"], self._sentences["eval"] = parts
        self._paths["eval"] = self._paths["train"]

    def _numbers(self, sentence: Sentence, ids: dict[str, int], split: str) -> np.ndarray:
        if sentence.tags is None or split == "test":
            return np.full(len(sentence.words), tags_lib.IGNORED, np.int32)
        for tag in sentence.tags:
            if tag not in ids:
                raise ConfigError(
                    f"--{split}_file: the tag {tag[:60]!r} is not in the training set:"
                    f" {shortened(self._tags)}."
                )
        return np.array([ids[tag] for tag in sentence.tags], np.int32)

    def _random_token_labels(self, generator: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        return {"tags": generator.integers(0, len(self._tags), count).astype(np.int32)}

    def _facts(self, split: str) -> dict[str, Any]:
        sentences, windows = self._sentences[split], self._windows[split]
        return {
            "sentences": len(sentences),
            "words": _words(sentences),
            "windows": len(windows.lengths_N),
            "tokens": len(windows.ids_T),
        }

    # --------------------------------------------------------------------------------------------------------
    # Model and loss

    def _make_model(self) -> TagModel:
        options = {"head_scale": self.head_scale, **encoder_options(self._config)}
        return TagModel(self._config.model, len(self._tags), **options)

    def weights(self, batch) -> dict[str, tf.Tensor]:
        return {"tag_loss": tf.reduce_sum(objectives.tag_weights(batch))}

    def terms(self, outputs, batch) -> objectives.Terms:
        return objectives.tag_terms(outputs, batch, self._config.label_smoothing)

    def evaluate(self, model, batch) -> tuple[dict, dict[str, tf.Tensor]]:
        logits_BLC = model(batch)
        chances_BL = tf.reduce_max(tf.nn.softmax(logits_BLC), axis=-1)
        calls_BL = tf.argmax(logits_BLC, axis=-1, output_type=tf.int32)
        terms, found = objectives.tag_terms(logits_BLC, batch), {}
        for name, values_BL in zip(self.output_names, (calls_BL, chances_BL)):
            whole = self._of_each_sequence(tf.cast(values_BL, tf.float32), batch)
            found[name] = tf.cast(whole, values_BL.dtype)
        return terms, found

    # --------------------------------------------------------------------------------------------------------
    # Scores

    def _called(self, outputs: Outputs, split: str) -> tuple[list[list[str]], list[list[float]]]:
        """Returns the tags, and their probabilities, of the words of each sentence."""
        windows = self._windows[split]
        is_token_NL = np.arange(self._config.max_seq_length) < windows.lengths_N[:, None]
        counts = [len(sentence.words) for sentence in self._sentences[split]]
        tags, chances = (windows.joined(outputs[name][is_token_NL], counts) for name in ("tags", "chances"))
        return [[self._tags[number] for number in own] for own in tags], [own.tolist() for own in chances]

    def _truths(self) -> list[list[str]]:
        return [known(sentence.tags) for sentence in self._sentences["eval"]]

    def _scored(self, outputs: Outputs) -> tuple[dict[str, float], list[list]]:
        return tags_lib.scores(self._truths(), self._called(outputs, "eval")[0], self._scheme)

    def score(self, outputs: Outputs) -> dict[str, float]:
        return self._scored(outputs)[0]

    def tables(self, outputs: Outputs) -> dict[str, list[list]]:
        return {"Scores by type": self._scored(outputs)[1]}

    def examples(self, outputs: Outputs) -> list[dict]:
        called, truths = self._called(outputs, "eval")[0], self._truths()
        every = zip(self._sentences["eval"], map(tags_lib.spans, called), map(tags_lib.spans, truths))
        items, wrong = [], [each for each in every if each[1] != each[2]]
        for sentence, *both in examples_lib.evenly(wrong):
            columns = (
                [f"{span.type}: {' '.join(sentence.words[span.start : span.end])}" for span in spans]
                for spans in both
            )
            facts = [[name, "; ".join(own) or "none"] for name, own in zip(("predicted", "true"), columns)]
            line = [[f"{word} ", ""] for word in sentence.words]
            items.append({"texts": [line], "facts": facts})
        return examples_lib.group("Wrong sentences", "Spread over the evaluation set.", items)

    def constant_prediction(self) -> tuple[str, float] | None:
        return "no entity", 0.0

    def write_predictions(self, outputs: Outputs, folder: str) -> list[str]:
        path = os.path.join(folder, "predictions.conll")
        called, _ = self._called(outputs, "test")
        columns = {"tokens": [sentence.words for sentence in self._sentences["test"]], "tags": called}
        with open(path, "wb") as file:
            file.write(predictions.encode(predictions.CONLL, columns, with_header=False))
        return [path]


def _words(sentences: list[Sentence]) -> int:
    return sum(len(sentence.words) for sentence in sentences)


def _order(tag: str) -> tuple:
    """Returns the sort key of a tag: entities by type, B- before I-."""
    prefix, _, kind = tag.partition("-")
    return (*sort_key(kind), prefix) if kind else (*sort_key(tag), "")

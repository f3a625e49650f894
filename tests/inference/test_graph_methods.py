"""Windows and answers as TensorFlow finds them: those of the pipeline, for the same logits."""

import contextlib
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from official.data.squad import answers, features
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary
from official.data.word_pieces.wordpiece import WordPiece
from official.inference import graph_methods, graph_tokenizer
from official.inference.graph_tokenizer import Splitter
from official.inference.methods import answers_of, data_of

LETTERS = "abcdefgh"
WORDS = Vocabulary((*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "."), "")
SPECIAL = WORDS.special_ids
RULES = [
    (features.WindowRules(24, 5, 6), answers.AnswerRules(3, 4)),
    (features.WindowRules(24, 20, 6), answers.AnswerRules(20, 30)),
    (features.WindowRules(16, 1, 12), answers.AnswerRules(20, 3, True, 0.0)),
    (features.WindowRules(40, 9, 8), answers.AnswerRules(2, 30, True, -0.5)),
    (features.WindowRules(40, 9, 8), answers.AnswerRules(2, 1, True, 0.5)),
]


@contextlib.contextmanager
def few_characters(end: int):
    """Ends Unicode at a multiple of 256, for splitters that are made here: tables of all take seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph_tokenizer, "_CODE_POINTS", end)
        for name in ("tables", "_not_alike"):
            made = getattr(graph_tokenizer, name).__wrapped__
            patched.setattr(graph_tokenizer, name, functools.cache(made))
        yield


@functools.cache
def splitter() -> Splitter:
    with few_characters(0x2100):
        return Splitter(WORDS)


def asked(seed: int) -> list[tuple[str, str]]:
    """Returns questions and contexts of letters, many of them alike; some are empty."""
    generator = np.random.default_rng(seed)

    def text(most: int) -> str:
        letters = [*"aaabbcdefgh", *"   .", "\u00e9", "\u0301", "zz"]
        return "".join(generator.choice(letters, generator.integers(0, most)))

    rows = [(text(14), text(int(generator.integers(1, 120)))) for _ in range(24)]
    rows += [("", "a b"), ("a", ""), ("a", " \n"), ("\u200b", "a b c"), (" \x1f", "a")]
    return [*rows, ("q", "."), ("a", "zzz")]


class Sides:
    """The same questions on both sides, with the same logits."""

    def __init__(self, rows: list[tuple[str, str]], rules: features.WindowRules, seed: int, spread: float):
        self.data = data_of(rows, False)
        self.features = features.make_features(self.data, WORDS, rules, WordPiece(WORDS))
        # Questions stand context by context there.
        rows = [(question.text, self.data.contexts[question.context]) for question in self.data.questions]
        split = splitter()
        self.questions, self.contexts = (split(tf.constant(list(texts))) for texts in zip(*rows))
        self.windows = graph_methods.cut_windows(self.questions, self.contexts, rules)
        shape = len(self.features), int(self.features.lengths.max(initial=1))
        generator = np.random.default_rng(seed)
        normal = generator.normal(size=(2, *shape))
        self.logits = list(np.round(normal * spread).astype(np.float32) / 4)


def test_windows_are_those_of_the_pipeline():
    for number, (window_rules, _) in enumerate(RULES):
        sides = Sides(asked(number), window_rules, 0, 1.0)
        made = sides.features
        rows = graph_methods.rows_of(sides.windows, sides.questions, sides.contexts, SPECIAL)
        places_L = np.arange(int(made.lengths.max(initial=1)))
        is_token_NL = places_L < made.lengths[:, None]
        expected = {"input_ids": made.input_ids[:, : len(places_L)], "input_mask": is_token_NL}
        expected["segment_ids"] = is_token_NL & (places_L >= made.first_lengths[:, None])
        assert rows.keys() == expected.keys()
        for name, values in rows.items():
            np.testing.assert_array_equal(values, expected[name], name)
        np.testing.assert_array_equal(sides.windows.questions_R, made.question_numbers)
        width = rows["input_ids"].shape[1]
        is_max = graph_methods.is_max_context(sides.windows, width, tf.size(sides.contexts.ids_T))
        np.testing.assert_array_equal(is_max, answers.is_max_context(made)[:, :width])
        assert len(made) > len(sides.data.questions) - 6 and (made.window_lengths > 0).all()


@pytest.mark.parametrize("spread", [1.0, 40.0], ids=["ties", "no-ties"])
@pytest.mark.parametrize("number", range(len(RULES)))
def test_answers_are_those_of_the_pipeline(number, spread):
    window_rules, rules = RULES[number]
    sides = Sides(asked(number + 10), window_rules, number, spread)
    found = answers.answer_questions(*sides.logits, sides.features, sides.data, rules)
    given = graph_methods.find(*map(tf.constant, sides.logits), sides.windows, sides.contexts, rules)
    kinds = {"text": "string", "start": "int32", "end": "int32", "score": "float32"}
    assert {name: values.dtype.name for name, values in given.items()} == kinds
    for row, question in enumerate(sides.data.questions):
        expected = answers_of(found, question.id)[0]
        ours = (given["text"][row].numpy().decode(), int(given["start"][row]), int(given["end"][row]))
        assert ours == (expected.text, expected.start, expected.end), question
        assert float(given["score"][row]) == pytest.approx(expected.probability, rel=1e-6)
    texts = [answers_of(found, question.id)[0].text for question in sides.data.questions]
    assert len(set(texts)) > 3 and "" in texts


def test_no_question_at_all():
    rules = dataclasses.replace(RULES[0][1], version_2_with_negative=True)
    split = splitter()
    none = split(tf.constant([], tf.string))
    windows = graph_methods.cut_windows(none, none, RULES[0][0])
    rows = graph_methods.rows_of(windows, none, none, SPECIAL)
    assert rows["input_ids"].shape[0] == 0
    logits = tf.zeros([0, 1])
    assert graph_methods.find(logits, logits, windows, none, rules)["text"].shape == (0,)

"""Examples for the report: which rows are shown, and how their texts are marked."""

import numpy as np

from official.data.word_pieces.vocabulary import Vocabulary
from official.tasks import examples

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sleep", "dog", ".")


MARKS = {"": "", "strong": "*", "right": "+", "wrong": "-", "gold": "="}


def text_of(line):
    return "".join(f"{MARKS[kind]}{text}{MARKS[kind]}" for text, kind in line)


def sequence(pieces, masked, guesses, second_is_random=0, probability=0.2):
    """The row of a sequence; `masked` is {position: what the sequence has there instead}."""
    ids = [WORDS.index(masked.get(at, piece)) for at, piece in enumerate(pieces)] + [0, 0]
    positions = [*masked, 0]  # the last one is filling
    truths = [WORDS.index(pieces[at]) for at in masked] + [0]
    top = np.array([[WORDS.index(guess), 10] for guess in (*guesses, "the")])
    row = dict(input_ids=ids, input_mask=[1] * len(pieces) + [0, 0], next_sentence_labels=[second_is_random])
    row |= dict(masked_lm_positions=positions, masked_lm_ids=truths)
    row |= dict(masked_lm_weights=[1.0] * len(masked) + [0.0], random_probability=np.float32(probability))
    row |= dict(top_ids=top, top_probabilities=np.full(top.shape, [0.75, 0.125]))
    return {name: np.asarray(value) for name, value in row.items()}


PIECES = "[CLS] the cat ##s sleep [SEP] the dog . [SEP]".split()


def test_masked_tokens_are_marked_and_segments_are_lines():
    row = sequence(PIECES, {2: "[MASK]", 7: "[MASK]", 8: "."}, ["dog", "dog", "."])
    item = examples.masked_sequence(row, examples.word_of(Vocabulary(WORDS, "")))
    assert list(map(text_of, item["texts"])) == ["the -dog- =cat=s sleep", "the +dog+ +.+"]
    assert item["facts"] == [
        ["cat", "dog 0.75 \u00b7 . 0.12"],
        ["dog", "dog 0.75 \u00b7 . 0.12"],
        [".", ". 0.75 \u00b7 . 0.12"],
        ["second segment", "follows the first; predicted: follows the first (0.80)"],
    ]


def test_ends_of_words_join_their_word_but_not_a_wrong_guess():
    word = examples.word_of(Vocabulary(WORDS, ""))
    right = examples.masked_sequence(sequence(PIECES, {3: "[MASK]"}, ["##s"]), word)["texts"][0]
    wrong = examples.masked_sequence(sequence(PIECES, {3: "[MASK]"}, ["dog"], 1, 0.9), word)
    assert text_of(right) == "the cat+s+ sleep" and text_of(wrong["texts"][0]) == "the cat -dog- =##s= sleep"
    assert wrong["facts"][-1] == ["second segment", "random; predicted: random (0.90)"]


def test_without_a_vocabulary_ids_stand_for_words():
    assert [examples.word_of(None)(7), examples.word_of(Vocabulary(WORDS, ""))(99)] == ["#7", "#99"]
    item = examples.masked_sequence(sequence(PIECES, {2: "[MASK]"}, ["cat"]), examples.word_of(None))
    assert "+#6+" in text_of(item["texts"][0])


def test_long_sequences_are_cut():
    row = sequence(["the"] * 400, dict.fromkeys(range(0, 400, 20), "[MASK]"), ["the"] * 20)
    item = examples.masked_sequence(row, examples.word_of(Vocabulary(WORDS, "")))
    assert len(text_of(item["texts"][0])) < 1000 and item["texts"][0][-1] == [" \u2026", ""]
    assert item["facts"][-2] == ["\u2026", "14 more masked"]


def test_passages_show_what_is_accepted_and_what_is_predicted():
    context = "x" * 300 + " Paris lies in France . " + "y" * 600 + " Berlin is a city"
    for text, accepted, predicted, shown in (
        ("Paris lies in France", ["in France", "France"], "France", "Paris lies in +France+"),
        ("Paris lies in France", ["France"], "in France", "Paris lies -in -+France+"),
        # Whole words.
        ("aaa " * 100 + "Paris", ["Paris"], "Paris", " \u2026 " + "aaa " * 35 + "+Paris+"),
    ):
        assert text_of(examples.passage(text, accepted, predicted)) == shown
    # The window around Paris ends inside of it.
    crossing = "word " * 40 + "Paris and a very long answer that goes on " + "and on " * 40
    assert len(examples.passage(crossing, ["Paris"], crossing[206:400])) == 5
    far = text_of(examples.passage(context, ["Paris"], "Berlin"))
    assert "=Paris=" in far and "-Berlin-" in far and far.startswith(" \u2026 x")
    assert far.count("\u2026") == 2 and len(far) < 800
    assert text_of(examples.passage(context, [], "Berlin")).count("=") == 0  # there is no answer
    assert "=Paris=" in text_of(examples.passage(context, ["Paris"], ""))


def test_questions_say_when_there_is_no_answer():
    item = examples.answered_question(" where ? ", "Paris", [], "", 0.9, 1.0)
    assert item["texts"][0] == [["where ?", "strong"]] and item["facts"] == [
        ["predicted", "no answer \u00b7 probability 0.90"],
        ["accepted", "no answer"],
        ["F1", "1.00"],
    ]


def test_the_surest_mistakes_come_first():
    chances = np.array([[0.01, 0.99], [1.0, 0.0], [0.3, 0.7], [0.95, 0.05]])
    assert examples.surest_mistakes(chances, np.array([0, 0, 0, 1])) == [0, 3, 2]
    assert examples.farthest(np.array([1.0, 2.0]), np.array([1.5, 5.0])) == [1, 0]
    item = examples.row(["a", "b"], [["predicted", "yes"]], "dev.csv:7")
    assert ["".join(map(text_of, item["texts"]))] == ["ab"]
    assert item["facts"] == [["predicted", "yes"], ["place", "dev.csv:7"]]

"""Evaluation sets of masked words: the same words, whatever the tokenizer makes of them."""

import numpy as np
import pytest

from official.data.pretraining import masked_words
from official.data.word_pieces.vocabulary import Vocabulary
from official.io.errors import ConfigError

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] one two three four ##een six ##teen ##ty . sky".split()
FINE = Vocabulary(tuple(PIECES), "fine")
COARSE = Vocabulary((*PIECES, "sixteen", "fourty"), "coarse")
SHAPE = masked_words.Shape(length=24, predictions=5, rows=40)


def documents(count: int) -> list[list[str]]:
    generator = np.random.default_rng(5)
    words = ["one", "two", "three", "Sixteen", "fourty", "sky", "unheard"]
    return [[" ".join(generator.choice(words, 9)) + " ." for _ in range(4)] for _ in range(count)]


def text_of(ids, vocabulary: Vocabulary) -> str:
    return " ".join(vocabulary.words[number] for number in ids).replace(" ##", "")


def test_both_sets_have_the_same_words_masked():
    sets, counts = masked_words.make_sets(documents(40), [FINE, COARSE], SHAPE, 1, "--x=1")
    assert counts.rows == len(sets[0]) == len(sets[1]) == SHAPE.rows
    masked, characters, words = [], 0, 0
    for examples, vocabulary in zip(sets, (FINE, COARSE)):
        own = []
        for row in range(len(examples)):
            size, length = examples.predictions[row], examples.lengths[row]
            ids, places = examples.input_ids[row].copy(), examples.positions[row, :size]
            assert (ids[places] == vocabulary.ids["[MASK]"]).all() and 0 < size <= SHAPE.predictions
            assert np.count_nonzero(ids == vocabulary.ids["[MASK]"]) == size
            ids[places] = examples.labels[row, :size]
            whole = text_of(ids[:length], vocabulary)
            assert whole.startswith("[CLS] ") and whole.endswith(" [SEP]") and not ids[length:].any()
            own.append((whole, text_of(examples.labels[row, :size], vocabulary)))
            assert vocabulary.ids["[UNK]"] not in examples.labels[row, :size]
        masked.append(own)
    assert masked[0] == masked[1]
    for whole, drawn in masked[0]:
        words, characters = words + len(drawn.split()), characters + len(drawn.replace(" ", ""))
        assert len(drawn.split()) <= max(1, round(0.15 * (len(whole.split()) - 2)))
    assert (counts.words, counts.characters) == (words, characters)
    assert counts.pieces == tuple(int(examples.predictions.sum()) for examples in sets)
    assert counts.pieces[0] > counts.pieces[1]


def test_the_set_depends_on_documents_and_seed_and_not_on_their_order():
    def ids(documents, seed):
        return masked_words.make_sets(documents, [FINE], SHAPE, seed, "")[0][0].input_ids.tolist()

    expected = ids(documents(30), 1)
    assert ids(documents(30)[::-1], 1) == expected != ids(documents(30), 2)


def test_no_words_are_refused():
    with pytest.raises(ConfigError, match="--eval_share=0.1 leaves no words"):
        masked_words.make_sets([["unheard"]], [FINE], SHAPE, 1, "--eval_share=0.1")

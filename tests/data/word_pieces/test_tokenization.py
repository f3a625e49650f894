"""The tokenizer equals the published rules, id for id: every character, text made to trip it, any vocabulary,
real text.
"""

import collections
import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data import compiled
from official.data.word_pieces import wordpiece
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests import reference_wordpiece
from tests.fixtures import TEST_DATA, slow

pytestmark = pytest.mark.usefixtures("with_and_without_library")

LETTERS = "abcdefghijklmnopqrstuvwxy0123456789"  # no z: a word that holds one is unknown
FOREIGN = "ßσςαпжŀøđıﬁħ中國豈𠀀가가한ค้ーがμ\U0001f600"
PUNCTUATION = ".,#[]'-`–“。¿«"
WHOLE_WORDS = ["the", "mask", "cat", "ab", "ου", "при", "中國", "a" * 199, "b" * 200]
NEVER_FOUND = "[unused0] ## ### ##. don't THE é ##é ##\u0301 \x00 \u200b ##[UNK]".split(" ")
NEVER_FOUND += ["a b", "a" * 300, "##a b"]
ALL = LETTERS + FOREIGN + PUNCTUATION
ENDS = ("##s", "##cat", "##οσ", "##ив", "##" + "a" * 50, *(f"##{character}" for character in ALL))
WORDS = (*SPECIAL_TOKENS, *WHOLE_WORDS, *NEVER_FOUND, *ENDS, *ALL)
VOCABULARY = Vocabulary(tuple(dict.fromkeys(WORDS)), "")
CAPITALS = "The Cat CAT Ĉat ##S ##Σ À ##À e\u0301 \u0301 ##\u0301".split(" ")
CAPITALS += ["A" * 200, *"ΑΣПЖÉ", *LETTERS.upper()]
CAPITALS += [f"##{letter}" for letter in LETTERS.upper() + "ΑΣПЖé"]
CASED = Vocabulary(tuple(dict.fromkeys((*WORDS, *CAPITALS))), "", do_lower_case=False)

# What is dropped, what some take for white space, accents, capitals whose lower case is longer or depends on
# what follows, surrogates.
NASTY = (
    "\x00\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f"
    " \x7f\x80\x85\x9f\xa0\xad\u0378\u061c\u1680\u180e\u2000\u2003\u200b\u200d\u200e\u2028"
    "\u2029\u202f\u205f\u2060\u3000\ufe0f\ufeff\ufffd\uffff\U000e0001\U000e0100\u0300\u0301"
    "\u0307\u0345\u0327\u093f\u20dd\u3099\ud800\udc00ABCZabczß\u0130I\u0131ΣσςΑαÀàÅ\u212b\u212a"
    "ŉǰΐῼÅÉéøØĿ$^+|~<>=`'\"#[]-_–—“”„¿§¶·。、「」中國豈\U0002f800𠀀\u3400\u4dc0\ua000가각がパㄱค้กำहिन्दीПйЖ"
    "ё12²½٣四\u0f73\u1fef\u037e\u2126\U00010400\U0001d400\U0001f600\U0010ffff"
)

split_words = functools.lru_cache(100_000)(reference_wordpiece.split_words)  # of a text, for all vocabularies


def assert_equals_the_rules(tokenizer: wordpiece.WordPiece, vocabulary: Vocabulary, texts: list[str]) -> None:
    ids, lengths = tokenizer.tokenize(texts)
    assert len(lengths) == len(texts) and lengths.dtype == np.int64 and lengths.sum() == len(ids)
    received = [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])] if texts else []
    most = vocabulary.max_word_characters
    pieces = functools.cache(lambda word: reference_wordpiece.split_pieces(word, vocabulary.ids, most))
    wrong = []
    for text, row in zip(texts, received):
        words = split_words(text, vocabulary.do_lower_case)
        if row != [vocabulary.ids[piece] for word in words for piece in pieces(word)]:
            wrong.append(text)
    assert not wrong, f"{len(wrong)} of {len(texts)} texts, first {wrong[0]!a}"


@pytest.fixture(scope="module")
def tokenizer():
    return wordpiece.WordPiece(VOCABULARY)


@pytest.fixture(scope="module")
def all_three(tokenizer, real_vocabulary):
    """Returns (tokenizer, vocabulary): uncased, cased, and real."""
    others = ((wordpiece.WordPiece(each), each) for each in (CASED, real_vocabulary))
    return [(tokenizer, VOCABULARY), *others]


# ------------------------------------------------------------------------------------------------------------
# Examples


EXAMPLES = (
    ("The cats.", "the cat ##s ."),
    ("Càt ĆAT c\u0327at", "cat cat cat"),
    ("cat中cat中國", "cat 中 cat 中 國"),
    ("c\x00a\u200bt c\x1cat c\x85at \ufffd", "cat cat cat"),
    ("ΑΣ ΣΑ ΑΣ\u0301.", "α ##ς σ ##α α ##ς ."),
    ("zebra a\u20dda \U0010ffff", "[UNK] [UNK] [UNK]"),
    ("\ud800 cat\udc00 cat", "[UNK] [UNK] cat"),
    ("a" * 101, f"a ##{'a' * 50} ##{'a' * 50}"),
    ("b" * 201, "[UNK]"),
    ("é" * 200 + " " + "é" * 201, "e " + "##e " * 199 + "[UNK]"),
    ("", ""),
)
CASED_EXAMPLES = (
    ("[MASK] Paris", "[ M ##A ##S ##K ] P ##a ##r ##i ##s"),
    ("Ĉat ćat é cafe\u0301", "Ĉat [UNK] é c ##a ##f ##e ##\u0301"),
    ("ÀÀ e\u0301 \u0301", "À ##À e\u0301 \u0301"),
    ("ΑΣ\tCat中Cat\u2028C\x00at", "Α ##Σ Cat 中 Cat Cat"),
    ("A" * 200 + " " + "A" * 201, "A" * 200 + " [UNK]"),
    ("Don't A-b Zebra", "D ##o ##n ' t A - b [UNK]"),
)


def test_examples(tokenizer):
    for sentences in ([], [""], ["cat", "", "中"]):
        ids, lengths = tokenizer.tokenize(sentences)
        assert (ids.dtype, lengths.dtype, len(lengths)) == (np.uint16, np.int64, len(sentences))
        ids[:] = 0  # it can be written
    cased = wordpiece.WordPiece(CASED)
    for own, vocabulary, examples in ((tokenizer, VOCABULARY, EXAMPLES), (cased, CASED, CASED_EXAMPLES)):
        wrong = []
        for text, pieces in examples:
            ids, lengths = own.tokenize([text])
            found = " ".join(vocabulary.words[number] for number in ids)
            if found != pieces.strip() or lengths.tolist() != [len(ids)]:
                wrong.append((text, pieces, found))
        assert not wrong
        assert_equals_the_rules(own, vocabulary, [text for text, _ in examples])


@pytest.mark.parametrize("size, dtype", [(65_536, np.uint16), (65_537, np.int32)])
def test_vocabularies_that_two_bytes_do_not_hold_have_ids_of_four(size, dtype):
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *map(str, range(size - 8)), "cat", "кот", "."), "")
    tokenizer = wordpiece.WordPiece(vocabulary)
    ids, _ = tokenizer.tokenize(["cat.", "кот 65000"])
    assert ids.dtype == dtype and ids[:3].tolist() == [size - 3, size - 1, size - 2]
    assert vocabulary.words[ids[3]] == "65000"
    assert_equals_the_rules(tokenizer, vocabulary, ["cat. 77777 кот123", "", "x"])


def test_a_sentence_has_the_same_ids_in_any_company(tokenizer, monkeypatch):
    sentences = ["The cats, 中 sat.", "", "cát \u2028 при", "\n\n", "a" * 100, "The ab"]
    sentences = [*sentences, "éa" + "b" * 60 + "é при " + "b" * 90 + "é ab"] * 3
    settings_to_try = {"_BATCH_BYTES": (1, 7, 60), "_MAX_REMEMBERED": (1, 3), "_MAX_REMEMBERED_BYTES": (0, 5)}
    ids, lengths = tokenizer.tokenize(sentences)
    alone = [tokenizer.tokenize([sentence])[0].tolist() for sentence in sentences]
    assert [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])] == alone
    for name, values in settings_to_try.items():
        for value in values:
            with monkeypatch.context() as patch:
                patch.setattr(wordpiece, name, value)
                again, its_lengths = wordpiece.WordPiece(VOCABULARY).tokenize(sentences)
            assert again.tolist() == ids.tolist() and its_lengths.tolist() == lengths.tolist(), (name, value)


# ------------------------------------------------------------------------------------------------------------
# Every character


def surrounded(code_points) -> list[str]:
    """Returns texts with each character alone, in words, after a sigma, before an accent, and beside blanks
    and Chinese."""
    return [f"{c} cat{c}s Σ{c} Α{c}Σ{c}a\t{c}中{c}\u0301 {c}{c}" for c in map(chr, code_points)]


@pytest.mark.parametrize("step", [1009, slow(1)])
def test_every_character(all_three, step):
    for own, vocabulary in all_three:
        whole = 0x700 if vocabulary is CASED or step > 1 else 0x3000
        assert_equals_the_rules(own, vocabulary, surrounded([*range(whole), *range(whole, 0x110000, step)]))


def test_more_words_than_the_table_has_places_for():
    if compiled.library() is None:
        pytest.skip("only the compiled library has such a table; a small dictionary is tried above")
    table = wordpiece._WordTable
    words = [f"w{number} {'x' * (number % 20)}" for number in range(table.PLACES * 2**table.BITS + 1000)]
    tokenizer = wordpiece.WordPiece(VOCABULARY)
    ids, lengths = tokenizer.tokenize(words)
    again, its_lengths = tokenizer.tokenize(words)
    assert again.tolist() == ids.tolist() and its_lengths.tolist() == lengths.tolist()
    assert_equals_the_rules(tokenizer, VOCABULARY, words[::1000])


def test_threads_may_share_a_tokenizer(real_vocabulary):
    texts = [[f"{word} 12345 unaffable{word} embeddings"] * 200 for word in ("the", "he", "to")]
    expected = [wordpiece.WordPiece(real_vocabulary).tokenize(text)[0].tolist() for text in texts]
    for _ in range(3):
        shared = wordpiece.WordPiece(real_vocabulary)
        with ThreadPoolExecutor(len(texts)) as threads:
            found = list(threads.map(shared.tokenize, texts * 40))
        assert all(ids.tolist() == expected[number % len(texts)] for number, (ids, _) in enumerate(found))


# ------------------------------------------------------------------------------------------------------------
# Text made to trip it

PIECES = st.sampled_from([word.removeprefix("##") for word in VOCABULARY.words])
LONG_WORDS = st.builds(
    lambda unit, length, end: (unit * length)[:length] + end,
    st.sampled_from(["a", "b", "é", "ab", "e\u0301", "при", "中", "\U00010400", "a\u200b", "z", "."]),
    st.sampled_from([49, 50, 51, 99, 100, 101, 198, 199, 200, 201, 202, 400]),
    st.sampled_from(["", "s", "z", "é", "."]),
)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
NASTY_TEXT = st.text(st.sampled_from(NASTY), max_size=40)
ASCII_TEXT = st.text(st.characters(max_codepoint=127), max_size=60)
MIXED_TEXT = st.lists(
    PIECES | LONG_WORDS | st.sampled_from(NASTY) | st.sampled_from(["", " ", " cat ", " the cat ab "]),
    max_size=14,
).map("".join)


@pytest.mark.parametrize("count", [50, slow(150)])
def test_made_texts(all_three, count):
    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(texts=st.lists(ANY_TEXT | NASTY_TEXT | ASCII_TEXT | MIXED_TEXT, max_size=12))
    def check(texts):
        for own, vocabulary in all_three:
            assert_equals_the_rules(own, vocabulary, texts)

    check()


VOCABULARY_WORDS = st.text("ab#'é中A \x00", min_size=1, max_size=5)
VOCABULARY_WORDS |= st.sampled_from(["##", "###", "##a", "##ab", "a", "ab", "b" * 201])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    words=st.lists(VOCABULARY_WORDS, max_size=15),
    texts=st.lists(st.text("abc#' éA中\u0301", max_size=25), min_size=5, max_size=30),
    lower=st.booleans(),
)
def test_any_vocabulary(words, texts, lower):
    words = dict.fromkeys([*SPECIAL_TOKENS, *words, *(f"##{word}" for word in words[:5])])
    vocabulary = Vocabulary(tuple(words), "", lower)
    assert_equals_the_rules(wordpiece.WordPiece(vocabulary), vocabulary, texts)


# ------------------------------------------------------------------------------------------------------------
# Real text


def real_lines(pattern: str) -> list[str]:
    paths = sorted(TEST_DATA.glob(pattern))
    if not paths:
        pytest.skip(f"no real text {pattern} (BERT_TEST_DATA)")
    return [line for path in paths for line in path.read_text(encoding="utf-8").split("\n")]


@pytest.mark.parametrize("step", [20, slow(1)])
def test_real_text(all_three, step):
    patterns = ("wikipedia/wiki_00",) if step > 1 else ("wikipedia/wiki_*", "wikitext-2/*.txt")
    for own, vocabulary in all_three:
        for pattern in patterns:
            lines = real_lines(pattern)
            chosen = lines[::step] + [line for line in lines if not line.isascii()][:: max(step // 4, 1)]
            assert_equals_the_rules(own, vocabulary, chosen)


def test_real_text_with_its_own_words_cased():
    lines = real_lines("wikipedia/wiki_01")[::20]
    words = [word for word, _ in collections.Counter(" ".join(lines).split()).most_common(3000)]
    characters = sorted(set("".join(lines)))
    words = [*SPECIAL_TOKENS, *words, *characters, *(f"##{one}" for one in characters)]
    vocabulary = Vocabulary(tuple(dict.fromkeys(words)), "", do_lower_case=False)
    assert_equals_the_rules(wordpiece.WordPiece(vocabulary), vocabulary, lines)

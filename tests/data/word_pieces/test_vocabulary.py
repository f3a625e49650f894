"""The vocabulary file: what is read, what is refused, and building one of exactly the size asked for,
and the words that it gets: those that save the most pieces, in places that no text has."""

import dataclasses

import pytest

from official.cli import text as text_lib
from official.data.word_pieces import vocabulary as vocabulary_lib
from official.data.word_pieces import vocabulary_building, wordpiece
from official.io.errors import ConfigError
from tests import programs
from tests.data.text.test_documents import write


def test_a_bad_vocabulary_is_an_error_that_names_the_flag(tmp_path):
    special = vocabulary_lib.SPECIAL_TOKENS
    for words, message in (
        (special[:-1], rf"{special[-1][1:-1]}\] missing"),
        ((*special, "a", "b", "a"), "'a' is on lines 6 and 8"),
        ((*special, "", "b"), "line 6 is empty"),
    ):
        with pytest.raises(ConfigError, match=f"--vocab_file=.*{message}"):
            vocabulary_lib.load_vocabulary(write(tmp_path / "v.txt", "\n".join(words)))
    for path, message in ((write(tmp_path / "v.txt", b"\xff\n"), "not UTF-8"), ("none", "No such file")):
        with pytest.raises(ConfigError, match=f"--vocab_file=.*{message}"):
            vocabulary_lib.load_vocabulary(path)


SENTENCES = ["the cat sat on the mat and the dog sat too"] * 20 + ["cats and dogs sat", "a mat on a mat"] * 5


def test_a_built_vocabulary_has_exactly_the_size_asked_for():
    for size in (28, 34, 60, 300):
        built = vocabulary_building.build_vocabulary(SENTENCES, size)
        assert len(built.words) == len(set(built.words)) == size
        assert tuple(built.words[:5]) == vocabulary_lib.SPECIAL_TOKENS
        assert set("thecasonmdg") <= set(built.words)
        assert (built.unused > 0) == (size >= 60)
        assert built.learned + built.unused == size and built.covered == 1
        assert size < 60 or {"the", "sat", "mat", "cat", "##at"} <= set(built.words)  # frequent words


def test_a_vocabulary_too_small_for_the_characters_is_an_error():
    with pytest.raises(ConfigError, match="--vocab_size=12 does not hold .* Raise --vocab_size to 50"):
        vocabulary_building.build_vocabulary(["the quick brown fox jumps over the lazy dog"] * 9, 12)


def test_words_are_those_of_the_tokenizer(tmp_path):
    strange = "\u00c9t\u00e9 Stra\u00dfe, na\u00efve: \u4e2d\u6587x\x1cy caf\u00e9-au-lait Don't"
    strange += " \u00c5 \ufb01n \u0130x"
    for lower in (True, False):
        built = vocabulary_building.build_vocabulary([strange] * 3, 400, lower)
        assert ("\u00c9" in built.words) != lower and "e" in built.words
        assert not {"##,", "##\u6587"} & set(built.words)
        words = vocabulary_lib.load_vocabulary(write(tmp_path / "v.txt", "\n".join(built.words) + "\n"))
        words = dataclasses.replace(words, do_lower_case=lower)
        ids, _ = wordpiece.WordPiece(words).tokenize([strange] * 3)
        expected = [words.ids[word] for word in wordpiece.find_words(strange, lower)] * 3
        assert ids.tolist() == expected  # each of these few words is a piece of its own


def test_rare_characters_are_left_out_with_their_words(monkeypatch):
    monkeypatch.setattr(vocabulary_building, "_MIN_CHARACTERS", 3)
    built = vocabulary_building.build_vocabulary(["aaa bbb ccc abc abd"], 20)
    assert built.covered == 0.8 and "d" not in built.words and "##d" not in built.words


BUILD = """
import hashlib, random
from official.data.word_pieces import vocabulary_building
letters = random.Random(0)
def word():
    return "".join(letters.choices("abcdefghij", k=letters.randint(1, 9)))
text = [" ".join(word() for _ in range(12)) for _ in range(300)]
print(hashlib.sha256("\\n".join(vocabulary_building.build_vocabulary(text, 500).words).encode()).hexdigest())
"""


def test_the_same_text_makes_the_same_vocabulary_in_every_process():
    settings = (dict(PYTHONHASHSEED=each, RAYON_NUM_THREADS=each) for each in "14")
    made = {programs.run("-c", BUILD, **each).stdout for each in settings}
    assert len(made) == 1 and made != {""}


def test_the_command_writes_a_vocabulary_that_says_how_its_text_is(tmp_path, run_program):
    text = write(tmp_path / "a.txt", "Paris is in France.\n\nThe Eiffel Tower is in Paris.\n" * 9)
    for is_cased, flag in ((False, []), (True, ["--do_lower_case=false"])):
        vocab = tmp_path / str(is_cased) / "vocab.txt"
        flags = [f"--input_files={text}", f"--output_file={vocab}", "--vocab_size=100", *flag]
        out = run_program(text_lib.run_vocab, *flags).out
        assert "100 word pieces from 18 sentences: " in out and "100.00% of the words" in out
        assert vocabulary_lib.load_for_text(str(vocab)).do_lower_case != is_cased
        assert ("Paris" in vocab.read_text().split("\n")) == is_cased
        names = ["tokenizer_config.json"] * is_cased + ["vocab.txt"]
        assert sorted(path.name for path in vocab.parent.iterdir()) == names
        with pytest.raises(ConfigError, match="exists"):
            run_program(text_lib.run_vocab, *flags)


WORDS = "[PAD] [unused0] [unused1] [UNK] [CLS] [SEP] [MASK] a b c ##a ##b ##c ab ##bc cab".split()
COUNTS = {"abc": 30, "cab": 500, "bbbbb": 12, "ccba": 9, "aab": 40, "abz": 70, "b": 90, "aabc": 15}


def pieces(word: str, words=tuple(WORDS)) -> list[str]:
    """Returns the longest pieces from left to right, by the definition."""
    found, rest = [], word
    while rest:
        mark = "##" if found else ""
        end = next((end for end in range(len(rest), 0, -1) if mark + rest[:end] in words), None)
        if end is None:
            return ["[UNK]"]
        found.append(mark + rest[:end])
        rest = rest[end:]
    return found


def test_the_words_are_those_that_save_the_most_pieces():
    vocabulary = vocabulary_lib.Vocabulary(tuple(WORDS), "")
    saved = {
        word: count * (len(pieces(word)) - 1)
        for word, count in COUNTS.items()
        if count >= vocabulary_building.MIN_COUNT and len(pieces(word)) > 1
    }
    expected = sorted(saved, key=lambda word: (-saved[word], word))
    assert len(expected) == 4  # the others are whole, rare, or have a letter that no piece has
    for number in range(6):
        found = vocabulary_building.choose_words(COUNTS, vocabulary, number)
        assert [one.word for one in found] == expected[:number]
        assert [[WORDS[id_] for id_ in one.pieces] for one in found] == list(map(pieces, expected[:number]))


def test_words_take_unused_places_first_and_move_no_other():
    vocabulary = vocabulary_lib.Vocabulary(tuple(WORDS), "")
    added = vocabulary_building.choose_words(COUNTS, vocabulary, 3)
    grown, pieces_of = vocabulary_building.with_words(WORDS, added)
    assert [grown[number] for number in pieces_of] == [one.word for one in added]
    assert list(pieces_of) == [1, 2, len(WORDS)] and list(pieces_of.values()) == [one.pieces for one in added]
    assert [new for new, old in zip(grown, WORDS) if new != old] == [one.word for one in added[:2]]
    after = vocabulary_lib.Vocabulary(tuple(grown), "")
    for one in added:
        assert wordpiece.WordPiece(after).tokenize([one.word])[0].tolist() == [grown.index(one.word)]
    expected = sum(count * len(pieces(word, grown)) for word, count in COUNTS.items()) / sum(COUNTS.values())
    assert vocabulary_building.fragmentation(COUNTS, after) == expected
    assert expected < vocabulary_building.fragmentation(COUNTS, vocabulary)

"""The vocabulary file: what is read, what is refused, and building one of exactly the size asked for."""

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
        assert tuple(built.words[:5]) == vocabulary_lib.SPECIAL_TOKENS and set("thecasonmdg") <= set(
            built.words
        )
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
        expected = [words.id_of(word) for word in wordpiece.find_words(strange, lower)] * 3
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
    for number, flag, told in ((1, [], None), (2, ["--do_lower_case=false"], False)):
        vocab = tmp_path / str(number) / "vocab.txt"
        flags = [f"--input_files={text}", f"--output_file={vocab}", "--vocab_size=100", *flag]
        out = run_program(text_lib.run_vocab, *flags).out
        assert "100 word pieces from 18 sentences: " in out and "100.00% of the words" in out
        assert vocabulary_lib.load_for_text(str(vocab)).do_lower_case == (told is None)
        assert ("Paris" in vocab.read_text().split("\n")) == (told is False)
        names = ["tokenizer_config.json"] * (told is False) + ["vocab.txt"]
        assert sorted(path.name for path in vocab.parent.iterdir()) == names
        with pytest.raises(ConfigError, match="exists"):
            run_program(text_lib.run_vocab, *flags)

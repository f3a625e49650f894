"""The vocabulary file: what is read, what is refused, and building one of exactly the size asked for."""

import dataclasses
import os
import subprocess
import sys

import pytest

from official.data.word_pieces import vocabulary as vocabulary_lib
from official.data.word_pieces import vocabulary_building, wordpiece
from official.io.errors import ConfigError
from tests.conftest import ROOT

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [
    *vocabulary_lib.SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "the",
    "cat",
    "sat",
    ".",
    "##s",
    "word",
]


def write(path, text) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    "content, message",
    [
        ("\n".join(word for word in WORDS if word != "[MASK]"), r"\[MASK\] missing"),
        ("\n".join([*vocabulary_lib.SPECIAL_TOKENS, "a", "b", "a"]), "'a' stands on lines 6 and 8"),
        ("\n".join([*vocabulary_lib.SPECIAL_TOKENS, "", "b"]), "line 6 is empty"),
        (b"\xff\n", "not UTF-8"),
    ],
)
def test_a_bad_vocabulary_is_an_error_that_names_the_flag(tmp_path, content, message):
    with pytest.raises(ConfigError, match=f"--vocab_file=.*{message}"):
        vocabulary_lib.load_vocabulary(write(tmp_path / "v.txt", content))


def test_a_missing_vocabulary_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="--vocab_file=.*/none: No such file"):
        vocabulary_lib.load_vocabulary(str(tmp_path / "none"))


SENTENCES = ["the cat sat on the mat and the dog sat too"] * 20 + ["cats and dogs sat", "a mat on a mat"] * 5


@pytest.mark.parametrize("size", [28, 34, 300])
def test_a_built_vocabulary_has_exactly_the_size_asked_for(size):
    built = vocabulary_building.build_vocabulary(SENTENCES, size)
    assert len(built.words) == len(set(built.words)) == size
    assert tuple(built.words[:5]) == vocabulary_lib.SPECIAL_TOKENS
    assert set("thecasonmdg") <= set(built.words)
    assert (built.unused > 0) == (size == 300)
    assert built.learned + built.unused == size and built.covered == 1


def test_frequent_words_become_pieces():
    built = vocabulary_building.build_vocabulary(SENTENCES, 60)
    assert {"the", "sat", "mat", "cat", "##at"} <= set(built.words)


def test_a_vocabulary_too_small_for_the_characters_is_an_error():
    with pytest.raises(ConfigError, match="--vocab_size=12 does not hold .* Raise --vocab_size to 50"):
        vocabulary_building.build_vocabulary(["the quick brown fox jumps over the lazy dog"] * 9, 12)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_words_are_those_of_the_tokenizer(tmp_path, do_lower_case):
    text = [
        "\u00c9t\u00e9 Stra\u00dfe, na\u00efve: \u4e2d\u6587x\x1cy caf\u00e9-au-lait Don't \u00c5 \ufb01n"
        " \u0130x"
    ] * 3
    built = vocabulary_building.build_vocabulary(text, 400, do_lower_case)
    assert (
        ("\u00c9" in built.words) != do_lower_case
        and ("e" in built.words)
        and not {"##,", "##\u6587"} & set(built.words)
    )
    path = write(tmp_path / "v.txt", "\n".join(built.words) + "\n")
    words = dataclasses.replace(vocabulary_lib.load_vocabulary(path), do_lower_case=do_lower_case)
    ids, _ = wordpiece.Tokenizer(words).tokenize(text)
    expected = [
        words.id_of(word) for sentence in text for word in wordpiece.find_words(sentence, do_lower_case)
    ]
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
    made = {
        subprocess.run(
            [sys.executable, "-c", BUILD],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
        ).stdout
        for seed, threads in (("1", "1"), ("2", "2"), ("3", "4"))
    }
    assert len(made) == 1


@pytest.mark.parametrize("flag, told", [([], None), (["--do_lower_case=false"], False)])
def test_the_command_writes_a_vocabulary_that_says_how_its_text_is(tmp_path, flag, told):
    text, vocab = (
        write(tmp_path / "a.txt", "Paris is in France.\n\nThe Eiffel Tower is in Paris.\n" * 9),
        tmp_path / "out" / "vocab.txt",
    )
    command = [
        sys.executable,
        str(ROOT / "scripts" / "build_vocab.py"),
        f"--input_files={text}",
        f"--output_file={vocab}",
        "--vocab_size=100",
        *flag,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        "100 word pieces from 18 sentences: " in done.stdout
        and "100.00% of the words" in done.stdout
        and done.stderr.count("\n") <= 1
    )
    assert vocabulary_lib.load_for_text(str(vocab)).do_lower_case == (told is None)
    assert ("Paris" in vocab.read_text().split("\n")) == (told is False)
    assert sorted(path.name for path in vocab.parent.iterdir()) == ["tokenizer_config.json"] * (
        told is False
    ) + ["vocab.txt"]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "exists" in again.stderr

"""The vocabulary file: what is read, what is refused, and building one of exactly the size asked for."""

import pytest

from official.config import ConfigError
from official.data import vocabulary as vocabulary_lib

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*vocabulary_lib.SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", "sat", ".", "##s", "word"]


def write(path, text) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("content, message", [
    ("\n".join(word for word in WORDS if word != "[MASK]"), r"\[MASK\] missing"),
    ("\n".join([*vocabulary_lib.SPECIAL_TOKENS, "a", "b", "a"]), "'a' stands on lines 6 and 8"),
    ("\n".join([*vocabulary_lib.SPECIAL_TOKENS, "", "b"]), "line 6 is empty"),
    (b"\xff\n", "not UTF-8"),
])
def test_a_bad_vocabulary_is_an_error_that_names_the_flag(tmp_path, content, message):
    with pytest.raises(ConfigError, match=f"--vocab_file=.*{message}"):
        vocabulary_lib.load_vocabulary(write(tmp_path / "v.txt", content))


def test_a_missing_vocabulary_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="--vocab_file=.*/none: No such file"):
        vocabulary_lib.load_vocabulary(str(tmp_path / "none"))


@pytest.mark.parametrize("size", [28, 34, 300])
def test_a_built_vocabulary_has_exactly_the_size_asked_for(size):
    sentences = ["the cat sat on the mat and the dog sat too"] * 20 + ["cats and dogs sat", "a mat on a mat"] * 5
    built = vocabulary_lib.build_vocabulary(sentences, size)
    assert len(built.words) == len(set(built.words)) == size
    assert tuple(built.words[:5]) == vocabulary_lib.SPECIAL_TOKENS
    assert set("thecasonmdg") <= set(built.words)
    assert (built.unused > 0) == (size == 300)
    assert built.learned - built.dropped + built.unused == size


def test_a_vocabulary_too_small_for_the_characters_is_an_error():
    with pytest.raises(ConfigError, match="--vocab_size=12 does not hold .* Raise --vocab_size to"):
        vocabulary_lib.build_vocabulary(["the quick brown fox jumps over the lazy dog"] * 9, 12)

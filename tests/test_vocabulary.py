"""From text to records: readers, tokeniser, Google's rules for pairs and masks, files and manifest, the quickstart's corpus."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official.config import ConfigError
from official.data import tokenization
from tests.conftest import TEST_DATA

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*vocabulary_lib.SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", "sat", ".", "##s", "word"]


@pytest.fixture
def vocab_file(tmp_path):
    return write(tmp_path / "vocab.txt", "\n".join(dict.fromkeys(WORDS)) + "\n")


@pytest.fixture
def vocabulary(vocab_file):
    return vocabulary_lib.load_vocabulary(vocab_file)


def write(path, text) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


# ---------------------------------------------------------------------------------------------------------------------
# Tokenisation


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


def test_documents_become_one_array_and_what_has_no_token_is_left_out(vocabulary):
    documents = [["The cats.", "\u200b", "sat"], ["\x01"], ["C\u00e0t \u4e2d"]]
    tokenized = tokenization.Tokenizer(vocabulary).tokenize_documents(documents)
    assert [vocabulary.words[token] for token in tokenized.tokens] == ["the", "cat", "##s", ".", "sat", "cat", "[UNK]"]
    assert tokenized.tokens.dtype == np.uint16
    assert tokenized.sentence_starts.tolist() == [0, 4, 5, 7]
    assert tokenized.document_starts.tolist() == [0, 2, 3]


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

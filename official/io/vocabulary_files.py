"""The files of a vocabulary: vocab.txt, tokenizer.json, vocab.json with merges.txt or a SentencePiece model,
and the settings next to them for splitting text.

Names and keys are Hugging Face's, so that its tokenizers read the files. The supported values are in
`official.io.model_folder`.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from official.io import files, json_files, model_folder
from official.io.errors import ConfigError, counted
from official.io.json_files import parse_json
from official.io.model_folder import SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG, VOCAB_JSON

if TYPE_CHECKING:
    from official.io.tokenizer_files import TokenizerFile

VOCABULARY = "vocab.txt"
KEPT = (VOCABULARY, TOKENIZER, TOKENIZER_CONFIG)  # with weights and records
NAMES = (
    VOCABULARY,
    TOKENIZER,
    VOCAB_JSON,
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
)
# Minimum share of words with capitals, among words with letters, in a cased vocabulary: 20 % and more in
# Google's, none in its uncased ones.
_CASED_SHARE = 0.02
_SPECIAL = re.compile(r"\[.+\]")
# Names of ids that no text has, and of padding.
_NOT_IN_TEXTS = re.compile(r"<no word \d+>|[\[<]unused_?\d+[\]>]|\[PAD\]|<pad>")
_ONE_A_LINE = "A vocabulary has one word piece per line"


@dataclasses.dataclass(frozen=True)
class VocabularyFile:
    """A vocabulary as stored in its files.

    Attributes:
      path: the vocab.txt or tokenizer.json.
      words: word pieces by their ids.
      content: the words as the bytes of a vocab.txt.
      do_lower_case: as its files say; None if they do not.
      max_length: tokens that texts are truncated to, as its files say; None if they do not.
      marks_pairs: whether the second text of a pair has a segment of its own.
      max_word_characters: longer words become [UNK].
      tokenizer: the tokenizer, if it is not BERT's; else None.
    """

    path: str
    words: tuple[str, ...]
    content: bytes
    do_lower_case: bool | None
    max_length: int | None = None
    marks_pairs: bool = True
    max_word_characters: int = model_folder.MAX_WORD_CHARACTERS
    tokenizer: TokenizerFile | None = None


def find(path: str) -> str | None:
    """Returns the file of a vocabulary: `path`, or the first of NAMES in a folder; None if missing."""
    if not files.is_folder(path):
        return path if files.is_file(path) else None
    return next(filter(files.is_file, (os.path.join(path, name) for name in NAMES)), None)


def read(path: str, flag: str = "vocab_file") -> VocabularyFile:
    """Reads a vocabulary.

    Args:
      path: a file with a word piece a line, a tokenizer.json, a vocab.json with its merges.txt beside it, a
        SentencePiece model, or a folder with one of them.
      flag: name of the flag that gave it, for messages.

    Raises:
      ConfigError: if it cannot be read, is not UTF-8 text, or needs unsupported features.
    """
    found = find(path)
    source = f"--{flag}={path}"
    if found is None:
        of_folder = f"none of {', '.join(NAMES)} in this folder"
        missing = of_folder if files.is_folder(path) else "No such file or directory"
        raise ConfigError(f"{source}: {missing}.")
    content = files.read_bytes(found, source)
    beside = os.path.join(os.path.dirname(found), TOKENIZER)
    tokenizer = _tokenizer_json(found, content, source, beside)
    if _is_of_library(found, tokenizer):
        from official.io import tokenizer_files  # late: few vocabularies need it

        made = tokenizer_files.read(found, source, content)
        told = None, made.max_length, made.has_segments
        return VocabularyFile(found, made.words, made.content.encode(), *told, tokenizer=made)
    if tokenizer is not None and found.endswith(".json"):
        words = model_folder.tokenizer_words(tokenizer, source)
        model_folder.check_keys(tokenizer, TOKENIZER, found)
        content = "".join(f"{word}\n" for word in words).encode()
        settings = model_folder.tokenizer_settings(found, source, tokenizer)
    else:
        if content.startswith(codecs.BOM_UTF8):  # other programs read the kept copy, too
            content = content[len(codecs.BOM_UTF8) :]
        words = model_folder.words_of(content, source)
        if tokenizer is not None:
            model_folder.check_keys(tokenizer, TOKENIZER, beside)
            _check_same(words, found, model_folder.tokenizer_words(tokenizer, beside), beside)
        settings = model_folder.tokenizer_settings(found, tokenizer=tokenizer)
    return VocabularyFile(found, words, content, *settings)


def _tokenizer_json(path: str, content: bytes, source: str, beside: str) -> dict | None:
    """Returns the content of the tokenizer.json at `path`, or at `beside`, next to a vocab.txt; None
    without."""
    name = os.path.basename(path)
    if name == VOCAB_JSON or name.endswith(".model"):
        return None
    if name.endswith(".json"):
        return parse_json(content, source, any_number=True)
    return json_files.read_json(beside, any_number=True) if files.is_file(beside) else None


def _is_of_library(path: str, tokenizer: dict | None) -> bool:
    """Tells whether the library `tokenizers` splits the text of a vocabulary, by other rules than BERT's."""
    name = os.path.basename(path)
    if name.endswith(".model") or name == VOCAB_JSON:
        return True
    model = (tokenizer or {}).get("model")
    if isinstance(model, dict) and model.get("type") not in (None, "WordPiece"):
        return name.endswith(".json")
    from official.io import tokenizer_files

    return tokenizer_files.has_own_rules(path, tokenizer)


def _check_same(words: tuple[str, ...], path: str, others: tuple[str, ...], other_path: str) -> None:
    """Raises ConfigError if a vocab.txt and a tokenizer.json in one folder have different words."""
    if words == others:
        return
    pairs = enumerate(itertools.zip_longest(map(repr, words), map(repr, others), fillvalue="nothing"))
    first, (ours, theirs) = next(each for each in pairs if each[1][0] != each[1][1])
    raise ConfigError(
        f"{path} and {other_path} are different vocabularies: id {first} is {ours} and {theirs}."
        " Move one of them away."
    )


def check_words(words: tuple[str, ...], source: str) -> None:
    """Raises ConfigError where one of SPECIAL_TOKENS is missing, a word occurs twice, or one is empty.
    `source` begins the message."""
    missing = [token for token in SPECIAL_TOKENS if token not in words]
    if missing:
        problem = f"{' '.join(missing)} missing among {counted(len(words), 'line')}. {_ONE_A_LINE}"
        raise ConfigError(f"{source}: {problem}, with {' '.join(SPECIAL_TOKENS)} among them.")
    check_each(words, source)


def check_each(words: tuple[str, ...], source: str) -> None:
    """Raises ConfigError where a word occurs twice or is empty."""
    if len(set(words)) < len(words):
        word = Counter(words).most_common(1)[0][0]
        lines = " and ".join([str(index + 1) for index, other in enumerate(words) if other == word][:2])
        raise ConfigError(f"{source}: {word!r} is on lines {lines}. Each word piece may occur only once.")
    if "" in words:
        raise ConfigError(f"{source}: line {words.index('') + 1} is empty. {_ONE_A_LINE}.")


def check_padding(words: Sequence[str], special: model_folder.Special, number: int, source: str) -> None:
    """Raises ConfigError if the id that a model of transformers counts positions from is a word in texts, or
    another special token, such as </s>: transformers gives it the position of padding, and the words after it
    one less. `source` begins the message."""
    word = words[number] if 0 <= number < len(words) else None
    is_padding = word == special.pad and special.count(word) == 1
    if word is not None and not is_padding and not _NOT_IN_TEXTS.fullmatch(word):
        raise ConfigError(
            f"{source}: pad_token_id={number} is the word {word!r}, and padding is {special.pad!r}: positions"
            " that leave out a word of the text are not supported. Give the model's own vocabulary."
        )


# ------------------------------------------------------------------------------------------------------------
# Whether text is lower-cased


def resolve_lower_case(
    file: VocabularyFile, given: bool | None = None, checkpoint: str | None = None
) -> bool:
    """Decides whether text is lower-cased: by the setting, the vocabulary's files, or those of the
    checkpoint; default yes.

    Args:
      given: the setting do_lower_case; None: unset.
      checkpoint: folder, prefix or file of the weights, beside which a tokenizer_config.json or
        tokenizer.json may lie.

    Raises:
      ConfigError: if the vocabulary is cased and text would be lower-cased: words with capitals would never
        be used.
    """
    if file.tokenizer is not None:
        if given is not None:
            flag = f"--do_lower_case={str(given).lower()}"
            raise ConfigError(f"{flag}: {file.path} sets the normalization of text. Drop the flag.")
        return False
    setting = given if given is not None else file.do_lower_case
    if checkpoint and model_folder.folder_of(checkpoint) != model_folder.folder_of(file.path):
        # Its value does not matter: a tokenizer with other rules is refused.
        beside = model_folder.tokenizer_settings(checkpoint).do_lower_case
        setting = beside if setting is None else setting
    lower_case = setting is not False
    capitals, words = count_capitals(file.words)
    if lower_case and is_cased(file.words):
        by = "the default" if setting is None else f"says {TOKENIZER_CONFIG}" if given is None else "given"
        raise ConfigError(
            f"--vocab_file={file.path} is cased: {capitals} of {words} words have capitals, which"
            f" do_lower_case=true ({by}) never finds. Give --do_lower_case=false, or an uncased vocabulary."
        )
    if not lower_case and words and not capitals:
        _warn_of_uncased(file.path)
    return lower_case


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _warn_of_uncased(path: str) -> None:
    logging.warning(
        "--vocab_file=%s has no word with a capital, and do_lower_case=false: words of the text with capitals"
        " become [UNK]. --do_lower_case=true lower-cases them.",
        path,
    )


@functools.lru_cache(maxsize=2)
def count_capitals(words: tuple[str, ...]) -> tuple[int, int]:
    """Returns the number of words with capitals, and of words with letters that have them; special tokens,
    [LIKE THIS], do not count."""
    with_letters = [word for word in words if word.lower() != word.upper() and not _SPECIAL.fullmatch(word)]
    return sum(word != word.lower() for word in with_letters), len(with_letters)


def is_cased(words: tuple[str, ...]) -> bool:
    """Tells whether a vocabulary is cased: a share of 2 % or more of its words with letters have capitals."""
    capitals, with_letters = count_capitals(words)
    return capitals > 0 and capitals >= _CASED_SHARE * with_letters


# ------------------------------------------------------------------------------------------------------------
# Writing


def tokenizer_config(vocabulary: Any, do_lower_case: bool, max_length: int) -> str:
    """Returns the content of tokenizer_config.json for a model of `max_length` positions. `vocabulary` has
    `marks_pairs` and `max_word_characters` of `VocabularyFile`."""
    most = vocabulary.max_word_characters
    values = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": do_lower_case,
        "model_max_length": max_length,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("cls", "mask", "pad", "sep", "unk")},
        **({} if most == model_folder.MAX_WORD_CHARACTERS else {"max_input_chars_per_word": most}),
        **({} if vocabulary.marks_pairs else {"model_input_names": ["input_ids", "attention_mask"]}),
    }
    return json_files.written(values)


def with_settings(vocabulary: Any, content: bytes, do_lower_case: bool, length: Any) -> dict[str, bytes]:
    """Returns {name of file: content} of a vocabulary and its tokenizer settings.

    Args:
      vocabulary: has `tokenizer`, `marks_pairs` and `max_word_characters` of `VocabularyFile`.
      content: content of its vocab.txt.
      do_lower_case: whether text is lower-cased.
      length: maximum number of tokens; None: unlimited, only for a tokenizer with its own files.
    """
    kept = vocabulary.tokenizer
    if kept is not None:
        return {TOKENIZER: kept.content.encode(), TOKENIZER_CONFIG: kept.sidecar_config(length).encode()}
    config = tokenizer_config(vocabulary, do_lower_case, length)
    return {VOCABULARY: content, TOKENIZER_CONFIG: config.encode()}


def contents_of(file: VocabularyFile) -> dict[str, bytes]:
    """Returns {name of file: content} of a vocabulary alone."""
    if file.tokenizer is None:
        return {VOCABULARY: file.content}
    return with_settings(file, file.content, False, file.max_length)


def companions(
    path: str, do_lower_case: bool | None, max_length: int, has_segments: bool = True
) -> dict[str, bytes]:
    """Returns {name of file: content} of the files kept with weights: the vocabulary at `path`, and its
    tokenizer settings.

    Args:
      do_lower_case: None: as set in the vocabulary's files, else derived from capitals in its words.
      max_length: positions of the model; a shorter length in the vocabulary's files is kept.
      has_segments: whether the model has more than one segment. transformers fails on segment ids that its
        model does not have.
    """
    file = read(path)
    if not has_segments:
        kept = file.tokenizer and dataclasses.replace(file.tokenizer, has_segments=False)
        file = dataclasses.replace(file, marks_pairs=False, tokenizer=kept)
    setting = file.do_lower_case if do_lower_case is None else do_lower_case
    lower_case = not is_cased(file.words) if setting is None else setting
    return with_settings(file, file.content, lower_case, min(file.max_length or max_length, max_length))

"""The published rules of BERT's tokenizer, word for word and slowly: what the fast one is compared with.

Written from the description of `FullTokenizer`, with do_lower_case, its default, and without.
Source: https://github.com/google-research/bert/blob/master/tokenization.py
"""

import string
import unicodedata

MAX_WORD_CHARACTERS = 200
CHINESE_BLOCKS = [
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
]


def is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def is_white_space(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def is_chinese(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in CHINESE_BLOCKS)


def is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character)[0] == "P"


def clean(text: str) -> str:
    """Drops what cannot be seen, makes all white space a blank, and puts blanks around Chinese characters."""
    cleaned = ""
    for character in text:
        if character in "\x00\ufffd" or is_control(character):
            continue
        if is_white_space(character):
            cleaned += " "
        elif is_chinese(character):
            cleaned += f" {character} "
        else:
            cleaned += character
    return cleaned


def strip_accents(token: str) -> str:
    letters = unicodedata.normalize("NFD", token)
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")


def split_at_punctuation(token: str) -> list[str]:
    parts = [""]
    for character in token:
        if is_punctuation(character):
            parts += [character, ""]
        else:
            parts[-1] += character
    return " ".join(parts).split()


def split_words(text: str, do_lower_case: bool = True) -> list[str]:
    tokens = clean(text).split()
    if do_lower_case:
        tokens = [strip_accents(token.lower()) for token in tokens]
    return [word for token in tokens for word in split_at_punctuation(token)]


def split_pieces(word: str, vocabulary: dict[str, int], most: int = MAX_WORD_CHARACTERS) -> list[str]:
    """Returns the longest pieces from left to right, or ["[UNK]"], as for words of more than `most`
    characters."""
    if len(word) > most:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start:
            piece = ("##" if start > 0 else "") + word[start:end]
            if piece in vocabulary:
                break
            end -= 1
        if end == start:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def tokenize(text: str, vocabulary: dict[str, int], do_lower_case: bool = True) -> list[int]:
    """Returns the ids of a text; `vocabulary` gives the id of each word piece."""
    words = split_words(text, do_lower_case)
    return [vocabulary[piece] for word in words for piece in split_pieces(word, vocabulary)]

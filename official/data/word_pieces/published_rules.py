"""The published rules of word pieces in plain Python: for text that is not ASCII."""

from __future__ import annotations

from collections.abc import Iterable

from official.data.word_pieces import words
from official.data.word_pieces.vocabulary import CONTINUATION, without_mark

UNKNOWN = "[UNK]"


class PublishedRules:
    """The published rules, character by character."""

    def __init__(self, codes: dict[str, bytes], do_lower_case: bool):
        """Takes the id of each word of the vocabulary, as bytes."""
        self._do_lower_case = do_lower_case
        self._starts = codes
        self._continuations = {
            without_mark(word): code for word, code in codes.items() if word.startswith(CONTINUATION)
        }
        self._longest_start, self._longest_continuation = (
            _longest(self._starts),
            _longest(self._continuations),
        )
        self._unknown = codes[UNKNOWN]

    def ids_of(self, chunk: bytes) -> bytes:
        """Returns the ids of a chunk in which there may be other white space than blanks."""
        return b"".join(
            map(
                self._find_pieces,
                words.find_words(chunk.decode("utf-8", "surrogatepass"), self._do_lower_case),
            )
        )

    def _find_pieces(self, word: str) -> bytes:
        if len(word) > words.LONGEST:
            return self._unknown
        found, start, pieces, longest = [], 0, self._starts, self._longest_start
        while start < len(word):
            for end in range(min(len(word), start + longest.get(word[start], 0)), start, -1):
                if code := pieces.get(word[start:end]):
                    break
            else:
                return self._unknown
            found.append(code)
            start, pieces, longest = end, self._continuations, self._longest_continuation
        return b"".join(found)


def _longest(pieces: Iterable[str]) -> dict[str, int]:
    """Returns the length of the longest word for each first character."""
    longest: dict[str, int] = {}
    for word in filter(None, pieces):
        longest[word[0]] = max(len(word), longest.get(word[0], 0))
    return longest

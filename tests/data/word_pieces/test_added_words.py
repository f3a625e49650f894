"""Words that a vocabulary gets: those that save the most pieces, in places that no text has."""

from official.data.word_pieces import added_words
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import WordPiece

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
    vocabulary = Vocabulary(tuple(WORDS), "")
    saved = {
        word: count * (len(pieces(word)) - 1)
        for word, count in COUNTS.items()
        if count >= added_words.MIN_COUNT and len(pieces(word)) > 1
    }
    expected = sorted(saved, key=lambda word: (-saved[word], word))
    assert len(expected) == 4  # the others are whole, rare, or have a letter that no piece has
    for number in range(6):
        found = added_words.choose_words(COUNTS, vocabulary, number)
        assert [one.word for one in found] == expected[:number]
        assert [[WORDS[id_] for id_ in one.pieces] for one in found] == list(map(pieces, expected[:number]))


def test_words_take_unused_places_first_and_move_no_other():
    vocabulary = Vocabulary(tuple(WORDS), "")
    added = added_words.choose_words(COUNTS, vocabulary, 3)
    grown, pieces_of = added_words.with_words(WORDS, added)
    assert [grown[number] for number in pieces_of] == [one.word for one in added]
    assert list(pieces_of) == [1, 2, len(WORDS)] and list(pieces_of.values()) == [one.pieces for one in added]
    assert [new for new, old in zip(grown, WORDS) if new != old] == [one.word for one in added[:2]]
    after = Vocabulary(tuple(grown), "")
    for one in added:
        assert WordPiece(after).tokenize([one.word])[0].tolist() == [grown.index(one.word)]
    expected = sum(count * len(pieces(word, grown)) for word, count in COUNTS.items()) / sum(COUNTS.values())
    assert added_words.fragmentation(COUNTS, after) == expected
    assert expected < added_words.fragmentation(COUNTS, vocabulary)

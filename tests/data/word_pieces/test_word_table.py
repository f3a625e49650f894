"""The table of words: what was put in is found, and nothing else."""

import numpy as np

from official.data.word_pieces.wordpiece import WordTable, keys_of_words


def ids_of(number):
    return np.arange(number, number + number % (WordTable.MOST_IDS + 2), dtype=np.uint16)


def test_words_are_found_with_their_ids_and_others_are_not():
    words = [f"w{number}" for number in range(60_000)]
    table = WordTable(np.dtype(np.uint16))
    table.add(keys_of_words(words), [ids_of(number).tobytes() for number in range(len(words))])
    places, is_there = table.find(keys_of_words(words))
    counts = np.arange(len(words)) % (WordTable.MOST_IDS + 2)
    assert not is_there[counts > WordTable.MOST_IDS].any()  # more than a place holds
    assert 0.98 < is_there[counts <= WordTable.MOST_IDS].mean() < 1  # some buckets are full
    for number in np.flatnonzero(is_there)[::97].tolist():
        count, *ids = table.ids[places[number]].tolist()
        assert ids[:count] == ids_of(number).tolist()
    assert not table.find(keys_of_words([f"x{number}" for number in range(1000)]))[1].any()


def test_a_word_gets_one_place_and_a_long_one_none():
    table = WordTable(np.dtype(np.int32))
    one = np.array([70_000], np.int32).tobytes()
    for words in (["a", "b", "a", "a"], ["a", "c", "a word of seventeen"]):
        table.add(keys_of_words(words), [one] * len(words))
    assert np.count_nonzero(table.keys[:, 0]) == 3
    found = table.find(keys_of_words(["a", "b", "c", "a word of seventeen"]))[1]
    assert found.tolist() == [True, True, True, False]

"""Paragraphs that the splitter gets as one text: taken apart alike with and without the compiled library."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data import compiled
from official.data.text import joined_paragraphs

PIECES = st.sampled_from(
    ["One.", " ", "\n", "\u2029", "\u2029\n", "\u2028", "\u00a0", "\u3000", "\u201cTwo", "\t"]
)


def both(split, paragraphs):
    """Returns what the library finds, after a comparison with what is found without."""
    found = joined_paragraphs.taken_apart(split, paragraphs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "library", lambda: None)
        other = joined_paragraphs.taken_apart(split, paragraphs)
    assert (found is None) == (other is None)
    if found:
        assert found.text == other.text
        assert found.ends.tolist() == other.ends.tolist() and found.counts.tolist() == other.counts.tolist()
    return found


@settings(deadline=None)  # the first one compiles the library
@given(pieces=st.lists(PIECES, max_size=12), paragraphs=st.integers(0, 4))
def test_with_and_without_the_library(pieces, paragraphs):
    both("".join(pieces).encode(), paragraphs)


@given(
    sentences=st.lists(st.lists(st.sampled_from(["One.", "Two \u00a0 2!", "\u4e2d"]), min_size=1), max_size=6)
)
def test_each_paragraph_gets_its_sentences_back(sentences):
    split = joined_paragraphs.joined(map("\n".join, sentences)).removesuffix("\n").encode()
    found = both(split, len(sentences))
    assert found.counts.tolist() == list(map(len, sentences))
    begins = [0, *found.ends.tolist()]
    parts = [found.text[begin:end].decode() for begin, end in zip(begins, begins[1:])]
    assert parts == ["".join(sentence + "\n" for sentence in own) for own in sentences]


@pytest.mark.parametrize(
    "split",
    [
        "One.\u2029\n Two.\u2029",
        "One.\u2029\n\u3000\u2029",
        "One.\u2029\n\u2029",
        "One.\n\nTwo\u2029\nThree\u2029",
        "One.\u2029",
    ],
    ids=["blank first", "nothing but white space", "empty", "empty line", "too few"],
)
def test_what_cannot_be_told_is_none(split):
    assert both(split.encode(), 2) is None

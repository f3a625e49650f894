"""Paragraphs that the splitter gets as one text: taken apart alike with and without the compiled library."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data import compiled
from official.data.text import sentences as sentences_lib

END = "\u2029"
USUAL = st.sampled_from(["One.", "\u201cTwo", "\u2026"])
STARTS = USUAL | st.sampled_from(["\u00bb", "\u30b0", "\u1681x", " ", "\u3000", "\u1680", ""])
RESTS = st.sampled_from(["", " more", "\u00a0", "\u2028x", "\t"])
LINES = st.tuples(USUAL | STARTS, RESTS, st.sampled_from(["", END])).map("".join)
SENTENCES = st.sampled_from(["One.", "Two \u00a0 2!", "\u4e2d", "\u201cThree", "\u2026"])
THOROUGH = settings(deadline=None, derandomize=True, max_examples=400)  # the first one compiles the library


def both(split, paragraphs):
    """Returns what the library finds, after a comparison with what is found without."""
    if compiled.library() is None:
        pytest.skip("there is no C++ compiler")
    found = sentences_lib.taken_apart(split, paragraphs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "library", lambda: None)
        other = sentences_lib.taken_apart(split, paragraphs)
    assert (found is None) == (other is None)
    if found:
        assert found.text == other.text
        assert found.ends.tolist() == other.ends.tolist() and found.counts.tolist() == other.counts.tolist()
    return found


@THOROUGH
@given(lines=st.lists(LINES, max_size=6), missing=st.sampled_from([0, 0, 0, 1]))
def test_with_and_without_the_library(lines, missing):
    split = "\n".join(lines)
    both(split.encode(), max(split.count(END) - missing, 0))


@THOROUGH
@given(sentences=st.lists(st.lists(SENTENCES, min_size=1), max_size=6))
def test_each_paragraph_gets_its_sentences_back(sentences):
    split = sentences_lib.joined(map("\n".join, sentences)).removesuffix("\n").encode()
    found = both(split, len(sentences))
    assert found.counts.tolist() == list(map(len, sentences))
    begins = [0, *found.ends.tolist()]
    parts = [found.text[begin:end].decode() for begin, end in zip(begins, begins[1:])]
    assert parts == ["".join(sentence + "\n" for sentence in own) for own in sentences]


@pytest.mark.parametrize(
    "split",
    [
        f"One.{END}\n Two.{END}",
        f"One.{END}\n\u3000{END}",
        f"One.{END}\n{END}",
        f"One.\n\nTwo{END}\nThree{END}",
        f"One.{END}",
        f"One.{END}\nTwo.{END}\nThree.{END}",
    ],
    ids=["blank first", "nothing but white space", "empty", "empty line", "too few", "too many"],
)
def test_what_cannot_be_told_is_none(split):
    assert both(split.encode(), 2) is None

"""The parts of a text that the sentence splitter need not see: the same ones whoever finds them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official.data import compiled
from official.data.text import sentences

PIECES = st.sampled_from(
    ["a", " ", ".", "!", ", ", "-", "((((((", ",,,,,,,", "\n", "\u00e9", "\u4e2d", "1", "a few words more "]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=120).map("".join)


@given(text=TEXTS)
def test_parts_are_the_same_with_and_without_the_library(text):
    if compiled.library() is None:
        pytest.skip("there is no C++ compiler")
    data = text.replace(sentences.MARK, "").encode("utf-8", "replace")
    kept, bounds = sentences.take_out(data)
    assert sentences.put_back(kept, data, bounds) == data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "library", lambda: None)
        same, same_bounds = sentences.take_out(data)
        assert same == kept and same_bounds.tolist() == bounds.tolist()
        assert sentences.put_back(kept, data, bounds) == data


@pytest.mark.usefixtures("with_and_without_library")
def test_the_middle_of_a_long_stretch_is_taken_out():
    text = b"It ends. " + b"Words that go on and on without any end in between " * 3 + b"here."
    kept, bounds = sentences.take_out(text)
    assert bounds.shape == (2, 1) and np.diff(bounds.ravel()) > 80 and len(kept) < 70
    assert not sentences.take_out(b"Short. Sentences. Only. " * 9)[1].size


@given(lines=st.lists(TEXTS.map(str.strip).filter(lambda line: line and "\n" not in line), max_size=8))
def test_a_file_that_is_not_shown_to_the_splitter_holds_no_paragraphs(lines):
    found = sum(map(len, sentences.split_paragraphs(lines)))
    if sentences.hold_paragraphs(found, len(lines)):
        assert sentences._may_hold_paragraphs([lines])

"""Which sequences share a row."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.packing import layout
from official.data.packing.plan import Histogram, longest_pack_first


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_sequence_is_in_one_row_that_has_room(data):
    length, depth = data.draw(st.integers(4, 40)), data.draw(st.integers(1, 6))
    lengths = np.array(data.draw(st.lists(st.integers(1, length), min_size=1, max_size=80)))
    most = data.draw(st.integers(1, 5))
    predictions = np.array(
        data.draw(st.lists(st.integers(0, most), min_size=len(lengths), max_size=len(lengths)))
    )
    members = layout.group(lengths, predictions, length, most + depth - 1, depth)
    assert sorted(members[members >= 0]) == list(range(len(lengths)))
    is_there = members >= 0
    assert (is_there[:, :-1] >= is_there[:, 1:]).all() and is_there[:, 0].all()  # no gaps, no empty rows
    assert np.where(is_there, lengths[members], 0).sum(axis=1).max() <= length
    assert np.where(is_there, predictions[members], 0).sum(axis=1).max() <= most + depth - 1


def test_rows_are_those_of_the_plan_where_slots_are_no_limit():
    lengths = np.random.default_rng(0).integers(1, 65, 500)
    plan = longest_pack_first(Histogram.of_lengths(lengths, 64), 5)
    members = layout.group(lengths, np.zeros(500, int), 64, 5, 5)
    packs = {tuple(sorted((lengths[row[row >= 0]]).tolist(), reverse=True)) for row in members}
    assert len(members) == plan.rows and packs == set(plan.packs)

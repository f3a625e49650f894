"""The benchmark of attention over packed rows: its arithmetic and its rows; never a time."""

import json
import types

import numpy as np

from official.cli.benchmark import attention


def test_ratios_are_of_rounds():
    clocks = {
        "by row": [(2.0, 4.0), (4.0, 8.0), (1.0, 1.0)],
        "by sequence": [(1.0, 1.0), (3.0, 4.0), (1.0, 2.0)],
    }
    found = attention.ratios(clocks)
    assert found["secs_ratios"] == [0.5, 0.75, 1.0] and found["secs_ratio"] == 0.75
    assert found["cpu_secs_ratios"] == [0.25, 0.5, 2.0] and found["cpu_secs_by_row"] == 4.0
    assert attention.describe({"name": "fp32", **found}).endswith("0.75   0.50 of the processor")


def test_rows_are_those_of_the_plan(tmp_path):
    path = tmp_path / "histogram.json"
    path.write_text(
        json.dumps({"max_sequence_length": 8, "counts_by_length_from_1": [0, 0, 5, 0, 5, 0, 0, 0]})
    )
    flags = types.SimpleNamespace(histogram=str(path), max_sequences_per_pack=3, rows=2)
    for ids in attention.draw_batches(flags, count=3):
        assert ids.shape == (2, 8) and ids.dtype == np.int32
        assert all(sorted(np.bincount(row)[1:]) == [3, 5] for row in ids)

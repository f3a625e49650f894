"""The benchmark of the data: what it reads, and in what it counts."""

import json

import numpy as np
import pytest

import data
from official.data.records import encoding
from tests.fixtures import write_records
from tests.records import short_examples

RECORDS, LENGTH, MOST = 60, 16, 3


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A folder with the records that a creation would have left, all short."""
    monkeypatch.setattr(data, "SHAPES", ((LENGTH, MOST),))
    monkeypatch.setattr(data, "_READ_BATCH", 4)
    monkeypatch.setattr(data, "_READ_EPOCHS", 2)
    for kind in data.FORMATS:
        folder = tmp_path / f"{LENGTH}_{max(data.DUPE_FACTORS)}_{kind}"
        folder.mkdir()
        encoded = encoding.encode(short_examples(RECORDS, length=LENGTH, most=MOST), kind)
        write_records(folder / "part-0.tfrecord", encoded)
        (folder / "manifest.json").write_text(json.dumps({"files": {"part-0.tfrecord": RECORDS}}))
    return str(tmp_path)


@pytest.mark.slow
def test_packed_rows_are_read_and_counted_in_sequences(made, monkeypatch):
    asked, make = [], data.reading_case
    monkeypatch.setattr(data, "reading_case", lambda *given: [asked.append(given[-1]), make(*given)][1])
    cases, counts = data.reading_cases(made)
    assert list(cases) == ["read plain", "read compact", "read packed"] + [
        f"read {kind}, packing" for kind in data.FORMATS
    ]
    for read in cases.values():
        read()
    # Batches of 4 rows: of plain ones a sequence each; all cases read about as many sequences.
    assert counts["read plain"] == counts["read compact"] == 2 * RECORDS
    assert counts["read plain, packing"] == counts["read compact, packing"]
    batches = dict(zip(cases, asked))
    assert batches["read plain"] == 2 * RECORDS / 4
    assert batches["read packed"] < 0.75 * batches["read plain"] > batches["read plain, packing"]
    for name in ("read packed", "read plain, packing"):
        np.testing.assert_allclose(counts[name], 2 * RECORDS, rtol=0.1)

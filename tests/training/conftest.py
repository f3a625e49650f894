"""Fixtures of runs: their steps are shared, their bits may be; records of short sequences, and files of
fine-tuning."""

import numpy as np
import pytest

from official.data.records import encoding, on_the_fly
from official.data.records.formats import packed
from tests.fine_tuning_files import fixture_glue, fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.fixtures import write_records
from tests.records import short_examples, without_masks
from tests.shared_steps import fixture_step_pool, shared_steps  # noqa: F401

FILES, EACH = 4, 24  # of short sequences


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    """Sequences that are packed on the fly are more than are looked at together."""
    monkeypatch.setattr(on_the_fly, "_SEQUENCES", 16)
    monkeypatch.setattr(on_the_fly, "_MIN_BUFFER", 16)


@pytest.fixture
def make_config(make_config):
    """One layer is enough here, and traced in half the time."""
    return lambda model=None, **settings: make_config({"num_hidden_layers": 1, **(model or {})}, **settings)


@pytest.fixture
def short_files(tmp_path):
    """Returns the glob of files of sequences of 5 to 10 tokens in rows of 16."""
    for number in range(FILES):
        records = encoding.encode(short_examples(EACH, number), "compact")
        write_records(tmp_path / f"short-{number}", records)
    return str(tmp_path / "short-*")


@pytest.fixture
def bare_files(tmp_path):
    """Returns the glob of files of the same sequences without masks, with a vocabulary beside them."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(5, 50))]
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    for number in range(FILES):
        records = encoding.encode(without_masks(short_examples(EACH, number)), "compact")
        write_records(folder / f"short-{number}", records)
    return str(folder / "short-*")


@pytest.fixture
def packed_files(tmp_path):
    """Returns the glob of files of the same sequences, of which two share a row where they fit."""
    for number in range(FILES):
        some = short_examples(EACH, number)
        rows, left = [], list(range(EACH))
        while left:
            first = left.pop(0)
            fits = [other for other in left if some.lengths[first] + some.lengths[other] <= 16][:1]
            left = [other for other in left if other not in fits]
            rows.append([first, *fits, -1][:2])
        write_records(tmp_path / f"rows-{number}", packed.encode_rows(some, np.array(rows)))
    return str(tmp_path / "rows-*")

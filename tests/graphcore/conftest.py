"""Fixtures of runs: files of fine-tuning and of packed rows, and configurations whose options of IPUs are
given by name."""

import numpy as np
import pytest
import yaml

from official.data.records.formats import packed
from official.graphcore import rules
from tests.fine_tuning_files import fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.fixtures import ROOT, write_records
from tests.records import short_examples
from tests.shared_steps import fixture_step_pool, shared_steps  # noqa: F401

REFUSED = yaml.safe_load((ROOT / "tests/graphcore/refused.yml").read_text(encoding="utf-8"))


def with_ipu_options(settings: dict) -> dict:
    """Returns settings with the options of IPUs among them in the setting of theirs."""
    options = {name: value for name, value in settings.items() if name in rules.OPTIONS}
    others = {name: value for name, value in settings.items() if name not in options}
    return {**others, "ipu_options": rules.written(options)} if options else others


@pytest.fixture(name="make_config")
def fixture_make_config(make_config):
    return lambda model=None, **settings: make_config(model, **with_ipu_options(settings))


@pytest.fixture(name="packed_files")
def fixture_packed_files(tmp_path):
    """Returns the glob of two files of rows of 16 tokens that hold two sequences each, or one."""
    for number in range(2):
        examples = short_examples(24, number, longest=8)
        rows = [[first, first + 1] for first in range(0, 20, 2)] + [[last, -1] for last in range(20, 24)]
        write_records(tmp_path / f"rows-{number}", packed.encode_rows(examples, np.array(rows)))
    return str(tmp_path / "rows-*")

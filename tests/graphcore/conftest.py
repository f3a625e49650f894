"""Fixtures of runs: files of fine-tuning, and configurations whose options of IPUs are given by name."""

import pytest
import yaml

from official.graphcore import rules
from tests.fine_tuning_files import fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.fixtures import ROOT
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

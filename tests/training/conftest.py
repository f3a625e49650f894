"""Fixtures of runs: their steps are shared, their bits may be, and files of fine-tuning."""

import pytest
from tensorflow.python.framework import config  # has no public way to switch determinism off again

from tests.fine_tuning_files import fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.shared_steps import fixture_step_pool, shared_steps  # noqa: F401


@pytest.fixture(name="deterministic")
def fixture_deterministic():
    """Settings for the same bits every time; the process is as it was afterwards."""
    yield {"deterministic": True}
    config.disable_op_determinism()

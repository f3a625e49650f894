"""Fixtures of runs: their steps are shared, and files of fine-tuning."""

from tests.fine_tuning_files import fixture_glue, fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.shared_steps import fixture_step_pool, shared_steps  # noqa: F401

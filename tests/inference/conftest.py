"""Small files for fine-tuning, shared by the tests of this folder."""

from tests.fine_tuning_files import fixture_glue, fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401

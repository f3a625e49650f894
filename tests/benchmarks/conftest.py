"""Makes benchmarks/ importable, as it is for `python benchmarks/NAME.py`."""

import sys

from tests.fine_tuning_files import fixture_glue, fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.fixtures import ROOT

sys.path.append(str(ROOT / "benchmarks"))

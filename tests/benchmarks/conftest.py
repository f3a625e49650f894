"""Makes benchmarks/ importable, as it is for `python benchmarks/NAME.py`."""

import sys

from tests.conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))

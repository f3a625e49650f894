"""Makes benchmarks/ importable, as it is for `python benchmarks/NAME.py`; files of rows."""

import json
import pathlib
import sys

from tests.fine_tuning_files import fixture_glue, fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.fixtures import ROOT

sys.path.append(str(ROOT / "benchmarks"))


def write_lines(path: pathlib.Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_rows(path: str) -> list[dict]:
    """Returns the objects of a file of JSON lines."""
    with open(path, encoding="utf-8") as file:
        return list(map(json.loads, file))


def write_pairs(folder: pathlib.Path) -> None:
    """Writes 30 rows of each split of STS-B and of MRPC into the folder of the public data."""
    for split in ("train", "dev"):
        rows = [f"{n}\ta {n}\tb {n}\t{n / 10}" for n in range(30)]
        write_lines(folder / f"glue/STS-B/{split}.tsv", ["index\tsentence1\tsentence2\tscore", *rows])
        rows = [f"{n % 2}\t{n}\ta {n}\tb {n}" for n in range(30)]
        write_lines(folder / f"glue/MRPC/{split}.tsv", ["Quality\t#1 ID\t#1 String\t#2 String", *rows])

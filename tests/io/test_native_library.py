"""Libraries that are compiled when they are first used: once, whole, or not at all."""

import ctypes
import errno
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import pytest

from official.io import native_library, writing
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


def refused(recipe: Recipe, message: str, secs: float = 60) -> None:
    with pytest.raises(NotBuilt, match=message):
        native_library.built(recipe, secs)


def test_a_library_is_built_once_and_again_when_its_source_changes(library, tmp_path):
    told = mock.Mock()
    for number, expected in (("1", 1), ("1", 1), ("2", 2)):  # each compiles and links
        path = native_library.built(library(number), 60, before=told)
        assert ctypes.CDLL(path).number() == int(number)
        assert runs(tmp_path) == 2 * told.call_count == 2 * expected
    recipe = library("2")
    others = [recipe._replace(made_for="another"), recipe._replace(link_flags=["-O2"])]
    assert len({native_library.built(each, 60) for each in (recipe, *others)}) == 3
    left = os.listdir(tmp_path / "cache" / "native")
    assert (tmp_path / "cache" / "native").stat().st_mode & 0o777 == 0o700
    assert len([name for name in left if name.endswith(".so")]) == 4 and not [x for x in left if ".tmp" in x]


def test_of_processes_that_start_at_once_one_compiles(library, tmp_path):
    recipe = library("3", secs=0.5)
    code = "import sys; from official.io.native_library import Recipe, built; print(built({}, 60))"
    command = [sys.executable, "-c", code.format(repr(recipe))]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(paths) == 1 and ctypes.CDLL(paths.pop()).number() == 3
    assert runs(tmp_path) == 2


def test_a_damaged_library_is_compiled_anew(library, tmp_path):
    """Loading one that is cut off ends the process."""
    path = pathlib.Path(native_library.built(library("8"), 60))
    damages = (
        lambda: os.truncate(path, path.stat().st_size // 2),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(path.read_bytes()[:-1] + b"x"),
        lambda: pathlib.Path(f"{path}.sha256").unlink(),
        lambda: pathlib.Path(f"{path}.sha256").write_text("another"),
    )
    for number, damage in enumerate(damages, start=2):
        path = pathlib.Path(shutil.copy(path, f"{path}.copy")).replace(path)  # the loaded one stays as it is
        damage()
        assert native_library.built(library("8"), 60) == str(path)
        code = f"import ctypes; print(ctypes.CDLL({str(path)!r}).number())"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"8\n"
        assert runs(tmp_path) == 2 * number


def test_what_somebody_else_may_have_put_there_is_not_loaded(library, monkeypatch):
    path, me = pathlib.Path(native_library.built(library("9"), 60)), os.geteuid()

    path.chmod(0o666)
    refused(library("9"), "others may write to it .mode 666")
    path.chmod(0o600)
    other = path.rename(path.with_name("other.so"))
    path.symlink_to(other)
    refused(library("9"), "symbolic links")
    path.unlink()
    other.rename(path)
    if me:  # all of it is another user's, then; what is root's is good for everybody
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    else:
        os.chown(path, 12345, -1)
    refused(library("9"), f"belongs to another user .number {me or 12345}")


def test_without_a_home_the_cache_is_a_private_folder_of_temporary_files(tmp_path, monkeypatch):
    """And never one named ~ in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("BERT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(pwd, "getpwuid", mock.Mock(side_effect=KeyError("no such user")))
    plants = {
        "nothing": lambda path: None,
        "file": pathlib.Path.touch,
        "open folder": lambda path: (path.mkdir(), path.chmod(0o777)),
        "link": lambda path: path.symlink_to(tmp_path),
    }
    for planted, plant in plants.items():
        parent = tmp_path / planted
        parent.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        expected = parent / f"bert-tf2-{os.geteuid()}"
        plant(expected)
        found = pathlib.Path(writing.folder())
        assert found.parent == parent and (found == expected) == (planted == "nothing"), planted
        assert found.stat().st_mode & 0o777 == 0o700 and not found.is_symlink(), planted
        assert writing.folder() == str(found)
    assert not (tmp_path / "~").exists()
    monkeypatch.setenv("BERT_CACHE_DIR", "~/cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert writing.folder() == str(tmp_path / "cache")


def test_who_waits_too_long_goes_on_without_and_what_a_killed_process_left_is_cleared(library):
    path = pathlib.Path(native_library.built(library("4"), 60))
    path.unlink()
    unfinished = path.with_name(path.name + ".tmp-999999")
    unfinished.mkdir()
    (unfinished / "0.o").write_bytes(b"half an obj")
    with writing.locked(f"{path}.lock", 1):
        refused(library("4"), "another process compiles", 0.2)
    assert ctypes.CDLL(native_library.built(library("4"), 60)).number() == 4
    assert not unfinished.exists()
    none_left = mock.Mock(side_effect=BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    with pytest.raises(NotBuilt, match="Resource temporarily unavailable"):  # of processes: nobody compiles
        native_library.built(library("4")._replace(made_for="another"), 60, before=none_left)


def test_a_compiler_that_fails_or_hangs_leaves_nothing(library, tmp_path):
    for number, secs, timeout, message in (
        ("}", 0.0, 60, "compiler ended with code 1: .*number.cc:1"),
        ("6", 5.0, 0.5, "compiler did not end within"),
    ):
        refused(library(number, secs), message, timeout)
    left = os.listdir(tmp_path / "cache" / "native")
    assert [name for name in left if not name.endswith(".lock")] == []


def test_without_a_compiler_or_a_folder_it_says_so(library, tmp_path, monkeypatch):
    recipe = library("7")
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    refused(recipe, "Not a directory")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused(recipe, "no C.. compiler .CXX=no-such-compiler")
    monkeypatch.delenv("CXX")
    refused(recipe, "no C.. compiler")


def test_which_processors_add_products_of_bytes_in_16_bits():
    known = {"avx2 fma": True, "avx2 avx512f": True, "avx2 avx_vnni": False}
    known |= {"avx2 avx512f avx512_vnni": False, "asimd i8mm": False}
    for instructions, saturates in (*known.items(), ("", False)):
        processor = native_library.Processor("some", 2, tuple(instructions.split()))
        assert native_library.saturates_int8(processor) == saturates, instructions

"""Folders for working files: a killed process leaves none for long."""

import os
import subprocess
import sys

import pytest

from official.io import files, writing
from tests.conftest import ROOT

HOLD = """
import sys
from official.io import writing
with writing.new_folder(sys.argv[1]) as folder:
    open(folder + "/file", "w").close()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _as_new_process():
    writing._remove_left.cache_clear()
    yield
    writing._remove_left.cache_clear()


def start(folder) -> tuple[subprocess.Popen, str]:
    """Starts a process that holds a folder; returns it and the folder."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_what_a_killed_process_left_is_removed_and_a_living_one_keeps_its_own(tmp_path):
    killed, left = start(tmp_path)
    living, kept = start(tmp_path)
    killed.kill()
    killed.wait()
    others = [tmp_path / name for name in ("bert-large", "bert-work-another.host-1234")]
    for other in others:
        other.mkdir()
    (tmp_path / f"bert-work-{files.host()}-link").symlink_to(others[0])
    assert os.listdir(left) == ["file"]
    with writing.new_folder(str(tmp_path)) as own:
        assert not os.path.exists(left) and os.listdir(kept) == ["file"] and os.listdir(own) == []
        writing._remove_left.cache_clear()
        with writing.new_folder(str(tmp_path)) as another:
            assert os.path.isdir(own) and another != own
    assert not os.path.exists(own) and all(other.is_dir() for other in others)
    living.stdin.close()
    living.wait()
    assert not os.path.exists(kept)


def test_one_that_is_taken_for_left_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    made, real = [], writing.tempfile.mkdtemp

    def taken(**arguments):
        made.append(real(**arguments))
        if len(made) == 1:
            writing._remove_unlocked(made[0])
        return made[-1]

    monkeypatch.setattr(writing.tempfile, "mkdtemp", taken)
    with writing.new_folder(str(tmp_path)) as folder:
        assert folder == made[1] and os.path.isdir(folder)


def test_files_for_a_store_are_made_in_such_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("fsspec", reason="pip install '.[storage]'")
    monkeypatch.setattr(writing.tempfile, "tempdir", str(tmp_path))
    with writing.replacing("memory://made/file") as temporary:
        assert os.path.dirname(os.path.dirname(temporary)) == str(tmp_path)
        with open(temporary, "wb") as file:
            file.write(b"x")
    assert os.listdir(tmp_path) == []


def test_a_lock_file_is_opened_as_it_is_and_never_through_a_link(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("precious")
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name in ("link", "dangling"):
        with pytest.raises(OSError, match="symbolic links"):
            writing.open_lock(str(tmp_path / name))
    with writing.open_lock(str(kept)), writing.open_lock(str(tmp_path / "new"), 0o600) as new:
        assert new.name == str(tmp_path / "new")
    assert kept.read_text() == "precious" and not (tmp_path / "none").exists()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600

"""Files of this machine and of a store that TensorFlow reaches: the same operations, the same errors; and
folders for working files, of which a killed process leaves none for long."""

import os
import subprocess
import sys
import tempfile
from unittest import mock

import pytest

from official.io import files, jobs, writing
from official.io.errors import ConfigError
from tests.conftest import ROOT


@pytest.fixture(params=["local", "ram"], name="folder")
def _folder(request, tmp_path):
    folder = str(tmp_path) if request.param == "local" else f"ram://{tmp_path.name}"
    files.store_of(folder).make_folder(f"{folder}/a/b")
    return folder


def test_files_are_written_found_and_taken_away(folder):
    store = files.store_of(folder)
    writing.replace_file(f"{folder}/a/b/x.txt", "one\ntwo")
    writing.replace_file(f"{folder}/a/y.txt", b"three")
    found = files.find_files(f"{folder}/**/*.txt", "input_files")
    assert found == [f"{folder}/a/b/x.txt", f"{folder}/a/y.txt"] == files.find_files(folder, "")
    assert files.sizes(found) == [7, 5] and writing.read_lines(found[0]) == [b"one\n", b"two"]
    assert files.is_file(found[0]) and files.is_folder(f"{folder}/a") and not files.is_file(f"{folder}/a")
    with files.open_binary(found[1]) as file:
        assert file.seek(-2, 2) == 3 and file.read() == b"ee"
    writing.set_aside(found[1])
    assert not store.exists(found[1]) and sorted(store.names_in(f"{folder}/a")) == ["b", "y-1.txt"]
    with pytest.raises(FileNotFoundError):
        files.open_binary(f"{folder}/none")
    with pytest.raises(ConfigError, match="none cannot be read"):
        files.sizes([f"{folder}/none"])
    assert writing.read_lines(f"{folder}/none") == [] and not files.is_file(f"{folder}/none")


def test_the_digest_is_of_names_sizes_and_beginnings(folder):
    digests = []
    for content in (b"a" * 70_000 + b"b", b"a" * 70_000 + b"c", b"b" + b"a" * 70_000):
        writing.replace_file(f"{folder}/a/x", content)
        digests.append(files.digest([f"{folder}/a/x"]))
    assert (digests[0]["files"], digests[0]["bytes"]) == (1, 70_001)
    assert digests[0] == digests[1] != digests[2]


def test_an_error_of_a_library_s_own_kind_is_an_os_error_that_names_the_file():
    class Unreachable(OSError):  # as aiohttp's: with other arguments than OSError
        def __init__(self, one, other):
            super().__init__(f"{one} {other}")

    with pytest.raises(OSError, match="no way") as found, files._os_errors("gs://a/b"):
        raise Unreachable("no", "way")
    assert found.value.filename == "gs://a/b"
    with pytest.raises(PermissionError), files._os_errors("s3://a/b"):
        raise PermissionError("Forbidden")


def test_what_a_finished_job_has_left_of_its_work_folder_is_removed(tmp_path):
    with jobs.unfinished_folder(str(tmp_path), {"a": 1}, False) as folder:
        jobs.remove_left(str(tmp_path))
        assert files.is_folder(folder)  # somebody is at work there
    assert not any(tmp_path.iterdir())
    (tmp_path / ".unfinished" / "level-0").mkdir(parents=True)
    (tmp_path / ".unfinished" / "lock").touch()
    jobs.remove_left(str(tmp_path))
    assert not any(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------------
# Folders for a while, and locks

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
    taken, kept = tempfile.mkdtemp(dir=tmp_path), tempfile.mkdtemp(dir=tmp_path)
    os.rmdir(taken)
    monkeypatch.setattr(tempfile, "mkdtemp", mock.Mock(side_effect=[taken, kept]))
    with writing.new_folder(str(tmp_path)) as folder:
        assert folder == kept and os.path.isdir(folder)


def test_a_lock_file_is_opened_as_it_is_and_never_through_a_link(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("precious")
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name in ("link", "dangling"):
        with pytest.raises(OSError, match="symbolic links"), writing.locked(str(tmp_path / name)):
            pass
    with writing.locked(str(kept)), writing.locked(str(tmp_path / "new"), mode=0o600) as new:
        assert new.name == str(tmp_path / "new")
    assert kept.read_text() == "precious" and not (tmp_path / "none").exists()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600

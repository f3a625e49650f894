"""Files of this machine and of a store that TensorFlow reaches: the same operations, the same errors."""

import pathlib
import subprocess
import sys

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


def test_what_is_not_there_is_an_os_error(folder):
    with pytest.raises(FileNotFoundError):
        files.open_binary(f"{folder}/none")
    with pytest.raises(ConfigError, match="none cannot be read"):
        files.sizes([f"{folder}/none"])
    assert writing.read_lines(f"{folder}/none") == [] and not files.is_file(f"{folder}/none")


def test_the_digest_is_of_names_sizes_and_beginnings(folder):
    path = f"{folder}/a/x"
    writing.replace_file(path, b"a" * 70_000 + b"b")
    first = files.digest([path])
    assert (first["files"], first["bytes"]) == (1, 70_001)
    writing.replace_file(path, b"a" * 70_000 + b"c")
    assert files.digest([path]) == first
    writing.replace_file(path, b"b" + b"a" * 70_000)
    assert files.digest([path]) != first


def test_no_module_of_the_ground_floor_loads_tensorflow():
    modules = [f"official.io.{path.stem}" for path in pathlib.Path(files.__file__).parent.glob("[a-z]*.py")]
    code = f"import sys, {', '.join(modules)}; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


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
    with jobs.folder_of(str(tmp_path), {"a": 1}, False) as folder:
        jobs.remove_left(str(tmp_path))
        assert files.store_of(folder).is_folder(folder)  # somebody is at work there
    assert not any(tmp_path.iterdir())
    (tmp_path / ".unfinished" / "level-0").mkdir(parents=True)
    (tmp_path / ".unfinished" / "lock").touch()
    jobs.remove_left(str(tmp_path))
    assert not any(tmp_path.iterdir())

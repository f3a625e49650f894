"""Replacing what was there: complete and checked first, then all at once or not at all."""

import os
import pathlib
import signal
from unittest import mock

import pytest

from official.checkpoint import convert as convert_lib
from official.checkpoint import registry
from official.checkpoint.containers import hf_folder, onnx_file
from official.checkpoint.convert import convert
from official.checkpoint.formats import Options
from official.io import files as files_lib
from official.io import signals, writing
from official.io.errors import ConfigError
from tests.checkpoint.test_convert import OPTIONS, random_checkpoint, write
from tests.checkpoint.test_format_huggingface import shard

TARGETS = ("google", "huggingface", "popart", "garden")


def contents(folder) -> dict[str, bytes]:
    paths = (path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def files(folder, texts: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)


@pytest.fixture
def replaced(tmp_path):
    """Returns (source of another checkpoint, folder with a result, its contents) for a target format."""

    def make(target: str):
        first = write(random_checkpoint(), "keras", tmp_path / "a")
        (tmp_path / "a" / "vocab.txt").write_text("\n".join(map(str, range(40))) + "\n")
        convert(first, target, str(tmp_path / "out"), options=Options(**{**vars(OPTIONS), "vocab_size": 40}))
        second = write(random_checkpoint(seed=2), "keras", tmp_path / "b")
        return second, tmp_path / "out", contents(tmp_path / "out")

    return make


@pytest.mark.parametrize("target", TARGETS)
def test_an_old_result_stays_until_the_new_one_is_read_back_and_goes_as_a_whole(
    target, replaced, monkeypatch
):
    second, folder, before = replaced(target)
    assert any("vocab_rows" in name for name in before)
    container = registry.get_format(target).load_container()
    read = container.read
    for failure in (KeyboardInterrupt, OSError, convert_lib.MismatchError):

        def fail(location, failure=failure):
            if not location.startswith(str(folder)):
                return read(location)
            assert contents(folder) != before  # it has been written
            raise failure("read back")

        with monkeypatch.context() as patch, pytest.raises((failure, ConfigError)):
            patch.setattr(container, "read", fail)
            convert(second, target, str(folder), options=OPTIONS, overwrite=True)
        assert contents(folder) == before
    convert(second, target, str(folder), options=OPTIONS, overwrite=True)
    after = contents(folder)
    assert not any("vocab_rows" in name or name.startswith(".") for name in after)
    endings = (".data-00000-of-00001", "model.safetensors", ".onnx")
    (weights,) = (name for name in after if name.endswith(endings))
    assert after[weights] != before[weights]


def test_the_tokenizer_of_an_older_model_goes(tmp_path):
    """It would be read before the new vocabulary. Where the result brings none, what is there stays."""
    start = write(random_checkpoint(), "google", tmp_path / "a")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "tokenizer.json").write_text("{}")
    convert(start, "huggingface", str(tmp_path / "hf"), options=OPTIONS, overwrite=True)
    assert "tokenizer.json" in contents(tmp_path / "hf")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(55))]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    with_words = Options(**{**vars(OPTIONS), "vocab_file": str(tmp_path / "vocab.txt")})
    convert(start, "huggingface", str(tmp_path / "hf"), options=with_words, overwrite=True)
    after = set(contents(tmp_path / "hf"))
    assert {"vocab.txt", "tokenizer_config.json"} <= after and "tokenizer.json" not in after


def test_a_result_whose_outputs_differ_is_not_published(replaced):
    second, folder, before = replaced("google")
    seen = []

    def differs(source, target, options):
        seen.append((target["format"], os.path.exists(target["path"] + ".index")))
        return {"passed": False}

    report = convert(second, "google", str(folder), options=OPTIONS, overwrite=True, verify=differs)
    assert seen == [("google", True)] and not report["published"] and contents(folder) == before


def test_older_parts_and_second_files_go(tmp_path, monkeypatch):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    convert(start, "huggingface", str(tmp_path / "hf"), options=OPTIONS)
    shard(tmp_path / "hf")
    convert(start, "huggingface", str(tmp_path / "hf"), options=OPTIONS, overwrite=True)
    assert {name for name in contents(tmp_path / "hf") if name.startswith("model")} == {hf_folder.WEIGHTS}
    with monkeypatch.context() as patch:
        patch.setattr(onnx_file, "_MAX_BYTES", 1000)
        path = convert(start, "popart", str(tmp_path / "onnx"), options=OPTIONS)["target"]["path"]
        assert len(onnx_file.files(path)) == 2
    convert(start, "popart", str(tmp_path / "onnx"), options=OPTIONS, overwrite=True)
    assert onnx_file.files(path) == [path]


OLD, NEW = dict.fromkeys(("x.index", "x.data", "x.rows"), "old"), dict.fromkeys(("x.index", "x.data"), "new")


def publish(folder: pathlib.Path) -> None:
    """Replaces OLD by NEW."""
    with writing.unpublished(str(folder)) as work:
        files(pathlib.Path(work), NEW)
        writing.publish_all(work, str(folder), ".index", [str(folder / "x.rows")])


def shown(folder: pathlib.Path) -> dict[str, str]:
    return {name: content.decode() for name, content in contents(folder).items() if name[0] != "."}


def test_moves_that_fail_are_taken_back(tmp_path, monkeypatch):
    for moves_before in range(5):
        folder = tmp_path / str(moves_before)
        files(folder, {**OLD, "other": "kept"})
        outcomes = [mock.DEFAULT] * moves_before + [OSError("no more")] + [mock.DEFAULT] * 9
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no more"):
            patch.setattr(os, "replace", mock.Mock(wraps=os.replace, side_effect=outcomes))
            publish(folder)
        assert shown(folder) == {**OLD, "other": "kept"}


def test_what_a_killed_process_has_taken_away_comes_back(tmp_path, monkeypatch):
    """The moves end after some of them, as `kill -9` ends them, and the number of the process is one that is
    free."""
    real = writing._move_all

    class Killed(BaseException):
        pass

    for moves_before in range(6):
        folder = tmp_path / str(moves_before)
        files(folder, OLD)

        def move(moves, number=moves_before):
            real(moves[:number])
            raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(files_lib.Store, "remove_folder", lambda self, path: None)
            patch.setattr(writing, "_move_all", move)
            patch.setattr(os, "getpid", lambda: 2**30)
            publish(folder)
        with writing.unpublished(str(folder)):
            pass
        assert contents(folder).keys() == shown(folder).keys()
        assert shown(folder) == (NEW if moves_before == 5 else OLD)


def test_a_signal_waits_for_the_end_of_the_moves(tmp_path, monkeypatch):
    real = writing._move_all
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / str(int(number))
        files(folder, OLD)

        def move(moves, number=number):
            signal.raise_signal(number)
            real(moves)

        monkeypatch.setattr(writing, "_move_all", move)
        with signals.watching(), pytest.raises(signals.Interrupted) as error, signals.raising():
            publish(folder)
        assert error.value.signal == number and shown(folder) == NEW

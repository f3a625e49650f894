"""The evaluation set: which examples are picked, that they are copied as they are, and what goes wrong in one
line.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from official.cli import records as make_eval_set
from official.data.records import encoding, record_formats
from official.data.records import schema as schema_lib
from official.io.errors import ConfigError
from tests.conftest import ROOT, write_records
from tests.data.records.test_records import make_examples


@pytest.fixture
def files(tmp_path):
    """Returns the glob of three files of 7, 0 and 30 records, which are bytes of any kind."""
    for name, numbers in (("b", range(7, 37)), ("a", range(7)), ("aa", ())):
        write_records(
            tmp_path / f"{name}.tfrecord",
            [b"record %d \xff\x00" % number * (number % 3) for number in numbers],
        )
    return str(tmp_path / "*.tfrecord")


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["make_eval_set.py", *map(str, arguments)])
    make_eval_set.run_eval_set()


def records_of(*paths):
    return list(tf.data.TFRecordDataset(list(map(str, paths))).as_numpy_iterator())


@pytest.mark.parametrize("num_samples", [1, 10, 37])
def test_picked_records_are_copied_byte_for_byte(files, tmp_path, monkeypatch, capsys, num_samples):
    output = tmp_path / "new" / "eval.out"
    run(monkeypatch, f"--input_files={files}", f"--output_file={output}", f"--num_samples={num_samples}")
    everything = records_of(*(tmp_path / f"{name}.tfrecord" for name in ("a", "aa", "b")))
    expected = [everything[int(i * 37 / num_samples)] for i in range(num_samples)]
    assert records_of(output) == expected
    assert output.read_bytes() == pathlib.Path(write_records(tmp_path / "expected", expected)).read_bytes()
    assert [path.name for path in output.parent.iterdir()] == ["eval.out"]
    assert capsys.readouterr().out == f"{output}: {num_samples} of the 37 examples of 3 files.\n"


def test_examples_are_picked_out_of_the_blocks_of_compact_records(tmp_path, monkeypatch):
    features = schema_lib.pretraining_schema(24, 4)
    made = {name: make_examples(count, seed=count) for name, count in (("a", 300), ("b", 150))}
    for name, examples in made.items():
        write_records(tmp_path / f"{name}.tfrecord", encoding.encode(examples, "compact"))
    run(
        monkeypatch,
        f"--input_files={tmp_path}/*.tfrecord",
        f"--output_file={tmp_path}/out",
        "--num_samples=200",
    )
    found = record_formats.parse_records(records_of(tmp_path / "out"), features, "compact")
    everything = {name: [*made["a"].features()[name], *made["b"].features()[name]] for name in features}
    for name in features:
        assert found[name].numpy().tolist() == [
            everything[name][int(i * 450 / 200)].tolist() for i in range(200)
        ]
    assert len(records_of(tmp_path / "out")) == 2
    write_records(tmp_path / "c.tfrecord", [*encoding.encode(make_examples(3), "compact"), b"foreign"])
    with pytest.raises(
        ConfigError, match="--input_files: .*c.tfrecord, record 2: it is not a compact record"
    ):
        run(
            monkeypatch,
            f"--input_files={tmp_path}/*.tfrecord",
            f"--output_file={tmp_path}/out2",
            "--num_samples=200",
        )


def test_fewer_examples_than_asked_for_name_both(files, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"holds 37 examples, fewer than --num_samples=10,000\."):
        run(monkeypatch, f"--input_files={files}", f"--output_file={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_named_and_nothing_is_written(files, tmp_path, monkeypatch):
    cut, whole = 5, 29
    damaged = tmp_path / "b.tfrecord"
    data = damaged.read_bytes()
    damaged.write_bytes(data[: len(data) - cut])
    with pytest.raises(
        ConfigError, match=re.escape(f"{damaged} is truncated or damaged after record {whole}:")
    ):
        run(monkeypatch, f"--input_files={files}", f"--output_file={tmp_path / 'out'}", "--num_samples=3")
    assert not list(tmp_path.glob("out*"))


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path):
    output = tmp_path / "out"
    output.write_bytes(b"old")

    def records():
        yield b"one"
        raise ConfigError("damaged")

    with pytest.raises(ConfigError, match="damaged"):
        make_eval_set.write_records(str(output), records())
    assert output.read_bytes() == b"old" and os.listdir(tmp_path) == ["out"]


def test_files_are_not_overwritten_unasked(files, tmp_path, monkeypatch):
    output = tmp_path / "out"
    output.write_bytes(b"old")
    arguments = [f"--input_files={files}", f"--output_file={output}", "--num_samples=2"]
    with pytest.raises(
        ConfigError, match="exists. Give another --output_file, or replace it with --overwrite"
    ):
        run(monkeypatch, *arguments)
    assert output.read_bytes() == b"old"
    run(monkeypatch, *arguments, "--overwrite")
    assert len(records_of(output)) == 2


def test_the_output_is_not_one_of_the_inputs(files, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="is one of --input_files"):
        run(
            monkeypatch,
            f"--input_files={files}",
            f"--output_file={tmp_path / 'a.tfrecord'}",
            "--num_samples=2",
            "--overwrite",
        )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--num_samples=0"], "--num_samples=0 is out of range. Allowed: 1 or more"),
        (["--num_samples=x"], "is not a whole number of 64 bits"),
        (["--samples=3"], "unknown flag --samples"),
        (["--input_files=/nowhere/*"], "matches no file"),
    ],
)
def test_bad_flags(files, tmp_path, monkeypatch, flags, message):
    with pytest.raises(ConfigError, match=message):
        run(monkeypatch, f"--input_files={files}", f"--output_file={tmp_path / 'out'}", *flags)


def test_the_command_ends_in_one_line(tmp_path):
    flags = [f"--input_files={tmp_path}/*", f"--output_file={tmp_path}/out"]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_eval_set.py", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"make_eval_set.py: --input_files={tmp_path}/* matches no file."

"""The evaluation set: which examples are picked, that they are copied as they are, and what goes wrong in one
line.
"""

import pathlib
import re

import pytest

from official.cli import records as make_eval_set
from official.data.records import encoding, record_formats
from official.data.records import schema as schema_lib
from official.io.errors import ConfigError
from tests.fixtures import write_records
from tests.records import make_examples, read_records


@pytest.fixture
def files(tmp_path):
    """Returns the glob of three files of 7, 0 and 30 records, which are bytes of any kind."""
    for name, numbers in (("b", range(7, 37)), ("a", range(7)), ("aa", ())):
        write_records(
            tmp_path / f"{name}.tfrecord",
            [b"record %d \xff\x00" % number * (number % 3) for number in numbers],
        )
    return str(tmp_path / "*.tfrecord")


@pytest.fixture
def run(run_program):
    return lambda *arguments: run_program(make_eval_set.run_eval_set, *arguments).out


def test_picked_records_are_copied_byte_for_byte(files, tmp_path, run):
    everything = read_records(*(tmp_path / f"{name}.tfrecord" for name in ("a", "aa", "b")))
    for count in (1, 10, 37):
        output = tmp_path / str(count) / "eval.out"
        told = run(f"--input_files={files}", f"--output_file={output}", f"--num_samples={count}")
        expected = [everything[int(i * 37 / count)] for i in range(count)]
        assert read_records(output) == expected
        written = write_records(tmp_path / "expected", expected)
        assert output.read_bytes() == pathlib.Path(written).read_bytes()
        assert [path.name for path in output.parent.iterdir()] == ["eval.out"]
        assert told == f"{output}: {count} of the 37 examples of 3 files.\n"


def test_examples_are_picked_out_of_the_blocks_of_compact_records(tmp_path, run):
    features = schema_lib.pretraining_schema(24, 4)
    made = {name: make_examples(count, seed=count) for name, count in (("a", 300), ("b", 150))}
    for name, examples in made.items():
        write_records(tmp_path / f"{name}.tfrecord", encoding.encode(examples, "compact"))
    flags = [f"--input_files={tmp_path}/*.tfrecord", "--num_samples=200"]
    run(*flags, f"--output_file={tmp_path}/out")
    found = record_formats.parse_records(read_records(tmp_path / "out"), features, "compact")
    everything = {name: [*made["a"].features()[name], *made["b"].features()[name]] for name in features}
    for name in features:
        expected = [everything[name][int(i * 450 / 200)].tolist() for i in range(200)]
        assert found[name].numpy().tolist() == expected
    assert len(read_records(tmp_path / "out")) == 2
    write_records(tmp_path / "c.tfrecord", [*encoding.encode(make_examples(3), "compact"), b"foreign"])
    message = "--input_files: .*c.tfrecord, record 2: it is not a compact record"
    with pytest.raises(ConfigError, match=message):
        run(*flags, f"--output_file={tmp_path}/out2")


def test_a_damaged_file_is_named_and_leaves_the_old_output(files, tmp_path, run):
    output = tmp_path / "out"
    output.write_bytes(b"old")
    damaged = tmp_path / "b.tfrecord"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    message = re.escape(f"{damaged} is truncated or damaged after record 29:")
    flags = [f"--input_files={files}", f"--output_file={output}", "--num_samples=3", "--overwrite"]
    with pytest.raises(ConfigError, match=message):
        run(*flags)
    assert output.read_bytes() == b"old" and list(tmp_path.glob("out*")) == [output]


def test_files_are_not_overwritten_unasked(files, tmp_path, run):
    output = tmp_path / "out"
    output.write_bytes(b"old")
    arguments = [f"--input_files={files}", f"--output_file={output}", "--num_samples=2"]
    message = "exists. Give another --output_file, or replace it with --overwrite"
    with pytest.raises(ConfigError, match=message):
        run(*arguments)
    assert output.read_bytes() == b"old"
    run(*arguments, "--overwrite")
    assert len(read_records(output)) == 2
    with pytest.raises(ConfigError, match="holds 37 examples, fewer than --num_samples=10,000"):
        run(*arguments, "--overwrite", "--num_samples=10000")

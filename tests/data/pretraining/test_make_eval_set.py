"""The evaluation set: which examples are picked, that they are copied as they are, and what goes wrong in one
line.
"""

import pathlib

import pytest

from official.cli import records as make_eval_set
from official.data.records import encoding, record_formats
from official.data.records import schema as schema_lib
from official.io.errors import ConfigError
from tests.fixtures import write_records
from tests.records import make_examples, read_records
from tests.refusals import assert_refused


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


def test_an_old_output_is_replaced_when_asked_for_and_by_a_whole_one(files, tmp_path, run):
    output, damaged = tmp_path / "out", tmp_path / "b.tfrecord"
    output.write_bytes(b"old")
    arguments = f"--input_files={files}", f"--output_file={output}", "--num_samples=2"
    cases = (
        (*arguments, "exists. Give another --output_file, or replace it with --overwrite"),
        (*arguments, "--overwrite", "--num_samples=10000", "37 examples, fewer than --num_samples=10,000"),
    )
    assert_refused(run, cases)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-5])
    assert_refused(run, [(*arguments, "--overwrite", f"{damaged} is truncated or damaged after record 29:")])
    assert output.read_bytes() == b"old" and list(tmp_path.glob("out*")) == [output]
    damaged.write_bytes(whole)
    run(*arguments, "--overwrite")
    assert len(read_records(output)) == 2

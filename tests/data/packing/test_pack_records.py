"""Packing of records: every sequence once, the same files however it is done, what is refused."""

import collections
import glob
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from official.cli import records as command
from official.data.packing import creation
from official.data.packing.creation import Dealer
from official.data.packing.plan import PackingPlan, plan_of
from official.data.pretraining import inspection
from official.data.pretraining.examples import Examples
from official.data.records import encoding, record_formats
from official.io.errors import ConfigError
from tests.data.records.test_records import LENGTH, MOST, make_examples
from tests.data.text.test_documents import write
from tests.fixtures import slow, write_records
from tests.records import encode

FILES, SEQUENCES = 3, 150


def make_input(folder, kind: str) -> str:
    """Writes files of examples, of which two are the same one, and returns the folder."""
    os.makedirs(folder, exist_ok=True)
    for number in range(FILES):
        examples = make_examples(SEQUENCES, seed=number % 2, shortest=6)
        write_records(f"{folder}/{number}.tfrecord", encode(examples, kind))
    return str(folder)


def sequences(folder: str) -> collections.Counter:
    """Counts the examples in a folder, whatever their format."""
    found: collections.Counter = collections.Counter()
    for path in sorted(glob.glob(f"{folder}/*.tfrecord")):
        kind, features = inspection.describe_first(path, None)
        for _, values in inspection.read_checked(path, kind, features):
            rows = [values[name].astype(np.int64) for name in sorted(values)]
            found.update(row.tobytes() for row in np.concatenate(rows, axis=1))
    return found


@pytest.fixture
def plain(tmp_path) -> str:
    return make_input(tmp_path / "plain", "plain")


@pytest.mark.parametrize("kind", [slow("plain"), "compact", slow("packed")])
def test_every_sequence_is_in_exactly_one_row(tmp_path, kind):
    source, output = make_input(tmp_path / "records", kind), str(tmp_path / "out")
    manifest = creation.pack_records(creation.Job(source, output, num_shards=3))
    assert sequences(output) == sequences(source)
    summary = inspection.summarize(sorted(glob.glob(f"{output}/*.tfrecord")), None)
    assert (summary.records, summary.rows) == (manifest["sequences"], manifest["packs"])
    assert summary.records == FILES * SEQUENCES and manifest["speedup"] > 1.2
    assert summary.tokens / (summary.rows * LENGTH) == pytest.approx(manifest["efficiency"])
    assert summary.lengths.tolist() == manifest["plan"]["lengths"]


def test_what_manifests_of_several_folders_say_is_kept_or_refused(tmp_path):
    def say(name, **flags):
        write(tmp_path / name / "manifest.json", json.dumps({"flags": flags}))

    job = creation.Job(f"{tmp_path}/a,{tmp_path}/b", str(tmp_path / "out"), num_shards=1)
    say("a", do_lower_case=True, objective="mlm_nsp")
    say("b", do_lower_case=False)
    for number, name in enumerate("ab"):
        write_records(tmp_path / name / "x.tfrecord", encode(make_examples(20, seed=number), "plain"))
    told = "b/x.tfrecord was made with do_lower_case=false, .*a/x.tfrecord says"
    with pytest.raises(ConfigError, match=told):
        creation.pack_records(job)
    say("b", objective="mlm")
    flags = creation.pack_records(job)["flags"]
    assert (flags["do_lower_case"], flags["objective"]) == (True, "mlm")


def test_a_damaged_block_is_named(tmp_path, plain, monkeypatch):
    write = creation.write_file
    for damage, problem in (
        (lambda file: file.truncate(5000), "it is cut off"),
        (lambda file: file.write(b"other"), "its first bytes are those of another"),
    ):

        def damaging(path, *arguments, damage=damage):
            write(path, *arguments)
            with open(path, "r+b") as file:
                damage(file)

        monkeypatch.setattr(creation, "write_file", damaging)
        with pytest.raises(ConfigError, match=rf"000000-00000\.sequences of .*{problem}.*--overwrite"):
            creation.pack_records(creation.Job(plain, str(tmp_path / problem)))


def test_split_rows_are_written_and_counted(tmp_path):
    """Six tokens with four predicted ones each: three fit into 24 tokens, not into 4 + 3 - 1 slots."""
    ids = np.where(np.arange(LENGTH) < 6, np.arange(1, 31)[:, None], 0)
    positions = np.tile(np.arange(1, 5), (30, 1))
    count = np.full(30, 4)
    examples = Examples(ids, count + 2, count - 1, positions, positions, count, count > 4)
    write_records(tmp_path / "a.tfrecord", encoding.encode(examples, "plain"))
    made = creation.pack_records(creation.Job(str(tmp_path / "a.tfrecord"), str(tmp_path / "out"), "lpfhp"))
    assert (made["plan"]["packs"], made["packs"], made["split_packs"], made["sequences"]) == (10, 30, 20, 30)
    assert made["speedup"] == 1 and made["plan"]["speedup"] == 3
    assert sum(sequences(str(tmp_path / "out")).values()) == 30


def test_the_plan_of_shards_takes_no_more_memory_for_more_shards_and_rows():
    """Only the kinds of rows count."""
    plan = plan_of(np.random.default_rng(0).integers(1, 33, 500), 32, 4)
    copies = PackingPlan(32, {kind: count * 10**9 for kind, count in plan.packs.items()})
    dealer = Dealer(copies, 10**6, seed=3)
    found, places = dealer.places(32, np.arange(1000))
    assert found.min() >= 0 and 5 * 10**5 < found.max() < 10**6
    runs = dealer._places_of(32)
    assert len(runs.shards) <= 2 * len(plan.packs) + 1
    assert places.max() < runs.counts.max() and runs.ends[-1] == copies.histogram().counts[32]


def test_records_of_another_length_and_more_shards_than_rows_are_refused(tmp_path, plain):
    with pytest.raises(ConfigError, match="--num_shards=1000000 is more than the"):
        creation.pack_records(creation.Job(plain, str(tmp_path / "out"), num_shards=10**6))
    bad = make_examples(3, length=16, shortest=6)
    write_records(f"{plain}/9.tfrecord", encoding.encode(bad, "plain"))
    with pytest.raises(ConfigError, match=r"9\.tfrecord, record 1: it is plain, 16 tokens"):
        creation.pack_records(creation.Job(plain, str(tmp_path / "other")))


@pytest.mark.parametrize("count, shortest", [(SEQUENCES + 50, 9), (SEQUENCES, 6)])
def test_more_records_or_other_lengths_than_were_counted_are_refused(tmp_path, monkeypatch, count, shortest):
    """A sequence without a place would be looked for one for ever."""
    path, spill, permuted = f"{tmp_path}/0.tfrecord", creation.spill_part, creation.permuted

    def changed_before(*task):
        write_records(path, encode(make_examples(count, shortest=shortest), "plain"))
        spill(*task)

    def with_places(numbers, size, key):
        assert (numbers < size).all()
        return permuted(numbers, size, key)

    write_records(path, encode(make_examples(SEQUENCES), "plain"))
    monkeypatch.setattr(creation, "spill_part", changed_before)
    monkeypatch.setattr(creation, "permuted", with_places)
    with pytest.raises(ConfigError, match=r"0\.tfrecord was changed while it was read.*--overwrite"):
        creation.pack_records(creation.Job(path, str(tmp_path / "out"), num_workers=1))


# ------------------------------------------------------------------------------------------------------------
# The command


def test_the_command_packs_reports_and_draws_or_only_plans(tmp_path, plain, run_program):
    report, picture = tmp_path / "r.json", tmp_path / "p.png"
    flags = f"--input_files={plain} --output_dir={tmp_path}/out --algorithm=spfhp --max_sequences_per_pack=2"
    made = run_program(command.run_pack, *flags.split(), f"--report={report}", f"--picture={picture}")
    numbers = json.loads(report.read_text())
    assert numbers["sequences"] == FILES * SEQUENCES and numbers["algorithm"] == "spfhp"
    assert numbers["speedup"] == pytest.approx(numbers["sequences"] / numbers["packs"])
    assert f"hold {FILES * SEQUENCES} sequences" in made.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    record = next(tf.data.TFRecordDataset(glob.glob(f"{tmp_path}/out/*.tfrecord")[0]).as_numpy_iterator())
    assert record_formats.READERS["packed"].row_sizes(record) == (MOST + 1, 2)
    lengths = '{"max_sequence_length": 4, "counts_by_length_from_1": [0, 3, 2, 1]}'
    path = write(tmp_path / "h.json", lengths)
    run_program(command.run_pack, f"--histogram={path}", f"--report={tmp_path}/plan.json")
    numbers = json.loads((tmp_path / "plan.json").read_text())
    assert (numbers["packs"], numbers["sequences"], numbers["algorithm"]) == (5, 6, "lpfhp")
    assert numbers["efficiency"] == pytest.approx(16 / 20)

"""Packing of records: every sequence once, the same files however it is done, what is refused."""

import collections
import glob
import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from official.cli import records as command
from official.data import compaction
from official.data.packing import creation, rounds
from official.data.packing.plan import Histogram, PackingPlan, longest_pack_first
from official.data.packing.rounds import Dealer
from official.data.pretraining import inspection
from official.data.pretraining.examples import Examples
from official.data.records import encoding
from official.io import files
from official.io.errors import ConfigError
from tests.conftest import write_records
from tests.data.records.test_packed import row_of
from tests.data.records.test_records import LENGTH, MOST, make_examples
from tests.records import encode

FILES, SEQUENCES = 3, 150


def make_input(folder, kind: str) -> str:
    """Writes files of examples, of which two are the same one, and returns the folder."""
    os.makedirs(folder, exist_ok=True)
    for number in range(FILES):
        examples = make_examples(SEQUENCES, seed=number % 2, shortest=6, most=MOST)
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


def contents(folder: str) -> dict[str, bytes]:
    found = {}
    for path in glob.glob(f"{folder}/*.tfrecord"):
        with open(path, "rb") as file:
            found[os.path.basename(path)] = file.read()
    return found


@pytest.fixture
def plain(tmp_path) -> str:
    return make_input(tmp_path / "plain", "plain")


@pytest.mark.parametrize("kind", ["plain", "compact", "packed"])
def test_every_sequence_is_in_exactly_one_row(tmp_path, kind):
    source, output = make_input(tmp_path / "records", kind), str(tmp_path / "out")
    manifest = creation.pack_records(creation.Job(source, output, num_shards=3))
    assert sequences(output) == sequences(source)
    summary = inspection.summarize(sorted(glob.glob(f"{output}/*.tfrecord")), None)
    assert (summary.records, summary.rows) == (manifest["sequences"], manifest["packs"])
    assert summary.records == FILES * SEQUENCES and manifest["speedup"] > 1.2
    assert summary.tokens / (summary.rows * LENGTH) == pytest.approx(manifest["efficiency"])
    assert summary.lengths.tolist() == manifest["plan"]["lengths"]


def test_files_do_not_depend_on_blocks_or_processes(tmp_path, plain, monkeypatch):
    creation.pack_records(creation.Job(plain, str(tmp_path / "a"), num_workers=1))
    creation.pack_records(creation.Job(plain, str(tmp_path / "b"), num_workers=2))
    monkeypatch.setattr(rounds, "_BLOCK_SEQUENCES", 1)
    monkeypatch.setattr(rounds, "_ENCODED_ROWS", 7)
    monkeypatch.setattr(rounds, "_MIN_PART_BYTES", 1)
    creation.pack_records(creation.Job(plain, str(tmp_path / "c"), num_workers=1))
    first = contents(str(tmp_path / "a"))
    assert len(first) == 8 and contents(str(tmp_path / "b")) == contents(str(tmp_path / "c")) == first
    creation.pack_records(creation.Job(plain, str(tmp_path / "d"), random_seed=1))
    assert contents(str(tmp_path / "d")) != first


@pytest.mark.parametrize("bits, num_shards, levels", [(8, 40, 1), (2, 40, 2), (1, 5, 4), (2, 3, 0)])
def test_regrouping_changes_no_byte_and_opens_few_files(
    tmp_path, plain, monkeypatch, bits, num_shards, levels
):
    creation.pack_records(creation.Job(plain, str(tmp_path / "whole"), num_shards=num_shards))
    monkeypatch.setattr(rounds, "_BLOCK_SEQUENCES", 32)
    monkeypatch.setattr(inspection.record_files, "_CHECKED_ROWS", 32)
    monkeypatch.setattr(rounds, "_MIN_PART_BYTES", 1)
    monkeypatch.setattr(compaction, "BITS", bits)
    monkeypatch.setattr(compaction, "_MIN_READ_BYTES", 10**6 if levels else 1)
    merges, opened = [], collections.Counter()
    merge, reading = rounds.merge, files.reading_parts

    def watched(path):
        opened[path] += 1
        return reading(path)

    monkeypatch.setattr(rounds, "merge", lambda *task: merges.append(task[0]) or merge(*task))
    monkeypatch.setattr(files, "reading_parts", watched)
    creation.pack_records(creation.Job(plain, str(tmp_path / "out"), num_shards=num_shards, num_workers=1))
    assert contents(str(tmp_path / "out")) == contents(str(tmp_path / "whole"))
    assert max((target.level for target in merges), default=0) == levels
    fan_in, blocks = 1 << bits, FILES * -(-SEQUENCES // 32)
    of_levels = collections.Counter(os.path.basename(os.path.dirname(path)) for path in opened)
    assert of_levels["level-0"] == blocks
    # Below the last level a file is opened once for each range above it; there, a shard opens one file.
    for path, times in opened.items():
        level = int(os.path.basename(os.path.dirname(path)).removeprefix("level-"))
        assert times == fan_in if level < levels else times <= num_shards
    of_shards = sum(times for path, times in opened.items() if f"level-{levels}" in path)
    assert of_shards == num_shards * (1 if levels else blocks)


def test_a_damaged_block_is_named(tmp_path, plain, monkeypatch):
    write = rounds.write_file
    for damage, problem in (
        (lambda file: file.truncate(5000), "it is cut off"),
        (lambda file: file.write(b"other"), "it does not begin as such"),
    ):

        def damaging(path, *arguments, damage=damage):
            write(path, *arguments)
            with open(path, "r+b") as file:
                damage(file)

        monkeypatch.setattr(rounds, "write_file", damaging)
        with pytest.raises(ConfigError, match=rf"000000-00000\.sequences of .*{problem}.*--overwrite"):
            creation.pack_records(creation.Job(plain, str(tmp_path / problem)))


def test_blocks_of_another_version_are_not_gone_on_with(tmp_path, plain, monkeypatch):
    job = creation.Job(plain, str(tmp_path / "out"), num_workers=1)
    with monkeypatch.context() as patched:
        patched.setattr(rounds, "BLOCKS_VERSION", rounds.BLOCKS_VERSION - 1)
        patched.setattr(rounds, "write_shard", None)
        with pytest.raises(TypeError):
            creation.pack_records(job)
    with pytest.raises(ConfigError, match="unfinished job with another blocks.*--overwrite"):
        creation.pack_records(job)


def test_small_files_share_a_part_and_large_ones_do_not(monkeypatch):
    shape = rounds.Shape("plain", 8, 2)
    monkeypatch.setattr(rounds, "_MIN_PART_BYTES", 10)
    found = rounds.parts_of(list("abcdef"), [4, 6, 1, 20, 3, 3], shape)
    assert [[path for path, _ in part.files] for part in found] == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert [part.number for part in found] == [0, 1, 2, 3]
    many = rounds.parts_of(list("x" * 10_000), [100_000] * 10_000, shape)  # 1 GB
    assert len(many) == 65 and sum(len(part.files) for part in many) == 10_000


@pytest.mark.parametrize("name", ["count_part", "spill_part", "merge", "write_shard"])
def test_an_interrupted_job_is_gone_on_with(tmp_path, plain, monkeypatch, name):
    whole, output = str(tmp_path / "whole"), str(tmp_path / "out")
    creation.pack_records(creation.Job(plain, whole))
    monkeypatch.setattr(rounds, "_MIN_PART_BYTES", 1)
    monkeypatch.setattr(compaction, "BITS", 2)
    monkeypatch.setattr(compaction, "_MIN_READ_BYTES", 10**6)
    task, calls = getattr(rounds, name), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        task(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(rounds, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            creation.pack_records(creation.Job(plain, output, num_workers=1))
    with pytest.raises(ConfigError, match=r"unfinished job with another random_seed\."):
        creation.pack_records(creation.Job(plain, output, random_seed=2))
    read = collections.Counter()
    monkeypatch.setattr(inspection, "read_checked", counted(read, inspection.read_checked))
    creation.pack_records(creation.Job(plain, output, num_workers=1))
    assert contents(output) == contents(whole) and not os.path.exists(f"{output}/.unfinished")
    assert sum(read.values()) == {"count_part": 4, "spill_part": 1, "merge": 0, "write_shard": 0}[name]
    creation.pack_records(creation.Job(plain, output))  # all is done: nothing is read
    assert sum(read.values()) == {"count_part": 4, "spill_part": 1, "merge": 0, "write_shard": 0}[name]


def counted(read: collections.Counter, function):
    def call(path, *arguments):
        read[path] += 1
        return function(path, *arguments)

    return call


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


def test_shards_have_all_rows_and_places():
    histogram = Histogram.of_lengths(np.random.default_rng(0).integers(1, 33, 500), 32)
    plan = longest_pack_first(histogram, 4)
    dealer = Dealer(plan, 7, seed=3)
    shards = [dealer.rows(shard) for shard in range(7)]
    assert sum(map(len, shards)) == plan.rows and max(map(len, shards)) - min(map(len, shards)) <= 1
    for length in range(1, 33):
        found = dealer.places(length, np.arange(histogram.counts[length]))
        wanted = [(shard, n) for shard, rows in enumerate(shards) for n in range((rows == length).sum())]
        assert sorted(zip(*(part.tolist() for part in found))) == wanted


def test_a_dealer_holds_no_more_for_more_shards():
    plan = longest_pack_first(Histogram.of_lengths(np.random.default_rng(0).integers(1, 33, 500), 32), 4)
    copies = PackingPlan(32, {lengths: count * 10**9 for lengths, count in plan.packs.items()})
    dealer = Dealer(copies, 10**6, seed=3)
    shards, places = dealer.places(32, np.arange(1000))
    assert shards.min() >= 0 and 5 * 10**5 < shards.max() < 10**6
    in_a_shard = dealer._places_of(32)
    assert len(in_a_shard.shards) <= 2 * len(plan.packs) + 1
    assert places.max() < in_a_shard.counts.max() and in_a_shard.ends[-1] == copies.histogram().counts[32]


def test_wrong_input_is_named(tmp_path, plain):
    bad = make_examples(3, length=16, shortest=6)
    write_records(f"{plain}/9.tfrecord", encoding.encode(bad, "plain"))
    with pytest.raises(ConfigError, match=r"9\.tfrecord, record 1: it is plain, 16 tokens"):
        creation.pack_records(creation.Job(plain, str(tmp_path / "out")))
    record = encoding.encode(make_examples(1), "plain")[0]
    damaged = tf.train.Example.FromString(record)
    damaged.features.feature["input_mask"].int64_list.value[0] = 0
    write_records(f"{plain}/9.tfrecord", [record, damaged.SerializeToString()])
    with pytest.raises(ConfigError, match=r"9\.tfrecord, record 2: input_mask is not ones and then zeros"):
        creation.pack_records(creation.Job(plain, str(tmp_path / "out2")))


def test_wrong_flags_are_refused(tmp_path, plain):
    for change, problem in (
        ({"num_shards": 10**6}, "--num_shards=1000000 is more than the"),
        ({"max_sequences_per_pack": 0}, "--max_sequences_per_pack=0"),
        ({"algorithm": "lpfph"}, "--algorithm=lpfph is unknown.*lpfhp"),
        ({"random_seed": -1}, "--random_seed=-1"),
    ):
        with pytest.raises(ConfigError, match=problem):
            creation.pack_records(creation.Job(plain, str(tmp_path / problem[2:9]), **change))


# ------------------------------------------------------------------------------------------------------------
# The command


def run(monkeypatch, *flags: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bert pack", *flags])
    command.run_pack()


def test_the_command_packs_reports_and_draws(tmp_path, plain, monkeypatch, capsys):
    report, picture = str(tmp_path / "r.json"), str(tmp_path / "p.png")
    flags = f"--input_files={plain} --output_dir={tmp_path}/out --algorithm=spfhp --max_sequences_per_pack=2"
    run(monkeypatch, *flags.split(), f"--report={report}", f"--picture={picture}")
    with open(report, encoding="utf-8") as file:
        numbers = json.load(file)
    assert numbers["sequences"] == FILES * SEQUENCES and numbers["algorithm"] == "spfhp"
    assert numbers["speedup"] == pytest.approx(numbers["sequences"] / numbers["packs"])
    assert 0 < numbers["efficiency"] <= 1 and numbers["secs"] >= 0
    assert f"hold {FILES * SEQUENCES} sequences" in capsys.readouterr().out
    with open(picture, "rb") as file:
        assert file.read(4) == b"\x89PNG"
    record = next(tf.data.TFRecordDataset(glob.glob(f"{tmp_path}/out/*.tfrecord")[0]).as_numpy_iterator())
    assert len(row_of(record)["packed_next_sentence_mask"]) == 2


def test_a_histogram_is_only_planned(tmp_path, monkeypatch):
    path, report = tmp_path / "h.json", tmp_path / "r.json"
    path.write_text('{"max_sequence_length": 4, "counts_by_length_from_1": [0, 3, 2, 1]}')
    run(monkeypatch, f"--histogram={path}", f"--report={report}")
    numbers = json.loads(report.read_text())
    assert (numbers["packs"], numbers["sequences"], numbers["algorithm"]) == (5, 6, "lpfhp")
    assert numbers["efficiency"] == pytest.approx(16 / 20) and numbers["speedup"] == pytest.approx(6 / 5)


def test_wrong_histograms_and_flags_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "h.json"
    for content, problem in (
        ('{"max_sequence_length": 2, "counts_by_length_from_1": [1]}', "has 1 counts"),
        ('{"max_sequence_length": 2, "counts_by_length_from_1": [1, -1]}', "of length 2 is -1"),
        ('{"max_sequence_length": 2, "counts_by_length_from_1": [0, 0]}', "no sequences to pack"),
        ('{"max_sequence_length": 2}', 'has no "counts_by_length_from_1"'),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match=problem):
            run(monkeypatch, f"--histogram={path}")
    for flags in ([], ["--input_files=a"], ["--histogram=a", "--output_dir=b"]):
        with pytest.raises(ConfigError, match="--histogram"):
            run(monkeypatch, *flags)

"""The job that makes records of text: files and manifest, processes, interruptions, pools, and its command
line.
"""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from official.cli import records
from official.cli import text as text_command
from official.data import compaction
from official.data.packing import creation as packing
from official.data.pretraining import creation, examples, rounds
from official.data.pretraining import plan as plan_lib
from official.data.records import record_formats, schema, shard_files
from official.data.text import read_counts
from official.data.word_pieces import vocabulary
from official.io import record_paths
from official.io.errors import ConfigError
from tests.conftest import ROOT

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = list(
    dict.fromkeys(
        [
            *vocabulary.SPECIAL_TOKENS,
            *LETTERS,
            *(f"##{letter}" for letter in LETTERS),
            "the",
            "cat",
            "sat",
            ".",
            "##s",
            "word",
        ]
    )
)
LONG, MOST = 32, 5


@pytest.fixture
def vocab_file(tmp_path):
    return write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")


@pytest.fixture
def text_file(tmp_path):
    return make_text(tmp_path / "text.txt", 10)


def write(path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def make_text(path, documents: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    words = ["the", "cat", "cats", "sat", "word", "x\u00e9z"]
    sentences = [
        [" ".join(rng.choice(words, rng.integers(3, 12))) + "." for _ in range(12)] for _ in range(documents)
    ]
    return write(path, "\n\n".join("\n".join(document) for document in sentences) + "\n\n\x01\n")


def make_job(text, vocab, folder, **changes) -> creation.Job:
    rules = examples.ExampleRules(
        max_seq_length=LONG,
        max_predictions_per_seq=MOST,
        dupe_factor=3,
        remask=changes.get("record_format") == "remask",
    )
    return creation.Job(
        **{
            "input_files": str(text),
            "vocab_file": vocab,
            "output_dir": str(folder),
            "rules": rules,
            "num_shards": 3,
            **changes,
        }
    )


def contents(folder) -> dict[str, str]:
    """Returns the digests of the files of a folder but those of the data card."""
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in sorted(os.listdir(folder))
        if name not in ("samples.json", "speed.json", "report.html")
    }


def made(folder) -> set[str]:
    """Returns the digests of what depends on the job, all but the vocabulary."""
    return {digest for name, digest in contents(folder).items() if name != "vocab.txt"}


# ------------------------------------------------------------------------------------------------------------
# Files


@pytest.mark.parametrize(
    "changes", [{}, {"record_format": "compact"}, {"record_format": "remask", "pad_position_value": 384}]
)
def test_records_match_the_schema_and_the_manifest(text_file, vocab_file, tmp_path, changes):
    manifest = creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out", **changes))
    assert sorted(os.listdir(tmp_path / "out")) == [
        "manifest.json",
        *(f"part-{shard:05d}-of-00003.tfrecord" for shard in range(3)),
        "samples.json",
        "vocab.txt",
    ]
    features, kind = schema.pretraining_schema(LONG, MOST, len(WORDS)), changes.get("record_format", "plain")
    lengths, counts = np.zeros(LONG + 1, int), {}
    for name in manifest["files"]:
        found = list(tf.data.TFRecordDataset(str(tmp_path / "out" / name)).as_numpy_iterator())
        assert [record_formats.describe_mismatch(record, features, kind) for record in found] == [None] * len(
            found
        )
        tokens = record_formats.parse_records(found, features, kind)["input_mask"].numpy().sum(axis=1)
        counts[name] = len(tokens)
        lengths += np.bincount(tokens, minlength=LONG + 1)
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["files"] == counts and manifest["instances"] == sum(counts.values()) > 100
    assert manifest["lengths"] == {str(length): int(count) for length, count in enumerate(lengths) if count}
    assert (
        manifest["documents"],
        manifest["sentences"],
        manifest["skipped_sentences"],
        manifest["skipped_lines"],
    ) == (10, 120, 1, 0)
    with open(vocab_file, "rb") as file:
        assert manifest["vocabulary_sha256"] == hashlib.sha256(file.read()).hexdigest()
    assert manifest["flags"]["dupe_factor"] == 3 and manifest["flags"]["random_seed"] == 12345


def test_a_cased_vocabulary_keeps_capitals_and_the_manifest_says_so(tmp_path):
    words = (*vocabulary.SPECIAL_TOKENS, "Paris", "is", "in", "France", ".")
    text = write(
        tmp_path / "text.txt", "\n\n".join(["Paris is in France .\nFrance is in Paris ."] * 12) + "\n"
    )
    path = write(tmp_path / "vocab.txt", "\n".join(words) + "\n")
    with pytest.raises(ConfigError, match="is cased: 2 of 4 words"):
        creation.create_pretraining_data(make_job(text, path, tmp_path / "out"))
    manifest = creation.create_pretraining_data(
        make_job(text, path, tmp_path / "out", do_lower_case=False, num_shards=1)
    )
    assert manifest["flags"]["do_lower_case"] is False
    shard = str(tmp_path / "out" / "part-00000-of-00001.tfrecord")
    assert record_formats.lower_case_of(shard) is False and record_formats.lower_case_of(text) is None
    found = list(tf.data.TFRecordDataset(shard).as_numpy_iterator())
    ids = record_formats.parse_records(found, schema.pretraining_schema(LONG, MOST, len(words)), "plain")[
        "input_ids"
    ].numpy()
    assert (ids == words.index("Paris")).mean() > 5 * (
        ids == words.index("[UNK]")
    ).mean()  # a few random replacements


def test_the_formats_hold_the_same_examples(text_file, vocab_file, tmp_path):
    features, parsed = schema.pretraining_schema(LONG, MOST), []
    for kind in ("plain", "compact"):  # of a static mask there are other ones: its rows are shorter
        creation.create_pretraining_data(
            make_job(text_file, vocab_file, tmp_path / kind, record_format=kind, num_shards=1)
        )
        found = list(
            tf.data.TFRecordDataset(str(tmp_path / kind / "part-00000-of-00001.tfrecord")).as_numpy_iterator()
        )
        parsed.append(
            {
                name: values.numpy()
                for name, values in record_formats.parse_records(found, features, kind).items()
            }
        )
    for other in parsed[1:]:
        assert all(np.array_equal(other[name], values) for name, values in parsed[0].items())


def test_an_earlier_run_is_replaced_only_when_asked_for(text_file, vocab_file, tmp_path):
    creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out"))
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="--output_dir=.* holds the files of an earlier run .* --overwrite"):
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out", num_shards=2))
    assert contents(tmp_path / "out") == before
    creation.create_pretraining_data(
        make_job(text_file, vocab_file, tmp_path / "out", num_shards=2, overwrite=True)
    )
    assert sorted(os.listdir(tmp_path / "out")) == [
        "manifest.json",
        "part-00000-of-00002.tfrecord",
        "part-00001-of-00002.tfrecord",
        "samples.json",
        "vocab.txt",
    ]


def test_the_vocabulary_is_kept_beside_the_records_and_handed_on(
    text_file, vocab_file, tmp_path, monkeypatch
):
    """By what packs them and what picks some of them. A vocabulary of somebody's own is not replaced."""
    folders = [tmp_path / name for name in ("out", "packed", "picked")]
    for folder in folders:
        folder.mkdir()
        (folder / "vocab.txt").write_text("\n".join([*WORDS[:5], *reversed(WORDS[5:])]) + "\n")

    def make(**changes):
        creation.create_pretraining_data(make_job(text_file, vocab_file, folders[0], **changes))

    def pack(**changes):
        packing.pack_records(packing.Job(str(folders[0]), str(folders[1]), num_shards=1, **changes))

    def pick(overwrite=False):
        words = [f"--input_files={folders[0]}", f"--output_file={folders[2]}/x.tfrecord", "--num_samples=9"]
        monkeypatch.setattr(sys, "argv", ["eval-set", *words, *["--overwrite"] * overwrite])
        records.run_eval_set()

    for folder, job in zip(folders, (make, pack, pick)):
        with pytest.raises(ConfigError, match="vocab.txt is there, and is not the vocabulary of the records"):
            job()
        assert [path.name for path in folder.iterdir()] == ["vocab.txt"], folder
        job(overwrite=True)
        with open(vocab_file, "rb") as file:
            assert (folder / "vocab.txt").read_bytes() == file.read(), folder
    assert record_paths.find_files(f"{folders[1]}/*.t*") == [f"{folders[1]}/part-00000-of-00001.tfrecord"]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 70))
def test_parts_of_a_pool_hold_a_document_each_and_even_shares_of_the_tokens(tokens, parts):
    found = plan_lib.parts_of(np.array(tokens), parts)
    assert (np.diff(found) >= 0).all() and found[0] >= 0 and found[-1] < parts
    if len(tokens) >= parts:
        assert set(found) == set(range(parts))
        shares = np.bincount(found, np.array(tokens), minlength=parts)
        assert (np.bincount(found) == 1).any() or np.abs(shares - sum(tokens) / parts).max() <= max(tokens)
    else:  # of so few documents none is far from the next
        assert np.diff([*found, found[0] + parts]).max() <= -(-parts // len(tokens))


@pytest.mark.parametrize("num_shards", [2, 16])
def test_every_copy_of_a_document_is_made_once_and_random_segments_come_from_its_pool(
    vocab_file, tmp_path, num_shards, monkeypatch
):
    text = make_text(tmp_path / "text.txt", 300)
    monkeypatch.setattr(plan_lib, "POOL_TOKENS", 4000)
    monkeypatch.setattr(rounds, "BLOCK_TOKENS", 7000)
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 40_000)
    pools, cut, plan_pairs = {}, [], examples.plan_pairs

    def watched(texts, chosen, *rest):
        pools[texts.tokens.tobytes()] = texts.num_documents
        cut.append(len(chosen))
        return plan_pairs(texts, chosen, *rest)

    monkeypatch.setattr(examples, "plan_pairs", watched)
    monkeypatch.setattr(creation.disk_needs, "check", lambda *_: None)  # it plans a sample
    manifest = creation.create_pretraining_data(
        make_job(text, vocab_file, tmp_path / "out", num_shards=num_shards)
    )
    assert manifest["pools"] == len(pools) == 8 and sum(pools.values()) == 300 and min(pools.values()) > 15
    assert sum(cut) == 3 * 300
    assert max(manifest["files"].values()) < 1.7 * min(manifest["files"].values())


@pytest.mark.parametrize("bits, levels", [(8, 0), (8, 1), (2, 2), (1, 4)])
def test_regrouping_changes_no_byte(vocab_file, tmp_path, bits, levels, monkeypatch):
    text = make_text(tmp_path / "text.txt", 300)
    monkeypatch.setattr(plan_lib, "POOL_TOKENS", 4000)
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 10_000)
    monkeypatch.setattr(rounds, "_CHUNK_BYTES", 500)
    creation.create_pretraining_data(make_job(text, vocab_file, tmp_path / "whole"))
    monkeypatch.setattr(compaction, "BITS", bits)
    monkeypatch.setattr(compaction, "_MIN_READ_BYTES", 10**6 if levels else 1)
    done, merge = [], rounds.merge
    monkeypatch.setattr(rounds, "merge", lambda *task: done.append(task[1].level) or merge(*task))
    creation.create_pretraining_data(make_job(text, vocab_file, tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert max(done, default=0) == levels


# ------------------------------------------------------------------------------------------------------------
# Processes and interruptions


def test_the_number_of_processes_does_not_change_a_byte_but_the_seed_does(vocab_file, tmp_path, monkeypatch):
    for number in range(3):
        make_text(tmp_path / f"text{number}.txt", 10, seed=number)
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 5000)
    for name, changes in {
        "one": {"num_workers": 1},
        "two": {"num_workers": 2},
        "seed": {"random_seed": 1},
    }.items():
        creation.create_pretraining_data(
            make_job(tmp_path / "text*.txt", vocab_file, tmp_path / name, **changes)
        )
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert not made(tmp_path / "one") & made(tmp_path / "seed")


def test_a_job_of_the_same_flags_with_other_text_or_other_words_makes_others(text_file, vocab_file, tmp_path):
    seen = set()
    for change in (
        lambda: None,
        lambda: make_text(tmp_path / "text.txt", 10, seed=1),
        lambda: write(tmp_path / "vocab.txt", "\n".join(WORDS[:-1])),
    ):
        change()
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out", overwrite=True))
        found = made(tmp_path / "out")
        assert not found & seen
        seen |= found


KILLED = """
import importlib, os, sys
from official.data.pretraining import creation, examples
module, name, calls = sys.argv[1:4]
target = importlib.import_module(module)
original, left = getattr(target, name), int(calls)
def killed(*arguments, **named):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
    return original(*arguments, **named)
setattr(target, name, killed)
creation._MIN_TASK_BYTES = 5000  # a task for each file
rules = examples.ExampleRules(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=3)
job = creation.Job(sys.argv[4], sys.argv[6], sys.argv[5], rules, num_shards=3, num_workers=1)
creation.create_pretraining_data(job)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, name, call",
    [
        ("official.data.pretraining.rounds", "write_block", 2),
        ("official.data.pretraining.rounds", "tokenize_text", 3),
        ("official.data.pretraining.examples", "build_examples", 3),  # once for the estimate of the disk
        ("official.io.jobs", "write_json", 7),
    ],
)
def test_what_a_kill_leaves_is_gone_on_with_and_ends_in_the_same_files(
    vocab_file, tmp_path, module, name, call, monkeypatch
):
    for number in range(3):
        make_text(tmp_path / f"text{number}.txt", 10, seed=number)
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 5000)
    job = make_job(tmp_path / "text*.txt", vocab_file, tmp_path / "out")
    creation.create_pretraining_data(make_job(tmp_path / "text*.txt", vocab_file, tmp_path / "whole"))
    command = [
        sys.executable,
        "-c",
        KILLED,
        module,
        name,
        str(call),
        job.input_files,
        job.vocab_file,
        job.output_dir,
    ]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    done = list(
        (tmp_path / "out" / ".unfinished").glob("shard-*.json")
    )  # a shard is done when what was counted of it is there
    made = []
    write_shard = rounds._write_shard_records
    monkeypatch.setattr(rounds, "_write_shard_records", lambda *rest: made.append(1) or write_shard(*rest))
    creation.create_pretraining_data(job)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert len(made) == 3 - len(done)


def test_a_full_disk_is_one_line_and_what_is_done_stays(text_file, vocab_file, tmp_path, monkeypatch):
    writing, calls = shard_files.writing, []

    def fail(*arguments, **named):
        calls.append(1)
        if len(calls) == 3:  # two shards are written at a time: one is done when the third begins
            raise OSError(28, "No space left on device")
        return writing(*arguments, **named)

    monkeypatch.setattr(shard_files, "writing", fail)
    job = make_job(text_file, vocab_file, tmp_path / "out")
    with pytest.raises(
        ConfigError, match="--output_dir=.* cannot be written to: No space left on device.* goes on"
    ):
        creation.create_pretraining_data(job)
    done, tried = [name for name in os.listdir(tmp_path / "out") if name[0] != "."], len(calls)
    assert done and all(name.endswith("-of-00003.tfrecord") for name in done)
    creation.create_pretraining_data(job)
    assert len(calls) == tried + 3 - len(done)
    creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "whole"))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("change", ["random_seed", "text", "text of the same size", "vocab_file"])
def test_an_unfinished_job_of_other_flags_or_text_is_not_gone_on_with(
    text_file, vocab_file, tmp_path, change, monkeypatch
):
    monkeypatch.setattr(shard_files, "writing", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out"))
    monkeypatch.undo()
    changes = {}
    if change == "random_seed":
        changes = {"random_seed": 7}
    elif change == "text":
        make_text(tmp_path / "text.txt", 11)
    elif change == "text of the same size":
        change, text = "text", (tmp_path / "text.txt").read_text(encoding="utf-8")
        write(tmp_path / "text.txt", text.replace("cat", "sat", 1))
    else:
        write(tmp_path / "vocab.txt", "\n".join([*WORDS, "new"]))
    name = {"text": "text", "vocab_file": "vocabulary_sha256"}.get(change, change)
    if change == "text":
        name = rf"text \({text_file}\)"
    with pytest.raises(
        ConfigError, match=f"--output_dir=.* holds an unfinished job with another .*{name}.*--overwrite"
    ):
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out", **changes))
    creation.create_pretraining_data(
        make_job(text_file, vocab_file, tmp_path / "out", overwrite=True, **changes)
    )
    creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "whole", **changes))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_finished_job_is_not_done_again(text_file, vocab_file, tmp_path, monkeypatch):
    job = make_job(text_file, vocab_file, tmp_path / "out")
    assert not creation.is_finished(job)
    manifest = creation.create_pretraining_data(job)
    monkeypatch.setattr(shard_files, "writing", lambda *_, **__: 1 / 0)
    assert creation.is_finished(job) and creation.create_pretraining_data(job) == manifest
    shard = tmp_path / "out" / "part-00001-of-00003.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(
        ConfigError, match="holds the files of an earlier run with other flags or input, or not all of them"
    ):
        creation.is_finished(job)


def test_the_manifest_counts_by_file_and_the_unknown(vocab_file, tmp_path):
    text = "The cat sat. \u4e2d\n\nThe word.\nCats.\n" * 20
    paths = [write(tmp_path / "a.txt", text), str(tmp_path / "b.txt")]
    (tmp_path / "b.txt").write_bytes(text.encode() * 2 + b"\xff\n")
    manifest = creation.create_pretraining_data(make_job(tmp_path / "?.txt", vocab_file, tmp_path / "out"))
    size = len(text.encode())
    assert manifest["inputs"] == {
        paths[0]: {"bytes": size, "documents": 21, "sentences": 60, "undecodable_bytes": 0},
        paths[1]: {"bytes": 2 * size + 2, "documents": 41, "sentences": 120, "undecodable_bytes": 1},
    }
    assert manifest["undecodable_bytes"] == 1
    assert manifest["unknown_share"] == 60 / manifest["tokens"]


def test_a_manifest_lists_a_thousand_files_with_the_undecodable_bytes_first():
    by_file = {
        f"{number:05d}": read_counts.FileCounts(undecodable_bytes=number // 9999) for number in range(20_000)
    }
    listed = read_counts.listed(by_file)
    in_part = {"00000", "05000"}
    kept = read_counts.to_json(by_file, in_part)
    found = {path: read_counts.FileCounts(*counts) for path, counts in kept.items()}
    assert read_counts.listed(found) == listed and in_part < set(found) and len(found) < 13_000
    assert len(listed) == 1000 and list(listed)[-2:] == ["19998", "19999"] and "00900" not in listed
    assert read_counts.describe_undecodable(listed) == "19999 2, 19998 2, 10996 1, 997 more files"


# ------------------------------------------------------------------------------------------------------------
# Bad input


def test_damaged_files_of_an_unfinished_job_are_made_anew(text_file, vocab_file, tmp_path, monkeypatch):
    creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "whole"))
    write_json = creation.jobs.write_json

    def fail(path, values, **options):
        if path.endswith("manifest.json"):
            raise OSError(28, "No space left on device")
        write_json(path, values, **options)

    for name in ("job.json", "text-00000.json", "shard-00000.json"):
        for number, garbage in enumerate((b"\xff\0", b"[]", b'{"done": {"totals": 3}}', b"[" * 100_000)):
            out = tmp_path / f"{name}-{number}"
            job = make_job(text_file, vocab_file, out)
            with monkeypatch.context() as patch, pytest.raises(ConfigError, match="No space left"):
                patch.setattr(creation.jobs, "write_json", fail)
                creation.create_pretraining_data(job)
            (out / ".unfinished" / name).write_bytes(garbage)
            (out / "part-00000-of-00009.tfrecord").touch()  # of a job that was thrown away
            creation.create_pretraining_data(job)
            assert contents(out) == contents(tmp_path / "whole"), (name, garbage)


def test_bad_jobs_are_one_line_that_names_the_flag(text_file, vocab_file, tmp_path):
    (tmp_path / "bad").mkdir()
    write(tmp_path / "bad" / "manifest.json", "[]")
    one = write(tmp_path / "one.txt", "The cat.\n\n\x01\n")
    picture = str(ROOT / "results" / "quickstart.png")
    for number, (changes, message) in enumerate(
        (
            ({"input_files": "/nowhere/*"}, r"--input_files=.*/nowhere/\*"),
            ({"vocab_file": "/nowhere"}, "--vocab_file=/nowhere: No such file"),
            (
                {"num_shards": 31},
                "--num_shards=31 is more than the 30 examples that 10 documents make at least",
            ),
            ({"input_files": picture}, "quickstart.png is a PNG picture, not text"),
            ({"num_workers": 0}, "--num_workers=0 is out of range"),
            ({"random_seed": -1}, "--random_seed=-1 is out of range"),
            ({"output_dir": "/proc/x"}, "--output_dir=/proc/x: No such file"),
            ({"output_dir": f"{tmp_path}/bad"}, "^[^\n]*bad[^\n]*--overwrite[.]$"),
            ({"input_files": one}, "hold 1 document with text, expected at least 2"),
        )
    ):
        with pytest.raises(ConfigError, match=message):
            creation.create_pretraining_data(
                make_job(text_file, vocab_file, tmp_path / str(number), **changes)
            )


def test_flags_that_do_not_go_together(monkeypatch):
    given = ["--input_files=a", "--output_dir=b", "--vocab_file=c"]
    for flags, message in (
        (["--pad-position-value=3"], "pad_position_value=3 needs --remask"),
        (["--remask", "--record_format=compact"], "--remask and --record_format=compact exclude each other"),
        (["--output_file=d"], "Give one of --output_dir=DIR and --output_file=FILES"),
    ):
        monkeypatch.setattr(sys, "argv", ["create", *given, *flags])
        with pytest.raises(ConfigError, match=message):
            text_command.create_flags()


# ------------------------------------------------------------------------------------------------------------
# Layout


def test_every_copy_of_every_part_of_a_pool_is_in_one_file():
    for passes in (1, 3, 40):
        for pools, shards in ((1, 3), (3, 3), (2, 6), (6, 2), (1, 1)):
            plan, where = plan_lib.Layout(pools, shards, (float(passes),)), {}
            for shard in range(shards):
                numbers = []
                for stretch in plan.stretches(shard):
                    numbers += stretch.passes
                    for part, number in zip(stretch.parts, stretch.passes):
                        assert where.setdefault((stretch.pool, part, number), shard) == shard
                assert numbers == sorted(numbers)  # a pass over all, then the next one
            parts = [(pool, part) for pool in range(pools) for part in range(plan.parts_per_pool)]
            assert sorted(where) == sorted((*part, number) for part in parts for number in range(passes))
            for part in parts:  # copies that follow each other are in other files, where there are enough
                files = [where[(*part, number)] for number in range(passes)]
                assert len(set(files[:shards])) == min(passes, shards)


def test_there_are_as_many_pools_as_memory_asks_for():
    pool = plan_lib.POOL_TOKENS
    for tokens, documents, shards, expected in (
        (10, 2, None, (1, 8)),
        (10, 2, 3, (1, 3)),
        (10 * pool, 10**6, None, (10, 10)),
        (10**6 * pool, 10**10, None, (123 * 8192, 8192)),
        (3 * pool, 10**6, 8, (4, 8)),
        (3 * pool, 10**6, 2, (4, 2)),
        (3 * pool, 64, 2, (2, 2)),
        (50 * pool, 10**6, 7, (56, 7)),
    ):
        job = make_job("", "", "", num_shards=shards)
        plan = plan_lib.plan_layout(job, {"tokens": tokens, "kept_documents": documents}, [10.0])
        assert (plan.num_pools, plan.num_shards) == expected, (tokens, shards)

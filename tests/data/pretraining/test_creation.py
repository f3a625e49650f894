"""The job that makes records of text: files and manifest, bad input, pools."""

import hashlib
import json
import os
import sys

import numpy as np
import pytest

from official.cli import records
from official.data.packing import creation as packing
from official.data.pretraining import creation, examples, rounds
from official.data.pretraining import plan as plan_lib
from official.data.records import record_formats, schema
from official.data.word_pieces import vocabulary
from official.io import record_paths
from official.io.errors import ConfigError
from tests.data.records.test_records import parsed as parsed_records
from tests.data.text.test_documents import write
from tests.fixtures import slow
from tests.records import read_records
from tests.refusals import assert_refused

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [f"##{letter}" for letter in LETTERS]
WORDS = [*vocabulary.SPECIAL_TOKENS, *LETTERS, *PIECES, "the", "cat", "sat", ".", "word"]
LONG, MOST = 32, 5


@pytest.fixture
def vocab_file(tmp_path):
    return write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")


@pytest.fixture
def text_file(tmp_path):
    return make_text(tmp_path / "text.txt", 10)


def make_text(path, documents: int, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    words = ["the", "cat", "cats", "sat", "word", "x\u00e9z"]
    sentences = [
        [" ".join(rng.choice(words, rng.integers(3, 12))) + "." for _ in range(12)] for _ in range(documents)
    ]
    return write(path, "\n\n".join("\n".join(document) for document in sentences) + "\n\n\x01\n")


def make_job(text, vocab, folder, **changes) -> creation.Job:
    rules = examples.ExampleRules(LONG, MOST, dupe_factor=3, remask=changes.get("record_format") == "remask")
    named = {"input_files": str(text), "vocab_file": vocab, "output_dir": str(folder), "num_shards": 3}
    return creation.Job(**{**named, "rules": rules, **changes})


def create(*given, **changes) -> dict:
    return creation.create_pretraining_data(make_job(*given, **changes))


def parsed(path, kind: str, words: int = len(WORDS), most: int = MOST) -> dict[str, np.ndarray]:
    return parsed_records(read_records(path), kind, schema.pretraining_schema(LONG, most, words))


# ------------------------------------------------------------------------------------------------------------
# Files


def test_records_match_the_schema_and_the_manifest_in_every_format(text_file, vocab_file, tmp_path):
    features, firsts = schema.pretraining_schema(LONG, MOST, len(WORDS)), {}
    for kind, changes in (("plain", {}), ("compact", {}), ("remask", {"pad_position_value": 384})):
        out = tmp_path / kind
        manifest = create(text_file, vocab_file, out, record_format=kind, **changes)
        shards = [f"part-{shard:05d}-of-00003.tfrecord" for shard in range(3)]
        assert sorted(os.listdir(out)) == ["manifest.json", *shards, "samples.json", "vocab.txt"]
        lengths, counts = np.zeros(LONG + 1, int), {}
        for name in manifest["files"]:
            faults = [
                record_formats.describe_mismatch(each, features, kind) for each in read_records(out / name)
            ]
            assert not any(faults)
            values = parsed(out / name, kind)
            firsts.setdefault(kind, values)
            tokens = values["input_mask"].sum(axis=1)
            counts[name] = len(tokens)
            lengths += np.bincount(tokens, minlength=LONG + 1)
        assert manifest == json.loads((out / "manifest.json").read_text())
        assert manifest["files"] == counts and manifest["instances"] == sum(counts.values()) > 100
        assert manifest["lengths"] == {str(each): int(count) for each, count in enumerate(lengths) if count}
        names = ("documents", "sentences", "skipped_sentences", "skipped_lines")
        assert [manifest[name] for name in names] == [10, 120, 1, 0]
        with open(vocab_file, "rb") as file:
            assert manifest["vocabulary_sha256"] == hashlib.sha256(file.read()).hexdigest()
        assert manifest["flags"]["dupe_factor"] == 3 and manifest["flags"]["random_seed"] == 12345
    # Of a static mask there are other examples: its rows are shorter.
    for name, values in firsts["plain"].items():
        assert np.array_equal(values, firsts["compact"][name]), name


def test_a_cased_vocabulary_keeps_capitals_and_the_manifest_says_so(tmp_path):
    words = (*vocabulary.SPECIAL_TOKENS, "Paris", "is", "in", "France", ".")
    text = "\n\n".join(["Paris is in France .\nFrance is in Paris ."] * 12) + "\n"
    given = write(tmp_path / "text.txt", text), write(tmp_path / "vocab.txt", "\n".join(words) + "\n")
    with pytest.raises(ConfigError, match="is cased: 2 of 4 words"):
        create(*given, tmp_path / "out")
    manifest = create(*given, tmp_path / "out", do_lower_case=False, num_shards=1)
    assert manifest["flags"]["do_lower_case"] is False
    shard = str(tmp_path / "out" / "part-00000-of-00001.tfrecord")
    for path, expected in ((shard, False), (given[0], None)):
        assert record_formats.flag_of(path, "do_lower_case", bool) is expected
    ids = parsed(shard, "plain", len(words))["input_ids"]
    is_word, is_unknown = (ids == words.index(word) for word in ("Paris", "[UNK]"))
    assert is_word.mean() > 5 * is_unknown.mean()  # a few random replacements


def test_the_vocabulary_is_kept_beside_the_records_and_handed_on(
    text_file, vocab_file, tmp_path, monkeypatch
):
    """By what packs them and what picks some of them. A vocabulary of somebody's own is not replaced."""
    folders = [tmp_path / name for name in ("out", "packed", "picked")]
    for folder in folders:
        folder.mkdir()
        (folder / "vocab.txt").write_text("\n".join([*WORDS[:5], *reversed(WORDS[5:])]) + "\n")

    def make(**changes):
        create(text_file, vocab_file, folders[0], **changes)

    def pack(**changes):
        packing.pack_records(packing.Job(str(folders[0]), str(folders[1]), num_shards=1, **changes))

    def pick(overwrite=False):
        words = [f"--input_files={folders[0]}", f"--output_file={folders[2]}/x.tfrecord", "--num_samples=9"]
        monkeypatch.setattr(sys, "argv", ["eval-set", *words, *["--overwrite"] * overwrite])
        records.run_eval_set()

    for folder, job in zip(folders, (make, pack, pick)):
        with pytest.raises(ConfigError, match="vocab.txt exists and is not .*, the vocabulary of the"):
            job()
        assert [path.name for path in folder.iterdir()] == ["vocab.txt"], folder
        job(overwrite=True)
        with open(vocab_file, "rb") as file:
            assert (folder / "vocab.txt").read_bytes() == file.read(), folder
    assert record_paths.find_files(f"{folders[1]}/*.t*") == [f"{folders[1]}/part-00000-of-00001.tfrecord"]


@pytest.mark.parametrize("num_shards", [2, slow(16)])
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
    manifest = create(text, vocab_file, tmp_path / "out", num_shards=num_shards)
    assert manifest["pools"] == len(pools) == 8 and sum(pools.values()) == 300 and min(pools.values()) > 15
    assert sum(cut) == 3 * 300
    assert max(manifest["files"].values()) < 1.7 * min(manifest["files"].values())


def test_the_manifest_counts_by_file_and_the_unknown(vocab_file, tmp_path):
    text = "The cat sat. \u4e2d\n\nThe word.\nCats.\n" * 20
    paths = [write(tmp_path / "a.txt", text), str(tmp_path / "b.txt")]
    (tmp_path / "b.txt").write_bytes(text.encode() * 2 + b"\xff\n")
    manifest = create(tmp_path / "?.txt", vocab_file, tmp_path / "out")
    size = len(text.encode())
    assert manifest["inputs"] == {
        paths[0]: {"bytes": size, "documents": 21, "sentences": 60, "undecodable_bytes": 0},
        paths[1]: {"bytes": 2 * size + 2, "documents": 41, "sentences": 120, "undecodable_bytes": 1},
    }
    assert manifest["undecodable_bytes"] == 1
    assert manifest["unknown_share"] == 60 / manifest["tokens"]


# ------------------------------------------------------------------------------------------------------------
# Bad input


def test_bad_jobs_are_one_line_that_names_the_flag(text_file, vocab_file, tmp_path, caplog):
    (tmp_path / "bad").mkdir()
    write(tmp_path / "bad" / "manifest.json", "[]")
    one = write(tmp_path / "one.txt", "The cat.\n\n\x01\n")
    none = "hold 0 documents with text on --side=eval of --eval_share=1e-09"
    cases = (
        ("1", {"num_shards": 31}, "=31 is more than the 30 examples that 10 documents make at least"),
        ("2", {"output_dir": "/proc/x"}, "--output_dir=/proc/x: No such file"),
        ("bad", {}, "bad.*--overwrite[.]$"),
        ("3", {"input_files": one}, "hold 1 document with text, expected at least 2"),
        ("4", {"side": "eval", "eval_share": 1e-9}, none),
    )
    assert_refused(lambda name, changes: create(text_file, vocab_file, tmp_path / name, **changes), cases)
    assert "max_predictions_per_seq" not in caplog.text
    rules = examples.ExampleRules(LONG, 3, 1)
    with pytest.raises(ConfigError, match="=31 is more than the 10 examples"):
        create(text_file, vocab_file, tmp_path / "5", num_shards=31, rules=rules)
    assert "--max_predictions_per_seq=3 limits the predictions of rows of 32 tokens: " in caplog.text


# ------------------------------------------------------------------------------------------------------------
# Layout


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

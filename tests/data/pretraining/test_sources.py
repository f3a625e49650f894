"""Documents that are the same, sources that are mixed, and the disk that it all takes."""

import bz2
import collections
import os

import numpy as np
import pytest

from official.data import compaction
from official.data.pipeline import TrainingOrder
from official.data.pretraining import creation, disk_needs, examples, plan, rounds
from official.data.records import batches as record_batches
from official.data.records import files as record_files
from official.data.records import schema, streams
from official.data.word_pieces import vocabulary
from official.io.errors import ConfigError
from tests.data.text.test_corpora import write_parquet
from tests.data.text.test_documents import write
from tests.fixtures import slow

LONG, MOST = 32, 1
NAMES = 1200  # words, each of a document of its own


@pytest.fixture
def vocab_file(tmp_path):
    words = [*vocabulary.SPECIAL_TOKENS, *(f"w{n}" for n in range(NAMES))]
    return write(tmp_path / "vocab.txt", "\n".join(words) + "\n")


def write_documents(path, numbers) -> str:
    """Writes documents of one sentence, which is the document's own word again and again."""
    return write(path, "\n\n".join(" ".join([f"w{number}"] * 9) for number in numbers) + "\n")


def make_job(text, vocab_file, folder, dupe_factor=1, **changes) -> creation.Job:
    rules = examples.ExampleRules(LONG, MOST, dupe_factor, masked_lm_prob=0.0)
    named = {"num_workers": 1, "sentence_splitting": "never", "num_shards": 3, **changes}
    return creation.Job(str(text), str(folder), vocab_file, rules, **named)


def documents_of(features) -> np.ndarray:
    """Returns the number of the document that the first segment of each row comes from."""
    is_masked = features["masked_lm_positions"][:, 0] == 1
    first = np.where(is_masked, features["masked_lm_ids"][:, 0], features["input_ids"][:, 1])
    return first - len(vocabulary.SPECIAL_TOKENS)


def made(folder, manifest) -> collections.Counter:
    """Returns how many examples begin with each document."""
    features = schema.pretraining_schema(LONG, MOST, NAMES + 5)
    paths = record_files.find_files(f"{folder}/*.tfrecord", "x")
    found: collections.Counter = collections.Counter()
    dataset = record_batches.evaluation_dataset(paths, features, 64, manifest["instances"])
    for batch in dataset.as_numpy_iterator():
        found.update(documents_of(batch)[batch["example_weights"] > 0].tolist())
    return found


# ------------------------------------------------------------------------------------------------------------
# Equal documents


@pytest.mark.parametrize("levels", [0, 1])
def test_equal_documents_are_kept_once_wherever_they_meet(vocab_file, tmp_path, monkeypatch, levels):
    numbers = [*range(100), *range(50)] * 2 + [7] * 500
    text = write_documents(tmp_path / "text", numbers)
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 3000)
    monkeypatch.setattr(compaction, "_MIN_READ_BYTES", 10**7 * levels)
    monkeypatch.setattr(plan, "POOL_TOKENS", 300)
    job = make_job(text, vocab_file, tmp_path / "out", dupe_factor=3, drop_duplicates=True, num_shards=2)
    manifest = creation.create_pretraining_data(job)
    assert manifest["pools"] > 2
    assert manifest["documents"] == manifest["sentences"] == 100 and manifest["tokens"] == 900
    assert manifest["duplicate_documents"] == len(numbers) - 100
    assert made(tmp_path / "out", manifest) == collections.Counter(dict.fromkeys(range(100), 3))


def test_documents_of_one_key_and_other_content_are_kept():
    ids, lengths, owners = np.arange(12, dtype=np.uint16) // 6, np.array([3, 3, 2, 4]), np.array([0, 0, 1, 1])
    texts = examples.from_sentences(np.append(ids[:6], ids[:6]), lengths, owners)
    sample = rounds.Sample(texts, np.zeros(2, np.uint64), np.zeros(2, np.uint8))
    assert len(sample.without_duplicates()[0].keys) == 2  # other sentences
    twice = sample.take(np.array([0, 1, 0, 1, 1]))
    kept, others = twice.without_duplicates()
    assert len(kept.keys) == 2 and len(others.keys) == 3


# ------------------------------------------------------------------------------------------------------------
# Mixtures


@pytest.mark.slow
def test_a_mixture_has_the_shares_that_are_wanted(vocab_file, tmp_path):
    write_documents(tmp_path / "books-0", range(300))
    write_documents(tmp_path / "books-1", range(300, 400))
    write_documents(tmp_path / "wiki", range(400, 600))
    files = f"books={tmp_path}/books-0,{tmp_path}/books-1,wiki={tmp_path}/wiki"
    changes = {"dupe_factor": 6, "mixture": "books=0.25,wiki=0.75", "num_shards": 4}
    job = make_job(files, vocab_file, tmp_path / "out", **changes)
    manifest = creation.create_pretraining_data(job)
    found, sources = made(tmp_path / "out", manifest), manifest["sources"]
    assert sources["books"]["copies"] == 2.25 and sources["wiki"]["copies"] == 13.5
    assert (sources["books"]["documents"], sources["wiki"]["tokens"]) == (400, 1800)
    assert {found[number] for number in range(400)} == {2, 3}
    assert {found[number] for number in range(400, 600)} == {13, 14}
    assert sources["wiki"]["reached_share"] == pytest.approx(0.75, abs=0.01)
    assert manifest["instances"] == pytest.approx(6 * 600, rel=0.01)


@pytest.mark.parametrize("levels, sampled", [(0, None), slow(1, None), (0, 400)])
def test_a_mixture_weighs_what_is_left_without_duplicates(vocab_file, tmp_path, monkeypatch, levels, sampled):
    """Three quarters of `wiki` are repetitions, of itself and of `books`, that meet after the first round.
    What is left is known beforehand: exactly, or from a sample of the documents."""
    monkeypatch.setattr(rounds, "_SAMPLED", sampled or rounds._SAMPLED)
    write_documents(tmp_path / "books", range(300))
    write_documents(tmp_path / "wiki", [*range(300, 400), *range(300, 400), *range(200)])
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 3000)
    monkeypatch.setattr(compaction, "_MIN_READ_BYTES", 10**7 * levels)
    files = f"books={tmp_path}/books,wiki={tmp_path}/wiki"
    changes = {"mixture": "books=0.5,wiki=0.5", "drop_duplicates": True, "dupe_factor": 6, "num_shards": 4}
    manifest = creation.create_pretraining_data(make_job(files, vocab_file, tmp_path / "out", **changes))
    assert manifest["documents"] == 400 and manifest["duplicate_documents"] == 300
    sources = manifest["sources"]
    copies = [sources[name]["copies"] for name in ("books", "wiki")]
    assert copies == pytest.approx([4, 12], rel=0.25 if sampled else 0)
    if sampled:
        return
    assert sources["wiki"]["reached_share"] == pytest.approx(0.5, abs=0.001)
    expected = dict.fromkeys(range(300), 4) | dict.fromkeys(range(300, 400), 12)
    assert made(tmp_path / "out", manifest) == expected
    other = make_job(files, vocab_file, tmp_path / "other", **changes | {"mixture": "wiki=0.5,books=0.5"})
    (tmp_path / "wiki").write_bytes((tmp_path / "books").read_bytes())
    with pytest.raises(ConfigError, match="files of books hold no text, or, with --drop_duplicates, only"):
        creation.create_pretraining_data(other)


# ------------------------------------------------------------------------------------------------------------
# The order while training


@pytest.mark.slow
@pytest.mark.parametrize("num_shards, num_streams", [(1, 1), (8, 4), slow(13, 1), slow(64, 4)])
def test_copies_of_a_document_come_far_apart(vocab_file, tmp_path, monkeypatch, num_shards, num_streams):
    # Quarters of a slice come in one order: between copies that follow each other lie three quarters of a
    # pass over the files that are open. Windows are shuffled, and of 64 files a slice has 18 documents only.
    documents = list(range(NAMES))
    text = write_documents(tmp_path / "text", documents)
    job = make_job(text, vocab_file, tmp_path / "out", dupe_factor=10, num_shards=num_shards)
    manifest = creation.create_pretraining_data(job)
    monkeypatch.setattr(streams, "_SHUFFLED_ROWS", 16)
    paths = record_files.find_files(f"{tmp_path}/out/*.tfrecord", "x")
    features = schema.pretraining_schema(LONG, MOST, NAMES + 5)
    batch, own = 60, num_shards // num_streams
    data = record_batches.training_dataset(paths, features, batch, TrainingOrder(seed=1), num_streams)
    batches = data.take(int(2.2 * manifest["instances"]) // batch)  # beyond the end of two epochs
    seen = np.concatenate(list(map(documents_of, batches.as_numpy_iterator())))
    smallest_group = own // -(-own // 8) * num_streams
    one_pass = NAMES / num_shards * smallest_group
    gaps = [np.diff(np.flatnonzero(seen == number)).min() for number in documents]
    assert len(seen) > 2 * 10 * NAMES and min(gaps) > (0.4 if num_shards == 64 else 0.6) * one_pass


# ------------------------------------------------------------------------------------------------------------
# Disk


@pytest.mark.parametrize(
    "record_format, kind", [("plain", "bzip2"), ("compact", "text"), ("compact", "parquet")]
)
def test_the_disk_that_is_needed_is_known_within_a_quarter(
    vocab_file, tmp_path, monkeypatch, record_format, kind
):
    rng = np.random.default_rng(0)
    lines = ["" if rng.random() < 0.1 else " ".join(["w1"] * rng.integers(1, 30)) for _ in range(20_000)]
    path, data = tmp_path / "text", "\n".join(lines).encode()
    path.write_bytes(bz2.compress(data) if kind == "bzip2" else data)
    if kind == "parquet":  # the text is a small part of the file, and becomes a large one
        texts = data.decode().split("\n\n")
        write_parquet(path, {"text": texts, "other": [rng.bytes(500) for _ in texts]}, 500)
    job = make_job(path, vocab_file, tmp_path / "out", dupe_factor=2, record_format=record_format)
    needs, kept, estimate, write_shard = [], [], disk_needs.estimate, rounds.write_shard

    def watched(job, grouping, *rest):
        kept.extend(os.path.getsize(file) for file in grouping.paths(0, 2**64) if not kept)
        write_shard(job, grouping, *rest)

    monkeypatch.setattr(disk_needs, "estimate", lambda *given: needs.append(estimate(*given)) or needs[0])
    monkeypatch.setattr(rounds, "write_shard", watched)
    manifest = creation.create_pretraining_data(job)
    assert needs[0][1] == pytest.approx(sum(manifest["file_bytes"].values()), rel=0.25)
    assert needs[0][0] == pytest.approx(sum(kept), rel=0.25)


def test_too_small_a_disk_is_refused_before_the_start(vocab_file, tmp_path, monkeypatch):
    write_documents(tmp_path / "text", range(900))
    (tmp_path / "empty").touch()  # both are read before the text
    (tmp_path / "nothing").write_text("\n" * 50)
    text = ",".join(str(tmp_path / name) for name in ("empty", "nothing", "text"))
    usage = (10**6, 900_000, 100_000)
    monkeypatch.setattr(disk_needs.shutil, "disk_usage", lambda _: usage)
    job = make_job(text, vocab_file, tmp_path / "out", dupe_factor=10)
    with pytest.raises(ConfigError, match="needs about .* 100kB are free.*--dupe_factor=10, .*compact"):
        creation.create_pretraining_data(job)
    assert not (tmp_path / "out").exists()

"""Graphcore's command for data creation: its names, its values, and exactly its files."""

import json
import sys

import pytest

from official.cli import text
from official.data.pretraining import creation
from official.data.word_pieces import vocabulary_building

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dogs", "cats", "run", "sleep", "."]
THEIRS = ["--sequence-length", "32", "--mask-tokens", "3", "--duplication-factor", "2"]


@pytest.fixture(name="call")
def _call(tmp_path, monkeypatch):
    """Returns a function that runs the command with arguments, in a folder with text and a vocabulary."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    document = "Dogs run .\ncats sleep .\nCats run .\ndogs sleep .\n"
    (tmp_path / "sample.txt").write_text("\n".join([document] * 8))

    def call(*arguments: str) -> None:
        common = "create_pretraining_data.py --input-file=sample.txt --vocab-file=vocab.txt --num_workers=1"
        monkeypatch.setattr(sys, "argv", [*common.split(), *arguments])
        text.run_create()

    return call


@pytest.fixture(name="jobs")
def _jobs(monkeypatch):
    """Returns the list of jobs that are begun."""
    jobs = []
    make = creation.create_pretraining_data

    def begun(job):
        jobs.append(job)
        return make(job)

    monkeypatch.setattr(creation, "create_pretraining_data", begun)
    return jobs


def test_exactly_the_files_that_are_named_are_written(call, jobs, tmp_path):
    before = {path.name for path in tmp_path.iterdir()}
    call("--output-file", "out/a.tfrecord,b.tfrecord", *THEIRS)
    assert {path.name for path in tmp_path.iterdir()} - before == {"out", "b.tfrecord"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.tfrecord"]
    assert min((tmp_path / name).stat().st_size for name in ("out/a.tfrecord", "b.tfrecord")) > 0
    rules = jobs[0].rules
    assert (rules.max_seq_length, rules.max_predictions_per_seq, rules.dupe_factor) == (32, 3, 2)
    assert (jobs[0].random_seed, jobs[0].do_lower_case) == (1984, False)  # their values
    (tmp_path / "b.tfrecord").write_text("replaced")
    call("--output-file", "b.tfrecord", "--sequence-length", "32", "--do-lower-case", "--overwrite")
    assert (tmp_path / "b.tfrecord").stat().st_size > 100
    assert jobs[1].do_lower_case is True and jobs[1].rules.dupe_factor == 6


def test_our_spelling_has_our_values(call, jobs, capsys):
    """And a job that is done is not done again."""
    for _ in range(2):
        call("--output_dir=records", "--max_seq_length=32")
    assert "The job in records is already finished; nothing is written.\n" in capsys.readouterr().out
    assert (jobs[0].rules.dupe_factor, jobs[0].random_seed) == (10, 12345)
    assert jobs[0].do_lower_case is None


def test_files_may_be_words_of_their_own_as_a_shell_makes_them_of_a_glob(call, jobs, tmp_path):
    more = [f"sample{number}.txt" for number in range(2)]
    for name in more:
        (tmp_path / name).write_text((tmp_path / "sample.txt").read_text())
    own = "--output-file a.tfrecord b.tfrecord --do-lower-case True".split()
    call("--input-file", *more, *own, *THEIRS)
    assert jobs[0].input_files == ",".join(more) and jobs[0].do_lower_case is True
    assert (tmp_path / "a.tfrecord").exists() and (tmp_path / "b.tfrecord").exists()
    call("--output_dir=records", "--input_files", *more, "--max_seq_length=32", "--overwrite", "False")
    assert jobs[1].input_files == ",".join(more) and jobs[1].overwrite is False


def test_records_of_a_tokenizer_of_another_kind_have_no_casing_of_their_own(call, tmp_path):
    sentences = ["Dogs run .", "cats sleep ."] * 20
    (tmp_path / "tokenizer.json").write_text(vocabulary_building.build_tokenizer(sentences, "bpe", 270)[0])
    call("--output_dir=records", "--max_seq_length=32", "--objective=mlm", "--vocab_file=tokenizer.json")
    manifest = json.loads((tmp_path / "records" / "manifest.json").read_text())
    assert manifest["flags"]["do_lower_case"] is None and (tmp_path / "records" / "report.html").exists()

"""What a data card is drawn from: the sample of documents, its words and languages, some of the records."""

import importlib.util
import json

import pytest

from official.cli import records
from official.data.pretraining import creation, examples
from official.data.text import samples
from official.io import jobs
from tests.data.pretraining.test_creation import WORDS, make_text, write


@pytest.fixture(name="job")
def _job(tmp_path):
    texts = ",".join(make_text(tmp_path / f"text{number}.txt", 20, seed=number) for number in range(2))
    vocab = write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")
    return creation.Job(texts, str(tmp_path / "out"), vocab, examples.ExampleRules(32, 4, 2), num_shards=2)


def sample_of(texts, task=0, num_tasks=1):
    sample = samples.DocumentSample(task, num_tasks)
    for text in texts:
        sample.look_at(text)
    return sample.documents()


def test_the_sample_does_not_depend_on_the_order_and_has_no_copies():
    texts = [f"document {number} " + "x" * 3000 for number in range(600)]
    found = sample_of(texts + texts)
    assert found == sample_of(reversed(texts)) and len(found) == len(set(found)) == 256
    assert {len(text) for text in found} == {1000}
    assert sum(len(sample_of(texts, task, 1000)) for task in range(1000)) == 256
    assert sample_of(["", " \n"]) == []
    held_out = {text[:1000] for text in texts if samples.split_of(text, 0.2) == "eval"}
    assert 20 < len(held_out.intersection(found)) < 85  # their hashes are others


def test_scripts_are_counted():
    assert samples.scripts_of(["ab 12!", "\u0434a\u6f22"]) == {"Latin": 3, "Cyrillic": 1, "Cjk": 1}


@pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="py3langid is not installed")
def test_languages_are_guessed():
    texts = ["Das ist ein ganz gew\u00f6hnlicher deutscher Satz.", "This is a plain English sentence.", "12"]
    assert samples.languages_of(texts) == {"de": 1, "en": 1, "too short": 1}


def test_the_card_of_a_job_and_of_its_records_alone(job, tmp_path, monkeypatch, run_program):
    monkeypatch.setattr(samples, "identifier", lambda: None)
    jobs.take_rounds()
    manifest = creation.create_pretraining_data(job)
    out = tmp_path / "out"
    files = [str(out / name) for name in manifest["files"]]
    records.write_card_beside(str(out), files)
    page = (out / "report.html").read_text()
    for expected in (f"{manifest['instances']:,} examples of 32 tokens", "<td>Writing</td>", "(local)"):
        assert expected in page
    rounds = json.loads((out / "speed.json").read_text())["rounds"]
    assert [found["doing"] for found in rounds] == ["Tokenising", "Writing"]
    (out / "report.html").write_text("kept")
    records.write_card_beside(str(out), files)  # nothing was done since
    assert (out / "report.html").read_text() == "kept"
    (out / "manifest.json").rename(tmp_path / "moved.json")
    arguments = [*files, f"--vocab_file={job.vocab_file}", f"--report_page={tmp_path}/card.html"]
    told = run_program(records.run_inspect, *arguments).out
    page = (tmp_path / "card.html").read_text()
    assert "Counted in all records" in page and "came before" in page and "[MASK]</strong>" in page
    assert f"{manifest['instances']:,} examples" in told


def test_a_damaged_sample_of_examples_is_left_out_and_samples_go_with_the_records(job, tmp_path, monkeypatch):
    gathered = creation.card.kept_examples

    def damage_first(folder, *arguments):
        for path in (tmp_path / "out" / ".unfinished").glob("examples-00000.npz"):
            path.write_bytes(path.read_bytes()[:100])
        return gathered(folder, *arguments)

    monkeypatch.setattr(creation.card, "kept_examples", damage_first)
    creation.create_pretraining_data(job)
    found = samples.read(job.output_dir)
    assert found["records"]["files"] == 1 and len(found["examples"]) == 1
    assert found["records"]["record_format"] == "plain"
    creation.shard_files.remove_earlier(job.output_dir)
    assert samples.read(job.output_dir) == {"documents": []}

"""What a run keeps beside its weights, vocabulary, capitals and labels, and what finds it there."""

import json
import os
import pathlib

import pytest

from official import inference
from official.checkpoint.convert import convert
from official.data.glue import tasks as glue_tasks
from official.io.errors import ConfigError
from official.tasks import TASKS
from official.training import resume
from tests.data.glue.test_glue_data import write_split
from tests.run_folders import run

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def lower_case_of(folder: pathlib.Path) -> bool:
    return json.loads((folder / "tokenizer_config.json").read_text())["do_lower_case"]


def test_what_is_missing_is_written_and_nothing_else(tmp_path):
    wanted = {"vocab.txt": b"a\nb\n", "labels.json": b'{"labels": ["0"]}'}
    wanted["tokenizer_config.json"] = b'{"do_lower_case": true, "model_max_length": 32}'
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "of_another_version": 1}')
    missing = resume.missing_assets(str(tmp_path), wanted)
    assert sorted(missing) == ["labels.json", "vocab.txt"]
    for name, content in missing.items():
        (tmp_path / name).write_bytes(content)
    assert not resume.missing_assets(str(tmp_path), wanted)
    for name, content, flag in (
        ("vocab.txt", b"a\nc\n", "vocab_file"),
        ("tokenizer_config.json", b'{"do_lower_case": false}', "do_lower_case"),
        ("labels.json", b'{"labels": null}', "glue_task"),
    ):
        message = f"--{flag} is not that of the run in --model_dir=.*, which keeps its own in {name}"
        with pytest.raises(ConfigError, match=message):
            resume.missing_assets(str(tmp_path), {name: content})


def test_a_squad_run_is_asked_without_its_original_vocabulary(squad, tmp_path, vocab_file):
    run(squad(num_train_epochs=1))
    folder, original = tmp_path / "run", pathlib.Path(vocab_file)
    kept = (folder / "vocab.txt").read_bytes()
    assert kept == original.read_bytes() and lower_case_of(folder) is True
    original.write_bytes(kept.replace(b"red\nblue", b"blue\nred"))  # another of the same size
    with pytest.raises(ConfigError, match="vocab_file .*run/vocab.txt -> .*/vocab.txt does not fit the run"):
        run(squad(num_train_epochs=2))
    assert (folder / "vocab.txt").read_bytes() == kept
    original.unlink()
    model = inference.load(str(folder))
    assert model.source.vocabulary.do_lower_case and model.answers("what is the ball?", "The red ball")
    (folder / "vocab.txt").unlink()
    settings = json.loads((folder / "config.json").read_text())
    for written, message in (
        (json.dumps(settings), "vocab.txt is not there any more"),
        (json.dumps({**settings, "vocab_file": None}), "has no vocabulary beside it. Give --vocab_file=PATH"),
        ("{", "config.json: "),
    ):
        (folder / "config.json").write_text(written)
        with pytest.raises(ConfigError, match=message):
            inference.load(str(folder))


def test_a_glue_run_keeps_its_labels_and_exports_them(make, tmp_path, vocab_file):
    for split, rows in (("train", 10), ("dev", 9)):
        write_split(tmp_path / "glue", glue_tasks.find_task("mnli"), split, rows=rows)
    run(make("glue", glue_task="mnli", data_dir=str(tmp_path / "glue"), num_train_epochs=1))
    os.remove(vocab_file)
    model, exported = inference.load(str(tmp_path / "run")), tmp_path / "hf"
    names = ["contradiction", "entailment", "neutral"]
    assert model.texts_of_a_row == 2 and model.classify("the red ball", "a ball").label in names
    convert(str(tmp_path / "run"), "huggingface", str(exported))
    config = json.loads((exported / "config.json").read_text())
    assert list(config["id2label"].values()) == names
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert (exported / "vocab.txt").read_bytes() == (tmp_path / "run" / "vocab.txt").read_bytes()
    assert lower_case_of(exported) is True


def test_pre_training_keeps_the_vocabulary_of_its_records(make_config, record_files, tmp_path):
    content = "\n".join([*SPECIAL, *(f"Word{number}" for number in range(45))]) + "\n"
    (tmp_path / "vocab.txt").write_text(content)
    settings = dict(input_files=record_files(), vocab_file=str(tmp_path / "vocab.txt"), num_steps_per_epoch=5)
    with pytest.raises(ConfigError, match="is cased: 45 of 45 words"):
        TASKS["pretrain"](make_config(**settings)).find_data()
    (tmp_path / "train" / "manifest.json").write_text('{"flags": {"do_lower_case": false}}')
    run(make_config(**settings))
    assert (tmp_path / "run" / "vocab.txt").read_text() == content
    assert lower_case_of(tmp_path / "run") is False


def test_a_run_takes_the_vocabulary_that_lies_beside_its_records(make_config, record_files, tmp_path, caplog):
    words = [*SPECIAL, *(f"word{number}" for number in range(45))]
    settings = dict(input_files=record_files(), num_steps_per_epoch=5)
    exports = dict(settings, export_dir=str(tmp_path / "export"))
    with pytest.raises(ConfigError, match="export_dir needs the vocabulary"):
        TASKS["pretrain"](make_config(**exports)).find_data()
    beside, other = tmp_path / "train" / "vocab.txt", tmp_path / "other.txt"
    beside.write_text("\n".join(words) + "\n")
    other.write_text("\n".join([*SPECIAL, *reversed(words[5:])]) + "\n")
    (tmp_path / "train" / "manifest.json").write_text('{"flags": {"do_lower_case": false}}')
    TASKS["pretrain"](make_config(**exports)).find_data()
    run(make_config(**settings))
    assert (tmp_path / "run" / "vocab.txt").read_bytes() == beside.read_bytes()
    assert lower_case_of(tmp_path / "run") is False
    assert inference.load(str(tmp_path / "run")).fill_mask("word1 [MASK]", top_k=1)[0][0][0] in words
    more = record_files(name="more")
    (tmp_path / "more" / "vocab.txt").write_bytes(other.read_bytes())
    for change, message in (
        (dict(vocab_file=str(other)), "other.txt is not the vocabulary of the records, .*train/vocab.txt"),
        (dict(input_files=f"{settings['input_files']},{more}"), "are different vocabularies"),
    ):
        with pytest.raises(ConfigError, match=message):
            TASKS["pretrain"](make_config(**{**settings, **change})).find_data()
    beside.write_text("\n".join([*words, *(f"more{number}" for number in range(128))]) + "\n")
    task = TASKS["pretrain"](make_config(**settings))
    task.find_data()
    assert not task.companions and "has 178 words, the model's vocab_size is 50" in caplog.text

"""What a run keeps beside its weights, vocabulary, capitals and labels, and what finds it there."""

import json
import os

import pytest

from official import inference
from official.checkpoint.convert import convert
from official.data.glue import tasks as glue_tasks
from official.io.errors import ConfigError
from official.tasks import TASKS
from official.training import resume
from tests.conftest import TINY
from tests.data.glue.test_glue_data import write_split
from tests.run_folders import run


def test_what_is_missing_is_written_and_nothing_else(tmp_path):
    wanted = {
        "vocab.txt": b"a\nb\n",
        "tokenizer_config.json": b'{"do_lower_case": true, "model_max_length": 32}',
        "labels.json": b'{"labels": ["0"]}',
    }
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
        with pytest.raises(
            ConfigError,
            match=f"--{flag} is not that of the run in --model_dir=.*, which keeps its own in {name}",
        ):
            resume.missing_assets(str(tmp_path), {name: content})


def test_a_squad_run_is_asked_without_its_original_vocabulary(squad, tmp_path, vocab_file):
    run(squad(num_train_epochs=1))
    kept = (tmp_path / "run" / "vocab.txt").read_bytes()
    assert (
        kept == open(vocab_file, "rb").read()
        and json.loads((tmp_path / "run" / "tokenizer_config.json").read_text())["do_lower_case"] is True
    )
    with open(vocab_file, "wb") as file:  # another of the same size
        file.write(kept.replace(b"red\nblue", b"blue\nred"))
    with pytest.raises(ConfigError, match="vocab_file .*run/vocab.txt -> .*/vocab.txt does not fit the run"):
        run(squad(num_train_epochs=2))
    assert (tmp_path / "run" / "vocab.txt").read_bytes() == kept
    os.remove(vocab_file)
    model = inference.load(str(tmp_path / "run"))
    assert model.source.vocabulary.do_lower_case and model.answers("what is the ball?", "The red ball")
    os.remove(tmp_path / "run" / "vocab.txt")
    with pytest.raises(ConfigError, match="vocab.txt is not there any more"):
        inference.load(str(tmp_path / "run"))
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(
        json.dumps({name: value for name, value in settings.items() if name != "vocab_file"})
    )
    with pytest.raises(ConfigError, match="has no vocabulary beside it. Give --vocab_file=PATH"):
        inference.load(str(tmp_path / "run"))
    for damaged in ("[]", "{"):
        (tmp_path / "run" / "config.json").write_text(damaged)
        with pytest.raises(ConfigError, match="config.json: "):
            inference.load(str(tmp_path / "run"))


def test_a_glue_run_keeps_its_labels_and_exports_them(make, tmp_path, vocab_file):
    for split, rows in (("train", 10), ("dev", 9)):
        write_split(tmp_path / "glue", glue_tasks.find_task("mnli"), split, rows=rows)
    run(make("glue", glue_task="mnli", data_dir=str(tmp_path / "glue"), num_train_epochs=1))
    os.remove(vocab_file)
    model = inference.load(str(tmp_path / "run"))
    names = ["contradiction", "entailment", "neutral"]
    assert model.texts_of_a_row == 2 and model.classify("the red ball", "a ball").label in names
    convert(str(tmp_path / "run"), "huggingface", str(tmp_path / "hf"))
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert list(config["id2label"].values()) == names and config["architectures"] == [
        "BertForSequenceClassification"
    ]
    assert (tmp_path / "hf" / "vocab.txt").read_bytes() == (tmp_path / "run" / "vocab.txt").read_bytes()
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["do_lower_case"] is True


def test_pre_training_keeps_the_vocabulary_of_its_records(make_config, record_files, tmp_path):
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"Word{number}" for number in range(TINY["vocab_size"] - 5)),
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    settings = dict(input_files=record_files(), vocab_file=str(tmp_path / "vocab.txt"), num_steps_per_epoch=5)
    with pytest.raises(ConfigError, match="is cased: 45 of 45 words"):
        TASKS["pretrain"](make_config(**settings)).find_data()
    (tmp_path / "train" / "manifest.json").write_text('{"flags": {"do_lower_case": false}}')
    run(make_config(**settings))
    assert (tmp_path / "run" / "vocab.txt").read_text() == "\n".join(words) + "\n"
    assert json.loads((tmp_path / "run" / "tokenizer_config.json").read_text())["do_lower_case"] is False


def test_a_run_takes_the_vocabulary_that_lies_beside_its_records(make_config, record_files, tmp_path, caplog):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"word{number}" for number in range(TINY["vocab_size"] - 5))]
    settings = dict(input_files=record_files(), num_steps_per_epoch=5)
    with pytest.raises(ConfigError, match="export_dir needs the vocabulary"):
        TASKS["pretrain"](make_config(**settings, export_dir=str(tmp_path / "export"))).find_data()
    beside, other = tmp_path / "train" / "vocab.txt", tmp_path / "other.txt"
    beside.write_text("\n".join(words) + "\n")
    other.write_text("\n".join([*special, *reversed(words[5:])]) + "\n")
    (tmp_path / "train" / "manifest.json").write_text('{"flags": {"do_lower_case": false}}')
    TASKS["pretrain"](make_config(**settings, export_dir=str(tmp_path / "export"))).find_data()
    run(make_config(**settings))
    assert (tmp_path / "run" / "vocab.txt").read_bytes() == beside.read_bytes()
    assert json.loads((tmp_path / "run" / "tokenizer_config.json").read_text())["do_lower_case"] is False
    model = inference.load(str(tmp_path / "run"))
    assert model.fill_mask("word1 [MASK]", top_k=1)[0][0][0] in words

    with pytest.raises(
        ConfigError, match="other.txt is not the vocabulary of the records, .*train/vocab.txt"
    ):
        TASKS["pretrain"](make_config(**settings, vocab_file=str(other))).find_data()
    more = record_files(name="more")
    (tmp_path / "more" / "vocab.txt").write_bytes(other.read_bytes())
    both = {**settings, "input_files": f"{settings['input_files']},{more}"}
    with pytest.raises(ConfigError, match="are different vocabularies"):
        TASKS["pretrain"](make_config(**both)).find_data()
    beside.write_text("\n".join([*words, *(f"more{number}" for number in range(128))]) + "\n")
    task = TASKS["pretrain"](make_config(**settings))
    task.find_data()
    assert not task.companions and "has 178 words, the model's vocab_size is 50" in caplog.text

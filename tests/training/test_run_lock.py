"""The folder of a run as a record: what a run that has begun, or is over, takes, refuses and leaves alone,
and the vocabulary, capitals and labels that it keeps."""

import json
import os
import pathlib

import numpy as np
import pytest

from official import config as config_lib
from official import inference
from official.config.setting import IDENTITY, LENGTH, RECIPE
from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import resume, run_lock
from official.training import run as runner
from tests.refusals import assert_refused
from tests.run_folders import result_of, run
from tests.training import test_loop

COMMAND = ["train.py", "--seed=1"]


@pytest.fixture
def make_config(make_config):
    """Runs of 5 or of 10 steps, whose graphs the tests of this file share."""
    usual = dict(num_steps_per_epoch=5, warmup_steps=None, warmup_proportion=0.5)
    return lambda model=None, **settings: make_config(model, **{**usual, **settings})


def files_of(folder) -> dict[str, bytes]:
    """Returns what is in a folder, by name."""
    found = pathlib.Path(folder)
    return {str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()}


def interrupt_at(monkeypatch, step: int) -> None:
    """Gives the next run a signal after that step, however fast the machine is: a call does one step."""
    test_loop.call_lengths(monkeypatch, 1)
    test_loop.interrupt_at(monkeypatch, step)


def test_every_setting_says_its_part_in_the_training(make_config):
    """A new one of what is read or how weights are updated is refused once a run is over, unless its row says
    otherwise."""
    config = make_config()
    parts = {name: field.part_in_training(config) for name, field in config_lib.FIELDS.items()}
    assert set(parts.values()) == {None, IDENTITY, RECIPE, LENGTH}
    identity = (
        "task objective init_checkpoint fit_vocabulary train_file version_2_with_negative data_dir glue_task"
    )
    identity += " num_runs use_synthetic_data generated_data synthetic_input freeze_layers"
    identity += " text_columns label_column label_kind eval_share teacher pooling query_prompt passage_prompt"
    identity += " decay_checkpoint generator_share"
    length = "num_steps_per_epoch num_train_epochs stop_steps stop_threshold early_stopping_patience"
    for part, names in ((IDENTITY, identity), (LENGTH, length)):
        assert {name for name in parts if parts[name] == part} == set(names.split())
    free = "keep_checkpoints steps_per_loop num_gpus eval_batch_size distribution_strategy verbosity"
    recipe = "learning_rate train_batch_size dtype allreduce_dtype seed optimizer_type input_files"
    recipe += " max_seq_length"
    for part, names in ((None, free), (RECIPE, recipe)):
        assert [name for name in names.split() if parts[name] != part] == []
    same = config_lib.FIELDS["data_dir"].is_same
    assert same("a", "/x/a/", "/x") and same("a, b/../c", "/x/a,/x/c", "/x") and same(None, None)
    assert not same("a", "/x/a") and not same("a", None) and not same("gs://b/a", "/x/gs://b/a", "/x")


def test_a_run_that_is_over_is_a_record(make_config, record_files, tmp_path, monkeypatch, caplog):
    files, evaluation = record_files(), record_files(name="eval")
    shared = dict(input_files=files, init_checkpoint=None, eval_files=evaluation, do_eval=True)
    config = make_config(**shared)
    first, folder = run(config), pathlib.Path(config.model_dir)
    before = files_of(folder)
    monkeypatch.chdir(tmp_path)
    for same in (
        {},
        {"input_files": os.path.relpath(files, tmp_path), "eval_files": "eval/part-*", "model_dir": "run"},
        {"keep_checkpoints": 1, "steps_per_loop": 1, "eval_batch_size": 4, "num_accumulation_steps": 2},
    ):
        again = run(make_config(**{**shared, **same}), ["train.py", "--other"])
        assert (again.status, again.exit_code, again.step) == ("finished", 0, 5)
        assert again.eval_loss == first.eval_loss
        assert "nothing in its folder was changed" in again.reason and files_of(folder) == before, same
    monkeypatch.chdir(folder)  # whose parent the run was begun in, as below
    saved = {**json.loads(before["config.json"]), "input_files": "train/part-*", "eval_files": "eval/part-*"}
    noted = json.loads(before["result.json"])
    noted["environment"]["working_directory"] = str(tmp_path)
    (folder / "config.json").write_text(json.dumps(saved))
    (folder / "result.json").write_text(json.dumps(noted))
    before = files_of(folder)
    assert run(make_config(**{**shared, "eval_files": "../eval/part-*"})).step == 5
    assert files_of(folder) == before
    changes = dict(learning_rate=2e-2, train_batch_size=16, dtype="bf16", seed=7, optimizer_type="adamw")
    changes |= dict(input_files=record_files(name="other"), init_checkpoint=str(tmp_path / "nowhere"))
    changes |= dict(max_predictions_per_seq=2, num_steps_per_epoch=4, stop_steps=3, stop_threshold=0.0)
    for name, value in changes.items():
        with pytest.raises(ConfigError, match=f"^{name} .* -> .*--overwrite") as error:
            run(make_config(**{**shared, name: value}))
        assert len(str(error.value)) < 280 + len(str(tmp_path)) * 3 and files_of(folder) == before, name
    evaluation = dict(shared, do_train=False)
    assert resume.left_to_do(make_config(**evaluation))[1] is None
    with pytest.raises(ConfigError, match="^init_checkpoint=.*nowhere would not be read: .*of step 5"):
        resume.left_to_do(make_config(**evaluation | {"init_checkpoint": str(tmp_path / "nowhere")}))
    for model in ({"hidden_dropout_prob": 0.1}, {"num_hidden_layers": 2}, {"hidden_act": "relu"}):
        with pytest.raises(ConfigError, match=f"^model.{next(iter(model))} .* does not fit the run"):
            run(make_config(model, **shared))
    many = dict(learning_rate=1e-3, train_batch_size=16, dtype="bf16", seed=7, beta_1=0.8)
    many["warmup_proportion"] = 0.4
    with pytest.raises(ConfigError) as error:
        run(make_config(**shared, **many))
    assert all(name in str(error.value) for name in many) and files_of(folder) == before
    train, evaluation = (pathlib.Path(tmp_path, name, "part-00001") for name in ("train", "eval"))
    for path, evaluates in ((train, False), (evaluation, True)):  # other content under the same name
        content = path.read_bytes()
        path.write_bytes(content[::-1])
        caplog.clear()
        left, over = resume.left_to_do(make_config(**shared))
        assert (left.do_train, over is None) == (not evaluates, evaluates)
        assert ("its training data have changed: part-00001" in caplog.text) == (path == train)
        path.write_bytes(content)
    train.unlink()  # which no run that is over needs
    assert resume.left_to_do(make_config(**shared))[1] and files_of(folder) == before


def test_a_folder_that_reads_as_a_pattern_is_refused(make_config, tmp_path):
    """TensorFlow's reader of checkpoints would find nothing there."""
    with pytest.raises(ConfigError, match=r"runs\[1\]: TensorFlow's checkpoint reader treats"):
        run(make_config(model_dir=str(tmp_path / "runs[1]")))
    assert not os.listdir(tmp_path)


def test_a_run_that_is_over_takes_more_steps(make_config):
    config, more, most = (make_config(num_train_epochs=epochs) for epochs in (1, 2, 3))
    run(config)
    assert more.warmup_steps != config.warmup_steps
    assert run(more).step == 10 and result_of(more)["config"]["num_train_epochs"] == 2
    for index in pathlib.Path(more.model_dir).glob("ckpt-10.*"):
        index.unlink()
    with pytest.raises(ConfigError, match="needs the checkpoint of step 10, which is gone"):
        run(most)


def test_a_run_that_has_reached_its_target_stays_over_and_takes_a_higher_one(make_config):
    shared = dict(do_eval=True, num_eval_samples=16, num_steps_per_epoch=10, steps_between_eval=5)
    for threshold, ended in ((0.0, ("success", 0, 5)), (1.0, ("aborted", 1, 10))):
        result, again = (run(make_config(**shared, stop_threshold=threshold)) for _ in range(2))
        assert (result.status, result.exit_code, result.step) == ended and result.target == threshold
        assert (again.status, again.step) == (result.status, result.step)
        assert again.eval_accuracy == result.eval_accuracy
    assert result_of(make_config())["step"] == 10


def test_a_run_that_goes_on_is_the_same_run(glue, tmp_path, monkeypatch):
    """Its task, data and weights are refused; its recipe may change, which is said, as long as steps are left
    to train with it."""
    glue("cola", dict(train=40))
    with monkeypatch.context() as patched:
        interrupt_at(patched, 1)
        assert run(glue("sst2", dict(train=40), do_eval=False)).status == "interrupted"
    before = files_of(tmp_path / "run")
    for change in (
        {"glue_task": "cola"},
        {"data_dir": str(tmp_path)},
        {"init_checkpoint": str(tmp_path)},
        {"use_synthetic_data": True, "data_dir": None},
        {"learning_rate": 1e-3, "stop_steps": 1},
    ):
        with pytest.raises(ConfigError, match=f"{next(iter(change))} .* the run in .*, not over at step 1"):
            run(glue("sst2", do_eval=False, **change))
        assert files_of(tmp_path / "run") == before, change
    warned = []
    monkeypatch.setattr("official.training.run_lock.logging.warning", lambda *text: warned.append(text))
    again = glue("sst2", do_eval=False, learning_rate=1e-3, keep_checkpoints=1)
    assert run(again).status == "finished"
    assert [text[1] for text in warned if "Changed" in text[0]] == ["learning_rate 0.005 -> 0.001"]


def test_options_of_ipus_are_compared_by_what_they_mean(make_config, tmp_path):
    saved = config_lib.to_dict(make_config()) | {"distribution_strategy": "ipu"}
    asked = config_lib.replaced(make_config(), distribution_strategy="ipu")
    of_earlier_versions = {"ipu_options": None, "ipu_replicas": 4, "partials_type": "float"}
    (tmp_path / "run").mkdir()
    for before, options, is_same in (
        (of_earlier_versions, "replicas=4", True),
        (of_earlier_versions, "replicas=2", False),
        ({"ipu_options": "no_outlining=false"}, None, True),
        ({"ipu_options": "replicas=1 replicas=2"}, "replicas=2", True),
        ({"ipu_options": "of_another_version=1"}, None, False),
    ):
        (tmp_path / "run" / "config.json").write_text(json.dumps(saved | before))
        run_before = run_lock.PreviousRun(str(tmp_path / "run"))
        changes = run_before.changes(config_lib.replaced(asked, ipu_options=options))
        assert any(map(len, changes.values())) != is_same, (before, options, changes)


def test_a_model_of_another_program_keeps_its_folder(make_config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="--model_dir=.*run holds a model in Hugging Face's format, whose"):
        run(make_config())
    assert os.listdir(tmp_path / "run") == ["config.json"]


@pytest.mark.slow
def test_evaluations_and_predictions_are_added_to_the_record(squad, tmp_path):
    run(squad(num_train_epochs=1))
    folder, train_file = tmp_path / "run", str(tmp_path / "train.json")
    result_of_run = lambda: json.loads((folder / "result.json").read_text())
    trained, names = result_of_run(), ("config.json", "command.txt", "report.html", "metrics.jsonl")
    before = {name: (folder / name).read_bytes() for name in names}
    run(squad(do_train=False, predict_file=train_file), ["train.py", "--do_train=false"])
    run(squad(do_train=False, do_eval=False, do_predict=True))
    run(squad(num_train_epochs=1, do_predict=True, predict_file=train_file))  # nothing is left to train
    result = result_of_run()
    evaluated, predicted, both = result.pop("evaluations")
    assert trained.pop("evaluations") == [] and result == trained
    assert {name: (folder / name).read_bytes() for name in names} == before
    assert evaluated["command"] == "train.py --do_train=false" and evaluated["time"].endswith("+00:00")
    assert evaluated["checkpoint"] == str(folder / "ckpt-8") and evaluated["step"] == 8
    assert evaluated["settings"]["predict_file"] == train_file
    assert evaluated["data"]["eval"]["questions"] == 64 and evaluated["eval_accuracy"] == evaluated["f1"]
    assert 0 <= evaluated["exact_match"] <= evaluated["f1"] <= 1
    assert predicted["predictions"] and "f1" not in predicted
    assert both["f1"] == evaluated["f1"] and both["predictions"]
    pages = [os.path.basename(entry["report"]) for entry in (evaluated, both)]
    assert pages == ["evaluation_1.html", "evaluation_3.html"]
    assert "Score by question word" in (folder / "evaluation_1.html").read_text()
    assert run(squad(num_train_epochs=2)).step == 16 and len(result_of_run()["evaluations"]) == 3  # they stay


def test_overwrite_renames_the_run_and_begins_anew(make_config, monkeypatch):
    config, folder = make_config(), pathlib.Path(make_config().model_dir)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    run(make_config(overwrite=True))  # a folder without a run stays
    assert (folder / "notes.txt").exists()
    first = files_of(folder)
    with run_lock.writing(str(folder)), pytest.raises(ConfigError, match="in use by another run"):
        run(make_config(overwrite=True))
    again = make_config(overwrite=True, stop_steps=4)
    command = ["train.py", "--overwrite"]
    with monkeypatch.context() as patched:
        interrupt_at(patched, 2)
        assert run(again, command).status == "interrupted"
    assert files_of(f"{folder}.1") == first and not (folder / "notes.txt").exists()
    saved = json.loads((folder / "config.json").read_text())
    assert saved["stop_steps"] == 4 and not saved["overwrite"]
    assert run(again, command).step == 4  # the same command goes on
    assert not pathlib.Path(f"{folder}.2").exists()
    assert run(again, command).step == 4 and pathlib.Path(f"{folder}.2").exists()
    kept = files_of(folder)
    for change, message in (
        ({"init_checkpoint": str(folder / "ckpt-4")}, "init_checkpoint=.* is in --model_dir"),
        ({"use_synthetic_data": False, "input_files": "/nowhere/*"}, "/nowhere"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(make_config(overwrite=True, **change))
        assert files_of(folder) == kept and not pathlib.Path(f"{folder}.3").exists()
    with pytest.raises(ConfigError, match="--model_dir=.*config.json cannot be"):
        run(make_config(model_dir=str(pathlib.Path(f"{folder}.1") / "config.json")))
    assert config.overwrite is False


def test_a_result_that_cannot_be_read_is_a_run_too(make_config):
    config, folder = make_config(overwrite=True), pathlib.Path(make_config().model_dir)
    command = "train.py --overwrite"
    for number, (noted, is_over) in enumerate(
        (
            ({"accuracy": 0.9}, False),  # another program's
            ({"status": 7, "config": [1]}, False),
            ({"status": "interrupted", "step": "5"}, False),
            ({"status": "finished", "step": "5", "config": None}, True),  # another version's
            ({"status": "finished", "step": "5", "config": {"do_train": False}}, False),
        ),
        1,
    ):
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps(noted))
        previous = run_lock.PreviousRun(str(folder))
        assert previous.is_there and previous.is_over == is_over and not previous.result
        (folder / "command.txt").write_text(command if is_over else "train.py")
        with run_lock.set_aside(config, command.split()):
            assert not folder.exists()
        assert json.loads(pathlib.Path(f"{folder}.{number}", "result.json").read_text()) == noted


@pytest.mark.slow
def test_several_seeds_are_a_record_too(glue, tmp_path):
    splits = dict(train=16, dev=8)

    def several(**settings):
        return runner.run_seeds(glue("sst2", splits, **settings), TASKS["glue"], command=COMMAND)

    result = several(num_runs=2)
    assert result.reason == "2 runs done"
    folders = [tmp_path / "run" / f"run-{number}" for number in (1, 2)]
    single = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert single[0]["config"]["seed"] + 1 == single[1]["config"]["seed"]
    accuracies = [each["accuracy"] for each in single]
    assert result.scores["accuracy"] == pytest.approx(np.mean(accuracies))
    assert result.scores["accuracy_std"] == pytest.approx(np.std(accuracies, ddof=1))
    page = (tmp_path / "run" / "report.html").read_text()
    for each in folders:
        assert f'href="{each.name}/report.html"' in page and (each / "report.html").exists()
    before = files_of(tmp_path / "run")
    again = several(num_runs=2)
    assert again.exit_code == 0 and files_of(tmp_path / "run") == before
    for settings, name in (
        ({"num_runs": 2, "learning_rate": 1e-3}, "learning_rate"),
        ({"num_runs": 1}, "num_runs"),
    ):
        with pytest.raises(ConfigError, match=f"{name} .* does not fit the run"):
            several(**settings)
        assert files_of(tmp_path / "run") == before, name
    assert several(num_runs=3).reason == "3 runs done"
    several(num_runs=2, overwrite=True, learning_rate=1e-3)
    assert (tmp_path / "run.1" / "run-3").exists() and not (tmp_path / "run" / "run-3").exists()
    run(glue("sst2", splits, model_dir="single", do_eval=False))
    with pytest.raises(ConfigError, match="num_runs 1 -> 2"):
        several(num_runs=2, model_dir="single")


def test_a_short_run_has_ten_lines_at_least(make_config):
    wrong = []
    for settings, lines, checkpoints in (
        (dict(num_steps_per_epoch=60), 3, 201),
        (dict(num_steps_per_epoch=1500), 75, 225),
        (dict(num_steps_per_epoch=100_000), 200, None),
        (dict(num_steps_per_epoch=60, steps_per_loop=20), 20, None),
        (dict(num_steps_per_epoch=60, steps_per_loop=2), 2, 6),
        (dict(num_steps_per_epoch=170, checkpoint_every_steps=14), 7, 14),
        (dict(num_steps_per_epoch=170, do_eval=True, steps_between_eval=25), 5, None),
        (dict(num_steps_per_epoch=170, do_eval=True, steps_between_eval=23), 8, None),
    ):
        config = make_config(**{"steps_per_loop": None, **settings})
        found = config_lib.steps_per_loop(config), config_lib.checkpoint_every_steps(config)
        if found != (lines, checkpoints or found[1]):
            wrong.append((settings, found))
    assert not wrong
    result = run(make_config(num_steps_per_epoch=10, steps_per_loop=None))
    assert [line["step"] for line in read_metrics(make_config().model_dir)] == list(range(1, result.step + 1))


# ------------------------------------------------------------------------------------------------------------
# Vocabulary, capitals and labels


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


@pytest.mark.slow
def test_a_squad_run_is_asked_without_its_original_vocabulary(squad, tmp_path, vocab_file):
    run(squad(num_train_epochs=1, do_eval=False))
    folder, original = tmp_path / "run", pathlib.Path(vocab_file)
    kept = (folder / "vocab.txt").read_bytes()
    assert kept == original.read_bytes() and lower_case_of(folder) is True
    original.write_bytes(kept.replace(b"red\nblue", b"blue\nred"))  # another of the same size
    with pytest.raises(ConfigError, match="vocab_file .*run/vocab.txt -> .*/vocab.txt does not fit the run"):
        run(squad(num_train_epochs=2, do_eval=False))
    assert (folder / "vocab.txt").read_bytes() == kept
    original.unlink()
    model = inference.load(str(folder))
    assert model.source.vocabulary.do_lower_case and model.answers("what is the ball?", "The red ball")
    (folder / "vocab.txt").unlink()
    settings = json.loads((folder / "config.json").read_text())
    for written, message in (
        (json.dumps(settings), "vocab.txt no longer exists"),
        (json.dumps({**settings, "vocab_file": None}), "has no vocabulary in its folder. Give --vocab_file"),
        ("{", "config.json: "),
    ):
        (folder / "config.json").write_text(written)
        with pytest.raises(ConfigError, match=message):
            inference.load(str(folder))


def test_a_run_takes_the_vocabulary_that_lies_beside_its_records(make_config, record_files, tmp_path, caplog):
    words = [*SPECIAL, *(f"Word{number}" for number in range(45))]
    settings = dict(input_files=record_files(), num_steps_per_epoch=5)
    exports = dict(export_dir=str(tmp_path / "export"))

    def find(change):
        task = TASKS["pretrain"](make_config(**{**settings, **change}))
        task.find_data()
        return task

    assert_refused(find, [(exports, "export_dir needs the vocabulary")])
    beside, other = tmp_path / "train" / "vocab.txt", tmp_path / "other.txt"
    beside.write_text("\n".join(words) + "\n")
    other.write_text("\n".join([*SPECIAL, *reversed(words[5:])]) + "\n")
    assert_refused(find, [(dict(vocab_file=str(beside)), "is cased: 45 of 45 words")])
    (tmp_path / "train" / "manifest.json").write_text('{"flags": {"do_lower_case": false}}')
    assert find(dict(vocab_file=str(beside))).companions["vocab.txt"] == beside.read_bytes()
    assert "part-00000 begins with token 0, but [CLS] is 2 in " in caplog.text  # no record does
    find(exports)
    run(make_config(**settings))
    assert (tmp_path / "run" / "vocab.txt").read_bytes() == beside.read_bytes()
    assert lower_case_of(tmp_path / "run") is False
    assert inference.load(str(tmp_path / "run")).fill_mask("Word1 [MASK]", top_k=1)[0][0][0] in words
    more = record_files(name="more")
    (tmp_path / "more" / "vocab.txt").write_bytes(other.read_bytes())
    both = f"{settings['input_files']},{more}"
    cases = [
        (dict(vocab_file=str(other)), "other.txt is not the vocabulary of the records, .*train/vocab.txt"),
        (dict(input_files=both), "are different vocabularies"),
        (dict(input_files=both, vocab_file=str(beside)), "not the vocabulary of .*more/vocab.txt"),
        (dict(vocab_file=str(beside), do_lower_case=True), "=false, --do_lower_case says true. Drop it"),
    ]
    assert_refused(find, cases)
    beside.write_text("\n".join([*words, *(f"more{number}" for number in range(128))]) + "\n")
    assert not find({}).companions and "has 178 words, but the model's vocab_size is 50" in caplog.text

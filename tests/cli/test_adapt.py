"""`bert adapt`: words that are added, losses that are told, kills in between, and what is refused."""

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest

from official import models
from official.checkpoint import convert, registry
from official.checkpoint.manager import CheckpointManager
from official.cli import adapt, train
from official.config import bert_config_from_dict
from official.data.records.schema import read_example
from official.io.errors import ConfigError
from official.modeling.models import MaskedLMModel
from tests import records
from tests.fixtures import TINY
from tests.run_folders import assert_same_state, state_of
from tests.shared_steps import fixture_step_pool, share_steps  # noqa: F401

LETTERS = "abcdefgh"
WORDS = "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK]".split()
WORDS += [*LETTERS, *(f"##{each}" for each in LETTERS), "."]
TERMS = ("bead", "cafe", "face", "hedge")
EMBEDDINGS, BIAS = "bert/embeddings/word_embeddings", "cls/predictions/output_bias"


def documents(count, seed, words):
    generator = np.random.default_rng(seed)
    lines = [f"{' '.join(generator.choice(words, 8))} .\n" for _ in range(3 * count)]
    return "\n".join("".join(lines[3 * number : 3 * number + 3]) for number in range(count))


@pytest.fixture(name="call", scope="module")
def fixture_call(tmp_path_factory, step_pool):
    """Returns a function that adapts a tiny model, in a folder of its own, with some flags; it returns the
    folder of the run."""
    folder = tmp_path_factory.mktemp("adapt")
    sizes = {**TINY, "vocab_size": len(WORDS), "num_hidden_layers": 1, "max_position_embeddings": 48}
    model = MaskedLMModel(bert_config_from_dict(sizes, "test"))
    variables = {variable.name.split(":")[0]: variable for variable in model.variables}
    variables[BIAS].assign(np.random.default_rng(1).normal(size=len(WORDS)))
    CheckpointManager(str(folder / "native"), variables, 1).save(1)
    (folder / "native" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "native" / "bert_config.json").write_text(json.dumps(sizes))
    convert.convert(str(folder / "native"), "huggingface", str(folder / "model"))
    own = documents(40, 1, [*TERMS, "a", "b"])
    (folder / "text.txt").write_text(own)
    (folder / "other.txt").write_text(f"{documents(10, 2, list(LETTERS))}\n{own}")  # all of it is here, too
    lines = documents(20, 3, [*TERMS, "a", "b"]).split("\n")
    rows = [{"text": line, "kind": str("bead" in line)} for line in filter(None, lines)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def call(name: str, *arguments: str) -> str:
        usual = f"--checkpoint={folder}/model --input_files={folder}/text.txt --model_dir={folder}/{name}"
        usual += f" --general_files={folder}/other.txt --max_seq_length=32 --num_train_epochs=1"
        usual += " --train_batch_size=8 --deterministic --verbosity=-1"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["bert adapt", *usual.split(), *arguments])
            patch.chdir(folder)
            share_steps(step_pool, patch)
            assert adapt.run_adapt() == 0
        return str(folder / name)

    return call


@pytest.fixture(name="adapted", scope="module")
def fixture_adapted(call):
    return call("whole", "--add_words=3")


def features_of(record):
    features = read_example(record).items()
    return {name: np.array(each.int64_list.value or each.float_list.value) for name, each in features}


def tensors_of(path):
    read = registry.open_checkpoint(str(path), "PATH").to_canonical().tensors
    return {name: tensor.read() for name, tensor in read.items()}


def test_added_words_have_the_means_of_their_pieces(adapted):
    before, after = (tensors_of(path) for path in (f"{adapted}/../model", f"{adapted}/adapt/start"))
    with open(f"{adapted}/vocab.txt") as file:
        words = file.read().split()
    added = json.loads(open(f"{adapted}/result.json").read())["adaptation"]["added_words"]
    assert len(added) == 3 and set(added) < set(TERMS)
    assert words == [WORDS[0], added[0], *WORDS[2:], *added[1:]]
    for word in added:
        pieces = [WORDS.index(word[0]), *(WORDS.index(f"##{letter}") for letter in word[1:])]
        for name in (EMBEDDINGS, BIAS):
            mean = before[name][pieces].mean(0)
            np.testing.assert_allclose(after[name][words.index(word)], mean, atol=1e-6)
    kept = [number for number, word in enumerate(WORDS) if word == words[number]]
    for name, values in before.items():
        rows = (kept,) if name in (EMBEDDINGS, BIAS) else ()
        assert np.array_equal(after[name][rows], values[rows]), name


def test_losses_are_those_of_the_sets_and_of_the_same_words(adapted):
    found = json.loads(open(f"{adapted}/result.json").read())["adaptation"]
    for side, path in (("before", f"{adapted}/../model"), ("after", adapted)):
        model = models.from_pretrained(path, task="fill_mask")
        for name, counts in found["masked_words"].items():
            assert counts["documents"] and counts["words"] <= counts["characters"]
            total = 0.0
            found_rows = records.read_records(f"{adapted}/adapt/{name}/{side}/part-00000-of-00001.tfrecord")
            rows = list(map(features_of, found_rows))
            inputs = {"input_ids": "input_ids", "attention_mask": "input_mask"}
            inputs = {given: np.stack([row[own] for row in rows]) for given, own in inputs.items()}
            for row, logits in zip(rows, np.asarray(model(inputs)).astype(np.float64)):
                places = row["masked_lm_positions"][row["masked_lm_weights"] > 0]
                labels = row["masked_lm_ids"][row["masked_lm_weights"] > 0]
                logits = logits[places] - logits[places].max(-1, keepdims=True)
                total += (np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(places)), labels]).sum()
            losses = found["masked_word_loss"][side][name]
            told = [losses[unit] for unit in ("per_word", "per_character", "per_piece")]
            parts = counts["words"], counts["characters"], counts["pieces"][side]
            np.testing.assert_allclose(told, [total / part for part in parts], rtol=1e-4)
    own = found["masked_words"]["own"]
    assert found["masked_words"]["general"]["documents"] == 10 + own["documents"]  # none that is trained on
    assert own["pieces"]["after"] < own["pieces"]["before"]
    before, after = (found["masked_word_loss"][side]["own"] for side in ("before", "after"))
    assert after["per_word"] < before["per_word"]


@pytest.mark.slow
def test_a_labelled_file_is_learned_before_and_after_by_one_recipe(adapted, call):
    rows = "--train_file=rows.jsonl", "--label_column=kind", "--num_runs=2"
    labelled = call("labelled", "--add_words=3", *rows)
    found = json.loads(open(f"{labelled}/result.json").read())["adaptation"]["scores"]
    configs = []
    for side in ("before", "after"):
        assert found[side].keys() >= {"accuracy", "accuracy_std"}
        configs.append(json.loads(open(f"{labelled}/adapt/scores_{side}/run-1/config.json").read()))
    different = {name for name in configs[0] if configs[0][name] != configs[1][name]}
    assert different == {"init_checkpoint", "vocab_file", "model_dir", "model"}
    assert configs[0]["model"] | {"vocab_size": configs[1]["model"]["vocab_size"]} == configs[1]["model"]


@pytest.mark.slow
def test_a_command_that_was_cut_goes_on_to_the_same_weights(adapted, call, monkeypatch):
    stages = []
    run = train.run

    def cut(config, arguments):
        stages.append(config.model_dir)
        if len(stages) in (2, 4, 5):
            raise KeyboardInterrupt
        return run(config, arguments)

    monkeypatch.setattr(train, "run", cut)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            call("cut", "--add_words=3")
    monkeypatch.undo()
    folder = call("cut", "--add_words=3")
    (step,) = {json.loads(open(f"{path}/result.json").read())["step"] for path in (folder, adapted)}
    assert_same_state(state_of(folder, step), state_of(adapted, step))
    shutil.rmtree(folder)


def test_what_a_folder_was_not_begun_with_is_refused_and_overwrite_sets_it_aside(adapted, call, monkeypatch):
    """What was made of the text, and measured of the end, is kept."""
    folder = pathlib.Path(adapted)
    for flag, setting in (("--add_words=2", "add_words"), ("--num_train_epochs=2", "num_train_epochs")):
        with pytest.raises(ConfigError, match=f"begun with another {setting}"):
            call("whole", "--add_words=3", flag)
    checkpoint = r"checkpoint \(files\).* or --overwrite"
    for name, changed, setting in (
        ("other.txt", ("a", "b"), "general_files"),
        ("model/config.json", ("{", "{ "), checkpoint),
    ):
        path = folder.parent / name
        content = path.read_text()
        path.write_text(content.replace(*changed))
        with pytest.raises(ConfigError, match=f"begun with another {setting}"):
            call("whole", "--add_words=3")
        path.write_text(content)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(adapt, "_choose_words", stop)
    with pytest.raises(KeyboardInterrupt):
        call("whole", "--add_words=2", "--overwrite")
    assert not (folder / "result.json").exists() and (folder.parent / "whole.1" / "result.json").exists()
    shutil.rmtree(folder)
    (folder.parent / "whole.1").rename(folder)


def test_what_the_command_cannot_do_is_refused(call, tmp_path):
    for arguments, expected in {
        ("--checkpoint=nowhere",): "^--checkpoint=nowhere",
        ("--label_column=kind",): "--label_column=kind is for the rows of --train_file",
        ("--eval_share=1",): "eval_share=1.0 is out of range",
        ("--init_checkpoint=x",): "unknown flag --init_checkpoint",
        ("--num_train_epochs=0",): "num_train_epochs=0 is below the minimum",
        ("--max_seq_length=64",): "max_seq_length=64 is larger than the model",
    }.items():
        with pytest.raises(ConfigError, match=expected):
            call("refused", *arguments)

"""pretrain.sh, pretrain_and_finetune_BERT.sh and fine_tune_GroupBERT_glue.sh, end to end with tiny models."""

import json
import os
import pathlib
import re

import numpy as np
import pytest

from official.data import generated
from official.data.generated import Text, make_vocabulary
from official.data.glue.tasks import find_task
from official.data.pretraining.examples import ExampleRules
from tests import programs
from tests.fixtures import ROOT, TINY

MODEL = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 48}
RUN = dict(model=MODEL, train_batch_size=8, num_train_epochs=1, stop_steps=4, steps_per_loop=2)
RUN |= dict(warmup_steps=1, distribution_strategy="one_device")
OF_SCRIPTS = {"PHASE1_CHECKPOINT", "PHASE2_CHECKPOINT", "INIT_CHECKPOINT", "WANDB"}


@pytest.fixture
def world(tmp_path):
    """Returns (a function that runs a script, its environment): small configurations and data for all of
    them."""
    vocabulary = make_vocabulary(MODEL["vocab_size"], None)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary.words) + "\n")
    names = {"CHECKPOINT_DIR": "checkpoint", "LOG_DIR": "logs", "OUTPUT_DIR": "glue_runs"}
    names |= {"VOCAB_FILE": "vocab.txt", "SQUAD_DIR": "squad", "GLUE_DIR": "glue"}
    environment = {variable: str(tmp_path / name) for variable, name in names.items()}

    def write(name, variable, **settings):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(RUN | settings))
        environment[variable] = str(path)

    for phase, (length, slots) in ((1, (32, 5)), (2, (48, 8))):
        rules = ExampleRules(length, slots, dupe_factor=1)
        sizes = dict(max_seq_length=length, max_predictions_per_seq=slots)
        write(f"phase{phase}", f"PHASE{phase}_CONFIG_PATH", task="pretrain", num_steps_per_epoch=4, **sizes)
        records = generated.write_pretraining(str(tmp_path / f"records{phase}"), vocabulary, rules, phase)
        environment[f"PHASE{phase}_TRAIN_FILE"] = records
    text = Text(vocabulary, np.random.default_rng(1))
    (tmp_path / "squad").mkdir()
    for split in ("train", "dev"):
        path = str(tmp_path / "squad" / f"{split}-v1.1.json")
        generated.write_squad(path, split, text, with_negative=False)
    generated.write_glue(environment["GLUE_DIR"], find_task("rte"), text)
    write("squad", "SQUAD_CONFIG_PATH", task="squad", max_seq_length=48, max_query_length=16, doc_stride=16)
    write("glue", "CONFIG_PATH", task="glue", glue_task="rte", max_seq_length=48)

    def run(script, *arguments, **more):
        own = {**environment, "PYTHONPATH": str(ROOT), **more}
        return programs.call(f"scripts/{script}", *arguments, without=OF_SCRIPTS, **own)

    return run, environment


def test_a_run_that_fails_ends_the_script(world):
    done = world[0]("pretrain.sh", "base", PHASE1_CONFIG_PATH="/not/there.json")
    assert done.returncode == 2 and "Phase 1 has saved none" not in done.stderr and "Step" not in done.stdout


def test_the_newest_checkpoint_counts_wherever_it_is(tmp_path):
    for number, name in enumerate(["b/ckpt-9", "a/c/model.ckpt-3", "a/ckpt-20"]):
        path = tmp_path / f"{name}.index"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (1000 - number, 1000 - number))
    script = 'set -euo pipefail; source scripts/graphcore_recipe.sh; newest "$1" ""'
    done = programs.call("bash", "-c", script, "test", tmp_path)
    assert done.stdout.strip() == str(tmp_path / "b/ckpt-9")


@pytest.mark.slow
def test_a_plan_is_of_all_phases_and_needs_nothing(tmp_path):
    names = "CHECKPOINT_DIR LOG_DIR OUTPUT_DIR SQUAD_DIR GLUE_DIR".split()
    folders = {name: str(tmp_path / name) for name in names}
    for command, tasks in (
        ("pretrain_and_finetune_BERT.sh large", ["pretrain", "pretrain", "squad"]),
        ("fine_tune_GroupBERT_glue.sh base mrpc", ["glue"]),
    ):
        words = f"scripts/{command} --plan".split()
        done = programs.call(*words, without=OF_SCRIPTS, PYTHONPATH=str(ROOT), **folders)
        assert done.returncode == 0, done.stderr
        assert re.findall(r"^  task +(\w+), fp32", done.stdout, re.MULTILINE) == tasks
        assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_both_phases_and_squad_from_the_newest_checkpoint_and_nothing_twice(world):
    run, environment = world
    folder = environment["CHECKPOINT_DIR"]
    done = run("pretrain.sh", "large")
    assert done.returncode == 0 and f"from {folder}/phase1/large/ckpt-4" in done.stdout, done.stdout
    log = pathlib.Path(environment["LOG_DIR"], "pretrain_large_384_log.txt").read_text(encoding="utf-8")
    assert "Step: 3 / 3 - LR: " in log
    again = run("pretrain.sh", "large")
    assert again.returncode == 0 and "Step: " not in again.stdout
    assert again.stdout.count("finished: all 4 steps done.") == 2
    done = run("pretrain_and_finetune_BERT.sh", "large")
    assert done.returncode == 0, done.stdout
    assert f"variables from {folder}/phase2/large/ckpt-4" in done.stdout
    assert os.path.exists(f"{folder}/squad/large/predictions.json")


@pytest.mark.slow
def test_groupbert_is_fine_tuned_on_a_task(world, tmp_path):
    run, environment = world
    for path in (pathlib.Path(environment[name]) for name in ("PHASE1_CONFIG_PATH", "CONFIG_PATH")):
        values = json.loads(path.read_text())
        values["model"]["block_type"] = "groupbert"
        path.write_text(json.dumps(values))
    folder = f"{environment['CHECKPOINT_DIR']}/phase2/groupbert/base"
    flags = f"--config={environment['PHASE1_CONFIG_PATH']} --generated_data --model_dir={folder}"
    command = f"set -euo pipefail; source scripts/graphcore_recipe.sh; train phase2.txt '' {flags}"
    made = programs.call("bash", "-c", command, PYTHONPATH=str(ROOT), **environment)
    assert made.returncode == 0, made.stdout
    done = run("fine_tune_GroupBERT_glue.sh", "base", "rte", "a-name", "--seed=3")
    assert done.returncode == 0, done.stdout
    assert f"variables from {folder}/ckpt-4" in done.stdout
    assert os.path.exists(tmp_path / "glue_runs" / "rte" / "RTE.tsv")

"""fine_tune_squad.sh and fine_tune_glue.sh: any model of configs/models, by its name."""

import os
import shutil
import sys

import pytest

from official.cli import flags
from tests import programs
from tests.fixtures import ROOT

MODELS = "base electra_base electra_small groupbert_base groupbert_large groupbert_medium".split()
MODELS += "groupbert_mini groupbert_tiny large mini minilm minilm_l6 modernbert_base".split()
MODELS += "quickstart small tiny".split()
OWN = ("base", "large", "minilm")  # with a flagfile of their own


def test_every_model_has_a_recipe(monkeypatch):
    monkeypatch.chdir(ROOT)
    squad, tasks = ["--train_file=x", "--predict_file=x"], (("squad", ""), ("squad", "_v2"), ("glue", ""))
    cases = [(task, model, suffix) for model in MODELS for task, suffix in tasks]
    lines = "\n".join(f"echo $(recipe {task} {model} '{suffix}')" for task, model, suffix in cases)
    done = programs.call("bash", "-c", f"set -euo pipefail; source scripts/fine_tune_recipe.sh\n{lines}")
    assert done.returncode == 0, done.stderr
    for (task, model, suffix), line in zip(cases, done.stdout.splitlines(), strict=True):
        found, data = line.split(), squad if task == "squad" else ["--data_dir=x"]
        assert (found == [f"--flagfile=configs/{task}_{model}{suffix}.flags"]) == (model in OWN), line
        config = flags.parse([*found, *data, "--max_seq_length=64", "--plan", "--vocab_file=nowhere"])
        name = "minilm_l6" if model == "minilm" else model
        assert config.bert_config_file in (f"configs/models/bert_{name}.json", f"configs/models/{name}.json")
        assert config.task == task and config.version_2_with_negative == (suffix == "_v2"), line


@pytest.mark.slow
def test_a_plan_needs_neither_data_nor_weights(tmp_path):
    folders = {"SQUAD_DIR": f"{tmp_path}/squad", "GLUE_DIR": f"{tmp_path}/glue"}
    for task, *rest in (["squad", "mini", "v2"], ["glue", "minilm_l6", "rte"], ["glue", "large", "cola"]):
        words = [f"scripts/fine_tune_{task}.sh", *rest, "--plan", "--num_steps_per_epoch=100"]
        done = programs.call(*words, without=("INIT_CHECKPOINT",), **folders)
        assert done.returncode == 0 and f"task             {task}" in done.stdout, done.stderr
    assert not os.listdir(tmp_path)


def test_glue_is_loaded_where_files_of_the_task_are_missing(tmp_path):
    """With a stand-in for Python that says which program it is to run."""
    for name in ("scripts/fine_tune_glue.sh", "scripts/fine_tune_recipe.sh", "configs/glue_base.flags"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    told = f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\necho "$1"\n'
    programs.stand_in(tmp_path / ".venv" / "bin" / "python", told)
    train, dev, test = (f"SST-2/{name}.tsv" for name in ("train", "dev", "test"))
    cases = (
        ([train, dev, test], [], False),
        ([train, dev], [], True),
        ([train, dev], ["--nodo_predict"], False),
        (["RTE/train.tsv", "RTE/dev.tsv", "RTE/test.tsv"], [], True),
        ([], [], True),
    )
    for number, (there, flags_of_it, downloads) in enumerate(cases):
        glue = tmp_path / f"glue{number}"
        for name in there:
            (glue / name).parent.mkdir(parents=True, exist_ok=True)
            (glue / name).touch()
        variables = {"INIT_CHECKPOINT": "x", "GLUE_DIR": str(glue), "PYTHONPATH": str(ROOT)}
        words = [tmp_path / "scripts" / "fine_tune_glue.sh", "base", "sst2", *flags_of_it]
        done = programs.call(*words, **variables)
        expected = ["scripts/download_glue_data.py"] * downloads + ["train.py"]
        assert done.stdout.split() == expected, (there, done.stderr)

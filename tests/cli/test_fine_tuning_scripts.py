"""fine_tune_squad.sh and fine_tune_glue.sh: any model of configs/models, by its name."""

import os
import shutil
import sys

import pytest

from official.cli import flags
from tests import programs
from tests.conftest import ROOT

GROUPBERT = [f"groupbert_{size}" for size in ("base", "large", "medium", "mini", "tiny")]
MODELS = ["base", *GROUPBERT, "large", "mini", "minilm", "minilm_l6", "quickstart", "small", "tiny"]
OWN = {"squad": ("base", "large", "minilm"), "glue": ("base", "large", "minilm")}


def shell(*command: str, **environment: str):
    return programs.call(*command, without=("INIT_CHECKPOINT",), **environment)


def recipe(task: str, model: str, suffix: str) -> list[str]:
    script = 'set -euo pipefail; source scripts/fine_tune_recipe.sh; recipe "$@"'
    done = shell("bash", "-c", script, "fine_tune.sh", task, model, suffix)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "task,suffix,data",
    [
        ("squad", "", ["--train_file=x", "--predict_file=x"]),
        ("squad", "_v2", ["--train_file=x", "--predict_file=x"]),
        ("glue", "", ["--data_dir=x"]),
    ],
)
def test_every_model_has_a_recipe(task, suffix, data, model, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = recipe(task, model, suffix)
    assert (found == [f"--flagfile=configs/{task}_{model}{suffix}.flags"]) == (model in OWN[task])
    config = flags.parse([*found, *data, "--max_seq_length=64", "--plan", "--vocab_file=nowhere"])
    name = "minilm_l6" if model == "minilm" else model
    assert config.bert_config_file in (f"configs/models/bert_{name}.json", f"configs/models/{name}.json")
    assert config.task == task and config.version_2_with_negative == (suffix == "_v2")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["squad", "huge", "v1"], f"fine_tune_squad.sh: the model huge is not one of {', '.join(MODELS)}."),
        (["glue", "../x", "rte"], f"fine_tune_glue.sh: the model ../x is not one of {', '.join(MODELS)}."),
        (
            ["squad", "mini"],
            "usage: fine_tune_squad.sh MODEL v1|v2 [train.py flags ...]. MODEL is one of base, ",
        ),
        (["glue"], "usage: fine_tune_glue.sh MODEL TASK [train.py flags ...]. MODEL is one of base, "),
        (["squad", "mini", "v3"], "the version v3 is not one of v1, v2."),
        (["squad", "mini", "v1"], "INIT_CHECKPOINT is not set."),
        (["glue", "mini", "rte"], "INIT_CHECKPOINT is not set."),
    ],
)
def test_wrong_arguments_end_in_one_line(arguments, message):
    task, *rest = arguments
    done = shell(f"scripts/fine_tune_{task}.sh", *rest)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and message in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["squad", "mini", "v2"],
        ["squad", "tiny", "v1"],
        ["glue", "minilm_l6", "rte"],
        ["glue", "large", "cola"],
    ],
)
def test_a_plan_needs_neither_data_nor_weights(arguments, tmp_path):
    task, *rest = arguments
    done = shell(
        f"scripts/fine_tune_{task}.sh",
        *rest,
        "--plan",
        "--num_steps_per_epoch=100",
        SQUAD_DIR=str(tmp_path / "squad"),
        GLUE_DIR=str(tmp_path / "glue"),
    )
    assert done.returncode == 0 and f"task             {task}" in done.stdout, done.stderr
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "there,flags,downloads",
    [
        (["SST-2/train.tsv", "SST-2/dev.tsv", "SST-2/test.tsv"], [], False),
        (["SST-2/train.tsv", "SST-2/dev.tsv"], [], True),
        (["SST-2/train.tsv", "SST-2/dev.tsv"], ["--nodo_predict"], False),
        (["RTE/train.tsv", "RTE/dev.tsv", "RTE/test.tsv"], [], True),
        ([], [], True),
    ],
)
def test_glue_is_loaded_where_files_of_the_task_are_missing(there, flags, downloads, tmp_path):
    """With a stand-in for Python that says which program it is to run."""
    for name in ("scripts/fine_tune_glue.sh", "scripts/fine_tune_recipe.sh", "configs/glue_base.flags"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\necho "$1"\n')
    python.chmod(0o755)
    for name in there:
        (tmp_path / "glue" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "glue" / name).touch()
    done = programs.call(
        tmp_path / "scripts" / "fine_tune_glue.sh",
        "base",
        "sst2",
        *flags,
        INIT_CHECKPOINT="x",
        GLUE_DIR=str(tmp_path / "glue"),
        PYTHONPATH=str(ROOT),
    )
    expected = ["scripts/download_glue_data.py"] * downloads + ["train.py"]
    assert done.stdout.split() == expected, done.stderr

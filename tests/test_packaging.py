"""setup.py asks for what the code imports, in versions that work, with and without constraints.txt."""

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import setuptools
from packaging.requirements import Requirement

from tests.conftest import ROOT
from tests.test_architecture import imported_modules

OWN = {"official", "tf2_bert", "checkpoints_tools", "train"}


@pytest.fixture
def settings(monkeypatch) -> dict:
    """What setup.py hands to setuptools."""
    found = {}
    monkeypatch.setattr(setuptools, "setup", found.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return found


def requirements(settings: dict) -> dict[str, Requirement]:
    """Returns {name: requirement} of the package and its extras."""
    texts = [
        *settings["install_requires"],
        *(text for extra in settings["extras_require"].values() for text in extra),
    ]
    return {
        canonical(requirement.name): requirement for requirement in reversed(list(map(Requirement, texts)))
    }  # the package's own win


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def python_files(folders: list[str]) -> list:
    return [
        ROOT / "train.py",
        *(
            path
            for folder in folders
            for path in sorted((ROOT / folder).rglob("*.py"))
            if "peer_programs" not in path.parts
        ),
    ]


def test_all_that_is_imported_is_asked_for(settings):
    asked, providers = requirements(settings), importlib.metadata.packages_distributions()
    scripts = {path.stem for folder in ("scripts", "checkpoints_tools") for path in (ROOT / folder).iterdir()}
    missing = set()
    for path in python_files(["official", "tf2_bert", "scripts", "checkpoints_tools"]):
        modules = (
            {name.split(".")[0] for name in imported_modules(path)} - OWN - scripts - sys.stdlib_module_names
        )
        missing |= {
            (str(path.relative_to(ROOT)), name)
            for name in modules
            if not set(map(canonical, providers.get(name, []))) & set(asked)
        }
    assert not missing


def test_what_is_installed_needs_nothing_else_of_the_repository(settings):
    assert {package.split(".")[0] for package in settings["packages"]} == {"official", "tf2_bert"}
    for path in python_files(["official", "tf2_bert"])[1:]:
        assert not {name.split(".")[0] for name in imported_modules(path)} & {
            "scripts",
            "installed",
            "checkpoints_tools",
            "train",
        }, path


def test_the_tested_versions_are_among_those_asked_for(settings):
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    asked = requirements(settings)
    for name in (Requirement(text).name for text in settings["install_requires"]):
        assert asked[canonical(name)].specifier.contains(pinned[canonical(name)]), name


def test_setuptools_still_has_pkg_resources(settings):
    """tensorflow-hub, which tensorflow-text needs, imports it and does not ask for it; from 81 on it is
    gone."""
    asked = {Requirement(text).name: Requirement(text).specifier for text in settings["install_requires"]}
    assert (
        asked["setuptools"].contains("80.9.0")
        and not asked["setuptools"].contains("81.0.0")
        and not asked["setuptools"].contains("84.0.0")
    )


IMPORTS = (
    "import official, tensorflow_text, tensorflow_addons, scipy.stats, sklearn.metrics, matplotlib,"
    " safetensors, blingfire, tf2_bert.bert_benchmark"
)
STEPS = """--use_synthetic_data --bert_config_file=configs/models/bert_tiny.json --model_dir=run
--max_seq_length=32 --max_predictions_per_seq=5 --train_batch_size=4 --num_steps_per_epoch=2 --num_train_epochs=1
--steps_per_loop=1 --warmup_steps=1 --num_gpus=0 --do_eval --num_eval_samples=8""".split()


@pytest.mark.slow
def test_a_fresh_environment_works(tmp_path):
    """Without constraints.txt, over the newest setuptools, from outside of the repository."""

    def run(*command, **settings):
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, **settings
        )

    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    newest = run(*pip, "install", "--upgrade", "setuptools")
    if newest.returncode:
        pytest.skip(f"no package index: {newest.stderr.strip().splitlines()[-1:]}")
    source, outside = tmp_path / "source", tmp_path / "outside"
    for name in ("official", "tf2_bert", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    outside.mkdir()
    bert = python.with_name("bert")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (
        (*pip, "install", source),
        (*pip, "check"),
        (python, "-c", IMPORTS),
        (bert, "--help"),
        (bert, "train", *STEPS),
    ):
        done = run(*command, cwd=outside, env=environment)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "finished: all 2 steps done" in done.stdout and "pkg_resources" not in done.stderr

"""Installing: the wheel with the newest versions that setup.py allows, and the pins of each stack."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.fixtures import ROOT
from tests.programs import call

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
IMPORTS = (
    "import official, tensorflow_text, scipy.stats, sklearn.metrics, matplotlib, safetensors, blingfire,"
    " tf2_bert.bert_benchmark"
)
STEPS = """
--config=quickstart --input_files= --eval_files= --vocab_file= --use_synthetic_data --model_dir=run
--max_seq_length=32 --max_predictions_per_seq=5 --train_batch_size=4 --num_steps_per_epoch=2
--num_train_epochs=1 --steps_per_loop=1 --warmup_steps=1 --num_gpus=0 --do_eval --num_eval_samples=8
--stop_threshold=
""".split()


def succeed(*command, **settings) -> subprocess.CompletedProcess:
    done = call(*command, **settings)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def need_index(*command) -> None:
    """Runs what asks for a package; skips the test where it finds no index."""
    done = call(*command)
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1:]}")


def build(pip: tuple, folder: pathlib.Path, *options: str) -> pathlib.Path:
    """Builds the wheel from a copy of what it is made of, and returns its path."""
    source = folder / "source"
    for name in ("official", "tf2_bert", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    succeed(*pip, "wheel", "--no-deps", *options, "--wheel-dir", folder / "wheels", source)
    (wheel,) = (folder / "wheels").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_a_fresh_environment_works(tmp_path):
    """Without constraints, over the newest setuptools, from an empty folder."""
    python, empty = tmp_path / "venv" / "bin" / "python", tmp_path / "empty"
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    empty.mkdir()
    pip = (python, *PIP[1:])
    need_index(*pip, "install", "--upgrade", "setuptools")
    bert = python.with_name("bert")
    for command in (
        (*pip, "install", build(pip, tmp_path)),
        (*pip, "check"),
        (python, "-c", IMPORTS),
        (bert, "--help"),
        (bert, "plan", "--config=quickstart"),
        (bert, "train", *STEPS),
    ):
        done = succeed(*command, cwd=empty, without=("PYTHONPATH", "BERT_STACK"))
    assert "finished: all 2 steps done" in done.stdout and "pkg_resources" not in done.stderr


@pytest.fixture(name="stack", params=["tf215", "modern"])
def fixture_stack(request) -> str:
    """Returns a stack, also that which these tests do not run on."""
    if request.param == "tf215" and sys.version_info >= (3, 12):
        pytest.skip("--stack=tf215 needs Python 3.10 or 3.11")
    return request.param


def try_to_install(pip: tuple, stack: str, constraints: str, extras: str, *options) -> None:
    """Asks pip for the pins of a stack, all of them, whatever is installed."""
    pins = ("--ignore-installed", "--no-build-isolation", "--constraint", f"constraints/{constraints}.txt")
    succeed(*pip, "install", "--dry-run", *options, *pins, f".[{extras}]", BERT_STACK=stack)


@pytest.mark.slow
def test_the_pins_of_a_stack_can_be_installed_together(stack):
    script = (ROOT / "scripts" / "setup_env.sh").read_text()
    need_index(*PIP, "install", "--dry-run", "--ignore-installed", "--no-deps", "absl-py")
    try_to_install(PIP, stack, stack, "".join(re.findall(r'extras[+]?="(.*?)"', script)))


@pytest.mark.slow
def test_the_pins_of_a_stack_for_gpus_can_be_installed_together(stack, tmp_path):
    """By a new pip, which reads no more of a wheel than its metadata: these are gigabytes."""
    need_index(*PIP, "download", "--no-deps", "--dest", str(tmp_path), "pip")
    (wheel,) = tmp_path.glob("pip-*.whl")
    pip, report = (sys.executable, str(wheel / "pip")), tmp_path / "report.json"
    own = ("--use-feature=fast-deps", "--no-cache-dir", "--report", str(report))
    try_to_install(pip, stack, f"{stack}-gpu", "gpu", *own)
    found = {each["metadata"]["name"] for each in json.loads(report.read_text())["install"]}
    pins = (ROOT / "constraints" / f"{stack}-gpu.txt").read_text()
    pinned = set(re.findall("^nvidia[^=]*", pins, re.M))
    assert {name for name in found if name.startswith("nvidia")} == pinned

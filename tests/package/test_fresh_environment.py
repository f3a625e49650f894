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


def need_index(done: subprocess.CompletedProcess) -> None:
    """Skips the test where what asks for a package has found no index."""
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1:]}")


def build(pip: tuple, folder: pathlib.Path, *options: str) -> pathlib.Path:
    """Builds the wheel from a copy of what it is made of, and returns its path."""
    source = folder / "source"
    for name in ("official", "tf2_bert", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    done = call(*pip, "wheel", "--no-deps", *options, "--wheel-dir", folder / "wheels", source)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = (folder / "wheels").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_a_fresh_environment_works(tmp_path):
    """Without constraints, over the newest setuptools, from an empty folder."""
    python, empty = tmp_path / "venv" / "bin" / "python", tmp_path / "empty"
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    empty.mkdir()
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    need_index(call(*pip, "install", "--upgrade", "setuptools"))
    bert = python.with_name("bert")
    for command in (
        (*pip, "install", build(pip, tmp_path)),
        (*pip, "check"),
        (python, "-c", IMPORTS),
        (bert, "--help"),
        (bert, "plan", "--config=quickstart"),
        (bert, "train", *STEPS),
    ):
        done = call(*command, cwd=empty, without=("PYTHONPATH", "BERT_STACK"))
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "finished: all 2 steps done" in done.stdout and "pkg_resources" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["tf215", "modern"])
def test_the_pins_of_a_stack_can_be_installed_together(stack):
    """Also those of the stack that these tests do not run on."""
    if stack == "tf215" and sys.version_info >= (3, 12):
        pytest.skip("--stack=tf215 needs Python 3.10 or 3.11")
    script = (ROOT / "scripts" / "setup_env.sh").read_text()
    extras = "".join(re.findall(r'extras[+]?="(.*?)"', script))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run")
    need_index(call(*pip, "--ignore-installed", "--no-deps", "absl-py"))
    pins = ("--ignore-installed", "--no-build-isolation", "--constraint", f"constraints/{stack}.txt")
    done = call(*pip, *pins, f".[{extras}]", BERT_STACK=stack)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["tf215", "modern"])
def test_the_pins_of_a_stack_for_gpus_can_be_installed_together(stack, tmp_path):
    """By a new pip, which reads no more of a wheel than its metadata: these are gigabytes."""
    if stack == "tf215" and sys.version_info >= (3, 12):
        pytest.skip("--stack=tf215 needs Python 3.10 or 3.11")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    need_index(call(*pip, "download", "--no-deps", "--dest", str(tmp_path), "pip"))
    (wheel,) = tmp_path.glob("pip-*.whl")
    report = tmp_path / "report.json"
    done = call(
        *(sys.executable, str(wheel / "pip"), "install", "--dry-run", "--use-feature=fast-deps"),
        *("--ignore-installed", "--no-cache-dir", "--no-build-isolation", "--report", str(report)),
        *("--constraint", f"constraints/{stack}-gpu.txt", ".[gpu]"),
        BERT_STACK=stack,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = {each["metadata"]["name"] for each in json.loads(report.read_text())["install"]}
    pins = (ROOT / "constraints" / f"{stack}-gpu.txt").read_text()
    assert {name for name in found if name.startswith("nvidia")} == set(
        re.findall("^nvidia[^=]*", pins, re.M)
    )

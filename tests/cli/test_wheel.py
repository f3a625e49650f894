"""The wheel, installed in an empty environment, without a network and away from the repository."""

import site
import subprocess
import sys

import pytest

from tests import programs
from tests.package.test_fresh_environment import build

pytestmark = pytest.mark.slow
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command, **settings) -> subprocess.CompletedProcess:
    return programs.call(*command, without=("PYTHONPATH",), **settings)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Returns a function that runs the command `bert` of an installed wheel in an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, empty = build(PIP, folder, "--no-build-isolation"), folder / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    installed = run(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr
    # What it needs is that of this environment, found after the wheel.
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return lambda *arguments: run(python.with_name("bert"), *arguments, cwd=empty)


def test_commands_and_shipped_configs_with_their_relative_files_are_found(bert):
    done = bert("--help")
    assert (done.returncode, done.stderr) == (0, "") and "fill-mask" in done.stdout
    done = bert("train", "--config=quickstart", "--train_batch_size=64", "--plan")
    assert done.returncode == 0 and "64" in done.stdout, done.stderr
    done = bert("train", "--config=packed/mlperf_large_512_pod16", "--clip_norm=0")
    assert done.returncode == 2 and "clip_norm=0 would set" in done.stderr
    done = bert("convert", "google2nothing", "x")
    assert done.returncode == 2 and done.stderr.startswith("bert convert: unknown action")


def test_data_are_made(bert, tmp_path):
    (tmp_path / "text.txt").write_text("a b c .\nc b a .\n\nb b a .\na c c .\n" * 20)
    (tmp_path / "vocab.txt").write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a b c .".split()) + "\n")
    sizes = ["--max-seq-length=16", "--max_predictions_per_seq=3", "--num_workers=1"]
    paths = {"input_files": "text.txt", "vocab_file": "vocab.txt", "output_dir": "records"}
    done = bert("data", *sizes, *(f"--{name}={tmp_path}/{path}" for name, path in paths.items()))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "records" / "manifest.json").exists()

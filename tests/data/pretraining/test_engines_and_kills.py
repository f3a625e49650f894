"""The records of a job are the same bytes on every engine, and whatever is killed while it runs."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.fixtures import ROOT
from tests.io.test_engines import wait_for
from tests.io.test_ray_engine import two_nodes
from tests.launching.test_job import alive

pytestmark = pytest.mark.slow  # of minutes: some tasks of the smallest size that there is

_WORDS = [f"w{number}" for number in range(500)]
_TEXT_BYTES = 40 << 20  # five tasks of the first round
_KILLS = 5


@pytest.fixture(scope="module", name="inputs")
def _inputs(tmp_path_factory) -> pathlib.Path:
    folder, rng = tmp_path_factory.mktemp("inputs"), random.Random(1)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    sentences = [" ".join(rng.choices(_WORDS, k=rng.randint(4, 30))) + "\n" for _ in range(5000)]
    with open(folder / "text.txt", "w", encoding="utf-8") as file:
        while file.tell() < _TEXT_BYTES:
            file.write("".join(rng.choices(sentences, k=rng.randint(3, 60))) + "\n")
    return folder


@pytest.fixture(scope="module", name="expected")
def _expected(inputs) -> dict[str, bytes]:
    """The records that one process makes."""
    _finish(_start(inputs, "one", "--num_workers=1"))
    return _records(inputs / "one")


def _start(inputs: pathlib.Path, name: str, *flags: str, **variables: str) -> subprocess.Popen:
    given = [f"--input_files={inputs}/text.txt", f"--vocab_file={inputs}/vocab.txt"]
    made = [f"--output_dir={inputs}/{name}", "--dupe_factor=2", "--record_format=compact"]
    command = [sys.executable, "-m", "official.cli", "data", "create", *given, *made, *flags]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True
    )


def _finish(job: subprocess.Popen) -> str:
    _, told = job.communicate(timeout=300)
    assert job.returncode == 0, told[-2000:]
    return told


def _records(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns the files that do not tell of time and machine."""
    kept = [*folder.glob("*.tfrecord"), folder / "manifest.json", folder / "samples.json"]
    return {path.name: path.read_bytes() for path in kept}


def test_two_nodes_of_ray_make_the_same_when_one_is_killed(inputs, expected, monkeypatch):
    pytest.importorskip("ray", reason="pip install '.[ray]'")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with two_nodes() as (address, raylet):
        job = _start(inputs, "ray", "--engine=ray", f"--ray_address={address}")
        work = inputs / "ray" / ".unfinished"
        assert wait_for(lambda: any(work.glob("text-*.json")), 120)
        os.kill(raylet, signal.SIGKILL)
        _finish(job)
    assert _records(inputs / "ray") == expected


def test_five_kills_at_random_change_nothing_and_leave_no_process(inputs, expected):
    rng, mark = random.Random(7), f"kills-{os.getpid()}"
    for number in range(_KILLS):
        job = _start(inputs, "killed", "--num_workers=2", BERT_TEST_MARK=mark)
        # Later each time: what is done already is not done again.
        time.sleep(rng.uniform(2.0, 6.0))
        job.kill()
        job.communicate()
        assert wait_for(lambda: not alive(mark), 20), f"kill {number}"
    _finish(_start(inputs, "killed", "--num_workers=2"))
    assert _records(inputs / "killed") == expected
    assert not (inputs / "killed" / ".unfinished").exists()

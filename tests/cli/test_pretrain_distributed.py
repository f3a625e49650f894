"""pretrain_distributed.sh: both published interfaces, with stand-ins for poprun, rsync and ssh-copy-id."""

import json
import os
import pathlib
import shlex
import sys

import pytest

from tests import programs
from tests.fixtures import ROOT

# Writes its name and words as a line of JSON. poprun, too, leaves what a phase leaves: a checkpoint.
STAND_IN = """#!{python}
import json, os, pathlib, sys
name = os.path.basename(sys.argv[0])
with open("{folder}/called", "a") as file:
    print(json.dumps([name, *sys.argv[1:]]), file=file)
if name == "poprun":
    with open(sys.argv[-1]) as file:
        run = pathlib.Path(json.load(file)["configuration"]["model_dir"])
    run.mkdir(parents=True, exist_ok=True)
    (run / "ckpt-7031.index").touch()
    print("trained on a pod")
    sys.exit({code})
"""


@pytest.fixture
def script(tmp_path):
    """Returns a function that runs the script in a world without pods: its result, and what it called."""

    def run(*arguments: str, code: int = 0, **variables: str):
        called = tmp_path / "called"
        called.unlink(missing_ok=True)
        for name in ("poprun", "rsync", "ssh-copy-id"):
            text = STAND_IN.format(python=sys.executable, folder=tmp_path, code=code)
            programs.stand_in(tmp_path / name, text)
        own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        own |= {"CHECKPOINT_DIR": f"{tmp_path}/checkpoint", "LOG_DIR": str(tmp_path)}
        own |= {"LOCAL_HOME": "/localdata/me", **variables}
        others = [name for name in os.environ if name.startswith(("PHASE", "VIPU"))]
        done = programs.call("scripts/pretrain_distributed.sh", *arguments, without=others, **own)
        lines = called.read_text().splitlines() if called.exists() else []
        return done, [json.loads(line) for line in lines]

    return run


def options_of(call: list[str]) -> dict[str, str]:
    """Returns the options of a call of poprun that stand in words of their own, or with '='."""
    pairs = [each.split("=", 1) if "=" in each else [each, after] for each, after in zip(call, call[1:])]
    return {name: value for name, value in pairs if name.startswith("--")}


@pytest.mark.slow
def test_both_phases_of_large_on_a_pod(script, tmp_path):
    variables = {"VIPU_PARTITION_NAME": "mine", "PHASE1_TRAIN_FILE": "/d/*.tfrecord"}
    done, called = script("POD64", "10.1.3.9", "10.1.3.1", **variables)
    assert done.returncode == 0, done.stderr
    first, second = [call for call in called if call[0] == "poprun"]
    options, names = options_of(first), ("--num-replicas", "--ipus-per-replica", "--host")
    assert [options[name] for name in names] == ["16", "4", "10.1.3.1"]
    assert (options["--vipu-partition"], options["--vipu-server-host"]) == ("mine", "10.1.3.9")
    assert first[:-1] == second[:-1] and first[-4:-1] == ["python3.8", "-m", "official.graphcore"]
    configs = [json.loads(pathlib.Path(call[-1]).read_text())["configuration"] for call in (first, second)]
    assert [config["max_seq_length"] for config in configs] == [128, 384]
    assert configs[0]["input_files"] == "/d/*.tfrecord" and configs[0]["distribution_strategy"] == "ipu"
    assert configs[1]["init_checkpoint"] == f"{tmp_path}/checkpoint/phase1/large/ckpt-7031"
    names = [call[0] for call in called]
    # Keys first: without them, each copy would ask for a password. LOG_DIR, with the configurations, is not
    # within the code.
    copied = ["ssh-copy-id", "rsync", "rsync", "rsync", "rsync"]
    assert names == [*copied, "poprun", "rsync", "rsync", "poprun"]
    phase1 = f"{tmp_path}/checkpoint/phase1/large/"
    assert [called[number][-2:] for number in (4, 6, 7)] == [
        [f"{tmp_path}/pretrain_large_128_config.json", f"10.1.3.1:{tmp_path}/"],
        [f"{phase1}ckpt-7031.index", f"10.1.3.1:{phase1}"],
        [f"{tmp_path}/pretrain_large_384_config.json", f"10.1.3.1:{tmp_path}/"],
    ]
    logs = sorted(path.name[:22] for path in tmp_path.glob("pretrain_large_*_log_*.txt"))
    assert logs == ["pretrain_large_128_log", "pretrain_large_384_log"]


@pytest.mark.slow
def test_phase_1_of_base_on_hosts_and_a_failure_ends_the_script(script, tmp_path):
    arguments = "base POD64 allocated part 10.1.3.9 10.1.3.1 10.1.3.2".split()
    done, called = script(*arguments, DATASETS_DIR="/data", code=3)
    assert done.returncode == 3 and "trained on a pod" in done.stdout
    names = [call[0] for call in called]
    (call,) = [call for call in called if call[0] == "poprun"]
    options = options_of(call)
    assert options["--vipu-allocation"] == "allocated" and options["--vipu-partition"] == "part"
    assert (options["--num-instances"], options["--host"]) == ("2", "10.1.3.1,10.1.3.2")
    config = f"{tmp_path}/pretrain_base_128_config.json"
    assert [call[-2:] for call in called if "--copy-dirlinks" in call] == [
        [config, f"10.1.3.1:{tmp_path}/"],
        ["/data/wikipedia/128", "10.1.3.1:/data/wikipedia/"],
        [config, f"10.1.3.2:{tmp_path}/"],
        ["/data/wikipedia/128", "10.1.3.2:/data/wikipedia/"],
    ]
    first, last = (names.index(name) for name in ("ssh-copy-id", "poprun"))
    assert (first, last) == (0, len(names) - 1)
    done, called = script(*arguments, DATASETS_DIR="/data", DRY_RUN="1")
    assert done.returncode == 0 and called == []
    words = shlex.split(done.stdout.replace("\\\n", " "))
    assert "poprun" in words
    assert words[-2:] == ["official.graphcore", f"{tmp_path}/pretrain_base_128_config.json"]

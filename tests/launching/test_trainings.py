"""Runs of several processes under the launcher end with the weights of one with the same global batch."""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from official.data.records import encoding
from official.data.records import schema as schema_lib
from tests import programs
from tests.conftest import ROOT, TINY, make_records, write_records
from tests.distribution.network import ADDRESSES, hosts, ip  # noqa: F401
from tests.fine_tuning_files import WORDS, squad_json
from tests.records import short_examples
from tests.run_folders import assert_same_state, state_of, untimed_metrics

MODEL = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 48}
STEPS = 8


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a model, files of records, of short ones, and of questions."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "bert.json").write_text(json.dumps(MODEL))
    schema = schema_lib.pretraining_schema(16, 3)
    for index in range(4):
        write_records(folder / f"part-{index}", make_records(30, index, schema))
        short = encoding.encode(short_examples(60, index), "compact")
        write_records(folder / f"short-{index}", short)
    words = [*WORDS, *(f"word{number}" for number in range(MODEL["vocab_size"] - len(WORDS)))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "train.json").write_text(json.dumps(squad_json(40, 1)))
    (folder / "dev.json").write_text(json.dumps(squad_json(8, 2)))
    return folder


def settings_of(kind: str, folder) -> list[str]:
    """Returns the flags of a kind of run on the files of a workspace; 8 rows a step."""
    words = "--do_train --do_eval --num_gpus=0 --learning_rate=1e-3 --num_train_epochs=1 --train_batch_size=8"
    words += f" --bert_config_file={folder}/bert.json --eval_batch_size=8 --steps_per_loop=4"
    words += f" --num_steps_per_epoch={STEPS} --checkpoint_every_steps=4"
    if kind == "squad":
        words += f" --task=squad --train_file={folder}/train.json --predict_file={folder}/dev.json"
        words += f" --vocab_file={folder}/vocab.txt --max_seq_length=48 --max_query_length=16 --doc_stride=16"
    else:
        words += f" --input_files={folder}/{'part' if kind == 'plain' else 'short'}-* --max_seq_length=16"
        words += " --max_predictions_per_seq=3 --optimizer_type=lamb --warmup_steps=5"
    return [*words.split(), *(["--pack_on_the_fly"] if kind == "packed" else [])]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LAUNCHER = [sys.executable, "scripts/launch.py"]


def train(folder, kind, model_dir, workers=None) -> subprocess.CompletedProcess:
    command = [sys.executable, "train.py", *settings_of(kind, folder), f"--model_dir={model_dir}"]
    if workers:
        command = [*LAUNCHER, f"--instances_per_host={workers}", "--", *command]
    return programs.call(*command, timeout=500, PYTHONPATH=str(ROOT))


def popen(command, **environment) -> subprocess.Popen:
    pipes = dict(stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    return subprocess.Popen(command, cwd=ROOT, env={**ENVIRONMENT, **environment}, **pipes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "packed", "squad"])
def test_two_and_four_workers_end_with_the_weights_of_one_process(workspace, tmp_path, kind):
    done = train(workspace, kind, tmp_path / "1")
    assert done.returncode == 0, done.stderr
    theirs = state_of(tmp_path / "1", STEPS)
    for workers in (2, 4):
        done = train(workspace, kind, tmp_path / str(workers), workers=workers)
        assert done.returncode == 0, done.stderr
        assert f"{workers} replicas" in done.stderr
        assert all(line.startswith("[1,") for line in (done.stdout + done.stderr).splitlines())
        ours = state_of(tmp_path / str(workers), STEPS)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            # The gradient of a key's bias is rounding alone.
            most = 0.2 if "key/bias" in name else 2e-5
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=most, err_msg=name)
        lines = zip(untimed_metrics(tmp_path / str(workers)), untimed_metrics(tmp_path / "1"), strict=True)
        for line, other in lines:
            assert (line["split"], line["step"]) == (other["split"], other["step"])
            for name in {"loss", "exact_match", "f1"} & other.keys():
                assert line[name] == pytest.approx(other[name], rel=1e-4)


def processes_of(program: str, marker: str) -> dict[int, int]:
    """Returns {rank: number} of the processes that run a program and have a marker in their environment."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if words[1:2] == [program]:
                variables = (folder / "environ").read_bytes().decode().split("\0")
                values = dict(each.partition("=")[::2] for each in variables)
                if values.get("MARK") == marker:
                    found[json.loads(values["TF_CONFIG"])["task"]["index"]] = int(folder.name)
    return found


def start(workspace, folder) -> subprocess.Popen:
    """Starts two workers of a longer run, and allows two restarts."""
    flags = [f"--model_dir={folder}", "--num_steps_per_epoch=60", "--deterministic=true"]
    launcher = [*LAUNCHER, "--instances_per_host=2", "--max_restarts=2", "--"]
    command = [*launcher, sys.executable, "train.py", *settings_of("plain", workspace), *flags]
    return popen(command, MARK=str(folder))


@pytest.fixture(scope="module")
def undisturbed(workspace):
    process = start(workspace, workspace / "undisturbed")
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors
    return workspace / "undisturbed"


def wait_for(path: pathlib.Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 200
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_and_the_same_command_goes_on(workspace, undisturbed, tmp_path):
    process = start(workspace, tmp_path / "run")
    wait_for(tmp_path / "run" / "ckpt-8.index", process)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=100)[1]
    assert process.returncode == 143 and "restart" not in errors
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "interrupted" and result["checkpoint"].endswith(f"ckpt-{result['step']}")
    again = start(workspace, tmp_path / "run")
    errors = again.communicate(timeout=300)[1]
    assert again.returncode == 0 and f"ckpt-{result['step']}: step {result['step']}" in errors
    assert_same_state(state_of(tmp_path / "run", 60), state_of(undisturbed, 60))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_costs_time_and_nothing_else(workspace, undisturbed, tmp_path, killed):
    process = start(workspace, tmp_path / "killed")
    wait_for(tmp_path / "killed" / "ckpt-20.index", process)
    os.kill(processes_of("train.py", f"{tmp_path}/killed")[killed], signal.SIGKILL)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0 and "launch.py: restart 1 of 2" in errors and "Resuming from" in errors
    assert_same_state(state_of(tmp_path / "killed", 60), state_of(undisturbed, 60))


# Stands for ssh between two namespaces: the host is an address, its number that of the namespace.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
case "$1" in {addresses[0]}) name={names[0]};; *) name={names[1]};; esac
exec ip netns exec $name sh -c "$2"
"""


@pytest.mark.slow
def test_two_hosts_go_on_when_a_cut_link_is_back(workspace, tmp_path, hosts):  # noqa: F811
    """The launcher is on the first host. The processes notice the cut, and wait for each other at the next
    start until the link is back."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(names=hosts, addresses=ADDRESSES))
    ssh.chmod(0o755)
    places = ",".join(f"{address}:21901" for address in ADDRESSES)
    launcher = [*LAUNCHER, f"--hosts={places}", f"--ssh={ssh}", "--max_restarts=3", "-x", "PYTHONPATH", "--"]
    flags = [f"--model_dir={tmp_path}/run", "--num_steps_per_epoch=400", "--peer_timeout_secs=30"]
    program = [sys.executable, "train.py", *settings_of("plain", workspace), *flags]
    with popen(["ip", "netns", "exec", hosts[0], *launcher, *program]) as process:
        wait_for(tmp_path / "run" / "ckpt-8.index", process)
        ip("-n", hosts[1], "link", "set", "eth0", "down")
        lines = list(itertools.takewhile(lambda line: "restart 1 of 3" not in line, process.stderr))
        assert process.poll() is None
        assert any("A process is lost: 10.77.0." in line for line in lines), "".join(lines)
        ip("-n", hosts[1], "link", "set", "eth0", "up")
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert "Resuming from" in errors and "restart 2" not in errors

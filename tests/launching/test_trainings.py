"""Runs of several processes under the launcher end with the weights of one with the same global batch."""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests import programs
from tests.distribution.network import ADDRESSES, hosts, ip  # noqa: F401
from tests.distribution.test_processes import finish, of_kind, start, wait_for, workspace  # noqa: F401
from tests.fine_tuning_files import VOCABULARY, squad_json
from tests.fixtures import ROOT, TINY
from tests.run_folders import assert_same_state, state_of, untimed_metrics

STEPS = 8


def launched(folder, model_dir, *flags: str, **settings) -> subprocess.Popen:
    """Starts a run under the launcher, with flags of that."""
    program = (sys.executable, "scripts/launch.py", *flags, "--", sys.executable, "train.py")
    environment = {"PYTHONPATH": str(ROOT), "MARK": str(model_dir)}
    shared = dict(bert_config_file=folder / "plain.json", learning_rate=1e-3)
    return start(folder, model_dir, program=program, environment=environment, **{**shared, **settings})


def questions(folder) -> dict:
    """Writes files of questions. Returns the settings of a run on them."""
    model = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 48}
    texts = {"long.json": json.dumps(model), "vocab.txt": VOCABULARY}
    texts |= {"train.json": json.dumps(squad_json(40, 1)), "dev.json": json.dumps(squad_json(8, 2))}
    for name, text in texts.items():
        (folder / name).write_text(text)
    files = dict(bert_config_file="long.json", vocab_file="vocab.txt", train_file="train.json")
    settings = {name: folder / file for name, file in {**files, "predict_file": "dev.json"}.items()}
    lengths = dict(max_seq_length=48, max_query_length=16, doc_stride=16, max_predictions_per_seq=20)
    return dict(task="squad", input_files="", optimizer_type="adamw", **lengths, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "packed", "squad"])
def test_two_and_four_workers_end_with_the_weights_of_one_process(workspace, tmp_path, kind):  # noqa: F811
    settings = questions(tmp_path) if kind == "squad" else of_kind(kind, workspace)
    settings |= dict(do_eval="true", num_steps_per_epoch=STEPS, learning_rate=1e-3)
    settings = {"bert_config_file": workspace / "plain.json", **settings}
    finish(start(workspace, tmp_path / "1", **settings))
    theirs = state_of(tmp_path / "1", STEPS)
    for workers in (2, 4):
        folder = tmp_path / str(workers)
        told = finish(launched(workspace, folder, f"--instances_per_host={workers}", **settings))
        assert f"{workers} replicas" in told
        assert all(line.startswith("[1,") for line in told.splitlines())
        ours = state_of(folder, STEPS)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            # The gradient of a key's bias is rounding alone.
            most = 0.2 if "key/bias" in name else 2e-5
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=most, err_msg=name)
        for line, other in zip(untimed_metrics(folder), untimed_metrics(tmp_path / "1"), strict=True):
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


def start_two(workspace, folder) -> subprocess.Popen:  # noqa: F811
    """Starts two workers of a longer run, and allows two restarts."""
    flags = ("--instances_per_host=2", "--max_restarts=2")
    return launched(workspace, folder, *flags, deterministic="true")


@pytest.fixture(scope="module")
def undisturbed(workspace):  # noqa: F811
    finish(start_two(workspace, workspace / "undisturbed"))
    return workspace / "undisturbed"


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_and_the_same_command_goes_on(workspace, undisturbed, tmp_path):  # noqa: F811
    process = start_two(workspace, tmp_path / "run")
    wait_for((tmp_path / "run" / "ckpt-8.index").exists, process)
    process.send_signal(signal.SIGTERM)
    assert "restart" not in finish(process, 143)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "interrupted" and result["checkpoint"].endswith(f"ckpt-{result['step']}")
    told = finish(start_two(workspace, tmp_path / "run"))
    assert f"ckpt-{result['step']}: step {result['step']}" in told
    assert_same_state(state_of(tmp_path / "run", 60), state_of(undisturbed, 60))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_costs_time_and_nothing_else(workspace, undisturbed, tmp_path, killed):  # noqa: F811
    process = start_two(workspace, tmp_path / "killed")
    wait_for((tmp_path / "killed" / "ckpt-20.index").exists, process)
    os.kill(processes_of("train.py", f"{tmp_path}/killed")[killed], signal.SIGKILL)
    told = finish(process)
    assert "launch.py: restart 1 of 2" in told and "Resuming from" in told
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
    ssh = programs.stand_in(tmp_path / "ssh", SSH.format(names=hosts, addresses=ADDRESSES))
    places = ",".join(f"{address}:21901" for address in ADDRESSES)
    flags = (f"--hosts={places}", f"--ssh={ssh}", "--max_restarts=3", "-x", "PYTHONPATH")
    run = dict(num_steps_per_epoch=400, peer_timeout_secs=30, within=("ip", "netns", "exec", hosts[0]))
    with launched(workspace, tmp_path / "run", *flags, **run) as process:
        wait_for((tmp_path / "run" / "ckpt-8.index").exists, process)
        ip("-n", hosts[1], "link", "set", "eth0", "down")
        lines = list(itertools.takewhile(lambda line: "restart 1 of 3" not in line, process.stderr))
        assert process.poll() is None
        assert any("A process is lost: 10.77.0." in line for line in lines), "".join(lines)
        ip("-n", hosts[1], "link", "set", "eth0", "up")
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert "Resuming from" in errors and "restart 2" not in errors

"""Slurm on one machine, with daemons of this test's own: tasks of srun train together."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from tests.distribution.test_processes import (  # noqa: F401
    _names,
    free_ports,
    start,
    state_of,
    wait_for,
    workspace,
)

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
SMALL = dict(num_steps_per_epoch=4, learning_rate=1e-3)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Yields the environment in which Slurm's commands reach a node of two CPUs: this machine."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root, and slurmctld, slurmd, slurm-client and munge; missing: {missing}")
    folder = tmp_path_factory.mktemp("slurm")
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, folder=folder, ports=free_ports(2)), encoding="utf-8"
    )
    (folder / "key").write_bytes(os.urandom(32))
    (folder / "key").chmod(0o600)
    own = [f"--{name}-file={folder}/{name}" for name in ("pid", "log", "seed")]
    daemons = [
        ["munged", "-F", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge", *own],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]
    environment = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf"}
    processes = []
    try:
        for daemon in daemons:
            with open(folder / f"{daemon[0]}.out", "wb") as log:
                processes.append(subprocess.Popen(daemon, env=environment, stdout=log, stderr=log))
            time.sleep(1)
        wait_for(lambda: "idle" in _output(["sinfo", "-h", "-o", "%T"], environment), processes[-1])
        yield environment
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def _output(command, environment) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_two_tasks_of_srun_train_together(workspace, tmp_path, slurm):  # noqa: F811
    process = start(workspace, tmp_path / "run", within=("srun", "-n", "2"), environment=slurm, **SMALL)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "Rank 0 of 2" in errors and "says the Slurm step" in errors and "2 replicas" in errors
    assert state_of(tmp_path / "run", 4)["global_step"] == 4


@pytest.mark.slow
def test_a_job_starts_its_tasks_again_where_one_is_killed(workspace, tmp_path, slurm):  # noqa: F811
    """deploy/slurm/train.sbatch, as it is submitted."""
    program = tmp_path / "train"
    program.write_text(
        f"#!/bin/bash\n[[ $SLURM_PROCID == 1 ]] && echo $$ >> {tmp_path}/pids\n"
        f'exec {sys.executable} {ROOT}/train.py "$@"\n'
    )
    program.chmod(0o755)
    tasks = ("--nodes=1", "--ntasks-per-node=2")
    job = ("sbatch", "--wait", *tasks, f"--output={tmp_path}/log", f"{ROOT}/deploy/slurm/train.sbatch")
    process = start(
        workspace,
        tmp_path / "run",
        within=job,
        program=(),
        environment={**slurm, "BERT_COMMAND": str(program)},
        **{**SMALL, "num_steps_per_epoch": 400},
    )
    wait_for(lambda: "ckpt-4.index" in _names(tmp_path / "run"), process)
    assert process.poll() is None, process.communicate()
    os.kill(int((tmp_path / "pids").read_text().split()[0]), signal.SIGKILL)
    process.communicate(timeout=400)
    log = (tmp_path / "log").read_text()
    assert process.returncode == 0, log
    assert "train.sbatch: a process was lost" in log and "restart 1 of 3" in log
    assert re.search(r"0: .*Resuming from .*: step \d+", log) and "finished: all 400 steps done" in log


def test_what_the_job_refuses():
    environment = {**os.environ, "BERT_MAX_RESTARTS": "many"}
    script = ROOT / "deploy" / "slurm" / "train.sbatch"
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "BERT_MAX_RESTARTS=many, expected a number" in done.stderr


@pytest.mark.parametrize(
    "codes,started,code", [([0], 1, 0), ([2], 1, 2), ([143], 1, 143), ([4, 137, 0], 3, 0), ([4] * 9, 4, 4)]
)
def test_what_the_job_does_with_exit_codes(tmp_path, codes, started, code):
    """With a srun that only ends with one code after the other."""
    (tmp_path / "codes").write_text("\n".join(map(str, codes)) + "\n")
    srun = tmp_path / "srun"
    srun.write_text(
        f'#!/bin/bash\ncd {tmp_path}\necho "$*" >> called\nexit "$(sed -n "$(wc -l < called)p" codes)"\n'
    )
    srun.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = ROOT / "deploy" / "slurm" / "train.sbatch"
    done = subprocess.run([script, "--config=quickstart"], env=environment, capture_output=True, check=False)
    called = (tmp_path / "called").read_text().splitlines()
    assert (done.returncode, len(called)) == (code, started)
    assert called[0].endswith("bert train --config=quickstart")

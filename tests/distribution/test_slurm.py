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

from tests import programs
from tests.distribution.test_processes import _names, free_ports, start, wait_for, workspace  # noqa: F401
from tests.fixtures import ROOT

SCRIPT = f"{ROOT}/deploy/slurm/train.sbatch"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
BASH = "#!/bin/bash\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Yields the variables with which Slurm's commands reach a node of two CPUs: this machine."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root, and slurmctld, slurmd, slurm-client and munge; missing: {missing}")
    folder = tmp_path_factory.mktemp("slurm")
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    template = (ROOT / "tests/distribution/slurm.conf").read_text(encoding="utf-8").partition("\n")[2]
    (folder / "slurm.conf").write_text(
        template.format(host=host, folder=folder, ports=free_ports(2)), encoding="utf-8"
    )
    (folder / "key").write_bytes(os.urandom(32))
    (folder / "key").chmod(0o600)
    own = [f"--{name}-file={folder}/{name}" for name in ("pid", "log", "seed")]
    munge = ["munged", "-F", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge", *own]
    daemons = [munge, ["slurmctld", "-D"], ["slurmd", "-D"]]
    environment = {"SLURM_CONF": f"{folder}/slurm.conf"}
    processes = []
    try:
        for daemon in daemons:
            with open(folder / f"{daemon[0]}.out", "wb") as log:
                own = {**os.environ, **environment}
                processes.append(subprocess.Popen(daemon, env=own, stdout=log, stderr=log))
            time.sleep(1)
        state = lambda: programs.call("sinfo", "-h", "-o", "%T", **environment).stdout
        wait_for(lambda: "idle" in state(), processes[-1])
        yield environment
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


@pytest.mark.slow
def test_a_job_starts_its_tasks_again_where_one_is_killed(workspace, tmp_path, slurm):  # noqa: F811
    """deploy/slurm/train.sbatch, as it is submitted."""
    text = f"{BASH}[[ $SLURM_PROCID == 1 ]] && echo $$ >> {tmp_path}/pids\n"
    text += f'exec {sys.executable} {ROOT}/train.py "$@"\n'
    task = programs.stand_in(tmp_path / "train", text)
    tasks = ("--nodes=1", "--ntasks-per-node=2")
    job = ("sbatch", "--wait", *tasks, f"--output={tmp_path}/log", SCRIPT)
    process = start(
        workspace,
        tmp_path / "run",
        within=job,
        program=(),
        environment={**slurm, "BERT_COMMAND": str(task)},
        num_steps_per_epoch=400,
        learning_rate=1e-3,
    )
    wait_for(lambda: "ckpt-4.index" in _names(tmp_path / "run"), process)
    assert process.poll() is None, process.communicate()
    os.kill(int((tmp_path / "pids").read_text().split()[0]), signal.SIGKILL)
    process.communicate(timeout=400)
    log = (tmp_path / "log").read_text()
    assert process.returncode == 0, log
    assert "train.sbatch: a process was lost" in log and "restart 1 of 3" in log
    assert re.search(r"0: .*Resuming from .*: step \d+", log) and "finished: all 400 steps done" in log


@pytest.mark.slow
def test_a_job_ends_with_bad_input_of_one_task_and_tells_each_task_of_a_signal_once(tmp_path, slurm):
    task = programs.stand_in(
        tmp_path / "program",
        f"{BASH}echo $SLURM_CPUS_PER_TASK >> {tmp_path}/cpus\n"
        '[[ $1 == codes ]] && exit "$((4 - 2 * SLURM_PROCID))"\n'
        f"trap 'echo TERM >> {tmp_path}/signals; ended=1' TERM\necho >> {tmp_path}/started\n"
        'until [[ "${ended:-}" ]]; do sleep 0.1; done\nsleep 1\nexit 143\n',
    )
    own = {**slurm, "BERT_COMMAND": str(task)}
    job = ("sbatch", "--wait", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1")
    job = (*job, f"--output={tmp_path}/log", SCRIPT)
    done = programs.call(*job, "codes", **own)
    assert done.returncode == 2 and "restart" not in (tmp_path / "log").read_text()
    assert (tmp_path / "cpus").read_text() == "1\n" * 2
    environment = {**os.environ, **own}
    process = subprocess.Popen([*job, "signals"], env=environment, stdout=subprocess.PIPE, text=True)
    started = tmp_path / "started"
    wait_for(lambda: started.exists() and len(started.read_text()) == 2, process)
    number = process.stdout.readline().strip()
    assert programs.call("scancel", "--signal=TERM", number, **slurm).returncode == 0
    process.communicate(timeout=60)
    assert process.returncode == 143, (tmp_path / "log").read_text()
    assert (tmp_path / "signals").read_text() == "TERM\n" * 2


def test_what_the_job_refuses():
    done = programs.call(SCRIPT, BERT_MAX_RESTARTS="many")
    assert done.returncode == 2 and "BERT_MAX_RESTARTS=many, expected a number" in done.stderr


def test_what_the_job_does_with_exit_codes(tmp_path):
    """With a srun that only ends with one code after the other."""
    text = f'{BASH}cd {tmp_path}\necho "$*" >> called\nexit "$(sed -n "$(wc -l < called)p" codes)"\n'
    programs.stand_in(tmp_path / "srun", text)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = [([code], 1, code) for code in (0, 2, 143, 130, 127)]
    others = [([4, 137, 0], 3, 0), ([142, 0], 2, 0), ([4] * 9, 4, 4), ([252], 1, 2), ([251], 1, 1)]
    for codes, started, code in (*ended, *others):
        (tmp_path / "codes").write_text("\n".join(map(str, codes)) + "\n")
        (tmp_path / "called").unlink(missing_ok=True)
        done = programs.call(SCRIPT, "--config=quickstart", PATH=path)
        called = (tmp_path / "called").read_text().splitlines()
        assert (done.returncode, len(called)) == (code, started), codes
        assert called[0].endswith("bert train --config=quickstart")


@pytest.mark.parametrize("codes,code", [((0, 0), 0), ((2, 4), 2), ((4, 1), 1), ((3, 137), 3), ((0, 4), 4)])
def test_bad_input_of_one_task_decides_before_what_the_others_lose(tmp_path, codes, code):
    """With a srun that starts tasks on this machine and ends with their highest code, as the real one."""
    programs.stand_in(
        tmp_path / "srun",
        f'{BASH}shift 2\necho "$SRUN_CPUS_PER_TASK" >> {tmp_path}/cpus\nhighest=0\n'
        f'for code in {codes[0]} {codes[1]}; do CODE="$code" "$@"; got=$?\n'
        "((got > highest)) && highest=$got; done\nexit $highest\n",
    )
    text = f'{BASH}echo "$*" >> {tmp_path}/arguments\nexit "$CODE"\n'
    task = programs.stand_in(tmp_path / "program", text)
    own = dict(BERT_COMMAND=str(task), BERT_MAX_RESTARTS="0", SLURM_CPUS_PER_TASK="16")
    done = programs.call(SCRIPT, "--name=a  b", PATH=f"{tmp_path}:{os.environ['PATH']}", **own)
    assert done.returncode == code
    assert (tmp_path / "cpus").read_text() == "16\n"
    assert (tmp_path / "arguments").read_text() == "--name=a  b\n" * 2

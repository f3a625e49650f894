"""Jobs of real processes, here and through a stand-in for ssh: output, ends, restarts, and what is left."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from official.launching import job
from tests import programs
from tests.fixtures import ROOT, slow
from tests.refusals import assert_refused

RANK = 'case $TF_CONFIG in *"index\\": 0"*) r=0;; *) r=1;; esac; '  # in the shell of each process
# Stands for ssh: drops options, keeps a host's environment apart, and fails for a host whose file `cut-HOST`
# is there. It runs the command below itself, and ends when it is killed.
SSH = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
while words[0] == "-o":
    words = words[2:]
if os.path.exists("{folder}/cut-" + words[0]):
    sys.exit(255)
environment = {{"PATH": os.environ["PATH"], "ON": words[0]}}
sys.exit(subprocess.run(["sh", "-c", words[1]], env=environment).returncode)
"""


@pytest.fixture
def quick(monkeypatch):
    """Waits of the launcher, shorter."""
    waits = dict(_CAUSE_SECS=0.3, _GRACE_SECS=0.5, _BETWEEN_CALLS_SECS=0.1, SILENCE_SECS=1.0, ALIVE_SECS=0.2)
    for name, secs in waits.items():
        monkeypatch.setattr(job, name, secs)


@pytest.fixture
def run(quick, tmp_path):
    """Returns a function that runs a job of two processes of a shell, and returns its code and what it
    said."""

    def run_job(script: str, names: str = "localhost", instances: int = 2, **more) -> tuple[int, list[str]]:
        said: list[str] = []
        command, settings = ("bash", "-c", RANK + script), {"environment": {}, **more}
        asked = job.Job(job.read_hosts(names), instances, command, str(tmp_path), **settings)
        return job.run(asked, said.append), said

    return run_job


@pytest.fixture
def ssh(tmp_path):
    text = SSH.format(python=sys.executable, folder=tmp_path)
    return (str(programs.stand_in(tmp_path / "fake-ssh", text)),)


def alive(marker: str) -> list[int]:
    """Returns the processes whose environment has a marker."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_both(folder: pathlib.Path, name: str = "up") -> None:
    wait_until(lambda: (folder / f"{name}-0").exists() and (folder / f"{name}-1").exists())


def test_lines_have_their_rank_in_front(run, capfd):
    assert run("echo one; echo problem >&2; printf 'no end'") == (0, [])
    output, errors = capfd.readouterr()
    expected = [f"[1,{rank}]<stdout>:{line}" for rank in (0, 1) for line in ("no end", "one")]
    assert sorted(output.splitlines()) == expected
    assert sorted(errors.splitlines()) == ["[1,0]<stderr>:problem", "[1,1]<stderr>:problem"]


def test_many_lines_and_long_ones_arrive_whole_and_in_order(run, capfd):
    assert run("seq 30000; head -c 200000 /dev/zero | tr '\\0' x", instances=1)[0] == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[:30000] == [f"[1,0]<stdout>:{number}" for number in range(1, 30001)]
    assert sum(line.count("x") for line in lines[30000:]) == 200000


def test_processes_know_their_place_and_get_variables(run, capfd, tmp_path):
    hosts, variables = "localhost:41001,localhost:42001", {"A": "b c"}
    assert run('echo "$TF_CONFIG"; echo "$A $PWD"', hosts, 1, environment=variables)[0] == 0
    lines = sorted(line.partition(":")[2] for line in capfd.readouterr().out.splitlines())
    assert lines[:2] == [f"b c {tmp_path}"] * 2
    cluster = {"worker": hosts.split(",")}
    tasks = [{"type": "worker", "index": index} for index in (0, 1)]
    assert [json.loads(line) for line in lines[2:]] == [{"cluster": cluster, "task": task} for task in tasks]


def test_ends_of_the_run_s_own_pass_through_without_a_restart(run, tmp_path):
    for number, code in enumerate((1, 2, 3, 129, 130, 143), 1):
        assert run(f"echo >> starts-$r; exit {code}", max_restarts=3)[0] == code
        assert (tmp_path / "starts-0").read_text() == (tmp_path / "starts-1").read_text() == "\n" * number


def test_bad_input_of_one_ends_the_others(run):
    code, said = run("[ $r = 1 ] && exit 2; sleep 600", max_restarts=3)
    assert code == 2 and len(said) == 1 and "(localhost:" in said[0]
    assert said[0].startswith("rank 1 ") and said[0].endswith("ended with exit code 2; ending 1 others")


def test_a_loss_ends_all_and_all_start_again(run, tmp_path):
    for number, (how, told) in enumerate((("kill -9 $$", "was ended by SIGKILL"), ("exit 4", "exit code 4"))):
        lose = f"[ $r = 1 ] && [ ! -e lost{number} ] && {{ touch lost{number}; sleep 0.1; {how}; }}"
        starts = f"starts{number}-$r"
        script = f"echo >> {starts}; {lose}; [ $(wc -l < {starts}) = 2 ] || sleep 600"
        code, said = run(script, max_restarts=2)
        assert code == 0 and (tmp_path / f"starts{number}-0").read_text() == "\n\n"
        assert told in said[0] and said[1:] == ["restart 1 of 2"]


def test_the_code_when_no_restart_is_left(run):
    for how, code in (("kill -9 $$", 4), ("exit 4", 4), ("exit 7", 7)):
        ended, said = run(f"[ $r = 0 ] && {{ {how}; }}; sleep 600", max_restarts=1)
        assert ended == code and len(said) == 3


def test_the_cause_counts_and_not_what_follows_from_it(run):
    """Rank 0 notices first that rank 1 is gone, which ends a moment later than it says so."""
    code, _ = run("[ $r = 0 ] && exit 4; sleep 0.15; exit 3", max_restarts=3)
    assert code == 3


def test_a_process_that_does_not_end_is_killed(run):
    assert run("[ $r = 0 ] && exit 2; trap '' TERM; while :; do sleep 1; done")[0] == 2


def test_a_program_that_is_not_there_is_bad_input(quick, tmp_path, capfd):
    asked = job.Job(job.read_hosts("localhost"), 1, ("no-such-program",), str(tmp_path), {}, max_restarts=3)
    assert job.run(asked, lambda text: None) == 2
    assert "launch: no-such-program: No such file or directory" in capfd.readouterr().err


def test_what_a_process_leaves_behind_is_ended(run, tmp_path):
    """One in the background, and one in a session of its own."""
    script = "sleep 600 & setsid sleep 600 & sleep 0.2; exit 0"
    assert run(script, environment={"MARK": str(tmp_path)})[0] == 0
    assert alive(f"MARK={tmp_path}") == []


# ----------------------------------------------------------------------------------------------------
# The launcher itself


@pytest.fixture
def launched(tmp_path):
    """Returns a function that starts the launcher with a script in a shell, as a process group of its own."""
    started = []

    def launch(script: str, *flags: str) -> subprocess.Popen:
        command = [sys.executable, str(ROOT / "scripts/launch.py"), "--instances_per_host=2", *flags]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MARK": str(tmp_path)}
        command += ["--", "bash", "-c", RANK + script]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


TRAPS = (
    'trap "echo term >> got-$r; exit 143" TERM; trap "echo int >> got-$r; exit 130" INT;'
    ' trap "echo hup >> got-$r; exit 129" HUP; touch up-$r;'
    " while :; do sleep 0.05; done"
)


@pytest.mark.parametrize("name", ["TERM", slow("INT"), slow("HUP")])
def test_signals_reach_every_process_once(launched, tmp_path, name):
    number = signal.Signals[f"SIG{name}"]
    process = launched(TRAPS, "--max_restarts=3")
    wait_for_both(tmp_path)
    os.killpg(process.pid, number)  # as a terminal does
    assert process.wait(20) == 128 + number
    for rank in (0, 1):
        assert (tmp_path / f"got-{rank}").read_text() == f"{name.lower()}\n"


@pytest.mark.slow
def test_a_signal_after_a_loss_ends_the_job_without_a_restart(launched, tmp_path):
    """The other process answers no signal, as where it waits for the one that is lost."""
    script = "[ $r = 1 ] && exit 4; trap 'touch asked' TERM; touch up; while :; do sleep 0.05; done"
    process = launched(script, "--max_restarts=3")
    wait_until((tmp_path / "asked").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143 and "restart" not in process.stderr.read()


def test_nothing_is_left_when_the_launcher_is_killed(launched, tmp_path):
    process = launched("sleep 600 & setsid sleep 600 & touch up-$r; wait")
    wait_for_both(tmp_path)
    assert len(alive(f"MARK={tmp_path}")) >= 9  # launcher, supervisors, shells, sleeps
    process.kill()
    wait_until(lambda: not alive(f"MARK={tmp_path}"))


def test_nothing_is_left_when_a_supervisor_is_killed(launched, tmp_path):
    process = launched("echo $PPID > supervisor-$r.new; mv supervisor-$r.new supervisor-$r; sleep 600 & wait")
    wait_for_both(tmp_path, "supervisor")
    os.kill(int((tmp_path / "supervisor-1").read_text()), signal.SIGKILL)
    assert process.wait(20) == 4 and "was ended by SIGKILL" in process.stderr.read()
    assert alive(f"MARK={tmp_path}") == []


@pytest.mark.slow
def test_when_nobody_reads_the_output_the_job_ends(launched, tmp_path):
    """In order where it is finished, else it saves first."""
    trap = "trap 'touch saved-$r; exit 143' TERM; touch up-$r"
    for script, code in ((f"{trap}; while :; do echo line; sleep 0.02; done", 141), ("echo line", 0)):
        process = launched(script)
        if code:
            wait_for_both(tmp_path)
        process.stdout.close()
        assert process.wait(60) == code
        process.stdout = open(os.devnull)  # noqa: SIM115  # `communicate` wants one
    assert (tmp_path / "saved-0").exists() and (tmp_path / "saved-1").exists()


# ----------------------------------------------------------------------------------------------------
# Other hosts


REMOTE = "alpha.invalid:4000,beta.invalid:4000"


def test_hosts_elsewhere_get_command_folder_and_variables(run, ssh, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("NOT_PASSED", "here")
    assert run('echo "$ON $r $A $NOT_PASSED $PWD"', REMOTE, 1, ssh=ssh, environment={"A": "it's"})[0] == 0
    assert sorted(capfd.readouterr().out.splitlines()) == [
        f"[1,0]<stdout>:alpha.invalid 0 it's  {tmp_path}",
        f"[1,1]<stdout>:beta.invalid 1 it's  {tmp_path}",
    ]


def test_output_that_nobody_takes_loses_no_host(ssh):
    """A pipe that is full holds the launcher up for longer than a host elsewhere bears silence."""
    program = (
        "from official.launching import job; job.SILENCE_SECS, job.ALIVE_SECS = 1.0, 0.2;"
        " from official.cli import launch; import sys; sys.exit(launch.main())"
    )
    flags = ["--hosts=alpha.invalid:4000", f"--ssh={ssh[0]}", "--", "seq", "100000"]
    command, environment = [sys.executable, "-c", program, *flags], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"[1,0]<stdout>:1\n"
        time.sleep(1.5)
        assert len(process.stdout.read().splitlines()) == 99999
    assert process.returncode == 0


def test_a_host_that_cannot_be_reached_is_named_and_waited_for(run, ssh, tmp_path):
    (tmp_path / "cut-beta.invalid").touch()
    lost = "rank 1 (beta.invalid:4000) cannot be reached: ssh has ended; ending 1 others"
    assert run("sleep 600", REMOTE, 1, ssh=ssh) == (4, [lost])
    code, said = run("sleep 600", REMOTE, 1, ssh=ssh, max_restarts=5, host_timeout_secs=0.5)
    assert code == 4 and said[-1] == "beta.invalid: no answer after --host_timeout_secs=0.5"


def test_a_host_that_comes_back_goes_on(run, ssh, tmp_path):
    """Its link is cut in the middle; the next start waits for it."""
    script = (
        "echo >> starts-$r; [ $(wc -l < starts-$r) = 2 ] && exit 0; [ $r = 0 ] && sleep 600;"
        " touch cut-$ON; kill -9 $(cat ssh-pid); sleep 600"
    )
    # An ssh whose number the process on the other side knows.
    note = f"echo $$ > {tmp_path}/ssh-pid"
    case = f'case "$*" in *beta*true) ;; *beta*) {note};; esac'
    watched = programs.stand_in(tmp_path / "watched-ssh", f'#!/bin/sh\n{case}\nexec {ssh[0]} "$@"\n')
    cut = tmp_path / "cut-beta.invalid"
    back = threading.Thread(target=lambda: (wait_until(cut.exists), time.sleep(2), cut.unlink()))
    back.start()
    code, said = run(script, REMOTE, 1, ssh=(str(watched),), max_restarts=1, host_timeout_secs=20.0)
    back.join()
    assert (code, said[1:]) == (0, ["restart 1 of 1", "waiting for beta.invalid, at most 20 s"]), said


def test_a_supervisor_that_hears_nothing_kills_its_process(tmp_path):
    supervisor = os.path.join(os.path.dirname(job.__file__), "supervisor.py")
    own = {"MARK": str(tmp_path)}
    order = {"command": ["sleep", "600"], "folder": None, "silence_secs": 0.6, "environment": own}
    pipes = dict(stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    with subprocess.Popen([sys.executable, "-I", "-S", supervisor], **pipes) as process:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        wait_until(lambda: alive(f"MARK={tmp_path}"))
        for _ in range(6):  # longer than the silence it bears
            process.stdin.write(b"alive\n")
            time.sleep(0.2)
        assert process.poll() is None
        assert process.wait(20) == 137 and b"lost the launcher" in process.stderr.read()
    assert alive(f"MARK={tmp_path}") == []


def test_a_launcher_without_ssh_says_so(run):
    missing = ("rank 0 (alpha.invalid:4000) cannot be started: No such file",)
    assert_refused(lambda: run("true", "alpha.invalid:4000", 1, ssh=("/no/such/ssh",)), [missing])

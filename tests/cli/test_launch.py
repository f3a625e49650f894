"""The flags of `bert launch`, and what it prints without starting anything."""

import shlex
import sys

from official.cli import launch
from tests import programs


def test_the_settings_of_a_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KNOWN", "here")
    words = "--hosts=a:1,b:1 --max_restarts=3 -x KNOWN -x OTHER=1=2 '--ssh=ssh -p 22' -- run --a-b=c -- x"
    job = launch.job_of(*launch.parse_flags(shlex.split(words)))
    assert job.max_restarts == 3 and [host.name for host in job.hosts] == ["a", "b"]
    assert job.command == ("run", "--a-b=c", "--", "x") and job.folder == str(tmp_path)
    assert job.environment == {"KNOWN": "here", "OTHER": "1=2"} and job.ssh == ("ssh", "-p", "22")


def rows(text: str) -> dict[str, list[str]]:
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines if cells}


def test_the_table_alone(monkeypatch, capsys):
    for words, hosts, instances, replicas in (
        ("--hosts=a:1,b:1 --instances_per_host=2", ["a", "b"], 4, 4),
        ("--hosts=node[1-3]:1 --num_replicas=24", ["node1", "node2", "node3"], 3, 24),
    ):
        monkeypatch.setattr(sys, "argv", ["launch.py", "--topology", *words.split()])
        assert launch.main() == 0
        found = rows(capsys.readouterr().out)
        assert list(found) == ["hosts", "instances", "replicas"] and found["hosts"] == hosts
        assert (len(found["instances"]), len(found["replicas"])) == (instances, replicas)


def test_the_table_of_a_run_has_the_replicas_of_its_processes():
    """And the run starts after it."""
    command = ["env", sys.executable, "-c", "print('started')"]
    done = programs.run("scripts/launch.py", "--topology", "--instances_per_host=2", "--", *command)
    assert done.returncode == 0 and rows(done.stdout)["replicas"] == ["0", "1"]
    assert done.stdout.splitlines()[-1].endswith("<stdout>:started")


def test_replicas_of_a_process_are_its_gpus():
    for command, expected in (
        ("bert train --config=mlperf_v100 --num_gpus=8", 8),
        ("python /workspace/train.py --config=mlperf_v100 --num_gpus=0", 1),
        ("bert train --config=mlperf_v100 --distribution_strategy=multi_worker_mirrored --num_gpus=4", 4),
        ("./other --num_gpus=8", 1),
        ("bert serve --export_dir=x", 1),
    ):
        flags, words = launch.parse_flags(["--topology", "--instances_per_host=2", "--", *command.split()])
        assert launch.topology_of(flags, words).replicas == 2 * expected

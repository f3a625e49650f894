"""poprun's command lines of the published runs, word for word and with their environment."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from official.cli import launch
from official.graphcore import poprun
from official.graphcore.poprun import DIALECTS
from official.io.errors import ConfigError
from tests.conftest import ROOT

# What the shell of each run had, beside what the published text sets.
SHELL = {
    "HOSTS": "10.1.3.1,10.1.3.2",
    "VIPU_SERVER_HOST": "10.1.3.9",
    "TCP_IF_INCLUDE": "10.5.0.0/16",
    "PARTITION_NAME": "p128",
    "CLUSTER_NAME": "c",
    "DATASETS_DIR": "/data",
}
# README_Benchmarks.md of PopART BERT.
POPART = """
export POPLAR_ENGINE_OPTIONS='{"target.hostSyncTimeout": "1200", "target.syncReplicasIndependently": "true"}'
export HOROVOD_STALL_CHECK_TIME_SECONDS=120
export HOROVOD_POPART_BROADCAST_TIMEOUT=120
poprun -vv --num-instances=2 --num-replicas=32 \\
       --num-ilds=2 \\
       --ipus-per-replica=4 \\
       --vipu-server-host="$VIPU_SERVER_HOST" \\
       --host=$HOSTS \\
       --vipu-partition=gcl128 \\
       --vipu-cluster=c128 \\
       --update-partition=yes \\
       --remove-partition=no \\
       --reset-partition=no \\
       --print-topology=yes \\
       --vipu-server-timeout=1200 \\
       --mpi-global-args="--tag-output \\
                          --allow-run-as-root \\
                          --mca btl_tcp_if_include $TCP_IF_INCLUDE \\
                          --mca oob_tcp_if_include $TCP_IF_INCLUDE" \\
       --mpi-local-args="-x OPAL_PREFIX \\
                         -x CPATH \\
                         -x IPUOF_VIPU_API_TIMEOUT=1200 \\
                         -x POPLAR_ENGINE_OPTIONS \\
                         -x HOROVOD_STALL_CHECK_TIME_SECONDS \\
                         -x HOROVOD_POPART_BROADCAST_TIMEOUT" \\
"""
POPART_PHASES = (
    "python3 bert.py --config configs/mk2/pretrain_large_128.json --replication-factor 16 --loss-scaling 4096"
    " --replicated-tensor-sharding True --input-files $DATASETS_DIR/wikipedia/AA/sequence_128/*",
    "python3 bert.py --config configs/mk2/pretrain_large_384.json --replication-factor 16"
    " --replicated-tensor-sharding True --input-files $DATASETS_DIR/wikipedia/AA/sequence_384/* --wandb"
    " --onnx-checkpoint checkpoints/mk2/pretrain_large_rank_0/21-10-06-01-20-46/model.onnx",
)
# README of packed BERT, where {NAMES} are those of its variables.
PACKED = (
    "poprun -vv  --remove-partition=0 --num-instances $NUM_INSTANCE --num-replicas $NUM_REPLICAS "
    " --num-ilds=$NUM_ILDS --ipus-per-replica $IPUS_PER_REPLICA --numa-aware=yes --host $HOSTS"
    " --vipu-server-host=$VIPU_SERVER_HOST --vipu-server-timeout=600 --vipu-partition=$PARTITION_NAME"
    " --vipu-cluster=$CLUSTER_NAME --reset-partition=no --update-partition=no"
    ' --mpi-global-args="--tag-output  --allow-run-as-root  --mca oob_tcp_if_include $TCP_IF_INCLUDE'
    ' --mca btl_tcp_if_include $TCP_IF_INCLUDE"'
    " --mpi-local-args='-x SHARED_EXECUTABLE_CACHE -x LD_LIBRARY_PATH -x OPAL_PREFIX -x PATH"
    " -x HOROVOD_STALL_CHECK_TIME_SECONDS=600 -x HOROVOD_LOG_LEVEL=OFF"
    " -x HOROVOD_POPART_BROADCAST_TIMEOUT=600 -x CPATH -x PYTHONPATH -x IPUOF_VIPU_API_TIMEOUT=600"
    " -x POPLAR_ENGINE_OPTIONS  -x POPLAR_LOG_LEVEL=OFF -x POPART_LOG_LEVEL=OFF -x GCL_LOG_LEVEL=OFF' "
)
PODS = {
    "pod128": "export NUM_INSTANCE=2 NUM_REPLICAS=16 NUM_ILDS=2 IPUS_PER_REPLICA=8\n",
    "pod256": "export NUM_INSTANCE=4 NUM_REPLICAS=32 NUM_ILDS=4 IPUS_PER_REPLICA=8\n",
}
# The Kubernetes tutorial.
TUTORIAL = """
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_ALLOW_RUN_AS_ROOT=1 \\
poprun \\
--allow-run-as-root 1 \\
--vv \\
--num-instances 1 \\
--num-replicas 16 \\
 --mpi-global-args="--tag-output" \\
--ipus-per-replica 4 \\
"""
TUTORIAL_PROGRAM = (
    "python3 run_pretraining.py --config pretrain_large_128_POD64 --dataset generated --training-steps 1"
)
# scripts/pretrain_distributed.sh of the programs for TensorFlow 1 and 2, with the values of their variables.
TF1 = """
poprun --host 10.1.3.1 --num-ilds 1 --num-instances 1 --num-replicas 16 --ipus-per-replica 4 \\
  --vipu-server-host=10.1.3.9 --reset-partition=yes --update-partition=yes --remove-partition=no \\
  --vipu-partition=pod64 --print-topology=yes \\
  --mpi-global-args="--mca btl_tcp_if_include 10.1.0.0/16 --mca oob_tcp_if_include 10.1.0.0/16" \\
  --mpi-local-args="-x TF_CPP_VMODULE='poplar_compiler=0, poplar_executor=0' -x HOROVOD_LOG_LEVEL=WARN \\
  -x IPUOF_LOG_LEVEL=WARN -x POPLAR_LOG_LEVEL=WARN -x CPATH -x GCL_LOG_LEVEL=WARN \\
  -x TF_POPLAR_FLAGS=--executable_cache_path=/localdata/me/exec_cache" """
TF1_PROGRAM = (
    "python bert/run_pretraining.py --config configs/pretrain_large_128_phase1_POD64.json --train-file"
    " '/localdata/*.tfrecord' --wandb --wandb-name 'POD64 Large phase 1'"
)
TF2 = """
TF_POPLAR_FLAGS=--executable_cache_path=/localdata/me/exec_cache \\
poprun -vv --host 10.1.3.1,10.1.3.2 --num-ilds 1 --num-instances 2 --num-replicas 16 --ipus-per-replica 4 \\
  --vipu-server-host=10.1.3.9 --vipu-allocation=mine --reset-partition=yes --update-partition=yes \\
  --remove-partition=no --vipu-partition=part \\
  --mpi-global-args="--mca btl_tcp_if_include 10.1.0.0/16 --mca oob_tcp_if_include 10.1.0.0/16" """
TF2_PROGRAM = "python bert/run_pretraining.py --config configs/pretrain_base_128_phase1_POD64.json"
_SERVER = "--vipu_server_host=10.1.3.9"
RUNS = {
    "popart phase 1": (["--instances-per-host=2"], POPART, POPART_PHASES[0]),
    "popart phase 2": (["--instances_per_host=2"], POPART, POPART_PHASES[1]),
    "packed pod128": ([], PODS["pod128"] + PACKED, "python bert.py --config=configs/pod128-closed.json"),
    "packed pod256": ([], PODS["pod256"] + PACKED, "python bert.py --config=configs/pod256-closed.json"),
    "tutorial": ([], TUTORIAL, TUTORIAL_PROGRAM),
    "tf1": (["--hosts=10.1.3.1", _SERVER, "--vipu_partition=pod64", "--no-preparation"], TF1, TF1_PROGRAM),
    "tf2": (
        [
            "--hosts=10.1.3.[1-2]",
            _SERVER,
            "--vipu_partition=part",
            "--vipu_allocation=mine",
            "--no-preparation",
        ],
        TF2,
        TF2_PROGRAM,
    ),
}
# Stands for poprun: what it is given, and the environment that the published text speaks of.
POPRUN = """#!{python}
import json, os, sys
starts = ("POPLAR", "HOROVOD", "OMPI", "NUM_", "IPUS_", "TF_")
given = {{name: value for name, value in os.environ.items() if name.startswith(starts)}}
print(json.dumps([[" ".join(word.split()) for word in sys.argv[1:]], given]))
"""


def lines_of(text: str, folder, variables: dict, **programs: str) -> list[str]:
    """Returns what a shell prints that runs a text, with some programs on its path."""
    for name, content in programs.items():
        (folder / name.replace("_", "-")).write_text(content)
        (folder / name.replace("_", "-")).chmod(0o755)
    command = ["bash", "-euo", "pipefail", "-c", text]
    environment = {**variables, "USER": "me", "PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def words_of(text: str, folder) -> list:
    """Returns what poprun is given when a shell runs a text."""
    return json.loads(lines_of(text, folder, SHELL, poprun=POPRUN.format(python=sys.executable))[-1])


def printed(monkeypatch, capsys, *arguments) -> str:
    monkeypatch.setattr(sys, "argv", ["launch.py", "--print_poprun", *arguments])
    assert launch.main() == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("flags, published, program", RUNS.values(), ids=RUNS)
def test_published_command_lines(monkeypatch, capsys, tmp_path, flags, published, program):
    monkeypatch.setenv("DATASETS_DIR", SHELL["DATASETS_DIR"])
    command = [os.path.expandvars(word) for word in shlex.split(program)]
    ours = words_of(printed(monkeypatch, capsys, *flags, "--", *command), tmp_path)
    theirs = words_of(
        f"{published.rstrip()} {program}" if published.endswith('" ') else published + program, tmp_path
    )
    assert ours == theirs


def test_what_is_not_set_ends_before_poprun(monkeypatch, capsys):
    text = printed(
        monkeypatch, capsys, "--", *shlex.split("python bert.py --config=configs/pod128-closed.json")
    )
    done = subprocess.run(["bash", "-c", text], env={}, capture_output=True, text=True, check=False)
    assert done.returncode and "VIPU_SERVER_HOST" in done.stderr or "HOSTS" in done.stderr


def plan_of(*arguments):
    flags, command = launch.parse_flags(["--print_poprun", *arguments])
    return launch.of_pods(flags, command)


def test_numbers_follow_from_the_command_and_the_hosts():
    for arguments, *numbers in (
        ("-- bert train --config=graphcore/tf1/pretrain_large_128_phase1_POD32", 1, 8, 4, 1),
        ("--hosts=a,b -- train.py --config=graphcore/popart/mk2/pretrain_large_128_POD64", 2, 16, 4, 1),
        ("--hosts=a,b -- python bert.py --config=graphcore/popart/mk2/pretrain_large_128_POD64", 2, 32, 4, 2),
        ("--num_replicas=8 --ipus_per_replica=2 --num_ilds=4 -- ./program", 4, 8, 2, 4),
    ):
        plan, _ = plan_of(*arguments.split())
        found = [plan.num_instances, plan.num_replicas, plan.ipus_per_replica, plan.num_ilds]
        assert found == numbers, arguments


def test_what_cannot_be_laid_out_is_one_line():
    for arguments, message in (
        ("--hosts=a,b,c --num_replicas=16 --ipus_per_replica=4 -- x", "--num_replicas=15 or 18"),
        ("--num_replicas=4 --ipus_per_replica=3 -- x", "--ipus_per_replica=3, expected a power of two"),
        ("-- python run.py --layers 3", "replicas and IPUs are unknown"),
        ("-- python bert.py --config=nothing", "nothing"),
        ("--num_replicas=4 --ipus_per_replica=4 --vipu_partition=a;b -- x", "partition='a;b', expected"),
    ):
        with pytest.raises(ConfigError) as error:
            plan_of(*arguments.split())
        assert message in str(error.value) and "\n" not in str(error.value)


def test_variables_that_instances_get_and_options_that_a_dialect_lacks():
    plan, dialect = plan_of(
        *"-x A=1 -x B --hosts=h --vipu_partition=p --num_ilds=1 -- python3".split(),
        *TUTORIAL_PROGRAM.split()[1:],
    )
    words = shlex.split(poprun.command_line(plan, dialect, ("run",)).replace("\\\n", " "))
    assert {"--vipu-partition=p", "--mpi-local-args=-x A=1 -x B"} <= set(words)
    assert words[words.index("--host") + 1] == "h" and words[words.index("--num-ilds") + 1] == "1"
    assert words[-1] == "run"


def test_with_hosts_it_says_how_keys_code_and_sdk_reach_them(tmp_path):
    says = '#!/bin/sh\necho {} "$@"\n'
    programs = {name: says.format(name.replace("_", "-")) for name in ("ssh_copy_id", "rsync")}
    variables = {"CODE_PATH": "/code/bert", "VENV_PATH": "/v/env"}
    lines = lines_of(poprun.preparation(("a", "b")), tmp_path, variables, **programs)
    assert lines[0] == "ssh-copy-id a" and lines[4] == "ssh-copy-id b"
    assert [line.split()[-2:] for line in lines[1:4]] == [
        ["/code/bert", "a:/code/"],
        ["/v/env", "a:/v/"],
        ["/localdata/me/sdks", "a:/localdata/me/"],
    ]


def test_files_and_folders_reach_the_same_places_on_the_hosts(tmp_path):
    text = poprun.copies(("a", "b"), ["/l/it's here/one", "/data/128", "/l/it's here/two"])
    printed_lines = lines_of(text, tmp_path, {}, rsync='#!/bin/sh\nfor word; do echo "$word"; done\n')
    calls = "\n".join(printed_lines).split("--stats\n-av\n--copy-dirlinks\n--rsync-path=")[1:]
    assert [call.splitlines()[1:] for call in calls] == [
        words
        for host in ("a", "b")
        for words in (
            ["/l/it's here/one", "/l/it's here/two", f"{host}:/l/it's here/"],
            ["/data/128", f"{host}:/data/"],
        )
    ]
    there = [shlex.split(call.splitlines()[0]) for call in calls[:2]]
    assert there == [["mkdir", "-p", "/l/it's here", "&&", "rsync"], ["mkdir", "-p", "/data", "&&", "rsync"]]


def test_each_dialect_has_a_value_or_a_plan_s_name_for_all_its_names():
    plan = poprun.PodPlan(("a",), 1, 2, 2, 1)
    for dialect in DIALECTS.values():
        text = poprun.command_line(plan, dialect, ("run",))
        assert "{num" not in text and "poprun" in text and text.endswith("run")


def test_the_table_of_the_page_is_that_of_the_published_runs():
    """docs/hardware.md has the numbers of the published runs, too."""
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    plan, _ = plan_of("--", *shlex.split("python bert.py --config=configs/pod256-closed.json"))
    assert f"{plan.num_replicas} x {plan.ipus_per_replica}" in page

"""poprun's command lines of the published runs, word for word and with their environment."""

import json
import os
import shlex
import sys

import pytest
import yaml

from official.cli import launch
from official.graphcore import poprun
from tests import programs
from tests.fixtures import ROOT

PUBLISHED = yaml.safe_load((ROOT / "tests/graphcore/published_commands.yml").read_text(encoding="utf-8"))
SHELL, RUNS = PUBLISHED["shell"], PUBLISHED["runs"]
# Stands for poprun: what it is given, and the environment that the published text speaks of.
POPRUN = """#!{python}
import json, os, sys
starts = ("POPLAR", "HOROVOD", "OMPI", "NUM_", "IPUS_", "TF_")
given = {{name: value for name, value in os.environ.items() if name.startswith(starts)}}
print(json.dumps([[" ".join(word.split()) for word in sys.argv[1:]], given]))
"""


def lines_of(text: str, folder, variables: dict, **stand_ins: str) -> list[str]:
    """Returns what a shell prints that runs a text, with some programs on its path."""
    for name, content in stand_ins.items():
        programs.stand_in(folder / name.replace("_", "-"), content)
    environment = {**variables, "USER": "me", "PATH": f"{folder}:/usr/bin:/bin"}
    done = programs.call(
        "bash", "-euo", "pipefail", "-c", text, cwd=folder, without=os.environ, **environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def words_of(text: str, folder) -> list:
    """Returns what poprun is given when a shell runs a text."""
    return json.loads(lines_of(text, folder, SHELL, poprun=POPRUN.format(python=sys.executable))[-1])


def printed(monkeypatch, capsys, *arguments) -> str:
    monkeypatch.setattr(sys, "argv", ["launch.py", "--print_poprun", *arguments])
    assert launch.main() == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", RUNS)
def test_published_command_lines(monkeypatch, capsys, tmp_path, name):
    monkeypatch.setenv("DATASETS_DIR", SHELL["DATASETS_DIR"])
    flags, program = RUNS[name]["flags"], RUNS[name]["program"]
    published = PUBLISHED["texts"][RUNS[name]["published"]]
    command = [os.path.expandvars(word) for word in shlex.split(program)]
    ours = words_of(printed(monkeypatch, capsys, *flags, "--", *command), tmp_path)
    if not published.rstrip().endswith("\\"):  # else the program follows on a line of its own
        published = published.rstrip() + " "
    assert ours == words_of(published + program, tmp_path)


def test_what_is_not_set_ends_before_poprun(monkeypatch, capsys):
    text = printed(
        monkeypatch, capsys, "--", *shlex.split("python bert.py --config=configs/pod128-closed.json")
    )
    done = programs.call("bash", "-c", text, without=os.environ)
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


def test_variables_that_instances_get_and_options_that_a_dialect_lacks():
    plan, dialect = plan_of(
        *"-x A=1 -x B --hosts=h --vipu_partition=p --num_ilds=1 -- python3".split(),
        *RUNS["tutorial"]["program"].split()[1:],
    )
    words = shlex.split(poprun.command_line(plan, dialect, ("run",)).replace("\\\n", " "))
    assert {"--vipu-partition=p", "--mpi-local-args=-x A=1 -x B"} <= set(words)
    assert words[words.index("--host") + 1] == "h" and words[words.index("--num-ilds") + 1] == "1"
    assert words[-1] == "run"


def test_with_hosts_it_says_how_keys_code_and_sdk_reach_them(tmp_path):
    says = '#!/bin/sh\necho {} "$@"\n'
    stand_ins = {name: says.format(name.replace("_", "-")) for name in ("ssh_copy_id", "rsync")}
    variables = {"CODE_PATH": "/code/bert", "VENV_PATH": "/v/env"}
    lines = lines_of(poprun.preparation(("a", "b")), tmp_path, variables, **stand_ins)
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


def test_the_table_of_the_page_is_that_of_the_published_runs():
    """docs/hardware.md has the numbers of the published runs, too."""
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    plan, _ = plan_of("--", *shlex.split("python bert.py --config=configs/pod256-closed.json"))
    assert f"{plan.num_replicas} x {plan.ipus_per_replica}" in page


def test_the_tables_of_published_logs():
    for each in PUBLISHED["topologies"]:
        hosts, *numbers = each["topology"]
        assert poprun.draw(poprun.Topology(tuple(hosts), *numbers)) == each["table"].rstrip("\n")

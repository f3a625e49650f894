"""Starts the processes of a run, here or on other hosts through ssh, and again after one was lost.

  bert launch --hosts=localhost --instances_per_host=2 -- bert train --config=quickstart
  bert launch --hosts=node1:4000,node2:4000 --max_restarts=5 -x PATH -- bert train --config=quickstart

Each process gets TF_CONFIG: who is in the job, and which of them it is. Its lines are printed with its rank
in front: [1,RANK]<stdout>: or <stderr>:. Ctrl-C, SIGTERM and SIGHUP go to all processes. Exit codes are those
of the run: 1, 2, 3, 129, 130 and 143 end the job, anything else but 0 is a loss.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping

from official.cli import command_line, launch_plan
from official.graphcore import poprun
from official.graphcore.poprun import DIALECTS
from official.io.errors import ConfigError
from official.launching import job

_NAME = re.compile(r"[A-Za-z_]\w*")
_RANGES = {
    "instances_per_host": (1, 1024),
    "max_restarts": (0, 10**6),
    "host_timeout_secs": (0, 10**6),
    "num_replicas": (1, 2**16),
    "ipus_per_replica": (1, 2**16),
    "num_ilds": (1, 2**16),
}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add(
        "--hosts",
        help="HOST:PORT,...: node[0-2,4] is four. Unset: this machine, whose ports may be left out.",
    )
    add(
        "--instances_per_host",
        type=int,
        default=1,
        help="Processes of a host, at its port and the next ones.",
    )
    add("--max_restarts", type=int, default=0, help="How often all start again after one was lost.")
    add(
        "-x",
        dest="passed",
        action="append",
        default=None,
        metavar="NAME[=VALUE]",
        help="Variable that all processes get; repeatable.",
    )
    add("--ssh", default="ssh", help="Command that reaches other hosts.")
    add("--host_timeout_secs", type=float, default=600.0, help="How long a lost host is waited for.")
    add(
        "--topology",
        action="store_true",
        help="Print the table of hosts, instances and replicas; without a command nothing else.",
    )
    add("--num_replicas", type=int, help="Replicas of the whole job. Unset: as the command's settings say.")
    add(
        "--print_poprun",
        action="store_true",
        help="Print poprun's command line for IPU pods and start nothing.",
    )
    add(
        "--poprun_like",
        choices=tuple(DIALECTS),
        help="Whose published options poprun gets. Unset: of the program whose configuration it is.",
    )
    add("--ipus_per_replica", type=int, help="IPUs of a replica. Unset: as the stages of the command say.")
    add("--num_ilds", type=int, help="IPU-Link domains. Unset: one for every 64 IPUs.")
    for name in launch_plan.SITE:
        add(f"--{name}", help=f"poprun's --{name.replace('_', '-')}.")
    add("--tcp_if_include", help="Network of the hosts, for mpirun. Unset: by the first host's address.")
    parser.add_bool("preparation", True, "With --hosts, also print how keys, code and SDK reach them.")
    add(
        "--copies",
        default="",
        help="PATH,...: with --hosts, also print how these files and folders reach the same places there.",
    )
    return parser


def parse_flags(words: list[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Returns the flags of the launcher, and the words after `--`: the command. Raises ConfigError."""
    end = words.index("--") if "--" in words else len(words)
    flags, command = make_parser().parse(words[:end]), tuple(words[end + 1 :])
    for name, (smallest, largest) in _RANGES.items():
        value = getattr(flags, name)
        if value is not None and not smallest <= value <= largest:
            raise ConfigError(f"--{name}={value:,} is out of range. Allowed: {smallest} to {largest:,}.")
    if not command and not flags.topology:
        raise ConfigError("a command is missing, expected: launch [flags] -- COMMAND. See --help.")
    return flags, command


def passed_variables(given: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of -x NAME and -x NAME=VALUE. Raises ConfigError where one has no value."""
    values = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"-x {each[:100]!r}, expected NAME or NAME=VALUE.")
        if name == "TF_CONFIG":
            raise ConfigError("-x TF_CONFIG: the launcher sets it for each process. Drop it.")
        if not equals and name not in environment:
            raise ConfigError(f"-x {name}: it is not set here. Set it, or use -x {name}=VALUE.")
        values[name] = value if equals else environment[name]
    return values


def job_of(flags: argparse.Namespace, command: tuple[str, ...]) -> job.Job:
    """Returns the job to start: hosts, processes, command and environment. Raises ConfigError."""
    environment = passed_variables(flags.passed or [], os.environ)
    ssh = tuple(flags.ssh.split())
    if not ssh:
        raise ConfigError("--ssh= is empty, expected a command such as ssh.")
    order = job.Order(command, os.getcwd(), environment, ssh)
    places = job.read_hosts(flags.hosts or "localhost", flags.instances_per_host)
    return job.Job(places, flags.instances_per_host, order, flags.max_restarts, flags.host_timeout_secs)


def main() -> int:
    flags, command = parse_flags(sys.argv[1:])
    if flags.print_poprun:
        plan, dialect = launch_plan.of_pods(flags, command)
        if flags.topology:
            print(poprun.draw(plan.topology()))
        if plan.hosts and flags.preparation:
            print(poprun.preparation(plan.hosts))
        copied = [path for path in flags.copies.split(",") if path]
        if plan.hosts and copied:
            print(poprun.copies(plan.hosts, copied))
        print(poprun.command_line(plan, dialect, command))
        return 0
    started = job_of(flags, command)
    if flags.topology:
        print(poprun.draw(launch_plan.topology_of(flags, command)), flush=True)
    return job.run(started, _say) if command else 0


def _say(text: str) -> None:
    print(f"{command_line.program()}: {text}", file=sys.stderr, flush=True)

"""Starts the processes of a run, here or on other hosts through ssh, and restarts them after a loss.

  bert launch --hosts=localhost --instances_per_host=2 -- bert train --config=quickstart
  bert launch --hosts=node1:4000,node2:4000 --max_restarts=5 -x PATH -- bert train --config=quickstart

Each process gets TF_CONFIG with the addresses of all processes and its own index. Its output lines are
prefixed with its rank: [1,RANK]<stdout>: or <stderr>:. Ctrl-C, SIGTERM and SIGHUP are sent to all processes.
The exit code is that of the run: 1, 2, 3, 129, 130 and 143 end the job; any other code but 0 counts as a
loss.
"""

import functools
import os
import re
import sys
from collections.abc import Mapping
from typing import Literal

from official.cli import command_line, foreign
from official.cli import flags as train_flags
from official.distribution import pipeline_plan
from official.distribution.pipeline_plan import power_of_two
from official.graphcore import poprun
from official.graphcore.poprun import DIALECTS, Dialect, Topology
from official.io.errors import ConfigError
from official.launching import job

_NAME = re.compile(r"[A-Za-z_]\w*")


class Main(command_line.Flags):
    """Flags of the command.

    Attributes:
      hosts: HOST:PORT,...: node[0-2,4] means four hosts. Unset: this machine, whose ports may be left out.
      instances_per_host: Number of processes per host, on its port and the following ones.
      max_restarts: Maximum number of restarts of all processes after a loss.
      passed: NAME or NAME=VALUE: environment variable to pass to all processes. May be repeated.
      ssh: Command that runs a command on another host.
      host_timeout_secs: How long a restart waits for a lost host.
      topology: Print the table of hosts, instances and replicas; without a command, do nothing else.
      num_replicas: Number of replicas of the whole job. Unset: as the command's settings say.
      print_poprun: Print poprun's command line for IPU pods and start nothing.
      poprun_like: Published run whose form poprun's command line takes. Unset: the one of the program whose
        configuration it is.
      ipus_per_replica: Number of IPUs per replica. Unset: as the pipeline stages of the command say.
      num_ilds: Number of IPU-Link domains. Unset: one for every 64 IPUs.
      vipu_server_host: poprun's --vipu-server-host.
      vipu_partition: poprun's --vipu-partition.
      vipu_cluster: poprun's --vipu-cluster.
      vipu_allocation: poprun's --vipu-allocation.
      tcp_if_include: Network of the hosts, for mpirun. Unset: derived from the first host's address.
      preparation: With --hosts: also print the commands that copy keys, code and SDK to the hosts.
      copies: PATH,...: with --hosts: also print the commands that copy these files and folders to the same
        paths there.
    """

    RANGES = dict(instances_per_host=(1, 1024), max_restarts=(0, 10**6), host_timeout_secs=(0, 10**6))
    RANGES |= dict(num_replicas=(1, 2**16), ipus_per_replica=(1, 2**16), num_ilds=(1, 2**16))
    SHORT = {"passed": "x"}
    hosts: str | None = None
    instances_per_host: int = 1
    max_restarts: int = 0
    passed: list[str] = []
    ssh: str = "ssh"
    host_timeout_secs: float = 600.0
    topology: bool = False
    num_replicas: int | None = None
    print_poprun: bool = False
    poprun_like: Literal["popart", "packed", "pytorch", "tf1", "tf2"] | None = None
    ipus_per_replica: int | None = None
    num_ilds: int | None = None
    vipu_server_host: str | None = None
    vipu_partition: str | None = None
    vipu_cluster: str | None = None
    vipu_allocation: str | None = None
    tcp_if_include: str | None = None
    preparation: bool = True
    copies: str = ""


def parse_flags(words: list[str]) -> tuple[Main, tuple[str, ...]]:
    """Returns the flags of the launcher, and the words after `--`: the command. Raises ConfigError."""
    own, after = command_line.before_dashes(words)
    flags, command = Main.parse(own), tuple(after[1:])
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


def job_of(flags: Main, command: tuple[str, ...]) -> job.Job:
    """Returns the job to start: hosts, processes, command and environment. Raises ConfigError."""
    environment = passed_variables(flags.passed, os.environ)
    ssh = tuple(flags.ssh.split())
    if not ssh:
        raise ConfigError("--ssh= is empty, expected a command such as ssh.")
    per_host, restarts = flags.instances_per_host, flags.max_restarts
    hosts = job.read_hosts(flags.hosts or "localhost", per_host)
    return job.Job(hosts, per_host, command, os.getcwd(), environment, ssh, restarts, flags.host_timeout_secs)


def main() -> int:
    flags, command = parse_flags(sys.argv[1:])
    if flags.print_poprun:
        plan, dialect = of_pods(flags, command)
        copied = [path for path in flags.copies.split(",") if path]
        printed = [poprun.draw(plan.topology())] if flags.topology else []
        printed += [poprun.preparation(plan.hosts)] if plan.hosts and flags.preparation else []
        printed += [poprun.copies(plan.hosts, copied)] if plan.hosts and copied else []
        print("\n".join([*printed, poprun.command_line(plan, dialect, command)]))
        return 0
    started = job_of(flags, command)
    if flags.topology:
        print(poprun.draw(topology_of(flags, command)), flush=True)
    name = command_line.program()
    say = functools.partial(print, f"{name}:", file=sys.stderr, flush=True)
    return job.run(started, say) if command else 0


# -----------------------------------------------------------------------------------------------------------
# Layout of a job, from its command: replicas, IPUs, and the family of Graphcore's programs


# poprun's options that depend on the site: names, addresses.
SITE = ("vipu_server_host", "vipu_partition", "vipu_cluster", "vipu_allocation")
TRAIN, _IPU_MODULE = "train.py", "official.graphcore"
_OURS = (TRAIN, _IPU_MODULE)
_VALUE = re.compile(r"(?!-)[\w.,:/${}\[\]-]+")


def of_pods(flags: Main, command: tuple[str, ...]) -> tuple[poprun.PodPlan, Dialect]:
    """Returns (layout of a job on IPU pods, dialect of its program's command lines).

    Replicas and IPUs are those of the command's own flags, read as `bert train` reads them; flags of the
    launcher take precedence.

    Raises:
      ConfigError: if the command does not set them, or they contradict each other.
    """
    if not command:
        raise ConfigError("--print_poprun needs a program: launch --print_poprun -- COMMAND. See --help.")
    program, rest = split(command)
    dialect = DIALECTS[flags.poprun_like or _family(rest)]
    names = tuple(host.name for host in job.read_hosts(flags.hosts)) if flags.hosts else ()
    replicas, ipus = flags.num_replicas, flags.ipus_per_replica
    is_local = False  # a number on the launcher's command line is that of the whole job
    if replicas is None or ipus is None:
        try:
            config = train_flags.parse([*rest, "--distribution_strategy=ipu", "--plan"])
        except ConfigError as error:
            why = f"the command's replicas and IPUs are unknown ({str(error).rstrip('.')})"
            raise ConfigError(f"{why}. Correct it, or give --num_replicas and --ipus_per_replica.") from None
        is_local = replicas is None and dialect.counts_local_replicas and program not in _OURS
        replicas = replicas or config.ipu.replicas
        ipus = ipus or power_of_two(pipeline_plan.num_devices(config))
    # --instances_per_host for each host; without named hosts, one per IPU-Link domain
    instances = max(1, len(names)) * flags.instances_per_host
    if instances == 1 and not names:
        instances = flags.num_ilds or (1 if is_local else poprun.link_domains(replicas * ipus))
    replicas *= instances if is_local else 1
    domains = flags.num_ilds or poprun.link_domains(replicas * ipus)
    plan = poprun.PodPlan(names, instances, replicas, ipus, domains, _given(flags), tuple(flags.passed))
    poprun.check(plan)
    return plan, dialect


def _given(flags: Main) -> dict[str, str]:
    """Returns the poprun options given as flags. Raises ConfigError for values that a shell would split or
    interpret."""
    names = (*SITE, "tcp_if_include", "num_ilds")
    given = {name: str(getattr(flags, name)) for name in names if getattr(flags, name) is not None}
    for name, value in given.items():
        if not _VALUE.fullmatch(value):
            expected = "letters, digits and . , : / - or $NAME, the first no -"
            raise ConfigError(f"--{name}={value[:100]!r}, expected {expected}.")
    return given


def topology_of(flags: Main, command: tuple[str, ...]) -> Topology:
    """Returns the hosts, instances and replicas of a job that the launcher starts itself. Number of replicas:
    --num_replicas, else --num_gpus of the command times processes, else one each. Raises ConfigError."""
    names = tuple(host.name for host in job.read_hosts(flags.hosts or "localhost"))
    instances = len(names) * flags.instances_per_host
    replicas = flags.num_replicas or instances * _local_replicas(command)
    if replicas % instances:
        raise ConfigError(f"--num_replicas={replicas} cannot be shared by {instances} processes.")
    if (flags.num_ilds or 1) > replicas:
        raise ConfigError(f"--num_ilds={flags.num_ilds} with {replicas} replicas, expected as many at most.")
    return Topology(names, instances, replicas, flags.num_ilds)


def _local_replicas(command: tuple[str, ...]) -> int:
    program, rest = split(command)
    if program not in _OURS:
        return 1
    try:
        return train_flags.parse([*rest, "--plan"]).num_gpus or 1
    except ConfigError:  # the command may be valid only with a process's rank, which the launcher lacks
        return train_flags.parse([*rest, "--plan", "--distribution_strategy=mirrored"]).num_gpus or 1


def split(command: tuple[str, ...]) -> tuple[str, list[str]]:
    """Returns the name of a command's program or module, TRAIN of `bert train`, and the words after it."""
    words = list(command)
    if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        words = words[2:] if words[1:2] == ["-m"] else words[1:]
    program = os.path.basename(words[0]) if words else ""
    rest = words[1:]
    if program in ("bert", "official.cli") and rest[:1] == ["train"]:
        program, rest = TRAIN, rest[1:]
    if program == _IPU_MODULE and rest and not rest[0].startswith("-"):
        rest = [f"--config={rest[0]}", *rest[1:]]
    return program, rest


def _family(words: list[str]) -> str:
    """Returns the name of the family of Graphcore's programs whose configuration a command names; "tf2" for
    ours."""
    for name, value in command_line.given_values(words):
        source = foreign.find(value) if name == "config" else None
        if source and not source.path.endswith((".flags", ".py")):
            family = foreign.read_theirs(source)[1]
            return family.name if family else "tf2"
    return "tf2"

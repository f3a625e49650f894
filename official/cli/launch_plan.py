"""Layout of a job from its command: replicas, IPUs, and the family of programs that it belongs to."""

import argparse
import os
import re

from official.cli import flags as train_flags
from official.cli import foreign
from official.config import Config
from official.distribution.pipelining import plan as pipeline_plan
from official.distribution.pipelining.plan import power_of_two
from official.graphcore import poprun
from official.graphcore.poprun import DIALECTS, Dialect, Topology
from official.io.errors import ConfigError
from official.launching import job

# poprun's options that are the site's: names, addresses.
SITE = ("vipu_server_host", "vipu_partition", "vipu_cluster", "vipu_allocation")
_IPU_MODULE = "official.graphcore"
_OURS = ("train.py", "bert", "official.cli", _IPU_MODULE)
_VALUE = re.compile(r"(?!-)[\w.,:/${}\[\]-]+")


def of_pods(flags: argparse.Namespace, command: tuple[str, ...]) -> tuple[poprun.PodPlan, Dialect]:
    """Returns (layout of a job on IPU pods, dialect of its program's command lines).

    Replicas and IPUs are those of the command's own flags, read as `bert train` reads them; flags of the
    launcher take precedence.

    Raises:
      ConfigError: where the command does not set them, and where they do not fit each other.
    """
    if not command:
        raise ConfigError("--print_poprun needs a program: launch --print_poprun -- COMMAND. See --help.")
    program, rest = split(command)
    dialect = DIALECTS[flags.poprun_like or _family(rest)]
    names = tuple(host.name for host in job.read_hosts(flags.hosts)) if flags.hosts else ()
    replicas, ipus = flags.num_replicas, flags.ipus_per_replica
    is_local = False  # a number on the launcher's command line is that of the whole job
    if replicas is None or ipus is None:
        config = _configuration(rest)
        is_local = replicas is None and dialect.counts_local_replicas and program not in _OURS
        replicas = replicas or config.ipu_replicas
        ipus = ipus or power_of_two(pipeline_plan.num_devices(config))
    instances = _instances(flags, names, replicas * ipus, is_local)
    replicas *= instances if is_local else 1
    plan = poprun.PodPlan(
        names,
        instances,
        replicas,
        ipus,
        flags.num_ilds or poprun.link_domains(replicas * ipus),
        _given(flags),
        tuple(flags.passed or ()),
    )
    poprun.check(plan)
    return plan, dialect


def _instances(flags: argparse.Namespace, names: tuple[str, ...], ipus: int, is_local: bool) -> int:
    """Returns the number of instances: --instances_per_host for each host; without named hosts, one per
    IPU-Link domain."""
    if names or flags.instances_per_host > 1:
        return max(1, len(names)) * flags.instances_per_host
    domains = flags.num_ilds or poprun.link_domains(ipus)
    return domains if not is_local or flags.num_ilds else 1


def _given(flags: argparse.Namespace) -> dict[str, str]:
    """Returns the poprun options given as flags. Raises ConfigError for values that a shell would split or
    interpret."""
    names = (*SITE, "tcp_if_include", "num_ilds")
    given = {name: str(getattr(flags, name)) for name in names if getattr(flags, name) is not None}
    for name, value in given.items():
        if not _VALUE.fullmatch(value):
            raise ConfigError(
                f"--{name}={value[:100]!r}, expected letters, digits and . , : / - or $NAME, the first no -."
            )
    return given


def topology_of(flags: argparse.Namespace, command: tuple[str, ...]) -> Topology:
    """Returns the hosts, instances and replicas of a job that the launcher starts itself. The replicas are
    --num_replicas, else the command's --num_gpus per process, else one. Raises ConfigError."""
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
        config = train_flags.parse([*rest, "--plan"])
    except ConfigError:  # a process of several knows its place, the launcher has none
        config = train_flags.parse([*rest, "--plan", "--distribution_strategy=mirrored"])
    return max(1, config.num_gpus or 1)


def split(command: tuple[str, ...]) -> tuple[str, list[str]]:
    """Returns the name of a command's program or module, and the words after it."""
    words = list(command)
    if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        words = words[2:] if words[1:2] == ["-m"] else words[1:]
    program = os.path.basename(words[0]) if words else ""
    rest = words[1:]
    if program in ("bert", "official.cli") and rest[:1] == ["train"]:
        rest = rest[1:]
    if program == _IPU_MODULE and rest and not rest[0].startswith("-"):
        rest = [f"--config={rest[0]}", *rest[1:]]
    return program, rest


def _configuration(words: list[str]) -> Config:
    """Returns the configuration of a command that is to run on IPUs. Raises ConfigError."""
    try:
        return train_flags.parse([*words, "--distribution_strategy=ipu", "--plan"])
    except ConfigError as error:
        raise ConfigError(
            f"the command's replicas and IPUs are unknown ({str(error).rstrip('.')}). Correct it, or give"
            " --num_replicas and --ipus_per_replica."
        ) from None


def _family(words: list[str]) -> str:
    """Returns the name of the family of Graphcore's programs whose configuration a command names; "tf2" for
    ours."""
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name == "config":
            source = foreign.find(value if equals else following)
            if not source.path.endswith((".flags", ".py")):
                family = foreign.read_theirs(source)[1]
                return family.name if family else "tf2"
    return "tf2"

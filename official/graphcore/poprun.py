"""poprun's command lines for a job on IPU pods."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import yaml

from official.io.errors import ConfigError, nearest_multiples

# -----------------------------------------------------------------------------------------------------------
# Topology
#
# Source: the logs of poprun in Graphcore's guide and in the published tutorial for Kubernetes. Each row
# divides the replicas; a replica's cell is its number. Names that are too long are numbers in brackets.


_NAME_COLUMNS = 9  # width of a row's name


@dataclasses.dataclass(frozen=True)
class Topology:
    """Hosts and instances that share the replicas of a job.

    Attributes:
      hosts: names of the machines.
      instances: number of processes, the same on each host.
      replicas: number of replicas of the whole job, the same in each instance.
      link_domains: number of IPU-Link domains; None: the job has no IPUs.
    """

    hosts: tuple[str, ...]
    instances: int
    replicas: int
    link_domains: int | None = None


def draw(topology: Topology) -> str:
    """Returns the table. The number of cells of a row divides the number of replicas, or it has no separate
    column width; then cells are divided as evenly as possible."""
    digits = len(str(topology.replicas - 1))
    columns = [f" {number:<{digits}} " for number in range(topology.replicas)]
    rows: list[tuple[str, Sequence[object]]] = [("hosts", topology.hosts)]
    if topology.link_domains is not None:
        rows.append(("ILDs", range(topology.link_domains)))
    rows += [("instances", range(topology.instances)), ("replicas", columns)]
    cells = [_cells(list(map(str, values)), columns) for _, values in rows]
    width = sum(map(len, columns)) + len(columns) - 1
    inside = width + _NAME_COLUMNS + 3
    title = "poprun topology" if topology.link_domains is not None else "topology"
    lines = [f" {'=' * inside}", f"|{_centred(title, inside)}|", f"|{'=' * inside}|"]
    rule = f"|{'-' * (_NAME_COLUMNS + 2)}|{'-' * width}|"
    for number, ((name, _), row) in enumerate(zip(rows, cells)):
        lines += [rule] * (number > 0) + [f"| {name:<{_NAME_COLUMNS}} |{'|'.join(row)}|"]
    return "\n".join([*lines, f" {'-' * inside}", *_legend(topology.hosts, cells[0])])


def _cells(values: list[str], columns: list[str]) -> list[str]:
    """Returns the cells of a row: values, each over its share of the columns."""
    if values == columns:
        return values
    cells = []
    for number, value in enumerate(values):
        first, end = (len(columns) * each // len(values) for each in (number, number + 1))
        room = sum(map(len, columns[first:end])) + end - first - 1
        cells.append(_centred(value if len(value) + 2 <= room else f"[{number}]", room))
    return cells


def _centred(text: str, room: int) -> str:
    """Centres a text; if the rest is odd, one column to the left."""
    left = (room - len(text)) // 2
    return " " * left + text + " " * (room - len(text) - left)


def _legend(hosts: Sequence[str], cells: list[str]) -> list[str]:
    return [f"[{number}] {name}" for number, name in enumerate(hosts) if f"[{number}]" in cells[number]]


# -----------------------------------------------------------------------------------------------------------
# Dialects of the published programs


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Spelling of the published command line of a program.

    Attributes:
      label: display name of the program.
      options: options of poprun, as published; {names} are values of a plan.
      global_args: options of mpirun as a whole.
      local_args: options of mpirun for each instance.
      values: values of {names} that a plan leaves open; $NAMES are variables of the starting shell.
      exports: variables that are set before.
      prefix: variables in front of the command.
      counts_local_replicas: whether the program's number of replicas is that of one instance.
    """

    label: str
    options: str
    global_args: str = ""
    local_args: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: Mapping[str, str] = dataclasses.field(default_factory=dict)
    counts_local_replicas: bool = False


with open(os.path.join(os.path.dirname(__file__), "poprun.yml"), encoding="utf-8") as _file:
    DIALECTS = {name: Dialect(**fields) for name, fields in yaml.safe_load(_file).items()}


# -----------------------------------------------------------------------------------------------------------
# Command line
#
# poprun is Graphcore's launcher. The published runs spell their options differently and set other limits, so
# there is a dialect per program (`dialects`): for a published run it gives the published command line.


_SAFE = re.compile(r"[\w.,:/=+@%-]+")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_OPTION = re.compile(r"(--?[\w-]+)([= ]?)(.*)", re.DOTALL)


# Options that the user asked for and a dialect does not mention.
_VIPU = ("server_host", "partition", "cluster", "allocation")
_MORE = {
    "num_ilds": "--num-ilds {num_ilds}",
    **{f"vipu_{name}": f"--vipu-{name.replace('_', '-')}={{vipu_{name}}}" for name in _VIPU},
    "hosts": "--host {hosts}",
    "local_args": "--mpi-local-args={local_args}",
}


@dataclasses.dataclass(frozen=True)
class PodPlan:
    """Layout of a job on IPU pods.

    Attributes:
      hosts: hosts of the instances; empty: those in the shell's $HOSTS.
      num_instances: number of processes.
      num_replicas: number of replicas of the whole job, the same in each instance.
      ipus_per_replica: IPUs per replica, a power of two.
      num_ilds: number of IPU-Link domains.
      given: other options of the user: names with underscores, and values.
      passed: NAME or NAME=VALUE of variables for the instances.
    """

    hosts: tuple[str, ...]
    num_instances: int
    num_replicas: int
    ipus_per_replica: int
    num_ilds: int
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    passed: tuple[str, ...] = ()

    def topology(self) -> Topology:
        """Returns the hosts and instances that share the replicas."""
        hosts = self.hosts or ("localhost",)
        return Topology(hosts, self.num_instances, self.num_replicas, self.num_ilds)


def link_domains(ipus: int) -> int:
    """Returns the number of IPU-Link domains, of 64 IPUs each, for a number of IPUs."""
    return -(-ipus // 64)


def check(plan: PodPlan) -> None:
    """Raises ConfigError for replicas that the instances cannot share evenly, and for invalid numbers of
    IPUs."""
    if plan.ipus_per_replica & (plan.ipus_per_replica - 1):
        raise ConfigError(f"--ipus_per_replica={plan.ipus_per_replica}, expected a power of two.")
    if plan.num_replicas % plan.num_instances:
        raise ConfigError(
            f"{plan.num_replicas} replicas cannot be shared by {plan.num_instances} instances. Nearest valid:"
            f" --num_replicas={nearest_multiples(plan.num_replicas, plan.num_instances)}."
        )
    if plan.num_ilds > plan.num_replicas * plan.ipus_per_replica:
        raise ConfigError(
            f"--num_ilds={plan.num_ilds} for {plan.num_replicas} x {plan.ipus_per_replica} IPUs: at most one"
            " an IPU."
        )
    if plan.num_instances % max(1, len(plan.hosts)):
        raise ConfigError(
            f"{plan.num_instances} instances cannot be shared by {len(plan.hosts)} hosts. Set"
            " --instances_per_host."
        )


def command_line(plan: PodPlan, dialect: Dialect, command: tuple[str, ...]) -> str:
    """Returns the shell commands of a job: variables, then poprun with its options, then the program."""
    values = _values(plan, dialect)
    asked = {**plan.given, "hosts": plan.hosts, "local_args": plan.passed}
    options = re.split(r"\s+(?=-)", dialect.options)
    options += [
        text for name, text in _MORE.items() if asked.get(name) and f"{{{name}}}" not in dialect.options
    ]
    words = [word for word in (_word(option, values) for option in options) if word]
    prefix = [f"{name}={_quoted(value)}" for name, value in dialect.prefix.items()]
    exports = [
        f"export {name}={shlex.quote(_filled(value, values))}" for name, value in dialect.exports.items()
    ]
    text = " \\\n  ".join([" ".join([*prefix, "poprun"]), *words, shlex.join(command)])
    return "\n".join([*_wanted(" ".join(words)), *exports, text])


def _values(plan: PodPlan, dialect: Dialect) -> dict[str, str]:
    values = {**dialect.values, **plan.given}
    if "vipu_cluster" in plan.given and "vipu_allocation" not in plan.given:
        values.pop("vipu_allocation", None)  # two names of the same option
    if plan.hosts:
        values["hosts"] = ",".join(plan.hosts)
        values["tcp_if_include"] = plan.given.get("tcp_if_include") or _network(plan.hosts[0])
    values |= {
        name: str(getattr(plan, name))
        for name in ("num_instances", "num_replicas", "ipus_per_replica", "num_ilds")
    }
    values["global_args"] = _filled(dialect.global_args, values)
    passed = [f"-x {shlex.quote(each)}" for each in plan.passed]
    values["local_args"] = " ".join([*([dialect.local_args] if dialect.local_args else []), *passed])
    return values


def _network(host: str) -> str:
    """Returns the network of a host by the rule of the published scripts: the first two numbers of its
    address."""
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return "$TCP_IF_INCLUDE"
    return f"{'.'.join(str(address).split('.')[:2])}.0.0/16"


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Fills in the {names} of a text; JSON's braces are kept."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text)


def _word(option: str, values: Mapping[str, str]) -> str:
    """Returns an option quoted for a shell, or nothing if its value is unset."""
    match = _OPTION.fullmatch(option)
    assert match
    names = re.findall(r"\{(\w+)\}", match[3])
    if any(name not in values for name in names):
        return ""
    return f"{match[1]}{match[2]}{_quoted(_filled(match[3], values))}"


def _quoted(text: str) -> str:
    """Quotes a word so that a shell still expands its variables."""
    if not text or _SAFE.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\`])', r"\\\1", text)
    return f'"{escaped}"'


def _wanted(options: str) -> list[str]:
    """Returns a shell line that requires the variables of some options, if any."""
    names = [name for name in dict.fromkeys(_VARIABLE.findall(options)) if name not in ("USER", "LOCAL_HOME")]
    return [": " + " ".join(f'"${{{name}:?}}"' for name in names)] if names else []


def preparation(hosts: tuple[str, ...]) -> str:
    """Returns the shell commands that copy keys, code and SDK to the hosts, to be run once."""
    return f"""\
home="${{LOCAL_HOME:-/localdata/${{USER:-}}}}"
code="${{CODE_PATH:-$PWD}}"
venv="${{VENV_PATH:-${{VIRTUAL_ENV:-$home/venvs}}}}"
sdk="${{SDK_PATH:-$home/sdks}}"
for host in {shlex.join(hosts)}; do
  ssh-copy-id "$host"
  rsync --stats -av --exclude checkpoint --rsync-path="mkdir -p '$(dirname "$code")' && rsync" \\
    "$code" "$host:$(dirname "$code")/"
  rsync --stats -av "$venv" "$host:$(dirname "$venv")/"
  rsync --stats -av "$sdk" "$host:$(dirname "$sdk")/"
done"""


def copies(hosts: tuple[str, ...], paths: Iterable[str]) -> str:
    """Returns the shell commands, after `preparation`, that copy files and folders to the same paths on the
    hosts. Links to folders become folders there."""
    by_folder: dict[str, list[str]] = {}
    for path in map(os.path.abspath, paths):
        by_folder.setdefault(os.path.dirname(path), []).append(path)
    lines = [f"for host in {shlex.join(hosts)}; do"]
    for folder, own in by_folder.items():
        there = shlex.quote(f"mkdir -p {shlex.quote(folder)} && rsync")
        words = f"--copy-dirlinks --rsync-path={there} {shlex.join(own)}"
        lines.append(f'  rsync --stats -av {words} "$host":{shlex.quote(folder.rstrip("/") + "/")}')
    return "\n".join([*lines, "done"])

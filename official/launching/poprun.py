"""poprun's command line for a job on IPU pods, as a shell reads it.

poprun is Graphcore's launcher. The published runs spell their options differently and set other limits, so
there is a dialect for each program (`dialects`): for a published run it is the published command line.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import shlex
from collections.abc import Iterable, Mapping

from official.io.errors import ConfigError, nearest_multiples
from official.launching.dialects import LOCAL_ARGS, Dialect
from official.launching.topology import Topology

_IPUS_OF_A_LINK_DOMAIN = 64  # those of a POD64
_SAFE = re.compile(r"[\w.,:/=+@%-]+")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_OPTION = re.compile(r"(--?[\w-]+)([= ]?)(.*)", re.DOTALL)
_SET_OR_DEFAULT = ("USER", "LOCAL_HOME")


# Options for what a person has asked for and a dialect does not mention.
_MORE = {
    "hosts": "--host {hosts}",
    "num_ilds": "--num-ilds {num_ilds}",
    "vipu_server_host": "--vipu-server-host={vipu_server_host}",
    "vipu_partition": "--vipu-partition={vipu_partition}",
    "vipu_cluster": "--vipu-cluster={vipu_cluster}",
    "vipu_allocation": "--vipu-allocation={vipu_allocation}",
}


@dataclasses.dataclass(frozen=True)
class PodPlan:
    """Layout of a job on IPU pods.

    Attributes:
      hosts: that start instances; empty: as the shell's $HOSTS says.
      num_instances: processes.
      num_replicas: of the whole job, as many in each instance.
      ipus_per_replica: a power of two.
      num_ilds: IPU-Link domains.
      given: what a person has asked for beyond that: names of options with underscores, and values.
      passed: NAME or NAME=VALUE of variables that instances get.
    """

    hosts: tuple[str, ...]
    num_instances: int
    num_replicas: int
    ipus_per_replica: int
    num_ilds: int
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    passed: tuple[str, ...] = ()

    def topology(self) -> Topology:
        """Returns the hosts and instances that share out the replicas."""
        hosts = self.hosts or ("localhost",)
        return Topology(hosts, self.num_instances, self.num_replicas, self.num_ilds)


def link_domains(ipus: int) -> int:
    """Returns the number of IPU-Link domains, of 64 IPUs each, for a number of IPUs."""
    return -(-ipus // _IPUS_OF_A_LINK_DOMAIN)


def check(plan: PodPlan) -> None:
    """Raises ConfigError for replicas that instances cannot share, and IPUs that pods do not have."""
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
    options = [*dialect.options]
    mentioned = "".join(options)
    options += [text for name, text in _MORE.items() if name in plan.given and text not in mentioned]
    if plan.hosts and "{hosts}" not in mentioned:
        options.append(_MORE["hosts"])
    if plan.passed and LOCAL_ARGS not in options:
        options.append(LOCAL_ARGS)
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
        values.pop("vipu_allocation", None)  # two names of the same
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
    """Returns a text with values for its {names}; braces of JSON stay."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text)


def _word(option: str, values: Mapping[str, str]) -> str:
    """Returns an option as a shell reads it, or nothing where its value is open."""
    match = _OPTION.fullmatch(option)
    assert match
    names = re.findall(r"\{(\w+)\}", match[3])
    if any(name not in values for name in names):
        return ""
    return f"{match[1]}{match[2]}{_quoted(_filled(match[3], values))}"


def _quoted(text: str) -> str:
    """Returns a word in which a shell still puts in its variables."""
    if not text or _SAFE.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\`])', r"\\\1", text)
    return f'"{escaped}"'


def _wanted(options: str) -> list[str]:
    """Returns the line that says which variables have to be set, where there are any."""
    names = [name for name in dict.fromkeys(_VARIABLE.findall(options)) if name not in _SET_OR_DEFAULT]
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
    """Returns the shell commands, to follow `preparation`, that copy files and folders to the same places on
    the hosts as here. Links to folders become folders there."""
    by_folder: dict[str, list[str]] = {}
    for path in map(os.path.abspath, paths):
        by_folder.setdefault(os.path.dirname(path), []).append(path)
    lines = [f"for host in {shlex.join(hosts)}; do"]
    for folder, own in by_folder.items():
        there = shlex.quote(f"mkdir -p {shlex.quote(folder)} && rsync")
        words = f"--copy-dirlinks --rsync-path={there} {shlex.join(own)}"
        lines.append(f'  rsync --stats -av {words} "$host":{shlex.quote(folder.rstrip("/") + "/")}')
    return "\n".join([*lines, "done"])

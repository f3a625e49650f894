"""Makes the command lines of a benchmark's variants, and their environment."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Mapping

from official.cli.benchmark.specs import parameters
from official.cli.benchmark.specs.spec import Benchmark
from official.io.errors import ConfigError

_INTERPRETERS = ("python3", "python")
# Environment variable of a command for several machines -> other variables that may hold its value.
_OF_MACHINES = {
    "HOSTS": (),
    "IPUOF_VIPU_API_PARTITION_ID": ("PARTITION",),
    "VIPU_ALLOCATION_ID": (),
    "TCP_IF_INCLUDE": (),
    "VIPU_CLI_API_HOST": ("IPUOF_VIPU_API_HOST",),
}
_VIPU = ("--vipu-partition=", "--vipu-server-host=", "--vipu-server-port")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_MPI_PROCESSES = re.compile(r"mpirun.+--np.(\d*) ")


@dataclasses.dataclass(frozen=True)
class Variant:
    """A run of a benchmark.

    Attributes:
      benchmark: the benchmark that it belongs to.
      name: <benchmark>_<parameter>_<value>...
      values: {parameter: value}.
      command: the command with its parameters filled in, environment variables not expanded.
      words: words of the command that is run.
      env: the whole environment.
      added_env: variables that the runner and the entry add to it.
      processes: N of `mpirun --np N`, else 1.
    """

    benchmark: Benchmark
    name: str
    values: dict[str, str]
    command: str
    words: tuple[str, ...]
    env: dict[str, str]
    added_env: dict[str, str]
    processes: int


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the runner's command line that apply to all commands.

    Attributes:
      logging: level of Poplar's messages.
      compile_only: whether the programs only compile.
      allow_wandb: True: arguments for W&B stay; False: they are dropped; None: as set in the entry.
      profile: whether Poplar writes its reports.
    """

    logging: str = "INFO"
    compile_only: bool = False
    allow_wandb: bool | None = None
    profile: bool = False


def make_variants(
    benchmark: Benchmark, options: Options, environment: Mapping[str, str] = os.environ
) -> list[Variant]:
    """Returns the runs of a benchmark. Raises ConfigError for a command that cannot be split into words, for
    unset variables, and for a missing folder."""
    if benchmark.needs_data and "DATASETS_DIR" not in environment:
        raise ConfigError(
            f"{benchmark.name} needs data: set DATASETS_DIR. Names of those on generated data have gen or"
            " synth in them."
        )
    if not os.path.isdir(benchmark.folder):
        raise ConfigError(f"{benchmark.name}: its location {benchmark.folder} is no folder.")
    return [_make_variant(benchmark, values, options, environment) for values in benchmark.variants]


def _make_variant(
    benchmark: Benchmark, values: dict[str, str], options: Options, environment: Mapping[str, str]
) -> Variant:
    name = parameters.name_of(benchmark.name, values)
    added = _added(benchmark, name, options)
    env = {**environment, **added, **benchmark.env, **_of_machines(benchmark, environment)}
    # The interpreter of this process is the one that `python3` is, also where its environment is not active.
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)])
    command = _edited(_filled(benchmark, values), benchmark, options)
    try:
        words = shlex.split(_expanded(command, env))
    except ValueError as error:
        raise ConfigError(f"{benchmark.name}: cmd {command[:60]!r}: {error}.") from None
    found = _MPI_PROCESSES.search(command)
    processes = int(found[1] or 1) if found else 1
    added |= benchmark.env
    return Variant(benchmark, name, values, command, tuple(words), env, added, processes)


def _filled(benchmark: Benchmark, values: dict[str, str]) -> str:
    """Returns the command in one line, with the parameters filled in, and the file that Python runs as a full
    path."""
    words = parameters.fill(benchmark.command, values).split()
    for interpreter in _INTERPRETERS:
        if interpreter in words[:-1]:
            place = words.index(interpreter) + 1
            if not words[place].startswith("-"):
                words[place] = os.path.join(benchmark.folder, words[place])
            break
    return " ".join(words)


def _edited(command: str, benchmark: Benchmark, options: Options) -> str:
    """Returns a command without disallowed W&B arguments; for compiling only, also without V-IPU's and with
    --compile-only."""
    words = command.split()
    allows = benchmark.allows_wandb if options.allow_wandb is None else options.allow_wandb
    if not allows or options.compile_only:
        words = _without_wandb(words)
    if options.compile_only:
        words = [word for word in words if not word.startswith(_VIPU)] + ["--compile-only"]
    return " ".join(words)


def _without_wandb(words: list[str]) -> list[str]:
    """Returns the words without the arguments whose name contains wandb, and without their values."""
    kept: list[str] = []
    is_value = False
    for word in words:
        is_name = word.startswith("-")
        if is_name and "wandb" in word.partition("=")[0]:
            is_value = "=" not in word
            continue
        if is_name or not is_value:
            kept.append(word)
        is_value = False
    return kept


def _added(benchmark: Benchmark, name: str, options: Options) -> dict[str, str]:
    """Returns the environment variables that the runner adds, for programs on IPUs."""
    added = {
        "POPLAR_LOG_LEVEL": options.logging,
        "POPART_LOG_LEVEL": options.logging,
        "TF_CPP_VMODULE": "poplar_compiler=1",
    }
    if options.profile:
        folder = os.path.join(benchmark.folder, f"{name}_profile")
        added["POPLAR_ENGINE_OPTIONS"] = (
            f'{{"autoReport.all": "true", "autoReport.directory": "{folder}",'
            ' "autoReport.outputSerializedGraph": "false"}'
        )
    return added


def _of_machines(benchmark: Benchmark, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for several machines that a command names. Raises ConfigError where one is not
    set."""
    found = {}
    named = {one or other for one, other in _VARIABLE.findall(benchmark.command)}
    for name in [name for name in _OF_MACHINES if name in named]:
        values = [environment[each] for each in (name, *_OF_MACHINES[name]) if each in environment]
        if not values:
            raise ConfigError(
                f"{benchmark.name}: its command needs {name} in the environment"
                f"{''.join(f', or {each}' for each in _OF_MACHINES[name])}."
            )
        found[name] = values[0]
    return found


def _expanded(command: str, env: Mapping[str, str]) -> str:
    """Returns a command with $NAME and ${NAME} replaced by their values; unset ones stay."""
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], found[0]), command)

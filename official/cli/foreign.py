"""Reads --config (ours or Graphcore's) and options of Graphcore's commands, as layers of settings."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from official import config as config_lib
from official.cli import configs
from official.cli.command_line import Options
from official.config.backends import BACKENDS
from official.io.errors import ConfigError, suggest
from official.io.files import expanded
from official.io.json_files import read_yaml

if TYPE_CHECKING:  # imported at run time only for Graphcore's configurations and options
    from official.graphcore import configurations
    from official.graphcore.configuration_keys import Family

_YAML = (".yml", ".yaml")
_WITH_ENTRY = re.compile(r"(.+?\.(?:yml|yaml|py)):(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_READ = "input_files eval_files train_file predict_file data_dir vocab_file init_checkpoint".split()
_WRITTEN = "model_dir cache_dir export_dir".split()
_WITHOUT_DATA = ("plan", "generated_data", "synthetic_input", "use_synthetic_data", "compile_only")
_WIDEST = 60


@dataclasses.dataclass(frozen=True)
class Source:
    """A configuration file that --config names.

    Attributes:
      path: path of the file.
      entry: name of one configuration in a YAML file with several; argument of a Python file's function.
      name: name of the configuration, for the run's folder.
      told: a line for the user about the chosen file; empty if the choice is obvious.
    """

    path: str
    entry: str | None
    name: str
    told: str


def find(given: str) -> Source:
    """Returns the file that --config=FILE|NAME|FILE.yml:NAME|FILE.py:ARGUMENT names. Raises ConfigError where
    it does not exist."""
    given = expanded(given)
    path, entry = configs.find(given), None
    parts = _WITH_ENTRY.fullmatch(given)
    if parts and not os.path.exists(path) and os.path.isfile(configs.find(parts[1])):
        path, entry = configs.find(parts[1]), parts[2]
    ours, theirs = configs.names(), configs.find_theirs(given)
    if os.path.isdir(path) and given not in ours and not theirs:
        raise ConfigError(f"--config={given} is a folder. Give a file in it, or the name of a configuration.")
    is_python = path.endswith(configs.PYTHON_ENDING)
    is_path = given.endswith((".json", *_YAML)) and not theirs
    if is_python or entry or is_path or os.path.isfile(path):
        return Source(path, entry, _plain(path if is_python else entry or path), "")
    if given in ours:
        path, also = ours[given], f"(Graphcore's: {', '.join(theirs)})"
        return Source(path, None, given, f"--config={given} is ours, {path} {also}" if theirs else "")
    if not theirs:
        shipped = configs.theirs()
        nearest = suggest(given, [*ours, *shipped, *map(os.path.basename, shipped)])
        raise ConfigError(
            f"--config={given} is neither a file nor a configuration of this package{nearest}. Graphcore's"
            f" are graphcore/FAMILY/NAME, the others {', '.join(ours)}."
        )
    path, others = configs.theirs()[theirs[0]], ", ".join(theirs[1:])
    note = f"--config={given} is {theirs[0]}" + (f" (also there: {others})" if others else "")
    return Source(path, None, _plain(path), note if others or given != theirs[0] else "")


def _plain(path: str) -> str:
    """Returns a file's name for the folder of its run; for a shipped file it includes the folders it is
    in."""
    for name, shipped in configs.theirs().items():
        if os.path.exists(path) and os.path.samefile(path, shipped):
            return "_".join(name.split(os.sep)[2:])
    return os.path.splitext(os.path.basename(path))[0]


def read_theirs(source: Source) -> tuple[dict[str, Any], Family | None]:
    """Returns (keys and values of a JSON or YAML file, the family of Graphcore's programs whose keys they
    are, None for ours). Raises ConfigError."""
    is_yaml = source.path.endswith(_YAML)
    if is_yaml:
        entries = read_yaml(source.path, "config")
    else:
        entries = config_lib.read_settings(source.path)
        if entries.keys() - {"model"} <= config_lib.FIELDS.keys() | config_lib.REMOVED.keys():
            return entries, None
    from official.graphcore import configuration_keys, configurations

    configuration_keys.check_program(
        configurations.flat(entries, configurations.LEAVES), f"--config={source.path}"
    )
    if is_yaml and all(isinstance(value, dict) for value in entries.values()):
        entry = source.entry or (next(iter(entries)) if len(entries) == 1 else source.name)
        if entry not in entries:
            names = f"{', '.join(map(str, entries))}{suggest(entry, entries)}"
            raise ConfigError(f"--config={source.path} holds {names}. Give one: --config=FILE:NAME.")
        entries = entries[entry]
    return entries, configurations.family_of(entries)


Layers = list[tuple[str, dict[str, Any]]]  # (source, {setting: value}), the lowest precedence first


def layers_of(
    source: Source | None,
    values: dict,
    family: Family | None,
    options: Options,
    given: dict,
    typed: Mapping[str, str],
) -> tuple[Layers, list[str]]:
    """Returns (layers of settings of a configuration, options of theirs and flags of ours; lines for people
    about the translated keys).

    Args:
      source: file of --config; None without one.
      values: keys and values of the file.
      family: family of Graphcore's programs whose keys they are; None: ours.
      options: options of the command line that are not flags of ours.
      given: {setting: value} of the flags that were given.
      typed: {setting: text} of the flags given on the command line itself. Options take precedence over the
        others, which are from flagfiles: they mean the same over a flagfile as over --config.

    Raises:
      ConfigError: for keys, options and values that are not known, and flags that contradict an option.
    """
    title, told = f"--config={source.path}" if source else "command line", []
    if source and source.told:
        told.append(source.told)
    ours = [(title, values)] if source and not family else []
    below = {} if family else values
    base = {name: field.default for name, field in config_lib.FIELDS.items()} | below | given
    of_ipus = [layer["ipu_options"] for layer in (below, given) if layer.get("ipu_options")]
    base["ipu_options"] = " ".join(of_ipus)
    if family and source:
        base |= {"name": source.name, "half": _half(base)}
    asked = _checked(options, family)
    elsewhere = _of_other_devices(given, family)
    given = {name: value for name, value in given.items() if name not in elsewhere}
    if not family and not options and not elsewhere:
        return [*ours, ("command line", _by_task(given, base))], told
    from official.graphcore import configurations, rules

    theirs = configurations.translate(values if family else {}, family, title, asked, base)
    for name, value in elsewhere.items():
        theirs.lines.append(configurations.Line(f"--{name}", value, (), configurations.IPU_ONLY))
    of_options = {name for line in theirs.lines if line.key.startswith("--") for name in line.fields}
    if "num_steps_per_epoch" in of_options:
        of_options |= {"num_train_epochs", "stop_steps"}
    if "model.vocab_size" in of_options:
        of_options.add("bert_config_file")  # our model for this option has another vocabulary size
    below_options = (of_options - set(typed)) & theirs.settings.keys()
    if "model" in theirs.settings and not family:
        theirs.settings["bert_config_file"] = base["bert_config_file"]
        below_options.add("bert_config_file")
    above = {name: value for name, value in given.items() if name not in below_options}
    above_options = of_options - rules.given(typed.get("ipu_options")).keys()
    asked_of_ipus = {name: value for name, value in theirs.ipu_options.items() if name in above_options}
    if asked_of_ipus and above.get("ipu_options"):
        above["ipu_options"] += f" {rules.written(asked_of_ipus)}"
    above = _by_task(above, base | theirs.settings)
    _check_agreement(asked, family, theirs.settings, above)
    settled = base | theirs.settings | above
    trains = "do_train" in above or theirs.settings.get("do_train") or settled["task"] == "pretrain"
    if family and family.name == "tf1" and not trains and (settled["do_predict"] or settled["do_eval"]):
        theirs.settings["do_train"] = False  # their fine-tuning trains only with an explicit option
    layers = [*ours, (title if family else "command line", theirs.settings), ("command line", above)]
    if source and family:
        told.append(f"{source.path}: keys of Graphcore's {family.label} programs")
    return layers, told + _told(theirs, above, is_theirs=family is not None)


def _check_agreement(
    asked: Mapping[str, Any], family: Family | None, theirs: Mapping[str, Any], above: Mapping[str, Any]
) -> None:
    """Raises ConfigError where an option sets the number of updates or the batch size, and a flag of the same
    command line contradicts it."""
    from official.graphcore import configuration_keys

    settings = {**theirs, **above}
    steps, epochs = (settings.get(name, 0) for name in ("num_steps_per_epoch", "num_train_epochs"))
    size = settings.get("train_batch_size")
    for name, value in asked.items():
        term = _table(family)[name].to
        if term == "@steps" and steps * epochs != configuration_keys.count(value):
            product = f"num_steps_per_epoch={steps} x num_train_epochs={epochs} = {steps * epochs}"
            conflict = f"--{name}={value} is the number of updates, but {product}"
            raise ConfigError(f"{conflict}. Drop one of the flags.")
        if term == "@global" and size != theirs.get("train_batch_size"):
            conflict = f"--{name}={value} and --train_batch_size={size} set different batch sizes"
            raise ConfigError(f"{conflict}. Drop one of the two flags.")


def _table(family: Family | None) -> Mapping[str, Any]:
    """Returns the options over a configuration of a family, {name: row}; None: over one of ours."""
    from official.graphcore.configurations import table_for

    return table_for(family.name if family else None)


def _of_other_devices(given: Mapping[str, Any], family: Family | None) -> dict[str, Any]:
    """Returns the flags that are also options of theirs, and that the devices of this run do not support."""
    fields = config_lib.FIELDS
    backend = given.get("distribution_strategy", fields["distribution_strategy"].default)
    others = {
        name: value
        for name, value in given.items()
        if name in fields and backend not in (fields[name].backends or (backend,))
    }
    return {name: value for name, value in others.items() if name in _table(family)}


def _half(base: Mapping[str, Any]) -> str:
    """Returns --dtype for Graphcore's 16-bit numbers: fp16 on IPUs and GPUs, bf16 on TPUs, fp32 on CPUs,
    where fp16 takes a hundred times as long."""
    if BACKENDS[base["distribution_strategy"]].graphcore_rules:
        return "fp16"
    if base["num_tpu_cores"] or base["tpu"]:
        return "bf16"
    asks_for_cpus = base["num_gpus"] == 0 or base["num_virtual_devices"]
    has_gpus = base["num_gpus"] or glob.glob("/dev/nvidia[0-9]*")
    return "fp16" if has_gpus and not asks_for_cpus else "fp32"


def _checked(options: Options, family: Family | None) -> dict[str, str | list[str]]:
    """Returns {name: value} of options; an on/off option without a value is on.

    Raises:
      ConfigError: for options unknown to this kind of configuration, and for missing values.
    """
    found = {}
    for name, value in options:
        table = _table(family)
        if name not in table and name in config_lib.REMOVED:
            raise ConfigError(f"--{name} was removed. {config_lib.REMOVED[name][1]}.")
        if name not in table:
            whose = f"a {family.label} configuration" if family else "a configuration of ours"
            meant = suggest(name, [*config_lib.FIELDS, *table])
            raise ConfigError(f"Unknown flag --{name} over {whose}{meant}.")
        from official.graphcore.configuration_keys import may_lack_value

        if value is None and not may_lack_value(table[name]):
            raise ConfigError(f"Missing value for flag --{name}.")
        found[name] = "true" if value is None else value
    return found


def options_of_theirs(arguments: list[str] | None = None, known: Collection[str] = ()) -> set[str]:
    """Returns the names of all options of Graphcore's commands that are not flags of ours; none if all flags
    in `arguments` are known."""
    if arguments is not None:
        given = [each[2:].partition("=")[0] for each in arguments if each.startswith("--") and each != "--"]
        if all(name in known or name.removeprefix("no") in known for name in given):
            return set()
    from official.graphcore.configuration_keys import FAMILIES, OPTIONS

    names = {key for family in FAMILIES.values() for key in family.table} | set(OPTIONS)
    return names - set(config_lib.FIELDS)


def _by_task(given: dict[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags with --train_file or --input_files renamed to the task's flag for data files.
    Graphcore's commands have one flag for all tasks."""
    task = base["task"]
    into = {"pretrain": ("train_file", "input_files"), "squad": ("input_files", "train_file")}.get(task)
    if not into or into[0] not in given or into[1] in given:
        return given
    target = into[1] if base["do_train"] else "predict_file"
    return {target if name == into[0] else name: value for name, value in given.items()}


def check_variables(layers: Layers) -> None:
    """Raises ConfigError where a path contains an environment variable that is unset, or that no shell has
    expanded, as in a flagfile: a folder of that name would be made."""
    values = {name: value for _, layer in layers for name, value in layer.items()}
    reads = not any(values.get(name) for name in _WITHOUT_DATA)
    for name in (*_WRITTEN, *(_READ if reads else ())):
        path = values.get(name)
        found = _VARIABLE.search(path) if isinstance(path, str) and not os.path.exists(path) else None
        if found:
            is_set = found[1] in os.environ
            problem = "is expanded only by shells. Give" if is_set else "is not set. Set it, or give"
            raise ConfigError(f"{name}={path}: the environment variable {found[1]} {problem} --{name}=PATH.")


# ------------------------------------------------------------------------------------------------------------
# Lines for people


def _told(theirs: configurations.Translation, above: dict[str, Any], is_theirs: bool) -> list[str]:
    """Returns the lines about a translation: a table key -> field -> value, and the keys without a field."""
    from official.graphcore import rules

    above = {**above, **rules.given(above.get("ipu_options"))}
    flat_model = {f"model.{key}": value for key, value in theirs.settings.get("model", {}).items()}
    settings = {**theirs.settings, **theirs.ipu_options, **flat_model, **above}
    over = set(above) | {name for line in theirs.lines if line.key.startswith("--") for name in line.fields}
    shown = [(line, _shown(line, settings, over)) for line in theirs.lines if line.fields]
    width = max((len(line.key) for line, _ in shown), default=0)
    lines = [f"  {line.key:<{width}}  {_short(line.value):<18} -> {text}" for line, text in shown]
    own = {name: settings[name] for name in theirs.added if name not in above}
    added = ", ".join(f"{name}={_short(value)}" for name, value in own.items() if value is not None)
    if added and is_theirs:
        lines.append(f"  added, without a key in the file: {added}")
    lines += [f"  {note}" for note in theirs.notes]
    reasons: dict[str, list[str]] = {}  # of the keys without a setting here; those only for IPUs last
    for line in theirs.lines:
        if not line.fields and line.key not in theirs.ipu_only:
            reasons.setdefault(line.note, []).append(line.key)
    if theirs.ipu_only:
        reasons["only on an IPU"] = theirs.ipu_only
    return lines + [f"  {why}: {', '.join(keys)}" for why, keys in reasons.items()]


def _shown(line: configurations.Line, settings: Mapping[str, Any], over: set[str]) -> str:
    """Returns `field=value` of the settings that a key became, marked where the command line (`over`) sets
    the value."""
    fields = [f"{name}={_short(settings[name])}" for name in line.fields if settings.get(name) is not None]
    if not fields:
        return f"{' or '.join(line.fields)}, not used in this run"
    is_over = not line.key.startswith("--") and len(line.fields) == 1 and line.fields[0] in over
    return ", ".join(fields) + (" by the command line" if is_over else "")


def _short(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 2]}.."

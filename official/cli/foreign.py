"""--config: ours or one of Graphcore's, and options of their commands over it, as layers of settings."""

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

if TYPE_CHECKING:  # its modules are imported where there is something of theirs
    from official.graphcore import configurations
    from official.graphcore.configuration_keys import Family

_YAML = (".yml", ".yaml")
_WITH_ENTRY = re.compile(r"(.+?\.(?:yml|yaml|py)):(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?(\w+)")
_READ = (
    "input_files",
    "eval_files",
    "train_file",
    "predict_file",
    "data_dir",
    "vocab_file",
    "init_checkpoint",
)
_WITHOUT_DATA = ("plan", "generated_data", "synthetic_input", "use_synthetic_data", "compile_only")
_WIDEST = 60


@dataclasses.dataclass(frozen=True)
class Source:
    """A configuration file that --config names.

    Attributes:
      path: path of the file.
      entry: name of one configuration in a YAML file with several; argument of a Python file's function.
      name: name of the configuration, for the run's folder.
      told: a line about the file that was chosen; empty where it is obvious.
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
    found = _WITH_ENTRY.fullmatch(given)
    if found and not os.path.exists(path) and os.path.isfile(configs.find(found[1])):
        path, entry = configs.find(found[1]), found[2]
    is_shipped = given in configs.names() or configs.find_theirs(given)
    if os.path.isdir(path) and not is_shipped:
        raise ConfigError(f"--config={given} is a folder. Give a file of it, or a name.")
    is_python = path.endswith(configs.PYTHON_ENDING)
    plain = _plain(path if is_python else entry or path)
    if (
        is_python
        or entry
        or os.path.isfile(path)
        or given.endswith((".json", *_YAML))
        and not configs.find_theirs(given)
    ):
        return Source(path, entry, plain, "")
    path, candidates = configs.locate(given), configs.find_theirs(given)
    if given in configs.names():
        others = f" (Graphcore's: {', '.join(candidates)})" if candidates else ""
        return Source(path, None, given, f"--config={given} is ours, {path}{others}" if others else "")
    others = f" (also there: {', '.join(candidates[1:])})" if candidates[1:] else ""
    told = f"--config={given} is {candidates[0]}{others}" if others or given != candidates[0] else ""
    return Source(path, None, _plain(path), told)


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
    entries = None
    if not source.path.endswith(_YAML):
        entries = config_lib.read_json(source.path, "config", once=True)
        if entries.keys() - {"model"} <= config_lib.FIELDS.keys() | config_lib.REMOVED.keys():
            return entries, None
    from official.graphcore import configuration_keys
    from official.graphcore.configurations import family_of, flat

    if entries is not None:
        configuration_keys.check_program(flat(entries), f"--config={source.path}")
        return entries, family_of(entries)
    entries = read_yaml(source.path, "config")
    configuration_keys.check_program(flat(entries), f"--config={source.path}")
    entry = source.entry or (next(iter(entries)) if len(entries) == 1 else source.name)
    if all(isinstance(value, dict) for value in entries.values()):
        if entry not in entries:
            raise ConfigError(
                f"--config={source.path} holds {', '.join(map(str, entries))}{suggest(entry, entries)}. Give"
                " one: --config=FILE:NAME."
            )
        entries = entries[entry]
    return entries, family_of(entries)


Layers = list[tuple[str, dict[str, Any]]]  # (source, {setting: value}), the lowest precedence first


def layers_of(
    source: Source | None,
    values: dict,
    family: Family | None,
    options: Options,
    given: dict,
    typed: Collection[str] = (),
) -> tuple[Layers, list[str]]:
    """Returns (layers of settings of a configuration, options of theirs and flags of ours; lines for people
    about the translated keys).

    Args:
      source: file of --config; None without one.
      values: keys and values of the file.
      family: family of Graphcore's programs whose keys they are; None: ours.
      options: options of the command line that are not flags of ours.
      given: {setting: value} of the flags that were given.
      typed: names of the flags given on the command line itself. Options take precedence over the others,
        which are from flagfiles: they mean the same over a flagfile as over --config.

    Raises:
      ConfigError: for keys, options and values that are not known, and flags that contradict an option.
    """
    title = f"--config={source.path}" if source else "command line"
    ours = [] if family or not source else [(title, values)]
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
        above = _by_task(given, base)
        return [*ours, ("command line", above)], [source.told] if source and source.told else []
    from official.graphcore import configurations, rules

    theirs = configurations.translate(values if family else {}, family, title, asked, base)
    for name, value in elsewhere.items():
        theirs.lines.append(configurations.Line(f"--{name}", value, (), configurations.IPU_ONLY))
    of_options = {name for line in theirs.lines if line.key.startswith("--") for name in line.fields}
    if "num_steps_per_epoch" in of_options:
        of_options |= {"num_train_epochs", "stop_steps"}
    if "model.vocab_size" in of_options:
        of_options.add("bert_config_file")  # whose model has another number of words here
    below_options = {name for name in of_options - set(typed) if name in theirs.settings}
    if "model" in theirs.settings and not family:
        theirs.settings["bert_config_file"] = base["bert_config_file"]
        below_options.add("bert_config_file")
    above = {name: value for name, value in given.items() if name not in below_options}
    asked_of_ipus = {name: value for name, value in theirs.ipu_options.items() if name in of_options}
    if asked_of_ipus and above.get("ipu_options") and "ipu_options" not in typed:
        above["ipu_options"] += f" {rules.written(asked_of_ipus)}"
    above = _by_task(above, base | theirs.settings)
    _check_agreement(asked, family, theirs.settings, above)
    all_of_them = base | theirs.settings | above
    asks_to_answer = all_of_them["do_predict"] or all_of_them["do_eval"]
    trains = "do_train" in above or theirs.settings.get("do_train")
    if (
        family
        and family.name == "tf1"
        and all_of_them["task"] != "pretrain"
        and asks_to_answer
        and not trains
    ):
        theirs.settings["do_train"] = False  # fine-tuning there does only what is asked for
    layers = [*ours, (title if family else "command line", theirs.settings), ("command line", above)]
    return layers, _told(source, family, theirs, above)


def _check_agreement(
    asked: Mapping[str, Any], family: Family | None, theirs: Mapping[str, Any], above: Mapping[str, Any]
) -> None:
    """Raises ConfigError where an option sets the number of updates or the batch size, and a flag of the same
    command line contradicts it."""
    from official.graphcore import configuration_keys, configurations

    table = configurations.table_for(family.name if family else None)
    settings = {**theirs, **above}
    for name, value in asked.items():
        if table[name].to == "@steps":
            steps, epochs = settings["num_steps_per_epoch"], settings["num_train_epochs"]
            if steps * epochs != configuration_keys.count(value):
                raise ConfigError(
                    f"--{name}={value} is the number of updates, and num_steps_per_epoch={steps} x"
                    f" num_train_epochs={epochs} are {steps * epochs}. Drop one of the flags."
                )
        batch = theirs.get("train_batch_size")
        if table[name].to == "@global" and settings.get("train_batch_size") != batch:
            raise ConfigError(
                f"--{name}={value} and --train_batch_size={settings['train_batch_size']} are two sizes of a"
                " batch. Drop one of the two flags."
            )


def _of_other_devices(given: Mapping[str, Any], family: Family | None) -> dict[str, Any]:
    """Returns the flags that are also options of theirs, and that the devices of this run do not support."""
    default = config_lib.FIELDS["distribution_strategy"].default
    backend = given.get("distribution_strategy", default)
    others = {
        name: value
        for name, value in given.items()
        if name in config_lib.FIELDS and backend not in (config_lib.FIELDS[name].backends or (backend,))
    }
    if not others:
        return {}
    from official.graphcore.configurations import table_for

    table = table_for(family.name if family else None)
    return {name: value for name, value in others.items() if name in table}


def _half(base: Mapping[str, Any]) -> str:
    """Returns the value of --dtype for 16-bit numbers of IPUs: fp16 on IPUs and GPUs. A CPU needs a hundred
    times as long for it as for fp32."""
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
    if not options:
        return {}
    from official.graphcore import configuration_keys
    from official.graphcore.configurations import table_for

    found = {}
    table = table_for(family.name if family else None)
    for name, value in options:
        if name not in table and name in config_lib.REMOVED:
            raise ConfigError(f"--{name} is of earlier versions. Now {config_lib.REMOVED[name][1]}.")
        if name not in table:
            whose = f"a {family.label} configuration" if family else "a configuration of ours"
            raise ConfigError(
                f"Unknown flag --{name} over {whose}{suggest(name, [*config_lib.FIELDS, *table])}."
            )
        if value is None and not configuration_keys.may_lack_value(table[name]):
            raise ConfigError(f"Missing value for flag --{name}.")
        found[name] = "true" if value is None else value
    return found


def options_of_theirs(arguments: list[str] | None = None, known: Collection[str] = ()) -> set[str]:
    """Returns the names of all options of theirs that are not flags of ours; none where the flags of some
    arguments are all among the known ones."""
    if arguments is not None:
        given = [each[2:].partition("=")[0] for each in arguments if each.startswith("--") and each != "--"]
        if all(name in known or name.removeprefix("no") in known for name in given):
            return set()
    from official.graphcore.configuration_keys import FAMILIES, OPTIONS

    names = {key for family in FAMILIES.values() for key in family.table} | set(OPTIONS)
    return names - set(config_lib.FIELDS)


def _by_task(given: dict[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags with --train_file or --input_files renamed to the task's flag for data files: theirs
    are the same for every task."""
    task = base["task"]
    into = {"pretrain": ("train_file", "input_files"), "squad": ("input_files", "train_file")}.get(task)
    if not into or into[0] not in given or into[1] in given:
        return given
    target = into[1] if base["do_train"] else "predict_file"
    return {target if name == into[0] else name: value for name, value in given.items()}


def check_variables(layers: Layers) -> None:
    """Raises ConfigError where a path to be read contains an unset environment variable."""
    values = {name: value for _, layer in layers for name, value in layer.items()}
    if any(values.get(name) for name in _WITHOUT_DATA):
        return
    for name in _READ:
        path = values.get(name)
        if not isinstance(path, str):
            continue
        found = _VARIABLE.search(path)
        if found and not os.path.exists(path):
            raise ConfigError(
                f"{name}={path}: the environment variable {found[1]} is not set. Set it, or give"
                f" --{name}=PATH."
            )


# ------------------------------------------------------------------------------------------------------------
# Lines for people


def _told(
    source: Source | None, family: Family | None, theirs: configurations.Translation, above: dict[str, Any]
) -> list[str]:
    """Returns the lines about a translation: the file, a table key -> field -> value, and the keys without a
    field."""
    lines = [source.told] if source and source.told else []
    if source and family:
        lines.append(f"{source.path}: keys of Graphcore's {family.label} programs")
    flat_model = {f"model.{key}": value for key, value in theirs.settings.get("model", {}).items()}
    settings = {**theirs.settings, **theirs.ipu_options, **flat_model, **above}
    over = set(above) | {name for line in theirs.lines if line.key.startswith("--") for name in line.fields}
    shown = [(line, _shown(line, settings, over)) for line in theirs.lines if line.fields]
    width = max((len(line.key) for line, _ in shown), default=0)
    lines += [f"  {line.key:<{width}}  {_short(line.value):<18} -> {text}" for line, text in shown]
    own = {name: settings[name] for name in theirs.added if name not in above}
    added = ", ".join(f"{name}={_short(value)}" for name, value in own.items() if value is not None)
    if added and family:
        lines.append(f"  and, which no key says: {added}")
    lines += [f"  {note}" for note in theirs.notes]
    reasons: dict[str, list[str]] = {}  # of the keys without a setting here; those only for IPUs last
    for line in theirs.lines:
        if not line.fields and line.key not in theirs.ipu_only:
            reasons.setdefault(f"not needed: {line.note}", []).append(line.key)
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

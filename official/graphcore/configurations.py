"""Configurations of Graphcore's BERT programs, and options of their commands, as settings of ours.

A file is recognised by its keys, which are read row by row (`configuration_keys`); what several keys say
together becomes settings (`configuration_terms`). No TensorFlow, no flags.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from official.config.table import FIELDS
from official.graphcore import configuration_keys as tables
from official.graphcore import configuration_terms
from official.graphcore.configuration_keys import IPU_ONLY, NOT_NEEDED, Row, Table, with_older
from official.io.errors import ConfigError, suggest

# -----------------------------------------------------------------------------------------------------------
# Kinds of files


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of files.

    Attributes:
      name: also of its folder in configs/graphcore/.
      label: for people.
      table: of its keys, in older spellings, too.
      defaults: {key: value} where a file says nothing.
      nested: keys whose values hold keys; {"a": {"b": 1}} is the key a.b.
    """

    name: str
    label: str
    table: Table
    defaults: Mapping[str, Any]
    nested: tuple[str, ...] = ()


_ROWS = (
    Family("pytorch", "PyTorch", with_older("pytorch", tables.PYTORCH_ROWS), tables.PYTORCH_DEFAULTS),
    Family("tf1", "TensorFlow 1", with_older("tf1", tables.TF1_ROWS), tables.TF1_DEFAULTS),
    Family("tf2", "TensorFlow 2", with_older("tf2", tables.TF2_ROWS), tables.TF2_DEFAULTS, tables.TF2_NESTED),
    Family(
        "popart",
        "PopART",
        with_older("popart", tables.POPART_ROWS),
        tables.POPART_DEFAULTS,
        tables.POPART_NESTED,
    ),
    Family(
        "packed",
        "packed PopART (MLPerf 2.0)",
        with_older("packed", tables.PACKED_ROWS),
        tables.POPART_DEFAULTS,
        tables.POPART_NESTED + tables.PACKED_NESTED,
    ),
)
FAMILIES = {row.name: row for row in _ROWS}
_LEAVES = ("packing_factor", "lr_schedule_by_step", "loss_scaling_by_step")  # objects that are values


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested keys with dots: {"a": {"b": 1}} is {"a.b": 1}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and key not in _LEAVES:
            found |= flat(value, name + ".")
        else:
            found[name] = value
    return found


def family_of(values: Mapping[str, Any]) -> Family | None:
    """Returns the kind of a file: the one that knows most of its keys; None where it is ours.

    Args:
      values: of the file.
    """
    keys = set(flat(values))
    ours = sum(key.split(".")[0] in FIELDS or key.startswith("model.") for key in keys)
    known = {name: len(keys & set(family.table)) for name, family in FAMILIES.items()}
    best = max(
        known, key=known.__getitem__
    )  # of several that know as many the first: packed knows all of popart
    if known[best] <= ours:
        return None
    return FAMILIES[best]


def check_known(values: Mapping[str, Any], family: Family, source: str) -> None:
    """Raises ConfigError that names all unknown keys, each with the nearest known one, and for a value where
    there have to be keys."""
    for key in family.nested:
        if key in values:
            raise ConfigError(f"{source}: {key}={values[key]!r}, expected an object of keys.")
    unknown = [key for key in values if key not in family.table]
    if unknown:
        named = ", ".join(f"{key!r}{suggest(key, family.table)}" for key in unknown)
        raise ConfigError(
            f"{source}: {named} {'is' if len(unknown) == 1 else 'are'} no key of Graphcore's {family.label}"
            " files.",
            {"unknown keys": unknown},
        )


# -----------------------------------------------------------------------------------------------------------
# Options of their command lines


# Of all their programs. What only one of them has is a key of its files, too, and taken with those.
OPTIONS: Table = {
    **tables.means(
        """micro_batch_size=@micro gradient_accumulation_count=@accumulation
        gradient_accumulation=@accumulation gradient_accumulation_factor=@accumulation
        replication_factor=@replicas replicas=@replicas global_batch_size=@global training_steps=@steps
        steps=@steps num_train_steps=@steps max_steps=@steps epochs=@epochs num_epochs=@epochs
        no_model_save=@no_model_save no_validation=@no_validation vocab_size=@vocab_size
        squad_do_validation=@validation epochs_inference=predict_epochs"""
    ),
    "dataset": Row("@dataset", tables.of(tables.PYTORCH_DATASETS)),
    "do_training": Row("@do_training", tables.truth),
    "task_name": Row("glue_task", lambda name: str(name).lower()),
    **tables.ipu_only("use_default_available_memory_proportion"),
    **tables.IPU_OPTIONS,
}


def table_for(family: str | None) -> Table:
    """Returns all options over a configuration of a family; None: over one of ours."""
    return {**(FAMILIES[family].table if family else {}), **OPTIONS}


# -----------------------------------------------------------------------------------------------------------
# Translation


# Term -> the settings in which it shows.
_SHOWN = {
    **dict.fromkeys(
        ("micro", "accumulation", "replicas", "global"),
        "train_batch_size num_accumulation_steps eval_batch_size",
    ),
    **dict.fromkeys(("steps", "samples"), "num_steps_per_epoch"),
    "epochs": "num_train_epochs num_steps_per_epoch",
    "duplication": "num_steps_per_epoch",
    **dict.fromkeys(("warmup", "warmup_share"), "warmup_steps warmup_proportion"),
    "powers": "warmup_power poly_power",
    "schedule": "lr_schedule poly_power",
    "optimizer": "optimizer_type bias_correction",
    **dict.fromkeys(("nvlamb", "mpclip"), "clip_scope"),
    "lamb_debiasing": "bias_correction",
    "reduction": "loss_normalization",
    "rates_by_step": "lr_schedule",
    **dict.fromkeys(("dynamic_scale", "loss_scale_by_step"), "loss_scale"),
    "clip": "clip_norm clip_scope",
    "files": "input_files train_file predict_file",
    "predict_files": "predict_file",
    "eval_files": "eval_files",
    "dataset": "task generated_data",
    "dataset_dir": "input_files",
    "inference": "do_train do_predict",
    "validation": "do_eval do_predict",
    "no_validation": "do_eval",
    "do_training": "do_train",
    **dict.fromkeys(("packs", "prepacked", "packed_data", "sequences_per_pack"), "max_sequences_per_pack"),
    "packing_factor": "average_sequences_per_pack",
    "no_model_save": "checkpoint_every_steps keep_checkpoints",
    **dict.fromkeys(("folder", "output_folder"), "model_dir"),
    "wandb_project": "wandb_name",
    "model_name": "model.hidden_size model.num_hidden_layers",
    "groupbert": "model.block_type",
    "pipeline_schedule": "pipeline_schedule",
    "recomputation": "recompute",
    **dict.fromkeys(("layers_per_ipu", "encoder_start", "placement"), "pipeline_stages device_mapping"),
    "vocab_size": "model.vocab_size",
    **dict.fromkeys(
        ("dropout", "no_dropout", "no_attention_dropout"),
        "model.hidden_dropout_prob model.attention_probs_dropout_prob",
    ),
}


@dataclasses.dataclass(frozen=True)
class Line:
    """Translation of one key.

    Attributes:
      key: theirs; -- before an option of the command line.
      value: theirs.
      fields: ours that show it; empty where there are none.
      note: IPU_ONLY, or why there are none.
    """

    key: str
    value: Any
    fields: tuple[str, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Translation:
    """A configuration of theirs.

    Attributes:
      settings: {setting: value}, `model` among them.
      lines: the translation of each key, in their order.
      added: names of the settings that follow from none of the keys alone.
      notes: lines for people, about values that are not theirs.
    """

    settings: dict[str, Any]
    lines: list[Line]
    added: list[str]
    notes: list[str]

    @property
    def ipu_only(self) -> list[str]:
        """The keys that only make sense on an IPU."""
        return [line.key for line in self.lines if line.note == IPU_ONLY]


def translate(
    values: Mapping[str, Any],
    family: Family | None,
    source: str,
    options: Mapping[str, Any],
    base: Mapping[str, Any],
) -> Translation:
    """Translates a configuration, and options over it.

    Args:
      values: of the file, nested or flat; empty without one.
      family: of the file.
      source: names it in messages.
      options: {name: value} of the command line, that are no settings of ours.
      base: value of every setting so far, those of the command line among them; `name` is that of the
        configuration, for the run's folder, `half` the value of --dtype for their 16-bit numbers.

    Raises:
      ConfigError: for unknown keys, each named with the nearest known one, and values of another type.
    """
    said: dict[str, Any] = {}
    lines: list[Line] = []
    table, backend = table_for(family.name if family else None), base["distribution_strategy"]
    if family:
        told = flat(values)
        check_known(told, family, source)
        said = _read(family.defaults, family.table, backend, source, [])
        said |= _read(told, family.table, backend, source, lines)
        stages = told.get("ipu_config.pipeline_stages") or told.get("pipeline_stages")
        if isinstance(stages, list) and stages and isinstance(stages[-1], list):
            said["@stages"] = stages[-1]  # their names: a head tells the task
    over = _read(options, table, backend, "command line", lines, prefix="--")
    if {"@steps", "@epochs"} <= set(over):
        both = [name for name in options if table[name].to in ("@steps", "@epochs")]
        raise ConfigError(f"--{' and --'.join(both)} both say how long the run is. Drop one of the two.")
    replaced: set[str] = {"@global"} if "@accumulation" in over else set()
    if {"@steps", "@epochs", "@samples"} & set(over):
        replaced |= {"@steps", "@epochs", "@samples"}
    merged = {name: value for name, value in said.items() if name not in replaced} | over
    settings = {name: value for name, value in merged.items() if not name.startswith("@")}
    terms = {name[1:]: value for name, value in merged.items() if name.startswith("@")}
    terms["name"] = base.get("name")
    result = configuration_terms.settle(settings, terms, base, family.name if family else None)
    shown = {name for line in lines for name in line.fields}
    added = [name for name in result if name not in shown and name != "model"]
    return Translation(result, lines, added, terms.get("notes", []))


def _read(
    values: Mapping[str, Any],
    table: Mapping[str, Row],
    backend: str,
    source: str,
    lines: list[Line],
    prefix: str = "",
) -> dict[str, Any]:
    """Returns {where a value goes: value}, and adds a line a key. What is null or empty is not said.

    Raises:
      ConfigError: for a value that is not allowed, and for two keys of one meaning with different values.
    """
    found: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for key, value in values.items():
        row = table[key]
        if row.to in (IPU_ONLY, NOT_NEEDED) or not row.is_known_to(backend):
            lines.append(Line(prefix + key, value, (), row.why if row.to == NOT_NEEDED else IPU_ONLY))
            continue
        fields = _SHOWN[row.to[1:]].split() if row.to.startswith("@") else [row.to]
        lines.append(Line(prefix + key, value, tuple(fields)))
        if value is None or value == "":
            continue
        received, converted = f"{source}: {key}={value!r}", _expanded(value)
        try:
            converted = row.read(converted) if row.read else converted
        except ConfigError as error:
            raise ConfigError(f"{received}, {error}.") from None
        other = said_by.setdefault(row.to, key)
        if found.setdefault(row.to, converted) != converted:
            raise ConfigError(f"{received}, but {other}={values[other]!r} means the same. Drop one of them.")
    return found


def _expanded(value: Any) -> Any:
    """Returns a value with the variables of the environment in its texts, those that are set."""
    if isinstance(value, list):
        return [_expanded(each) for each in value]
    return os.path.expandvars(value) if isinstance(value, str) else value

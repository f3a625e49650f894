"""Terms of other people's configurations -> our settings: what follows from several keys at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from official.config.checks import OF_OPTIMIZERS, OF_SCHEDULES
from official.config.foreign import batches, pipeline
from official.config.model import BertConfig
from official.config.table import FIELDS
from official.io.errors import ConfigError
from official.io.json_files import read_json

_FLOOR = 1e-7  # their schedules end there; PyTorch's at 0
# As in configs/squad_*.flags: files of theirs do not say them.
_SQUAD_LENGTH = 384
_VOCABULARY = "data/bert/vocab.txt"
_MADE_UP = ("generated_data", "synthetic_input", "use_synthetic_data")
_HEADS = {"qa_head": "squad", "glue_head": "glue", "loc": "squad", "glu": "glue", "glu_reg": "glue"}


def settle(
    settings: dict[str, Any], terms: dict[str, Any], base: Mapping[str, Any], family: str | None
) -> dict[str, Any]:
    """Returns our settings of a configuration of theirs.

    Args:
      settings: {setting: value} of the keys that are settings, `model.KEY` among them.
      terms: {term: value} of the keys that are not.
      base: of all settings the value so far, those of the command line, too.
      family: name of the kind of file; None where options of theirs stand over a configuration of ours.

    Raises:
      ConfigError: for terms that contradict each other.
    """
    settings = dict(settings)
    if family:
        settings["task"] = settings.get("task") or _task(settings, terms)
    terms["half"] = base.get("half", "fp16")
    task = terms["task"] = settings.get("task", base["task"])
    settings |= pipeline.settle_pipeline(settings, terms, base)
    base = {**base, **settings}
    _settle_factor(terms, base)
    settings |= batches.settle_batch(terms, base)
    length = settings.get("max_seq_length", base["max_seq_length"])
    batch_size = settings.get("train_batch_size", base["train_batch_size"])
    makes_data_up = any(settings.get(name, base[name]) for name in _MADE_UP)
    settings |= batches.settle_steps(terms, batch_size, length, family, makes_data_up)
    known = settings.get("num_steps_per_epoch")
    settings |= batches.settle_warmup(terms, known)
    _settle_optimization(settings, terms, family)
    _settle_data(settings, terms, task)
    _settle_packing(settings, terms, base)
    _settle_checkpoints(settings, terms, known)
    if family:
        _settle_family(settings, terms, family)
        pipeline.settle_limits(settings, terms, base)
    elif terms.get("vocab_size"):
        settings["model"] = {**_model_file(base), "vocab_size": terms["vocab_size"]}
    _settle_wandb(settings, terms, base)
    return {name: value for name, value in settings.items() if _is_known(name, task)}


def _is_known(name: str, task: str) -> bool:
    """Tells whether a task knows a setting: files of fine-tuning say how many words were masked before."""
    return name not in FIELDS or not FIELDS[name].tasks or task in FIELDS[name].tasks


def _task(settings: Mapping[str, Any], terms: Mapping[str, Any]) -> str:
    """Returns the task of a file without one: its dataset, the head of its last stage, or what it masks."""
    if terms.get("dataset", (None,))[0]:
        return terms["dataset"][0]
    heads = [_HEADS[name] for name in terms.get("stages", ()) if name in _HEADS]
    return heads[0] if heads else "pretrain"


def _settle_factor(terms: dict[str, Any], base: Mapping[str, Any]) -> None:
    """Fills in the sequences of a packed row, which are said for each length; of files without them, those up
    to SDK 2.5, the accumulation counts rows already."""
    if terms.get("packed_data") and terms.get("packing_factor"):
        factors = {str(length): factor for length, factor in terms["packing_factor"].items()}
        length = str(base["max_seq_length"])
        if length not in factors:
            raise ConfigError(f"packed_data needs packing_factor of {length} tokens, received {factors}.")
        terms["factor"] = float(factors[length])


# ------------------------------------------------------------------------------------------------------------
# One part of a configuration each


def _settle_optimization(settings: dict[str, Any], terms: dict[str, Any], family: str | None) -> None:
    """Fills in schedule, optimizer, clipping and loss scale."""
    if "optimizer" in terms:
        settings["optimizer_type"], corrects = terms["optimizer"]
        settings |= {"lamb_bias_correction": corrects, "adam_bias_correction": corrects}
    for variant in ("nvlamb", "mpclip"):
        if terms.get(variant):
            settings["lamb_variant"] = variant
    if terms.get("reduction"):
        settings["gradient_reduction"] = terms["reduction"]
    if terms.get("reduction") == "sum":
        settings["loss_normalization"] = "local"
    if terms.get("dynamic_scale"):
        settings["loss_scale"] = "dynamic"
    if settings.get("loss_scale_by_step"):
        settings.pop("loss_scale", None)
    if "powers" in terms:
        settings["warmup_power"], settings["poly_power"] = terms["powers"][0], terms["powers"][-1]
    if terms.get("schedule") == "constant":
        settings |= {"lr_schedule": "polynomial", "poly_power": 0.0}
    elif terms.get("schedule"):
        settings["lr_schedule"] = terms["schedule"]
    if family:
        _settle_their_updates(settings, terms, family)


def _settle_their_updates(settings: dict[str, Any], terms: dict[str, Any], family: str) -> None:
    """Fills in what their programs do and no key says: where a decay starts and ends, what is decayed, and
    what is clipped.

    Source: optimizers and schedules of examples v3.0.0 nlp/bert/tensorflow1, v3.4.0 nlp/bert/tensorflow2.
    """
    settings["decay_from"] = "warmup_end"
    if settings.get("lr_schedule") == "polynomial" and family == "tf1" and terms.get("powers", [1]) == [1]:
        settings["lr_schedule"] = "up_down"
    ends_there = settings.get("lr_schedule", "polynomial") in ("polynomial", "cosine", "up_down")
    if ends_there and family != "pytorch" and settings.get("learning_rate", 1) > _FLOOR:
        settings["end_learning_rate"] = _FLOOR
    is_lamb = settings.get("optimizer_type") == "lamb"
    if is_lamb and family in ("tf1", "tf2") and not terms.get("groupbert"):
        settings["lamb_decays_gamma"] = True
    if terms.get("clip"):
        settings |= {"clip_scope": "global", "clip_norm": terms["clip"]}
    elif family != "tf1" or settings.get("optimizer_type") not in ("adamw", "mpadamw"):
        settings["clip_scope"] = "none"
    _drop_unread(settings)


def _drop_unread(settings: dict[str, Any]) -> None:
    """Drops what the optimizer or the schedule would not read: their files hold it all the same."""
    for by, table in (("optimizer_type", OF_OPTIMIZERS), ("lr_schedule", OF_SCHEDULES)):
        value = settings.get(by, FIELDS[by].default)
        for names, allowed in table.items():
            for name in names if value not in allowed else ():
                settings.pop(name, None)
    if settings.get("lr_schedule") == "custom":
        settings["warmup_steps"] = 0


def _settle_data(settings: dict[str, Any], terms: dict[str, Any], task: str) -> None:
    """Fills in what is read and done."""
    if terms.get("dataset", (None, False))[1]:
        settings["generated_data"] = True
    files = terms.get("files")
    if files and (terms.get("inference") or task == "squad"):
        settings["predict_file" if terms.get("inference") else "train_file"] = files
    elif files:
        settings["input_files"] = files
    if terms.get("predict_files"):
        settings["predict_file"] = terms["predict_files"]
    if terms.get("inference"):
        settings |= {"do_train": False, "do_predict": True}
    if "dataset_dir" in terms and task == "pretrain":
        settings["input_files"] = os.path.join(terms["dataset_dir"], "*.tfrecord")
    if terms.get("validation") and settings.get("predict_file"):
        settings |= {"do_eval": True, "do_predict": True}
    if terms.get("validation") is False:
        settings |= {"do_eval": False, "do_predict": False}
    if terms.get("eval_files") and not terms.get("no_validation"):
        settings |= {"eval_files": terms["eval_files"], "do_eval": True}
    if terms.get("no_validation"):
        settings |= {"do_eval": False, "eval_files": None, "steps_between_eval": None}
    if terms.get("do_training") is not None:
        settings["do_train"] = terms["do_training"]


def _settle_packing(settings: dict[str, Any], terms: dict[str, Any], base: Mapping[str, Any]) -> None:
    """Fills in how many sequences a row has. PopART's files are packed before, PyTorch's say whether; made-up
    records are packed while they are read."""
    is_packed = terms.get("packs") or terms.get("prepacked") or terms.get("packed_data")
    if not is_packed:
        settings.pop("average_sequences_per_pack", None)
        return
    settings["max_sequences_per_pack"] = terms.get("sequences_per_pack")
    if any(settings.get(name, base[name]) for name in _MADE_UP):
        settings["pack_on_the_fly"] = True
    if terms.get("factor"):
        settings["average_sequences_per_pack"] = terms["factor"]


def _settle_checkpoints(settings: dict[str, Any], terms: dict[str, Any], steps: int | None) -> None:
    """Fills in how often weights are saved: in whole loops, which our metrics are."""
    loop = settings.get("steps_per_loop")
    if settings.get("checkpoint_every_steps") and loop:
        settings["checkpoint_every_steps"] = -(-settings["checkpoint_every_steps"] // loop) * loop
    if terms.get("no_model_save"):
        settings["keep_checkpoints"] = 1
        settings["checkpoint_every_steps"] = None
        if steps and loop:
            settings["checkpoint_every_steps"] = -(-steps // loop) * loop


def _settle_family(settings: dict[str, Any], terms: dict[str, Any], family: str) -> None:
    """Fills in the model, and what a family means without saying it."""
    if family in ("tf2", "pytorch"):  # fp16 always; others say so
        settings.setdefault("dtype", "fp16")
    if settings.get("dtype") == "fp16":
        settings["dtype"] = terms["half"]
    folder = terms.get("folder") or terms.get("output_folder")
    if folder or terms.get("name"):
        name = terms.get("name") or ""
        settings["model_dir"] = os.path.join(folder or "runs", f"graphcore_{family}_{name}")
    _settle_fine_tuning(settings, terms)
    sizes = {name[6:]: value for name, value in settings.items() if name.startswith("model.")}
    for name in [name for name in settings if name.startswith("model.")]:
        del settings[name]
    settings["model"] = model_of(sizes, terms)
    if settings["model"]["vocab_size"] != BertConfig().vocab_size:
        settings["fit_vocabulary"] = True


def _settle_fine_tuning(settings: dict[str, Any], terms: Mapping[str, Any]) -> None:
    """Fills in what files of fine-tuning leave out: where scripts/download_squad.sh puts the data."""
    if settings["task"] == "pretrain":
        return
    settings.setdefault("vocab_file", _VOCABULARY)
    if "glu_reg" in terms.get("stages", ()):
        settings.setdefault("glue_task", "stsb")
    if settings["task"] == "squad":
        version = "v2.0" if settings.get("version_2_with_negative") else "v1.1"
        settings.setdefault("max_seq_length", _SQUAD_LENGTH)
        settings.setdefault("train_file", f"data/squad/train-{version}.json")
        settings.setdefault("predict_file", f"data/squad/dev-{version}.json")


def _settle_wandb(settings: dict[str, Any], terms: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Keeps names of Weights & Biases only where it is used."""
    if terms.get("wandb_project"):
        settings["wandb_project"] = terms["wandb_project"]
    if not settings.get("wandb", base["wandb"]):
        settings.pop("wandb_project", None)
        settings.pop("wandb_name", None)


def _model_file(base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of the model's file. Raises ConfigError where none is named."""
    if not base.get("bert_config_file"):
        raise ConfigError(
            "vocab_size changes a model, and there is none. Give --bert_config_file or --config."
        )
    return read_json(base["bert_config_file"], "bert_config_file", any_number=True)


def model_of(sizes: dict[str, Any], terms: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a bert_config.json.

    Args:
      sizes: as the file says them.
      terms: groupbert, model_name, vocab_size, and the dropouts.
    """
    model: dict[str, Any] = {
        "vocab_size": BertConfig().vocab_size,
        **terms.get("model_name", {}),
    }
    model |= sizes
    if terms.get("vocab_size"):
        model["vocab_size"] = terms["vocab_size"]
    if "intermediate_size" not in sizes and "hidden_size" in sizes:
        model["intermediate_size"] = 4 * model["hidden_size"]
    if terms.get("groupbert"):
        model["block_type"] = "groupbert"
    if "dropout" in terms or "no_dropout" in terms:
        rate = 0.0 if terms.get("no_dropout") else terms.get("dropout", BertConfig().hidden_dropout_prob)
        model["hidden_dropout_prob"] = rate
        model["attention_probs_dropout_prob"] = 0.0 if terms.get("no_attention_dropout") else rate
    if not isinstance(model["vocab_size"], int):
        raise ConfigError(f"vocab_size={model['vocab_size']!r}, expected a whole number.")
    return model

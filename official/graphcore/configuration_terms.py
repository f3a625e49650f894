"""Terms of Graphcore's configurations, which are combined into settings: pipeline, batches, optimization."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from official.config.backends import BACKENDS, BackendTraits
from official.config.model import BertConfig
from official.config.settings.devices import PIPELINED, SCHEDULES
from official.config.table import FIELDS
from official.config.values import read_by_step, read_devices, read_stages, written_stages
from official.distribution.pipeline_plan import micro_batch_divisor
from official.io.errors import ConfigError, nearest_multiples
from official.io.json_files import read_json

# -----------------------------------------------------------------------------------------------------------
# Pipeline


_NAMES = ("pipeline_stages", "device_mapping", "pipeline_schedule")
_WHOLE = "att_ffn_placement halves blocks between IPUs: here a block is whole, and where its attention is"
_HEADS = {"pretrain": ("mlm", "nsp"), "squad": ("loc",), "glue": ("glu",)}


def settle_pipeline(
    settings: Mapping[str, Any], terms: dict[str, Any], base: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of the pipeline; none if the back end has no pipeline.

    Args:
      settings: values of the keys that are settings.
      terms: pipeline_schedule, layers_per_ipu, encoder_start and placement, if given, and the task.
      base: current values of all settings, including those of the command line.
    """
    backend = base["distribution_strategy"]
    if backend not in PIPELINED:
        return {}
    found = {name: settings[name] for name in ("pipeline_stages", "device_mapping") if name in settings}
    if "placement" in terms:
        found |= _of_blocks(terms["placement"], terms)
        _note(terms, _WHOLE)
    elif "layers_per_ipu" in terms:
        found |= _of_blocks(enumerate(terms["layers_per_ipu"], terms.get("encoder_start", 0)), terms)
    if terms.get("pipeline_schedule"):
        theirs, ours = terms["pipeline_schedule"], SCHEDULES[backend]
        found["pipeline_schedule"] = theirs if theirs in ours else ours[0]  # the default
    if BACKENDS[backend].graphcore_rules:
        if terms.get("replicas") and base["replicas"] == 1:
            found["replicas"] = terms["replicas"]
        if "recomputation" in terms:
            found["recompute"] = "block" if terms["recomputation"] else "none"
        found |= _whole_calls({**base, **settings}, terms)
    if base.get("pipeline_stages"):  # stages of the command line need other devices
        found["device_mapping"] = None
    return found | {name: base[name] for name in _NAMES if base.get(name)}


def _note(terms: dict[str, Any], text: str) -> None:
    """Keeps a line for the log."""
    terms.setdefault("notes", []).append(text)


def _whole_calls(values: Mapping[str, Any], terms: dict[str, Any]) -> dict[str, int]:
    """Rounds the steps of a line of the metrics up to whole calls of the IPUs, with a note."""
    steps, call = values["steps_per_loop"], values["device_iterations"]
    if steps is None or steps % call == 0:
        return {}
    whole = -(-steps // call) * call
    _note(terms, f"steps_per_loop={whole}, not {steps}: calls of {call} steps")
    return {"steps_per_loop": whole}


def settle_limits(settings: dict[str, Any], terms: dict[str, Any], base: Mapping[str, Any]) -> None:
    """Changes values that their programs accept and runs on IPUs here refuse, with notes.

    Args:
      settings: settings of the whole file, with dtype and replicas.
      terms: receives the notes.
      base: current values of all settings.
    """
    if not BACKENDS[base["distribution_strategy"]].graphcore_rules:
        return
    values = {**base, **settings}
    alone = values["replicas"] == 1 or not values["optimizer_state_offchip"]
    if settings.get("replicated_tensor_sharding") and alone:
        settings["replicated_tensor_sharding"] = False
        _note(
            terms, "replicated_tensor_sharding=false: here it shards offloaded state among several replicas"
        )
    if values["dtype"] == "fp16" and not values["loss_scale"]:
        settings["loss_scale"] = "1"
        _note(terms, "loss_scale=1, since no key sets it: steps on IPUs never skip an update")


def _of_blocks(blocks: Iterable[tuple[int, int]], terms: Mapping[str, Any]) -> dict[str, str]:
    """Returns stages and devices from (device, number of blocks) of each stage.

    Their PopART and PyTorch programs put the embeddings on the first IPU, the heads of pre-training on the
    same one, and those of fine-tuning on the last.

    Source: examples v3.4.1 nlp/bert/pytorch/modeling.py; squad_wrap_final_layer of v2.4.0
    applications/popart/bert.
    """
    stages = [["emb", "pos"]]
    devices = [0]
    for device, count in blocks:
        if device != devices[-1] and count:
            stages.append([])
            devices.append(device)
        stages[-1] += ["hid"] * count
    heads = _HEADS[terms["task"]]
    if "mlm" in heads and devices[-1] != 0:
        stages.append([])
        devices.append(0)
    stages[-1] += heads
    return {"pipeline_stages": written_stages(stages), "device_mapping": ",".join(map(str, devices))}


def devices_of(found: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the device of each stage from the result of `settle_pipeline`; one without a pipeline."""
    if found.get("device_mapping"):
        return read_devices(found["device_mapping"])
    stages = read_stages(found["pipeline_stages"]) if found.get("pipeline_stages") else 1
    return tuple(range(stages if isinstance(stages, int) else len(stages)))


def rounded_up(accumulation: int, found: Mapping[str, Any], trains: bool) -> int:
    """Returns a number of micro batches that Graphcore's pipelining supports: if grouped, a multiple of its
    passes.

    Their PopART and PyTorch programs support any number; those of TensorFlow round up. 2048 is 2050 in five
    stages, as in the TensorFlow configurations of the same runs.

    Args:
      accumulation: requested micro batches of a step.
      found: result of `settle_pipeline`.
      trains: whether there are backward passes.
    """
    if (found.get("pipeline_schedule") or "grouped") != "grouped":
        return accumulation
    divisor = micro_batch_divisor(devices_of(found), "grouped", trains)
    return -(-accumulation // divisor) * divisor


# -----------------------------------------------------------------------------------------------------------
# Batches and steps


# Sequences of a whole run of their TensorFlow 2 programs, by sequence length; for other lengths those of
# phase 2.
_TF2_SAMPLES = {128: 460_849_152}
_TF2_SAMPLES_PHASE_2 = 34_239_360


def settle_batch(terms: dict[str, Any], base: Mapping[str, Any]) -> dict[str, int]:
    """Returns the batch settings.

    Args:
      terms: micro, accumulation, replicas, global and packing_factor, if known.
      base: current settings, including those of the command line: devices, and the batch if no term sets it.

    Returns:
      train_batch_size and num_accumulation_steps, and for inference eval_batch_size. A micro batch is as
      large as theirs if the number of devices is known; otherwise the accumulation is the same as theirs, for
      all their replicas together.

    Raises:
      ConfigError: if the global batch is not divisible by the rest.
    """
    if not {"micro", "accumulation", "replicas", "global"} & set(terms):
        return {}
    here = devices_here(base)
    accumulation = terms.get("accumulation", base["num_accumulation_steps"])
    replicas = terms.get("replicas") or here or 1
    micro = terms.get("micro") or max(
        1, base["train_batch_size"] // (base["num_accumulation_steps"] * replicas)
    )
    if "global" in terms:
        unit = micro * replicas
        accumulation, left = divmod(terms["global"], unit)
        if left:
            raise ConfigError(
                f"global_batch_size={terms['global']} is not divisible by micro_batch_size x replicas ="
                f" {micro} x {replicas}. Nearest valid: {nearest_multiples(terms['global'], unit)}."
            )
    if terms.get("factor"):
        accumulation = -int(-accumulation // terms["factor"])
    accumulation = _as_pipelines_take(accumulation, terms, base)
    shared_out = accumulation * replicas
    fits = here is not None and shared_out % here == 0
    found = {
        "train_batch_size": micro * shared_out,
        "num_accumulation_steps": shared_out // here if fits and here else accumulation,
    }
    if terms.get("inference"):
        found["eval_batch_size"] = micro * (terms.get("replicas") or here or 1)
    return found


def _as_pipelines_take(accumulation: int, terms: dict[str, Any], base: Mapping[str, Any]) -> int:
    """Returns the micro batches that the pipeline on IPUs accepts, with a note if they differ."""
    if not _backend(base).graphcore_rules:
        return accumulation
    asked = terms.get("do_training")
    trains = not terms.get("inference") if asked is None else asked
    taken = rounded_up(accumulation, base, trains)
    if taken != accumulation:
        reason = "a grouped pipeline on IPUs needs a multiple"
        _note(terms, f"num_accumulation_steps={taken}, not {accumulation}: {reason}")
    return taken


def _backend(base: Mapping[str, Any]) -> BackendTraits:
    return BACKENDS[base.get("distribution_strategy", FIELDS["distribution_strategy"].default)]


def devices_here(base: Mapping[str, Any]) -> int | None:
    """Returns the number of replicas in the settings; None for all devices."""
    backend, of_replica = _backend(base), 1
    if backend.graphcore_rules:
        return base["replicas"]
    if backend.spread_replicas:
        of_replica = max(devices_of(base)) + 1
    count = base.get("num_virtual_devices") or base.get("num_gpus")
    return base.get("num_tpu_cores") if count is None else max(1, count // of_replica)


def settle_steps(
    terms: dict[str, Any], batch_size: int, length: int, family: str | None, makes_data_up: bool
) -> dict[str, int | bool | None]:
    """Returns the steps of a run: given, or computed from its sequences.

    Args:
      terms: steps, epochs, samples and duplication, if known; receives the notes.
      batch_size: sequences per step.
      length: length of a sequence; their TensorFlow 2 programs assume a number of sequences per length.
      family: kind of the file.
      makes_data_up: whether records are generated; their programs then generate one step per epoch.
    """
    steps = terms.get("steps")
    if steps is None and family == "tf2" and terms.get("epochs") is None and terms["task"] == "pretrain":
        samples = terms.get("samples") or _TF2_SAMPLES.get(length, _TF2_SAMPLES_PHASE_2)
        steps = max(1, samples // batch_size)
    if steps is not None:
        return {"num_steps_per_epoch": steps, "num_train_epochs": 1, "stop_steps": None}
    if not terms.get("epochs"):
        return {}
    if not family or terms["task"] != "pretrain":
        return {"num_train_epochs": terms["epochs"]}
    if makes_data_up:
        return {"num_steps_per_epoch": 1, "num_train_epochs": terms["epochs"]}
    copies = terms.get("duplication", 1)
    if copies > 1:
        theirs = f"their program counts one of the {copies} copies of each, a {copies}th of it"
        _note(terms, f"an epoch is one pass over all records: {theirs}")
    return {"num_steps_per_epoch": 0, "num_train_epochs": terms["epochs"]}


def settle_warmup(terms: Mapping[str, Any], steps: int | None) -> dict[str, float]:
    """Returns the warm-up steps: a number below 1 is a share of all steps, rounded down.

    Args:
      terms: warmup, or warmup_share, which is always a share.
      steps: steps of the run; None if they depend on the data.
    """
    share = terms.get("warmup_share", terms.get("warmup"))
    if share is None:
        return {}
    if "warmup_share" not in terms and float(share).is_integer():
        return {"warmup_steps": float(share)}
    if not 0 <= share <= 1:
        raise ConfigError(f"warmup={share}, expected a whole number of steps or a share from 0 to 1.")
    return {"warmup_proportion": share} if steps is None else {"warmup_steps": float(int(steps * share))}


# -----------------------------------------------------------------------------------------------------------
# All terms of a file


_FLOOR = 1e-7  # end of their schedules; PyTorch's end at 0
# As in configs/squad_*.flags: their files lack them.
_MADE_UP = ("generated_data", "synthetic_input", "use_synthetic_data")
_TASK_OF_HEAD = {"qa_head": "squad", "glue_head": "glue", "loc": "squad", "glu": "glue", "glu_reg": "glue"}


def settle(
    settings: dict[str, Any], terms: dict[str, Any], base: Mapping[str, Any], family: str | None
) -> dict[str, Any]:
    """Returns this project's settings for one of their configurations.

    Args:
      settings: {setting: value} of the keys that are settings, including `model.KEY`.
      terms: {term: value} of the other keys.
      base: current values of all settings, including those of the command line.
      family: name of the kind of file; None for their options over a configuration of this project.

    Raises:
      ConfigError: for terms that contradict each other.
    """
    settings = dict(settings)
    if family:
        settings["task"] = settings.get("task") or _task(settings, terms)
    terms["half"] = base.get("half", "fp16")
    task = terms["task"] = settings.get("task", base["task"])
    settings |= settle_pipeline(settings, terms, base)
    base = {**base, **settings}
    _settle_factor(terms, base)
    settings |= settle_batch(terms, base)
    length = settings.get("max_seq_length", base["max_seq_length"])
    batch_size = settings.get("train_batch_size", base["train_batch_size"])
    makes_data_up = any(settings.get(name, base[name]) for name in _MADE_UP)
    settings |= settle_steps(terms, batch_size, length, family, makes_data_up)
    known = settings.get("num_steps_per_epoch") or None
    settings |= settle_warmup(terms, known)
    _settle_optimization(settings, terms, family)
    _settle_data(settings, terms, task)
    _settle_packing(settings, terms, base)
    _settle_checkpoints(settings, terms, known)
    if family:
        _settle_family(settings, terms, family)
        settle_limits(settings, terms, base)
    elif terms.get("vocab_size"):
        if not base.get("bert_config_file"):
            raise ConfigError("vocab_size needs a model to change. Give --bert_config_file or --config.")
        model = read_json(base["bert_config_file"], "bert_config_file", any_number=True)
        settings["model"] = {**model, "vocab_size": terms["vocab_size"]}
    _settle_wandb(settings, terms, base)
    # Only settings of the task: fine-tuning files also contain the number of masked words.
    tasks = {name: FIELDS[name].tasks if name in FIELDS else () for name in settings}
    return {name: value for name, value in settings.items() if not tasks[name] or task in tasks[name]}


def _task(settings: Mapping[str, Any], terms: Mapping[str, Any]) -> str:
    """Infers the task of a file from its dataset, the head of its last stage, or its masking."""
    if terms.get("dataset", (None,))[0]:
        return terms["dataset"][0]
    heads = [_TASK_OF_HEAD[name] for name in terms.get("stages", ()) if name in _TASK_OF_HEAD]
    return heads[0] if heads else "pretrain"


def _settle_factor(terms: dict[str, Any], base: Mapping[str, Any]) -> None:
    """Fills in the sequences of a packed row, which are given per length; in files without them, up to SDK
    2.5, the accumulation already counts rows."""
    if terms.get("packed_data") and terms.get("packing_factor"):
        factors = {str(length): factor for length, factor in terms["packing_factor"].items()}
        length = str(base["max_seq_length"])
        if length not in factors:
            raise ConfigError(f"packed_data needs packing_factor of {length} tokens, received {factors}.")
        terms["factor"] = float(factors[length])


# ------------------------------------------------------------------------------------------------------------
# Parts of a configuration


def _settle_optimization(settings: dict[str, Any], terms: dict[str, Any], family: str | None) -> None:
    """Fills in schedule, optimizer, clipping and loss scale."""
    if "optimizer" in terms:
        settings["optimizer_type"], settings["bias_correction"] = terms["optimizer"]
    if settings.get("optimizer_type") == "lamb" and "lamb_debiasing" in terms:
        settings["bias_correction"] = terms["lamb_debiasing"]
    if terms.get("reduction") == "sum":
        settings["loss_normalization"] = "local_sum"
    if terms.get("dynamic_scale") or terms.get("loss_scale_by_step"):
        settings["loss_scale"] = terms.get("loss_scale_by_step") or "dynamic"
    if "powers" in terms:
        settings["warmup_power"], settings["poly_power"] = terms["powers"][0], terms["powers"][-1]
    if terms.get("schedule") == "constant":
        settings |= {"lr_schedule": "polynomial", "poly_power": 0.0}
    elif terms.get("schedule"):
        settings["lr_schedule"] = terms["schedule"]
    if settings.get("lr_schedule") == "custom":
        if "rates_by_step" not in terms:
            raise ConfigError("lr_schedule=custom needs lr_schedule_by_step.")
        settings["lr_schedule"] = terms["rates_by_step"]
    if family:
        _settle_their_updates(settings, terms, family)


def _settle_their_updates(settings: dict[str, Any], terms: dict[str, Any], family: str) -> None:
    """Fills in fixed behaviour of their programs: start and end of a decay, the decayed weights, and
    clipping.

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
    if is_lamb and (terms.get("nvlamb") or terms.get("mpclip")):
        settings |= {"clip_scope": "replicas" if terms.get("mpclip") else "global", "clip_norm": 1.0}
    elif terms.get("clip"):
        settings |= {"clip_scope": "global", "clip_norm": terms["clip"]}
    elif family != "tf1" or settings.get("optimizer_type") not in ("adamw", "mpadamw"):
        settings["clip_scope"] = "none"
    _drop_unread(settings)


def _drop_unread(settings: dict[str, Any]) -> None:
    """Drops settings that the optimizer or the schedule does not use; their files contain them anyway."""
    for name in [name for name in settings if name in FIELDS]:
        by, allowed = FIELDS[name].only_with or (name, (settings[name],))
        if settings.get(by, FIELDS[by].default) not in allowed:
            del settings[name]
    if read_by_step(settings.get("lr_schedule", ""), "lr_schedule"):
        settings["warmup_steps"] = 0


def _settle_data(settings: dict[str, Any], terms: dict[str, Any], task: str) -> None:
    """Fills in the data and the actions of the run."""
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
    """Fills in the number of sequences per row. PopART's files are packed beforehand, PyTorch's say whether;
    generated records are packed on the fly."""
    if not any(terms.get(name) for name in ("packs", "prepacked", "packed_data")):
        settings.pop("average_sequences_per_pack", None)
        return
    settings["max_sequences_per_pack"] = terms.get("sequences_per_pack")
    if any(settings.get(name, base[name]) for name in _MADE_UP):
        settings["pack_on_the_fly"] = True
    if terms.get("factor"):
        settings["average_sequences_per_pack"] = terms["factor"]


def _settle_checkpoints(settings: dict[str, Any], terms: dict[str, Any], steps: int | None) -> None:
    """Fills in the steps between checkpoints, in whole loops."""
    loop = settings.get("steps_per_loop")
    if settings.get("checkpoint_every_steps") and loop:
        settings["checkpoint_every_steps"] = -(-settings["checkpoint_every_steps"] // loop) * loop
    if terms.get("no_model_save"):
        settings["keep_checkpoints"] = 1
        settings["checkpoint_every_steps"] = None
        if steps and loop:
            settings["checkpoint_every_steps"] = -(-steps // loop) * loop


def _settle_family(settings: dict[str, Any], terms: dict[str, Any], family: str) -> None:
    """Fills in the model, and the implied settings of a family."""
    if family in ("tf2", "pytorch"):  # always fp16; other families have a key for it
        settings.setdefault("dtype", "fp16")
    if settings.get("dtype") == "fp16":
        settings["dtype"] = terms["half"]
    folder = terms.get("folder") or terms.get("output_folder")
    if folder or terms.get("name"):
        name = terms.get("name") or ""
        settings["model_dir"] = os.path.join(folder or "runs", f"graphcore_{family}_{name}")
    _settle_fine_tuning(settings, terms)
    sizes = {name[6:]: settings.pop(name) for name in list(settings) if name.startswith("model.")}
    settings["model"] = model_of(sizes, terms)
    if settings["model"]["vocab_size"] != BertConfig().vocab_size:
        settings["fit_vocabulary"] = True


def _settle_fine_tuning(settings: dict[str, Any], terms: Mapping[str, Any]) -> None:
    """Fills in the data files of fine-tuning, in the folder of scripts/download_squad.sh."""
    if settings["task"] == "pretrain":
        return
    settings.setdefault("vocab_file", "data/bert/vocab.txt")
    if "glu_reg" in terms.get("stages", ()):
        settings.setdefault("glue_task", "stsb")
    if settings["task"] == "squad":
        version = "v2.0" if settings.get("version_2_with_negative") else "v1.1"
        settings.setdefault("max_seq_length", 384)
        settings.setdefault("train_file", f"data/squad/train-{version}.json")
        settings.setdefault("predict_file", f"data/squad/dev-{version}.json")


def _settle_wandb(settings: dict[str, Any], terms: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Keeps the names for Weights & Biases only if it is used."""
    if terms.get("wandb_project"):
        settings["wandb_name"] = f"{terms['wandb_project']}/{settings.get('wandb_name', '')}"
    if not settings.get("wandb", base["wandb"]):
        settings.pop("wandb_name", None)


def model_of(sizes: dict[str, Any], terms: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a bert_config.json.

    Args:
      sizes: sizes in the file.
      terms: groupbert, model_name, vocab_size, and the dropout rates.
    """
    model = {"vocab_size": BertConfig().vocab_size, **terms.get("model_name", {}), **sizes}
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

"""Pipelines of other people's configurations: what is on which device, and what that means for batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from official.config.backends import BACKENDS
from official.config.settings.devices import PIPELINED, SCHEDULES
from official.config.table import FIELDS
from official.config.values import read_devices, read_stages, written_stages

_NAMES = ("pipeline_stages", "device_mapping", "pipeline_schedule")
_WHOLE = "att_ffn_placement halves blocks between IPUs: here a block is whole, and where its attention is"
_HEADS = {"pretrain": ("mlm", "nsp"), "squad": ("loc",), "glue": ("glu",)}


def settle_pipeline(
    settings: Mapping[str, Any], terms: dict[str, Any], base: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of the pipeline; none where the devices know none.

    Args:
      settings: of the keys that are settings.
      terms: pipeline_schedule, layers_per_ipu, encoder_start and placement, as far as they are said, and the
        task.
      base: of all settings the value so far, those of the command line, too.
    """
    backend = base["distribution_strategy"]
    if backend not in PIPELINED:
        return {}
    found = {name: settings[name] for name in ("pipeline_stages", "device_mapping") if name in settings}
    if "placement" in terms:
        found |= _of_blocks(terms["placement"], terms)
        terms.setdefault("notes", []).append(_WHOLE)
    elif "layers_per_ipu" in terms:
        start = terms.get("encoder_start", 0)
        found |= _of_blocks(
            [(start + ipu, count) for ipu, count in enumerate(terms["layers_per_ipu"])], terms
        )
    if terms.get("pipeline_schedule"):
        found["pipeline_schedule"] = _schedule_of(terms["pipeline_schedule"], backend)
    if BACKENDS[backend].graphcore_rules:
        found |= _of_ipus(terms, base) | _whole_calls({**base, **settings}, terms)
    if base.get("pipeline_stages"):  # on the command line: other stages, whose devices are others
        found["device_mapping"] = None
    return found | {name: base[name] for name in _NAMES if base.get(name)}


def _schedule_of(theirs: str, backend: str) -> str:
    """Returns a schedule of theirs where the back end has it, else the back end's usual one."""
    return theirs if theirs in SCHEDULES[backend] else SCHEDULES[backend][0]


def _of_ipus(terms: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the replicas, where none are told, and what is computed again."""
    found: dict[str, Any] = {}
    if terms.get("replicas") and base["ipu_replicas"] == FIELDS["ipu_replicas"].default:
        found["ipu_replicas"] = terms["replicas"]
    if "recomputation" in terms:
        found["recompute"] = "block" if terms["recomputation"] else "none"
    return found


def _whole_calls(values: Mapping[str, Any], terms: dict[str, Any]) -> dict[str, int]:
    """Returns the steps of a line of the metrics in whole calls of the IPUs; notes where they are more."""
    steps, call = values["steps_per_loop"], values["device_iterations"]
    if steps is None or steps % call == 0:
        return {}
    whole = -(-steps // call) * call
    terms.setdefault("notes", []).append(f"steps_per_loop={whole}, not {steps}: calls of {call} steps")
    return {"steps_per_loop": whole}


def settle_limits(settings: dict[str, Any], terms: dict[str, Any], base: Mapping[str, Any]) -> None:
    """Changes what the run on IPUs here refuses and their programs take, and notes it.

    Args:
      settings: of the whole file, with dtype and replicas.
      terms: gets the notes.
      base: of all settings the value so far.
    """
    if not BACKENDS[base["distribution_strategy"]].graphcore_rules:
        return
    values = {**base, **settings}
    notes = terms.setdefault("notes", [])
    alone = values["ipu_replicas"] == 1 or not values["optimizer_state_offchip"]
    if settings.get("replicated_tensor_sharding") and alone:
        settings["replicated_tensor_sharding"] = False
        notes.append(
            "replicated_tensor_sharding=false: here it shares out offloaded state to several replicas"
        )
    if values["dtype"] == "fp16" and not values["loss_scale"] and not values["loss_scale_by_step"]:
        settings["loss_scale"] = "1"
        notes.append("loss_scale=1, which no key says: steps on IPUs skip no update")


def _of_blocks(blocks: Sequence[tuple[int, int]], terms: Mapping[str, Any]) -> dict[str, str]:
    """Returns stages and devices of (device, number of blocks) of each stage.

    Their PopART and PyTorch programs put the embeddings on the first IPU, the heads of pre-training beside
    them, and those of fine-tuning on the last.

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


def num_pipeline_devices(found: Mapping[str, Any]) -> int:
    """Returns the devices of a replica, of what `settle_pipeline` returns; 1 without a pipeline."""
    if found.get("device_mapping"):
        return max(read_devices(found["device_mapping"])) + 1
    return _num_stages(found)


def _num_stages(found: Mapping[str, Any]) -> int:
    stages = read_stages(found["pipeline_stages"]) if found.get("pipeline_stages") else 1
    return stages if isinstance(stages, int) else len(stages)


def rounded_up(accumulation: int, found: Mapping[str, Any], trains: bool) -> int:
    """Returns the micro batches that Graphcore's pipelining takes: grouped, multiples of its passes.

    Their PopART and PyTorch programs take any number; those of TensorFlow round up. 2048 is 2050 in five
    stages, as the TensorFlow configurations of the same runs have it.

    Args:
      accumulation: micro batches of a step that are asked for.
      found: of `settle_pipeline`.
      trains: whether there are backward passes.
    """
    stages = _num_stages(found)
    alone = num_pipeline_devices(found) == 1 and not trains
    if (found.get("pipeline_schedule") or "grouped") != "grouped" or stages == 1 or alone:
        return accumulation
    divisor = (2 if trains else 1) * stages
    return -(-accumulation // divisor) * divisor

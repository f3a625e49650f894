"""Batches and steps of other people's terms: micro batch x accumulation x replicas, on the devices here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official.config.backends import BACKENDS, BackendTraits
from official.config.foreign import pipeline
from official.config.table import FIELDS
from official.io.errors import ConfigError, nearest_multiples

# Sequences of a whole run of their TensorFlow 2 programs, by the length of a sequence; other lengths are
# those of phase 2.
_TF2_SAMPLES = {128: 460_849_152}
_TF2_SAMPLES_PHASE_2 = 34_239_360


def settle_batch(terms: dict[str, Any], base: Mapping[str, Any]) -> dict[str, int]:
    """Returns the batch settings.

    Args:
      terms: micro, accumulation, replicas, global and packing_factor, as far as they are known.
      base: settings so far, with those of the command line: what is known of the devices here, and of
        the batch where no term says it.

    Returns:
      train_batch_size and num_accumulation_steps, and of an inference eval_batch_size. A micro batch is as
      large as theirs where the number of devices is known; else one accumulation here is one there, on all
      their replicas.

    Raises:
      ConfigError: where the global batch is not divisible by the rest.
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
        accumulation = _accumulation_of(terms["global"], micro, replicas)
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
    """Returns the micro batches that the pipeline of an IPU takes, and notes where these are others."""
    if not _backend(base).graphcore_rules:
        return accumulation
    asked = terms.get("do_training")
    trains = not terms.get("inference") if asked is None else asked
    taken = pipeline.rounded_up(accumulation, base, trains)
    if taken != accumulation:
        terms.setdefault("notes", []).append(
            f"num_accumulation_steps={taken}, not {accumulation}: a grouped pipeline on IPUs takes so many"
        )
    return taken


def _accumulation_of(batch: int, micro: int, replicas: int) -> int:
    """Returns global batch / (micro batch x replicas). Raises ConfigError where that is not whole."""
    if batch % (micro * replicas):
        raise ConfigError(
            f"global_batch_size={batch} is not divisible by micro_batch_size x replicas = {micro} x"
            f" {replicas}. Nearest valid: {nearest_multiples(batch, micro * replicas)}."
        )
    return batch // (micro * replicas)


def _backend(base: Mapping[str, Any]) -> BackendTraits:
    return BACKENDS[base.get("distribution_strategy", FIELDS["distribution_strategy"].default)]


def devices_here(base: Mapping[str, Any]) -> int | None:
    """Returns the number of replicas that the settings ask for; None where all devices are to be used."""
    backend, of_replica = _backend(base), 1
    if backend.graphcore_rules:
        return base["ipu_replicas"]
    if backend.spread_replicas:
        of_replica = pipeline.num_pipeline_devices(base)
    if base.get("num_virtual_devices"):
        return max(1, base["num_virtual_devices"] // of_replica)
    if base.get("num_gpus") is not None:
        return max(1, base["num_gpus"] // of_replica)
    return base.get("num_tpu_cores")


def settle_steps(
    terms: dict[str, Any], batch_size: int, length: int, family: str | None, makes_data_up: bool
) -> dict[str, int | bool | None]:
    """Returns the steps of a run: those that are said, or as many as its sequences make.

    Args:
      terms: steps, epochs, samples and duplication, as far as they are known; gets the notes.
      batch_size: sequences of a step.
      length: of a sequence; their TensorFlow 2 programs know how many there are of each length.
      family: of the file.
      makes_data_up: whether no records are read; their programs then make those of one step an epoch.
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
        terms.setdefault("notes", []).append(
            f"an epoch is once through all records: one of the {copies} copies of each, as their program"
            f" counts epochs, is a {copies}th of it"
        )
    return {"count_records": True, "num_train_epochs": terms["epochs"]}


def settle_warmup(terms: Mapping[str, Any], steps: int | None) -> dict[str, float]:
    """Returns the warm-up: whole numbers are steps, what is below 1 is a share of all steps, rounded down.

    Args:
      terms: warmup, or warmup_share, which is a share whatever its value.
      steps: of the run; None where the data will say.
    """
    share = terms.get("warmup_share", terms.get("warmup"))
    if share is None:
        return {}
    if "warmup_share" not in terms and float(share).is_integer():
        return {"warmup_steps": float(share)}
    if not 0 <= share <= 1:
        raise ConfigError(f"warmup={share}, expected a whole number of steps or a share from 0 to 1.")
    return {"warmup_proportion": share} if steps is None else {"warmup_steps": float(int(steps * share))}

"""Rules of the schedules for devices and micro batches. What breaks one is refused in a line of its own."""

from __future__ import annotations

from collections.abc import Sequence

from official.config.backends import BACKENDS
from official.config.settings.pipeline import SCHEDULES
from official.distribution.pipelining.balance import parts_of
from official.io.errors import ConfigError, nearest_multiples


def check_count(count: int, model_stages: Sequence[str]) -> None:
    """Refuses more stages than the model has parts to share out."""
    parts = len(parts_of(model_stages))
    if count > parts:
        raise ConfigError(
            f"pipeline_stages={count}, but the model has {parts} parts: embeddings, {parts - 2} layers,"
            f" heads. Give at most --pipeline_stages={parts}."
        )


def usual_devices(count: int, schedule: str, model_stages: Sequence[str]) -> tuple[int, ...]:
    """Returns the device of each stage where none is said.

    One a stage. On IPUs the last stage goes back to the first IPU where it shares the word embeddings, or
    where the number of IPUs is a power of two that way.
    """
    devices = tuple(range(count))
    if schedule not in SCHEDULES["ipu"] or count == 1:
        return devices
    tied = "masked_lm" in model_stages
    if tied or (count > 2 and power_of_two(count - 1) == count - 1):
        return (*devices[:-1], 0)
    return devices


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is `count` or more: IPUs are given out in such numbers."""
    return 1 << (count - 1).bit_length()


def check_devices(devices: Sequence[int], count: int) -> None:
    """Refuses devices that do not fit the number of stages, or that leave one out."""
    shown = ",".join(map(str, devices))
    if len(devices) != count:
        raise ConfigError(
            f"device_mapping={shown} names {len(devices)} devices for {count} stages. Name one a stage."
        )
    if set(devices) != set(range(max(devices) + 1)):
        missing = min(set(range(max(devices) + 1)) - set(devices))
        raise ConfigError(
            f"device_mapping={shown} leaves out device {missing}. Number the devices from 0 without gaps."
        )


def check_tied(stages: Sequence[Sequence[str]], devices: Sequence[int], backend: str) -> None:
    """Refuses stages that share the word embeddings on two IPUs."""
    if not BACKENDS[backend].graphcore_rules:
        return
    holders = [number for number, names in enumerate(stages) if {"embeddings", "masked_lm"} & set(names)]
    first, last = holders[0], holders[-1]
    if devices[first] != devices[last]:
        valid = list(devices)
        valid[last] = devices[first]
        raise ConfigError(
            f"device_mapping={','.join(map(str, devices))}: stages {first} (emb) and {last} (mlm) share the"
            f" word embeddings, and an IPU holds a variable alone. Nearest valid:"
            f" {','.join(map(str, valid))}."
        )


def check_micro_batches(devices: Sequence[int], schedule: str, micro_batches: int, trains: bool) -> None:
    """Refuses a number of micro batches that a schedule does not take."""
    shown = ",".join(map(str, devices))
    if schedule == "interleaved" and trains and len(set(devices)) < len(devices):
        raise ConfigError(
            f"pipeline_schedule=interleaved trains with one stage an IPU, device_mapping={shown} has two on"
            " one. Use --pipeline_schedule=grouped."
        )
    divisor = micro_batch_divisor(devices, schedule, trains)
    if micro_batches % divisor:
        raise ConfigError(
            f"num_accumulation_steps={micro_batches} is not divisible by {divisor}, which"
            f" pipeline_schedule={schedule} needs for {len(devices)} stages. Nearest valid:"
            f" {nearest_multiples(micro_batches, divisor)}."
        )


def micro_batch_divisor(devices: Sequence[int], schedule: str, trains: bool) -> int:
    """Returns the number that the micro batches of a step must be a multiple of.

    Graphcore's compiler rolls a schedule up into a loop. grouped: twice the stages, in inference the stages;
    interleaved: the rotations of the stages' devices that do not overlap; all others: any number. One
    device alone needs no pipeline to infer.

    Source: pipeline_visitor.cc, pipeline_visitor_utils.h of Graphcore's TensorFlow.
    """
    if len(devices) == 1 or (len(set(devices)) == 1 and not trains):
        return 1
    if schedule == "grouped":
        return (2 if trains else 1) * len(devices)
    if schedule == "interleaved":
        return len(rotations(devices))
    return 1


def rotations(devices: Sequence[int]) -> list[int]:
    """Returns by how much the devices may be rotated so that no two rotations have a device in one place."""
    count = len(devices)
    found: list[int] = []
    for shift in range(count):
        if all(
            devices[(place + shift) % count] != devices[(place + other) % count]
            for other in found
            for place in range(count)
        ):
            found.append(shift)
    return found

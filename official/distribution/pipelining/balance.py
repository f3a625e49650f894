"""Shares the stages of a model out to the stages of a pipeline, so that the busiest device does least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cost(NamedTuple):
    """Cost of a stage of a model.

    Attributes:
      flops: of its forward pass of a micro batch.
      bytes: on its device.
    """

    flops: int
    bytes: int


def balanced(
    model_stages: Sequence[str], costs: Mapping[str, Cost], devices: Sequence[int]
) -> tuple[tuple[str, ...], ...]:
    """Returns the stages of the model in each stage of the pipeline, in order.

    No other cuts have fewer FLOPs on the busiest device. Of those that have as few the FLOPs of stages are
    the most even (the smallest sum of squares), and of these the fullest device has the fewest bytes. Cuts
    are before the heads, and before and after each block.

    Args:
      model_stages: names, in order.
      costs: of each.
      devices: of each stage of the pipeline, at most as many as `parts_of` has; one may stand there several
        times, its costs are added.
    """
    parts = parts_of(model_stages)
    flops = [sum(costs[name].flops for name in part) for part in parts]
    sizes = [sum(costs[name].bytes for name in part) for part in parts]
    none = [0] * len(parts)
    apart = _cuts(flops, none, range(len(devices)), sum(flops))  # a bound, from which little is left to try
    busiest = _largest(flops, _cuts(flops, none, devices, _largest(flops, apart, devices)), devices)
    ends = _cuts(flops, sizes, devices, busiest, evenly=True)
    return tuple(
        tuple(name for part in parts[start:end] for name in part) for start, end in zip((0, *ends), ends)
    )


def parts_of(model_stages: Sequence[str]) -> list[list[str]]:
    """Returns the stages of a model that stay together: embeddings, each block (the last with the LayerNorm
    after it), and the pooler with all heads."""
    last = max(place for place, name in enumerate(model_stages) if name.startswith(("layer_", "final_norm")))
    parts: list[list[str]] = []
    for name in model_stages[: last + 1]:
        if name == "final_norm":
            parts[-1].append(name)
        else:
            parts.append([name])
    return [*parts, list(model_stages[last + 1 :])]


def _largest(values: Sequence[int], ends: Sequence[int], devices: Sequence[int]) -> int:
    """Returns the largest sum of values of a device."""
    sums = dict.fromkeys(devices, 0)
    for start, end, device in zip((0, *ends), ends, devices):
        sums[device] += sum(values[start:end])
    return max(sums.values())


def _cuts(
    flops: Sequence[int], sizes: Sequence[int], devices: Sequence[int], most_flops: int, evenly: bool = False
) -> tuple[int, ...]:
    """Returns where stages end, so that the busiest device has fewest FLOPs; `evenly`: so that stages have
    most even FLOPs, then fewest bytes on the fullest device. No device has more than `most_flops`.

    Dynamic programming, exact: two ways to place the first parts are the same where the devices that come
    again hold the same; of those the better one is kept.
    """
    ways: dict[tuple, tuple] = {(0, ()): (0, 0, ())}  # (parts, open devices) -> (what is least, then, ends)
    for stage, device in enumerate(devices):
        comes_again, left = device in devices[stage + 1 :], len(devices) - stage - 1
        found: dict[tuple, tuple] = {}
        for (start, kept), (first, second, ends) in ways.items():
            others = tuple(each for each in kept if each[0] != device)
            work, size = next((each[1:] for each in kept if each[0] == device), (0, 0))
            own = 0
            for end in range(start + 1, len(flops) - left + 1):
                own, work, size = own + flops[end - 1], work + flops[end - 1], size + sizes[end - 1]
                if work > most_flops:
                    break
                opened = tuple(sorted((*others, (device, work, size)))) if comes_again else others
                held, done = (0, 0) if comes_again else (size, work)
                least = (first + own**2, max(second, held)) if evenly else (max(first, done), 0)
                way = (*least, (*ends, end))
                found[end, opened] = min(way, found.get((end, opened), way))
        ways = found
    return ways[len(flops), ()][-1]

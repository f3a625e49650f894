"""Plan of a pipeline: stages of the model on devices, and the order of their micro batches."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from official.config.backends import BACKENDS
from official.config.derived import max_predictions
from official.config.settings.devices import SCHEDULES
from official.config.values import read_devices, read_stages, written_stages
from official.distribution.batch_plan import check_divisible
from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.config import BertConfig, Config


# -----------------------------------------------------------------------------------------------------------
# Schedules
#
# Each schedule is a formula for the time of a work item. `gpipe` and `1f1b` assume that all work items take
# equally long; a device starts one as soon as its inputs are available. In Graphcore's `grouped`,
# `interleaved` and `sequential` all devices move in step.


class Work(NamedTuple):
    """The pass of one micro batch through one stage of the pipeline.

    Attributes:
      stage: of the pipeline, from 0.
      micro_batch: of the step, from 0.
      backward: the backward pass, with recomputation; else the forward pass.
    """

    stage: int
    micro_batch: int
    backward: bool


class Timeline(NamedTuple):
    """A step of a pipeline.

    Attributes:
      works: (work, start, end) of each device, in order, of one round of micro batches.
      length: duration of the step without the update, in forward passes of a stage if all are alike.
      bubble: share of the devices' time spent waiting.
    """

    works: list[list[tuple[Work, float, float]]]
    length: float
    bubble: float


def works_by_time(plan: PipelinePlan, trains: bool = True) -> list[list[Work]]:
    """Returns the work items of a round in the order of their times, grouped by time.

    Every item comes after the items that it depends on, so devices that keep this order never deadlock. A
    stage takes its micro batches in order, also in the backward pass.

    gpipe: all forward passes, then all backward passes. Source: Huang et al., GPipe, arXiv:1811.06965.
    1f1b: backward passes first; stage s of S keeps at most S - s micro batches. Source: Narayanan et al.,
    PipeDream-Flush, arXiv:2006.09503.

    The others are `PipelineSchedule` of Graphcore's TensorFlow. Items of one time run in parallel, and the
    next ones wait for the slowest of them.
    grouped: a micro batch advances one stage per step; in a step all devices run forward passes, then all run
    backward passes. interleaved: half of the devices run forward passes while the others run backward passes.
    sequential: one device works at a time.

    Args:
      plan: the plan.
      trains: False for forward passes alone.
    """
    num_stages, schedule, micro_batches = len(plan.stages), plan.schedule, plan.round_size

    def time(work: Work) -> tuple[int, int]:
        stage, number, backward = work
        place = 2 * num_stages - 1 - stage if backward else stage  # among the passes of its micro batch
        if schedule == "gpipe":
            return (number + place + (micro_batches - 1 if backward else 0), 0)
        if schedule == "grouped":
            return (number + place, int(backward))
        if schedule == "sequential":
            return (number * (2 if trains else 1) * num_stages + place, 0)
        fills = schedule == "1f1b" and not backward and number < num_stages - stage
        return (number * (2 if trains and not fills else 1) + place, 0)

    directions = (False, True) if trains else (False,)
    works = map(Work._make, itertools.product(range(num_stages), range(micro_batches), directions))
    ordered = sorted(works, key=lambda work: (time(work), work.micro_batch))
    return [list(found) for _, found in itertools.groupby(ordered, key=time)]


def in_flight(plan: PipelinePlan, trains: bool = True) -> list[int]:
    """Returns the maximum number of micro batches whose activations each stage keeps at once, including the
    current one."""
    count, left = plan.round_size, range(len(plan.stages), 0, -1)  # stages from each one on
    if plan.schedule == "gpipe" or not trains:
        return [count for _ in left]
    if plan.schedule == "sequential":
        return [1 for _ in left]
    return [min(count, each * (2 if plan.schedule == "grouped" else 1)) for each in left]


def usual_secs(work: Work) -> float:
    """Returns the time of a work item if all stages are alike: a backward pass takes two forward passes, or
    three with recomputation."""
    return 2.0 if work.backward else 1.0


def make_timeline(
    plan: PipelinePlan, secs: Callable[[Work], float] = usual_secs, trains: bool = True
) -> Timeline:
    """Returns the timeline of a plan: the start and end of each work item. Sending takes no time.

    Args:
      plan: the plan.
      secs: work item -> its duration, in any unit.
      trains: False for forward passes alone.
    """
    ends: dict[Work, float] = {}
    free = [0.0] * plan.num_devices  # when each device is free
    found: list[list[tuple[Work, float, float]]] = [[] for _ in free]
    for works in works_by_time(plan, trains):
        for work in works:
            device = plan.devices[work.stage]
            sender = work._replace(stage=work.stage + (1 if work.backward else -1))
            needed = (sender, work._replace(backward=False))  # the first stage's forward pass needs neither
            start = max([free[device], *(ends.get(each, 0.0) for each in needed)])
            free[device] = ends[work] = start + secs(work)
            found[device].append((work, start, ends[work]))
        if plan.schedule in SCHEDULES["ipu"]:
            free = [max(free)] * len(free)
    busy = sum(end - start for device in found for _, start, end in device)
    rounds = plan.micro_batches // plan.round_size
    return Timeline(found, rounds * max(free), 1 - busy / (max(free) * len(free)))


# -----------------------------------------------------------------------------------------------------------
# Costs


class Cost(NamedTuple):
    """Cost of a stage of a model.

    Attributes:
      flops: FLOPs of its forward pass of a micro batch.
      weights: approximate number of weights: those of its largest matrices.
    """

    flops: int
    weights: int


def stage_costs(config: Config, model_stages: Sequence[str]) -> dict[str, Cost]:
    """Returns the cost of each stage of a model: the FLOPs of all matrix products, and its weights.

    Args:
      config: the configuration.
      model_stages: names, in order.
    """
    rows, model, length = rows_of_micro_batch(config), config.model, config.max_seq_length
    hidden, width, token = model.hidden_size, model.table_width, products_of_token(config.model)
    table = model.vocab_size * width  # which two stages share
    transform = hidden * width if model.use_cls_layer else 0

    def layer(name: str) -> tuple[int, int]:
        """Returns the products of a token, and of scores and their sums of values."""
        return length * (token + 2 * model.tokens_seen(int(name.rpartition("_")[2]), length) * hidden), token

    # (products of a row, weights)
    heads = {
        "embeddings": (0, table),
        "pooler": (hidden**2, hidden**2),
        "masked_lm": (max_predictions(config) * (transform + table), table),
        "next_sentence": (2 * hidden, 0),
        "span": (2 * length * hidden, 0),
        "tags": (2 * length * hidden, 0),
        "classifier": (2 * hidden, 0),  # two classes: negligible
    }
    found = {
        name: layer(name) if name.startswith("layer_") else heads.get(name, (0, 0)) for name in model_stages
    }
    return {name: Cost(2 * rows * products, weights) for name, (products, weights) in found.items()}


def rows_of_micro_batch(config: Config) -> int:
    """Returns the rows of a micro batch of one replica. The number of replicas is known on IPUs; elsewhere
    one is assumed."""
    replicas = config.ipu.replicas if BACKENDS[config.distribution_strategy].graphcore_rules else 1
    return max(1, config.train_batch_size // (config.num_accumulation_steps * replicas))


def products_of_token(model: BertConfig) -> int:
    """Returns the multiplications of a token in a block, without attention's scores.

    A block of GroupBERT has a gated convolution in groups, attention, and two feed-forward layers whose
    second product is in groups and mixed.
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    if model.block_type == "modernbert":  # values and gates
        return 4 * hidden**2 + 3 * hidden * inner
    if model.block_type != "groupbert":
        return 4 * hidden**2 + 2 * hidden * inner
    groups = model.groupbert_ffn_output_groups
    taps = model.groupbert_conv_kernel_size * model.groupbert_conv_group_size
    mixed = hidden**2 if groups > 1 else 0
    convolution = 3 * hidden**2 + hidden * taps
    return convolution + 4 * hidden**2 + 2 * (hidden * inner + hidden * inner // groups + mixed)


# -----------------------------------------------------------------------------------------------------------
# Balance


def balanced(
    model_stages: Sequence[str], costs: Mapping[str, Cost], devices: Sequence[int]
) -> tuple[tuple[str, ...], ...]:
    """Returns the stages of the model in each stage of the pipeline, in order.

    The cuts minimize the FLOPs of the busiest device; ties are broken by the most even FLOPs of stages (the
    smallest sum of squares), then by the fewest weights on the fullest device. Cuts are before the heads, and
    before and after each block.

    Args:
      model_stages: names, in order.
      costs: cost of each stage.
      devices: device of each stage of the pipeline, at most as many as `parts_of` has; the costs of stages on
        the same device are added.
    """
    parts = parts_of(model_stages)
    flops = [sum(costs[name].flops for name in part) for part in parts]
    sizes = [sum(costs[name].weights for name in part) for part in parts]
    none = [0] * len(parts)
    apart = _cuts(flops, none, range(len(devices)), sum(flops))  # an upper bound that prunes the search
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
    """Returns the ends of stages that minimize the FLOPs of the busiest device; with `evenly`, those with the
    most even FLOPs of stages, then the fewest weights on the fullest device. No device has more than
    `most_flops`.

    Exact dynamic programming: two placements of the first parts are equivalent if the devices that are used
    again have the same load; only the better one is kept.
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


# -----------------------------------------------------------------------------------------------------------
# Placement


# Graphcore's name -> our stages of the model; stages that the model lacks are left out.
# `enc_out` gathers the masked tokens, which our masked_lm does itself.
_PLACES = {
    "emb": ("embeddings",),
    "pos": (),
    "enc_out": (),
    "pool": ("pooler",),
    "mlm": ("masked_lm",),
    "nsp": ("pooler", "next_sentence"),
    "heads": ("pooler", "masked_lm", "next_sentence"),
    "loc": ("span",),
    "qa_head": ("span",),
    "tags": ("tags",),
    "glu": ("pooler", "classifier"),
    "glu_reg": ("pooler", "classifier"),
    "glue_head": ("pooler", "classifier"),
}
_ONCE = ("emb", "pos", "mlm", "nsp", "heads", "loc", "qa_head", "tags")
# Our stage of a model -> Graphcore's name for messages, the first one.
_THEIRS = {places[-1]: name for name, places in reversed(_PLACES.items()) if places}


def layers_of(model_stages: Iterable[str]) -> list[str]:
    """Returns the names of the encoder's blocks."""
    return [name for name in model_stages if name.startswith("layer_")]


def placed(stages: Sequence[Sequence[str]], model_stages: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns our stages of the model in each stage of the pipeline.

    An unnamed pooler goes with the head that needs it, the final LayerNorm of prenorm blocks with the last
    block.

    Args:
      stages: Graphcore's names in each stage of the pipeline.
      model_stages: names of the model's stages, in order.

    Raises:
      ConfigError: for a stage of the model that is missing, placed twice, out of order or unknown, and for an
        empty stage of the pipeline.
    """
    text = written_stages(stages)
    shown = f"pipeline_stages={text if len(text) <= 90 else f'{text[:60]} .. {text[-25:]}'}"
    for problem in _problems(stages, model_stages):
        raise ConfigError(f"{shown}{problem}")
    where = _where(stages, model_stages)
    return tuple(
        tuple(name for name in model_stages if where[name] == number) for number in range(len(stages))
    )


def _problems(stages: Sequence[Sequence[str]], model_stages: Sequence[str]) -> Iterator[str]:
    """Yields the problems, root causes first: a wrong number of blocks or heads, unknown heads, and a part
    before another part that it depends on, even within a stage."""
    said = [(name, number) for number, stage in enumerate(stages) for name in stage]
    counts, layers = collections.Counter(name for name, _ in said), len(layers_of(model_stages))
    if counts["hid"] != layers:
        yield f" has {counts['hid']} x hid, the model has num_hidden_layers={layers}. Place {layers}."
    ranks = {"emb": 0, "pos": 0, "hid": 1}
    for (first, _), (second, _) in zip(said, said[1:]):
        if ranks.get(second, 2) < ranks.get(first, 2):
            yield f": {first} is before {second}. Keep the model's order."
    for name in _ONCE:
        if counts[name] > 1:
            yield f" has {counts[name]} x {name}. Place it once."
    for name in counts:
        if not {"pooler", *model_stages}.issuperset(_PLACES.get(name, ())):
            known = ", ".join(_THEIRS[place] for place in model_stages if place in _THEIRS)
            yield f": the model has no {name}. Its parts: {known}, hid."
    numbers = dict(said)
    if numbers.get("pos", numbers.get("emb")) != numbers.get("emb"):
        yield ": pos is in another stage than emb, here they are one part. Write emb+pos."
    where = _where(stages, model_stages)
    if missing := [_THEIRS.get(name, name) for name in model_stages if name not in where]:
        yield f" places no {', '.join(missing)}. Add it to a stage."
    for before, after in zip(model_stages, model_stages[1:]):
        if where[after] < where[before]:
            first, second = (_THEIRS.get(name, name) for name in (after, before))
            yield f": {first} is before {second}. Keep the model's order."
    for number in set(range(len(stages))).difference(where.values()):
        yield f": stage {number} computes nothing here. Join it with another."


def _where(stages: Sequence[Sequence[str]], model_stages: Sequence[str]) -> dict[str, int]:
    """Returns the stage of the pipeline of each of the model's stages."""
    where: dict[str, int] = {}
    layers = iter(layers_of(model_stages))
    said_pool = any("pool" in stage for stage in stages)
    for number, stage in enumerate(stages):
        for name in stage:
            names = (next(layers),) if name == "hid" else _PLACES[name]
            for place in names:
                if place in model_stages and not (place == "pooler" and said_pool and name != "pool"):
                    where.setdefault(place, number)
    if "final_norm" in model_stages:
        where["final_norm"] = where[layers_of(model_stages)[-1]]
    if not said_pool and "pooler" in where:  # comes before all heads
        heads = {"masked_lm", "next_sentence", "classifier"} & where.keys()
        where["pooler"] = min(where[name] for name in heads)
    return where


# -----------------------------------------------------------------------------------------------------------
# Rules


def usual_devices(count: int, schedule: str, model_stages: Sequence[str]) -> tuple[int, ...]:
    """Returns the default device of each stage.

    One device per stage. On IPUs the last stage is placed on the first IPU if they share the word embeddings,
    or if this makes the number of IPUs a power of two.
    """
    devices = tuple(range(count))
    if schedule not in SCHEDULES["ipu"] or count == 1:
        return devices
    tied = "masked_lm" in model_stages
    if tied or (count > 2 and power_of_two(count - 1) == count - 1):
        return (*devices[:-1], 0)
    return devices


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is `count` or more: IPUs are allocated in powers of two."""
    return 1 << (count - 1).bit_length()


def check_micro_batches(devices: Sequence[int], schedule: str, micro_batches: int, trains: bool) -> None:
    """Raises ConfigError for a number of micro batches that a schedule does not support."""
    shown = ",".join(map(str, devices))
    if schedule == "interleaved" and trains and len(set(devices)) < len(devices):
        raise ConfigError(
            f"pipeline_schedule=interleaved trains with one stage per IPU, device_mapping={shown} has two on"
            " one. Use --pipeline_schedule=grouped."
        )
    divisor = micro_batch_divisor(devices, schedule, trains)
    what = f"{divisor}, which pipeline_schedule={schedule} needs for {len(devices)} stages"
    check_divisible("num_accumulation_steps", micro_batches, divisor, what)


def micro_batch_divisor(devices: Sequence[int], schedule: str, trains: bool) -> int:
    """Returns the number that the micro batches of a step must be a multiple of.

    Graphcore's compiler turns a schedule into a loop. grouped: twice the number of stages, in inference the
    number of stages; interleaved: the number of rotations of the stages' devices that do not overlap; all
    others: 1. Inference on a single device needs no pipeline.

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
    """Returns the rotations of the devices such that no two have the same device in the same place."""
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


# -----------------------------------------------------------------------------------------------------------
# Plan


MAX_ROUND_SIZE = 32  # micro batches: the graph of a step has a piece for each work of a round


@dataclasses.dataclass(frozen=True)
class PipelinePlan:
    """A plan: the device of each stage, and the order of their works.

    Attributes:
      stages: names of the model's stages in each stage of the pipeline, in the model's order.
      devices: of each stage of the pipeline, within a replica, from 0.
      schedule: gpipe, 1f1b, grouped, interleaved or sequential.
      micro_batches: of a step of one replica.
    """

    stages: tuple[tuple[str, ...], ...]
    devices: tuple[int, ...]
    schedule: str
    micro_batches: int

    @property
    def num_devices(self) -> int:
        """Returns the number of devices of a replica that hold a stage."""
        return max(self.devices) + 1

    @property
    def round_size(self) -> int:
        """Returns the number of micro batches per filling of the pipeline: on IPUs all of a step, else the
        largest divisor of these up to MAX_ROUND_SIZE."""
        if self.schedule in SCHEDULES["ipu"]:
            return self.micro_batches
        sizes = range(min(self.micro_batches, MAX_ROUND_SIZE), 0, -1)
        return next(size for size in sizes if self.micro_batches % size == 0)

    @property
    def notation(self) -> str:
        """Returns the stages in Graphcore's notation."""
        return written_stages(
            ["hid" if name.startswith("layer_") else _THEIRS[name] for name in stage if name != "final_norm"]
            for stage in self.stages
        )

    def description(self) -> dict:
        """Returns the plan in the form of result.json."""
        return {
            "stages": self.notation,
            "devices": list(self.devices),
            "schedule": self.schedule,
            "micro_batches": self.micro_batches,
        }

    def device_of(self, model_stage: str) -> int:
        """Returns the device of one of the model's stages."""
        return next(device for names, device in zip(self.stages, self.devices) if model_stage in names)


def num_devices(config: Config) -> int:
    """Returns the number of devices of a replica, from the settings alone. Raises ConfigError as
    `make_plan` does."""
    _, count, schedule, given = _asked(config)
    return max(given or usual_devices(count, schedule, ())) + 1


def make_plan(config: Config, model_stages: Sequence[str]) -> PipelinePlan:
    """Returns the plan that --pipeline_stages, --device_mapping and --pipeline_schedule ask for.

    Args:
      config: the configuration; its back end is `pipeline` or `ipu`.
      model_stages: names of the model's stages, in order.

    Raises:
      ConfigError: for stages that the model lacks or that are out of order, devices that do not match them,
        stages that share the word embeddings on two IPUs, and a number of micro batches that the schedule
        does not support.
    """
    told, count, schedule, given = _asked(config)
    parts = len(parts_of(model_stages))
    if isinstance(told, int) and count > parts:
        raise ConfigError(
            f"pipeline_stages={count}, but the model has {parts} parts: embeddings, {parts - 2} layers,"
            f" heads. Give at most --pipeline_stages={parts}."
        )
    devices = given or usual_devices(count, schedule, model_stages)
    shown, gaps = ",".join(map(str, devices)), set(range(max(devices) + 1)).difference(devices)
    if len(devices) != count:
        raise ConfigError(
            f"device_mapping={shown} names {len(devices)} devices for {count} stages. Name one per stage."
        )
    if gaps:
        raise ConfigError(
            f"device_mapping={shown} leaves out device {min(gaps)}. Number the devices from 0 without gaps."
        )
    if isinstance(told, int):
        stages = balanced(model_stages, stage_costs(config, model_stages), devices)
    else:
        stages = placed(told, model_stages)
    holders = [number for number, names in enumerate(stages) if {"embeddings", "masked_lm"} & set(names)]
    first, last = holders[0], holders[-1]
    if BACKENDS[config.distribution_strategy].graphcore_rules and devices[first] != devices[last]:
        valid = [*devices[:last], devices[first], *devices[last + 1 :]]
        raise ConfigError(
            f"device_mapping={shown}: stages {first} (emb) and {last} (mlm) share the"
            f" word embeddings, and only one IPU can hold a variable. Nearest valid:"
            f" {','.join(map(str, valid))}."
        )
    check_micro_batches(devices, schedule, config.num_accumulation_steps, config.do_train)
    return PipelinePlan(stages, devices, schedule, config.num_accumulation_steps)


def _asked(config: Config) -> tuple[Any, int, str, tuple[int, ...] | None]:
    """Returns (stages: their number or the names in each, number of stages, schedule, devices or None)."""
    if not config.pipeline_stages:
        raise ConfigError(
            f"distribution_strategy={config.distribution_strategy} needs --pipeline_stages. Give"
            " --pipeline_stages=N, or the parts of each: emb+pos / hid*12 / hid*12 / mlm+nsp."
        )
    stages = read_stages(config.pipeline_stages)
    schedule = config.pipeline_schedule or SCHEDULES[config.distribution_strategy][0]
    given = read_devices(config.device_mapping) if config.device_mapping else None
    return stages, stages if isinstance(stages, int) else len(stages), schedule, given


# -----------------------------------------------------------------------------------------------------------
# Allocation


def allocation(plan: PipelinePlan) -> list[tuple[str, int]]:
    """Returns (part, device) in the order of Graphcore's PyTorch program.

    Source: examples v3.4.1 nlp/bert/pytorch/modeling.py.
    """
    names = [name for stage in plan.stages for name in stage]
    parts = [("Embedding", "embeddings")]
    parts += [(f"Encoder {number:<2}", name) for number, name in enumerate(layers_of(names))]
    heads = {"pooler": "Pooler", "masked_lm": "Classifier", "span": "Classifier", "tags": "Classifier"}
    heads["classifier"] = "Classifier"
    parts += [(heads[name], name) for name in names if name in heads]
    return [(part, plan.device_of(name)) for part, name in parts]

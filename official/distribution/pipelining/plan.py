"""The plan of a pipeline: which stages of the model are on which device, and in which order they work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from official.config.settings.pipeline import SCHEDULES
from official.config.stage_notation import read_devices, read_stages
from official.distribution.pipelining import balance, placement, rules
from official.distribution.pipelining.costs import stage_costs
from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.config import Config
    from official.distribution.pipelining.balance import Cost

MOST_IN_A_ROUND = 32  # micro batches: the graph of a step has a piece for each work of a round


@dataclasses.dataclass(frozen=True)
class PipelinePlan:
    """A plan: which stages of the model are on which device, and in which order they work.

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
        """Returns how many micro batches a pipeline takes before it runs empty: on IPUs all of a step, else
        their largest divisor up to MOST_IN_A_ROUND."""
        if self.schedule in SCHEDULES["ipu"]:
            return self.micro_batches
        sizes = range(min(self.micro_batches, MOST_IN_A_ROUND), 0, -1)
        return next(size for size in sizes if self.micro_batches % size == 0)

    @property
    def notation(self) -> str:
        """Returns the stages in Graphcore's notation."""
        return placement.in_their_words(self.stages)

    def description(self) -> dict:
        """Returns the plan as it stands in result.json."""
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
    """Returns the number of devices of a replica, as far as the settings alone tell. Raises ConfigError as
    `make_plan` does."""
    told = read_stages(_asked_stages(config))
    count = told if isinstance(told, int) else len(told)
    schedule = _schedule(config)
    given = read_devices(config.device_mapping) if config.device_mapping else None
    return max(given or rules.usual_devices(count, schedule, ())) + 1


def make_plan(
    config: Config, model_stages: Sequence[str], costs: Mapping[str, Cost] | None = None
) -> PipelinePlan:
    """Returns the plan that --pipeline_stages, --device_mapping and --pipeline_schedule ask for.

    Args:
      config: the configuration; its back end is `pipeline` or `ipu`.
      model_stages: names of the model's stages, in order.
      costs: of each of the model's stages, by which a number of stages is balanced; None: those of
        `costs.stage_costs`.

    Raises:
      ConfigError: for stages that the model has not or that are out of order, devices that do not fit them,
        and a number of micro batches that the schedule does not take.
    """
    backend = config.distribution_strategy
    schedule = _schedule(config)
    told = read_stages(_asked_stages(config))
    count = told if isinstance(told, int) else len(told)
    given = read_devices(config.device_mapping) if config.device_mapping else None
    if isinstance(told, int):
        rules.check_count(count, model_stages)
    devices = given or rules.usual_devices(count, schedule, model_stages)
    rules.check_devices(devices, count)
    if isinstance(told, int):
        stages = balance.balanced(model_stages, costs or stage_costs(config, model_stages), devices)
    else:
        stages = placement.placed(told, model_stages)
    plan = PipelinePlan(stages, devices, schedule, config.num_accumulation_steps)
    rules.check_tied(plan.stages, devices, backend)
    rules.check_micro_batches(devices, schedule, plan.micro_batches, config.do_train)
    return plan


def _asked_stages(config: Config) -> str:
    if not config.pipeline_stages:
        raise ConfigError(
            f"distribution_strategy={config.distribution_strategy} needs to know the stages. Give"
            " --pipeline_stages=N, or what each holds: emb+pos / hid*12 / hid*12 / mlm+nsp."
        )
    return config.pipeline_stages


def _schedule(config: Config) -> str:
    return config.pipeline_schedule or SCHEDULES[config.distribution_strategy][0]

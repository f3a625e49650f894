"""Schedules found by simulating a pipeline: at each tick every device does a work whose inputs are there.

All works take one tick. Who may do what is a rule; an order that was simulated to its end has no deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from official.distribution.pipelining.work import Work


class Simulation:
    """How far a pipeline is.

    Attributes:
      devices: of each stage.
      forward, backward: micro batches that each stage has done; it takes them in their order.
    """

    def __init__(self, num_stages: int, devices: Sequence[int], micro_batches: int, trains: bool):
        self.devices, self._micro_batches = devices, micro_batches
        self._stages: list[list[int]] = [[] for _ in range(max(devices) + 1)]
        for stage, device in enumerate(devices):
            self._stages[device].append(stage)
        self.forward = [0] * num_stages
        self.backward = [0 if trains else micro_batches] * num_stages
        self._trains = trains

    @property
    def num_stages(self) -> int:
        """Returns the number of stages."""
        return len(self.forward)

    def stages_of(self, device: int) -> list[int]:
        """Returns the stages of a device."""
        return self._stages[device]

    def following(self, device: int, backward: bool) -> list[Work]:
        """Returns the next pass of each stage of a device, where there is one, in one direction."""
        done = self.backward if backward else self.forward
        stages = [stage for stage in self.stages_of(device) if done[stage] < self._micro_batches]
        return [Work(stage, done[stage], backward) for stage in stages]

    def is_ready(self, work: Work) -> bool:
        """Tells whether the works that a work follows are done."""
        stage, micro_batch, backward = work
        if not backward:
            return stage == 0 or self.forward[stage - 1] > micro_batch
        if stage == self.num_stages - 1:
            return self.forward[stage] > micro_batch
        return self.backward[stage + 1] > micro_batch

    def ready(self, device: int, backward: bool) -> list[Work]:
        """Returns the passes that a device could do now, in one direction."""
        return [work for work in self.following(device, backward) if self.is_ready(work)]

    def in_flight(self, stages: Iterable[int]) -> int:
        """Returns the micro batches whose activations the stages keep, one for each stage."""
        return sum(self.forward[stage] - self.backward[stage] for stage in stages) if self._trains else 0

    def finish(self, work: Work) -> None:
        """Notes that a work is done."""
        done = self.backward if work.backward else self.forward
        done[work.stage] += 1


if TYPE_CHECKING:
    Rule = Callable[[Simulation, int], Work | None]  # what a device does now; None: it waits


def simulate(
    num_stages: int, devices: Sequence[int], micro_batches: int, trains: bool, rule: Rule
) -> list[list[Work]]:
    """Returns what each device does, in order, when all follow a rule.

    Raises:
      RuntimeError: for a rule under which all devices wait.
    """
    state = Simulation(num_stages, devices, micro_batches, trains)
    found: list[list[Work]] = [[] for _ in range(max(devices) + 1)]
    left = num_stages * micro_batches * (2 if trains else 1)
    while left:
        chosen = [(device, rule(state, device)) for device in range(len(found))]
        works = [(device, work) for device, work in chosen if work is not None]
        if not works:
            raise RuntimeError(f"{left} works are left, and all devices wait.")
        for device, work in works:
            state.finish(work)
            found[device].append(work)
        left -= len(works)
    return found


def _oldest(works: Sequence[Work]) -> Work | None:
    """Returns the work of the oldest micro batch, of those the one of the last stage; None of none."""
    return min(works, key=lambda work: (work.micro_batch, -work.stage), default=None)


def _gpipe(state: Simulation, device: int) -> Work | None:
    """All forward passes, then all backward passes.

    Source: Huang et al., GPipe, arXiv:1811.06965.
    """
    backward = not state.following(device, False)
    return _oldest(state.ready(device, backward))


def _one_forward_one_backward(state: Simulation, device: int) -> Work | None:
    """Backward passes first; stage s of S keeps at most S - s micro batches.

    Source: Narayanan et al., PipeDream-Flush, arXiv:2006.09503.
    """
    few = [
        work
        for work in state.ready(device, False)
        if state.in_flight([work.stage]) < state.num_stages - work.stage
    ]
    return _oldest(state.ready(device, True)) or _oldest(few)


def _virtual(state: Simulation, device: int) -> Work | None:
    """As few micro batches as keep all devices busy, then one forward and one backward pass in turn; each
    stage of a device takes as many micro batches as there are devices, then its next stage takes them.

    Source: Narayanan et al., interleaved 1F1B of Megatron-LM, arXiv:2104.04473.
    """
    num_devices = max(state.devices) + 1
    rounds = state.num_stages // num_devices
    most = 2 * (num_devices - device - 1) + (rounds - 1) * num_devices + 1
    works = state.following(device, False)
    if state.in_flight(state.stages_of(device)) >= most:
        works = []
    forward = min(works, key=lambda work: _turn(work, num_devices), default=None)
    backward = min(
        state.following(device, True),
        key=lambda work: _turn(work._replace(stage=-work.stage), num_devices),
        default=None,
    )
    for work in (forward, backward):
        if work is not None and state.is_ready(work):
            return work
    return None


def _turn(work: Work, num_devices: int) -> tuple[int, int, int]:
    return (work.micro_batch // num_devices, work.stage, work.micro_batch % num_devices)


RULES: dict[str, Rule] = {"gpipe": _gpipe, "1f1b": _one_forward_one_backward, "virtual": _virtual}

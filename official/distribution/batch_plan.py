"""Batch and step arithmetic of a run, done once; layout of its micro batches over workers. No TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from official.config import batch_stages, first_step, nearest_multiples, steps_per_loop, train_steps
from official.config.backends import BACKENDS
from official.config.table import Config
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Layout
#
# The workers at the start of a run fix its layout: the rows of a micro batch, their dropout masks, and the
# divisor of their gradient. If the run resumes with another number of workers, these share the micro batches
# of the same layout.


_MAX_NAMED = 6  # numbers in a message


def is_kept(config: Config) -> bool:
    """Tells whether a resumed run keeps the layout of its start."""
    traits = BACKENDS[config.distribution_strategy]
    return config.do_train and not traits.spread_replicas and not traits.whole_step


def lay_out(config: Config, workers: int, replicas: int, noted: Layout | None) -> tuple[BatchPlan, Layout]:
    """Returns the batch plan of a run, and its layout.

    Args:
      config: configuration of the run.
      workers: current number of processes.
      replicas: number of replicas of all processes.
      noted: saved layout from the start of the run; None for a new run.

    Raises:
      ConfigError: if a batch cannot be divided, or the replicas cannot share the micro batches evenly.
    """
    check_evaluation(config, replicas)
    count = config.logical_workers or workers
    batches = config.num_accumulation_steps, config.train_batch_size
    new = Layout(count, count * (replicas // workers), *batches)
    # Settings that ask for another layout were changed on purpose: the run resumes with the new layout.
    goes_on = (
        noted is not None
        and (noted.num_accumulation_steps, noted.train_batch_size) == batches
        and config.logical_workers in (None, noted.workers)
    )
    layout = noted if noted and goes_on else new
    keeps = goes_on or config.logical_workers is not None
    if layout.micro_batches % replicas == 0:
        return _plan_of(config, layout, workers, replicas), layout
    if keeps and _smaller_is_the_same(config):
        return _with_smaller_micro_batches(config, layout, replicas), layout
    if keeps and layout.workers == 1 and not BACKENDS[config.distribution_strategy].several_processes:
        return _plan_of(config, new, workers, replicas), new  # other devices of one process
    flag = "model_dir" if goes_on else "logical_workers"
    who = f"{'' if goes_on else 'a run with '}{flag}={config[flag]}"
    raise ConfigError(
        f"{who} is laid out for {layout.describe()}, {layout.micro_batches} together:"
        f" {replicas} replicas cannot share them evenly. Valid numbers of replicas:"
        f" {_divisors(layout.micro_batches, replicas)}. Or give another --num_accumulation_steps, for a new"
        " layout."
    )


def _plan_of(config: Config, layout: Layout, workers: int, replicas: int) -> BatchPlan:
    """Returns the batches of replicas that share the micro batches of a layout evenly."""
    check_training(config, layout.num_replicas)
    is_other = (layout.workers, layout.num_replicas) != (workers, replicas)
    return BatchPlan(
        replicas,
        layout.micro_batches // replicas,
        config.train_batch_size,
        config.eval_batch_size,
        layout=layout if is_other else None,
    )


def _smaller_is_the_same(config: Config) -> bool:
    """Tells whether micro batches of another size give the same sums, up to rounding: nothing is random,
    clipped or divided per micro batch."""
    model = config.model
    is_random = model.hidden_dropout_prob > 0 or model.attention_probs_dropout_prob > 0
    is_global = config.loss_normalization == "global" and config.clip_scope not in ("micro_batch", "replicas")
    return is_global and not is_random


def _with_smaller_micro_batches(config: Config, layout: Layout, replicas: int) -> BatchPlan:
    """Returns the batch plan with micro batches of at most the layout's size."""
    largest = layout.train_batch_size // layout.micro_batches
    rows, left = divmod(config.train_batch_size, replicas)
    if left:
        raise ConfigError(
            f"train_batch_size={config.train_batch_size} is not divisible by {replicas} replicas. Valid"
            f" numbers of replicas: {_divisors(config.train_batch_size, replicas)}."
        )
    accumulation = next(each for each in range(1, rows + 1) if rows % each == 0 and rows // each <= largest)
    return BatchPlan(replicas, accumulation, config.train_batch_size, config.eval_batch_size)


def _divisors(count: int, wanted: int) -> str:
    """Returns the divisors of `count` that are nearest to `wanted`, as text."""
    found = [divisor for divisor in range(1, count + 1) if count % divisor == 0]
    nearest = sorted(sorted(found, key=lambda divisor: abs(divisor - wanted))[:_MAX_NAMED])
    return ", ".join(map(str, nearest))


class Share(NamedTuple):
    """Micro batches of one worker of a layout, `first` to `last` - 1 of its own."""

    worker: int
    first: int
    last: int


def shares(layout: Layout, host: int, num_hosts: int) -> list[Share]:
    """Returns the micro batches of a layout that process `host` computes, in order, if `num_hosts` processes
    share them evenly."""
    of_host, of_worker = layout.micro_batches // num_hosts, layout.micro_batches // layout.workers
    begin, end = host * of_host, (host + 1) * of_host
    return [
        Share(worker, max(begin - worker * of_worker, 0), min(end - worker * of_worker, of_worker))
        for worker in range(begin // of_worker, -(-end // of_worker))
    ]


# -----------------------------------------------------------------------------------------------------------
# Batches and steps


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of a run, decided when it began.

    Attributes:
      workers: processes.
      num_replicas: of all of them.
      num_accumulation_steps: micro batches of a replica.
      train_batch_size: rows of a step.
    """

    workers: int
    num_replicas: int
    num_accumulation_steps: int
    train_batch_size: int

    @property
    def micro_batches(self) -> int:
        """Returns the micro batches of a step, those of worker 0 first."""
        return self.num_replicas * self.num_accumulation_steps

    def describe(self) -> str:
        """Returns the layout in words."""
        return (
            f"{self.workers} worker{'s' * (self.workers > 1)} with {self.num_replicas} replicas x"
            f" {self.num_accumulation_steps} micro batches"
        )


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """Sizes in rows of the input pipeline. train_batch_size = num_replicas x num_accumulation_steps x
    micro_batch_size.

    A row is one sequence, unless sequences are packed; logs and reports count `sequences_per_step`.
    """

    num_replicas: int
    num_accumulation_steps: int
    train_batch_size: int
    eval_batch_size: int
    sequences_per_row: float | None = None  # of packed rows, an expectation; None: one
    layout: Layout | None = None  # saved layout whose micro batches these replicas share; None: their own

    def with_rows_of(self, sequences: float | None) -> BatchPlan:
        """Returns the plan with rows that are expected to hold so many sequences; None: one, not packed."""
        return dataclasses.replace(self, sequences_per_row=sequences)

    @property
    def is_packed(self) -> bool:
        """Tells whether rows hold several sequences: steps then count those of their batches."""
        return self.sequences_per_row is not None

    @property
    def sequences_per_step(self) -> int:
        """Returns the number of sequences per step of all replicas; for packed rows, on average."""
        return round(self.train_batch_size * (self.sequences_per_row or 1.0))

    @property
    def replica_batch_size(self) -> int:
        """Returns the rows of a step of one replica."""
        return self.train_batch_size // self.num_replicas

    @property
    def micro_batch_size(self) -> int:
        """Returns the rows of a micro batch of one replica."""
        return self.replica_batch_size // self.num_accumulation_steps

    @property
    def replica_eval_batch_size(self) -> int:
        """Returns the rows of an evaluation batch of one replica."""
        return self.eval_batch_size // self.num_replicas

    def describe(self) -> str:
        """Returns the product as one line for the log."""
        rows = f"rows, about {self.sequences_per_step} sequences" if self.is_packed else "sequences"
        return (
            f"train_batch_size {self.train_batch_size} = {self.num_replicas}"
            f" replica{'s' * (self.num_replicas > 1)} x {self.num_accumulation_steps} micro"
            f" batch{'es' * (self.num_accumulation_steps > 1)} x {self.micro_batch_size} {rows}"
        )


def make_batch_plan(config: Config, num_replicas: int) -> BatchPlan:
    """Returns the plan. Raises ConfigError where a batch cannot be divided evenly."""
    check_training(config, num_replicas)
    check_evaluation(config, num_replicas)
    return BatchPlan(
        num_replicas, config.num_accumulation_steps, config.train_batch_size, config.eval_batch_size
    )


def plan_at(config: Config, plan: BatchPlan, step: int) -> BatchPlan:
    """Returns the batch plan at a step: with --batch_warmup fewer micro batches, each as large as in
    `plan`."""
    if config.batch_warmup is None:
        return plan
    stages, rows = batch_stages(config), plan.train_batch_size // plan.num_accumulation_steps
    count = stages[max(start for start in stages if start <= step)]
    return dataclasses.replace(plan, num_accumulation_steps=count, train_batch_size=rows * count)


def stages_between(config: Config, plan: BatchPlan, first: int, last: int) -> list[tuple[int, BatchPlan]]:
    """Returns (number of steps, their batches) of the stages of --batch_warmup from step `first` to before
    `last`; one without it."""
    starts = [first, *(step for step in batch_stages(config) if first < step < last), last]
    return [(end - start, plan_at(config, plan, start)) for start, end in zip(starts, starts[1:])]


def check_training(config: Config, num_replicas: int) -> None:
    """Raises ConfigError where a batch of the training cannot be divided evenly."""
    if config.do_train:
        micro_batches = config.num_accumulation_steps
        what = f"replicas x num_accumulation_steps = {num_replicas} x {micro_batches}"
        check_divisible("train_batch_size", config.train_batch_size, num_replicas * micro_batches, what)


def check_evaluation(config: Config, num_replicas: int) -> None:
    """Raises ConfigError where a batch of an evaluation cannot be divided evenly."""
    if config.do_eval or config.do_predict:
        what = f"replicas = {num_replicas}"
        check_divisible("eval_batch_size", config.eval_batch_size, num_replicas, what)


def check_divisible(name: str, value: int, divisor: int, what: str) -> None:
    """Raises ConfigError, with the nearest valid values, if a setting is not a multiple of `divisor`."""
    if value % divisor:
        nearest = nearest_multiples(value, divisor)
        raise ConfigError(f"{name}={value} is not divisible by {what}. Nearest valid: {nearest}.")


def loop_length(step: int, every: int, next_stop: int) -> int:
    """Returns the number of steps of the loop that starts at `step`: to the next multiple of `every`, at most
    to `next_stop`.

    So a run that resumed or evaluated in the middle of a loop is aligned again after one loop.
    """
    return min(every - step % every, next_stop - step)


def eval_is_due(config: Config, step: int, last_step: int) -> bool:
    """Tells whether an evaluation follows `step`: on the cadence, and always at the last step."""
    if not config.do_eval:
        return False
    if step >= last_step:
        return True
    every = config.steps_between_eval
    return bool(step and every and step % every == 0 and step >= config.steps_before_eval_start)


def next_stop(config: Config, step: int, last_step: int) -> int:
    """Returns the first step after `step` that always ends a line of the metrics: the next evaluation, the
    next stage of --batch_warmup, or the last step."""
    evaluation = next_evaluation(config, step, last_step)
    return min([evaluation, *(start for start in batch_stages(config) if start > step)])


def next_evaluation(config: Config, step: int, last_step: int) -> int:
    """Returns the first step after `step` that an evaluation follows, or the last step."""
    if not (config.do_eval and config.steps_between_eval):
        return last_step
    earliest = max(step + 1, config.steps_before_eval_start)
    return min(-(-earliest // config.steps_between_eval) * config.steps_between_eval, last_step)


def evaluation_steps(config: Config) -> list[int]:
    """Returns all steps after which the run would evaluate, if it does not stop at the threshold before."""
    last, step, every = train_steps(config), first_step(config), steps_per_loop(config)
    steps = [step] if step and eval_is_due(config, step, last) else []
    while step < last:
        step += loop_length(step, every, next_stop(config, step, last))
        if eval_is_due(config, step, last):
            steps.append(step)
    return steps

"""The batch and step arithmetic of a run, done once. No TensorFlow."""

from __future__ import annotations

import dataclasses

from official.config import Config, ConfigError, nearest_multiples, steps_per_loop, train_steps


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

    A row is one sequence, unless sequences are packed. What counts for people is `sequences_per_step`.
    """

    num_replicas: int
    num_accumulation_steps: int
    train_batch_size: int
    eval_batch_size: int
    sequences_per_row: float | None = None  # of packed rows, an expectation; None: one
    layout: Layout | None = None  # whose micro batches these replicas compute; None: their own

    def with_rows_of(self, sequences: float | None) -> BatchPlan:
        """Returns the plan with rows that are expected to hold so many sequences; None: one, not packed."""
        return dataclasses.replace(self, sequences_per_row=sequences)

    @property
    def is_packed(self) -> bool:
        """Tells whether rows hold several sequences: steps then count those of their batches."""
        return self.sequences_per_row is not None

    @property
    def sequences_per_step(self) -> int:
        """Returns the sequences that a step of all replicas trains on; of packed rows, on average."""
        return round(self.train_batch_size * (self.sequences_per_row or 1.0))

    @property
    def replica_batch_size(self) -> int:
        """Returns the rows of a step of one replica."""
        return self.train_batch_size // self.num_replicas

    @property
    def micro_batch_size(self) -> int:
        """Returns the rows whose gradient one replica computes at a time."""
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


def check_training(config: Config, num_replicas: int) -> None:
    """Raises ConfigError where a batch of the training cannot be divided evenly."""
    divisor = num_replicas * config.num_accumulation_steps
    if config.do_train and config.train_batch_size % divisor:
        raise ConfigError(
            f"train_batch_size={config.train_batch_size} is not divisible by replicas x"
            f" num_accumulation_steps = {num_replicas} x {config.num_accumulation_steps}. Nearest valid:"
            f" {nearest_multiples(config.train_batch_size, divisor)}."
        )


def check_evaluation(config: Config, num_replicas: int) -> None:
    """Raises ConfigError where a batch of an evaluation cannot be divided evenly."""
    if (config.do_eval or config.do_predict) and config.eval_batch_size % num_replicas:
        raise ConfigError(
            f"eval_batch_size={config.eval_batch_size} is not divisible by replicas = {num_replicas}. "
            f"Nearest valid: {nearest_multiples(config.eval_batch_size, num_replicas)}."
        )


def loop_length(step: int, every: int, next_stop: int) -> int:
    """Returns the steps of the loop that starts at `step`: to the next multiple of `every`, at most to
    `next_stop`.

    A run that was resumed in the middle of a loop, or has evaluated there, is thus aligned again after one
    loop.
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


def next_evaluation(config: Config, step: int, last_step: int) -> int:
    """Returns the first step after `step` that an evaluation follows, or the last step."""
    if not (config.do_eval and config.steps_between_eval):
        return last_step
    earliest = max(step + 1, config.steps_before_eval_start)
    return min(-(-earliest // config.steps_between_eval) * config.steps_between_eval, last_step)


def evaluation_steps(config: Config) -> list[int]:
    """Returns all steps after which the run would evaluate, if it does not stop at the threshold before."""
    last, step, steps = train_steps(config), 0, []
    every = steps_per_loop(config)
    while step < last:
        step += loop_length(step, every, next_evaluation(config, step, last))
        if eval_is_due(config, step, last):
            steps.append(step)
    return steps

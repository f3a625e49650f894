"""Division of a run's work among its workers, such that another number of workers computes the same.

A run is laid out for the workers that it begins with. Which rows share a micro batch, what dropout drops in
it, and what its gradient is divided by follow from that layout. Workers that come back in another number deal
out the micro batches of the same layout among themselves. No TensorFlow.
"""

from __future__ import annotations

import dataclasses

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.distribution import batch_plan
from official.distribution.batch_plan import BatchPlan, Layout

_MOST_NAMED = 6  # numbers in a message


def is_kept(config: Config) -> bool:
    """Tells whether runs of this kind keep the layout that they began with."""
    traits = BACKENDS[config.distribution_strategy]
    return config.do_train and not traits.spread_replicas and not traits.whole_step


def lay_out(config: Config, workers: int, replicas: int, noted: Layout | None) -> tuple[BatchPlan, Layout]:
    """Returns the batches of a run, and the layout that it keeps.

    Args:
      config: of the run.
      workers: processes that compute now.
      replicas: of all of them.
      noted: the layout that the run began with; None of a new run.

    Raises:
      ConfigError: where a batch cannot be divided, or the micro batches cannot be dealt out among so many
        replicas.
    """
    batch_plan.check_evaluation(config, replicas)
    new = _new_layout(config, workers, replicas)
    goes_on = noted is not None and _is_asked_for(noted, config)
    layout = noted if noted and goes_on else new
    keeps = goes_on or config.logical_workers is not None
    if layout.micro_batches % replicas == 0:
        return _plan_of(config, layout, workers, replicas), layout
    if keeps and _smaller_is_the_same(config):
        return _with_smaller_micro_batches(config, layout, replicas), layout
    if keeps and layout.workers == 1 and not BACKENDS[config.distribution_strategy].several_processes:
        return _plan_of(config, new, workers, replicas), new  # other devices of one process
    who = (
        f"model_dir={config.model_dir}" if goes_on else f"a run with logical_workers={config.logical_workers}"
    )
    raise _not_shared(who, layout, replicas)


def _new_layout(config: Config, workers: int, replicas: int) -> Layout:
    count = config.logical_workers or workers
    return Layout(
        count, count * (replicas // workers), config.num_accumulation_steps, config.train_batch_size
    )


def _is_asked_for(noted: Layout, config: Config) -> bool:
    """Tells whether the settings still ask for the layout of a run. Where they do not, somebody has changed
    them, and the run goes on as they say now."""
    return (
        noted.num_accumulation_steps == config.num_accumulation_steps
        and noted.train_batch_size == config.train_batch_size
        and config.logical_workers in (None, noted.workers)
    )


def _plan_of(config: Config, layout: Layout, workers: int, replicas: int) -> BatchPlan:
    """Returns the batches of replicas that share the micro batches of a layout evenly."""
    batch_plan.check_training(config, layout.num_replicas)
    is_other = (layout.workers, layout.num_replicas) != (workers, replicas)
    return BatchPlan(
        replicas,
        layout.micro_batches // replicas,
        config.train_batch_size,
        config.eval_batch_size,
        layout=layout if is_other else None,
    )


def _smaller_is_the_same(config: Config) -> bool:
    """Tells whether micro batches of other rows give the same sums, to rounding: nothing is random, clipped
    or divided in them."""
    model = config.model
    is_random = model.hidden_dropout_prob > 0 or model.attention_probs_dropout_prob > 0
    return (
        not is_random
        and config.loss_normalization == "global"
        and config.clip_scope != "micro_batch"
        and config.lamb_variant != "mpclip"
    )


def _with_smaller_micro_batches(config: Config, layout: Layout, replicas: int) -> BatchPlan:
    """Returns the batches of replicas whose micro batches are not larger than those of the layout."""
    largest = layout.train_batch_size // layout.micro_batches
    rows, left = divmod(config.train_batch_size, replicas)
    if left:
        raise ConfigError(
            f"train_batch_size={config.train_batch_size} is not divisible by {replicas} replicas. Valid"
            f" numbers of replicas: {_divisors(config.train_batch_size, replicas)}."
        )
    accumulation = next(
        count for count in range(1, rows + 1) if rows % count == 0 and rows // count <= largest
    )
    return BatchPlan(replicas, accumulation, config.train_batch_size, config.eval_batch_size)


def _not_shared(who: str, layout: Layout, replicas: int) -> ConfigError:
    """Returns the error of micro batches that cannot be dealt out among so many replicas."""
    return ConfigError(
        f"{who} is laid out for {layout.describe()}, {layout.micro_batches} together:"
        f" {replicas} replicas cannot share them evenly. Valid numbers of replicas:"
        f" {_divisors(layout.micro_batches, replicas)}. Or lay the run out anew, with another"
        " --num_accumulation_steps."
    )


def _divisors(count: int, wanted: int) -> str:
    """Returns the divisors of a number that are nearest to what was wanted, in words."""
    found = [divisor for divisor in range(1, count + 1) if count % divisor == 0]
    nearest = sorted(sorted(found, key=lambda divisor: abs(divisor - wanted))[:_MOST_NAMED])
    return ", ".join(map(str, nearest))


@dataclasses.dataclass(frozen=True)
class Share:
    """Micro batches of one worker of a layout, `first` to `last` - 1 of its own."""

    worker: int
    first: int
    last: int


def shares(layout: Layout, host: int, num_hosts: int) -> list[Share]:
    """Returns the micro batches that a process computes, in order, of a layout whose micro batches so many
    processes share evenly."""
    of_host, of_worker = layout.micro_batches // num_hosts, layout.micro_batches // layout.workers
    begin, end = host * of_host, (host + 1) * of_host
    return [
        Share(worker, max(begin - worker * of_worker, 0), min(end - worker * of_worker, of_worker))
        for worker in range(begin // of_worker, -(-end // of_worker))
    ]

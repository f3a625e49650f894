"""The time of a run's step on a machine that was measured."""

from __future__ import annotations

import tensorflow as tf

from official.config import Config
from official.config.backends import BACKENDS
from official.distribution.batch_plan import BatchPlan
from official.planning import machine as machine_lib
from official.planning import speed
from official.planning.graph_cost import Cost
from official.planning.timeline import OPTIMIZER, alone


def of_run(config: Config, batches: BatchPlan, cost: Cost) -> dict | None:
    """Returns the predicted time of a step, ready for JSON.

    Args:
      config: of the run.
      batches: its batches.
      cost: of a step of one replica, or of a batch of an evaluation where nothing is trained.

    Returns:
      `machine` (its processor and cores), `step_secs`, `sequences_per_sec` and `parts` ({part: seconds}); or
      None where nothing was measured that tells the time of such a run.

    Raises:
      ConfigError: where the file of the machine cannot be read.
    """
    machine = _machine_of(config)
    if machine is None:
        return None
    found = speed.predict_step(
        cost, machine, batches.num_replicas, config.num_virtual_devices or 1, sent_bytes(config, cost)
    )
    sequences = batches.sequences_per_step
    if not config.do_train:
        sequences = round(batches.eval_batch_size * (batches.sequences_per_row or 1.0))
    return {
        "machine": f"{machine.processor.name}, {machine.processor.cores} cores",
        "step_secs": found.secs,
        "sequences_per_sec": sequences / found.secs,
        "parts": found.parts,
    }


def sent_bytes(config: Config, cost: Cost) -> int:
    """Returns the bytes of the gradients that a replica adds to the all-reduce; 0 without training."""
    return cost.parameters * tf.as_dtype(config.allreduce_dtype).size if config.do_train else 0


def of_update(config: Config, cost: Cost) -> float | None:
    """Returns the seconds of the optimizer's update alone; None as `of_run`. Raises ConfigError, too."""
    machine = _machine_of(config)
    if machine is None:
        return None
    return speed.predict(alone(cost.timeline, OPTIMIZER), machine).secs


def is_possible(config: Config) -> bool:
    """Tells whether there is a measured machine of the kind that a run computes on. Raises ConfigError as
    `of_run` does."""
    return _machine_of(config) is not None


def _machine_of(config: Config) -> machine_lib.Machine | None:
    """Returns the machine that was measured; None where that was another kind of devices than those of the
    run, or steps are compiled or spread as wholes, whose operations are not those of the graph."""
    machine = machine_lib.find(config.machine_file)
    traits = BACKENDS[config.distribution_strategy]
    is_whole = config.enable_xla or traits.whole_step or traits.spread_replicas
    if machine is None or is_whole or machine.device != device_of(config):
        return None
    return machine


def device_of(config: Config) -> str:
    """Returns GPU or CPU: what a run of this process's devices computes on."""
    if config.num_virtual_devices or config.num_gpus == 0:
        return "CPU"
    return "GPU" if config.num_gpus or tf.config.list_physical_devices("GPU") else "CPU"

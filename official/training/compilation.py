"""--compile_only: builds and compiles the steps of a run, and trains and writes nothing."""

import tempfile
import time

import tensorflow as tf

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import Config
from official.distribution import strategy as strategy_lib
from official.planning import plan
from official.reporting import environment
from official.training import callbacks, pipelined, starting
from official.training.loop import Loop
from official.training.run_loop import Interruption
from official.training.starting import MakeTask


def run(config: Config, make_task: MakeTask) -> str:
    """Compiles the training and evaluation steps of a run on random records; the training step is undone.

    Args:
      config: the frozen configuration. Its --model_dir is neither needed nor touched.
      make_task: config -> Task.

    Returns:
      A page for people: seconds, memory and the plan.

    Raises:
      ConfigError: for bad input.
    """
    with tempfile.TemporaryDirectory(prefix="compile-only-") as folder:
        own = config_lib.replaced(config, model_dir=folder)
        since = time.monotonic()
        loop, secs = _compiled(own, make_task)
        total = time.monotonic() - since
        memory = _memory_lines(loop.strategy)
        planned = plan.make_plan(_with_known_rows(loop), make_task)
    kinds = " and ".join(loop.compilations())
    return "\n".join(
        [
            f"Compiled the {kinds} step in {secs:.1f} s, {total:.1f} s with data and model",
            *memory,
            "",
            plan.describe(planned),
            "",
            "compiled: nothing was trained or written (--compile_only)",
        ]
    )


def _compiled(config: Config, make_task: MakeTask) -> tuple[Loop, float]:
    """Returns (loop of a run with its steps compiled, seconds of the compilation)."""
    ready = starting.make_ready(config, make_task)
    own, devices, task = ready.config, ready.devices, ready.task
    without_wandb = config_lib.replaced(own, wandb=False)
    with (
        callbacks.listening(without_wandb, devices.is_chief) as observers,
        strategy_lib.noticing_lost_peers(devices.strategy),
    ):
        starting.tell(own, devices)
        state = pipelined.make_state(own, task, devices.strategy)
        starting.tell_built(observers, ready)
        manager = CheckpointManager(own.model_dir, state.variables(), 1, read_only=True)
        loop = Loop(
            own, task, state, devices.strategy, devices.plan, manager, observers, Interruption(), evaluated={}
        )
        since = time.monotonic()
        loop.warm_up()
        return loop, time.monotonic() - since


def _with_known_rows(loop: Loop) -> Config:
    """Returns the configuration for the plan, which reads no data, with the sequences per packed row found in
    the data."""
    return config_lib.replaced(loop.config, average_sequences_per_pack=loop.plan.sequences_per_row)


def _memory_lines(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns lines with the peak memory of each GPU, or of this process without GPUs."""
    names = strategy_lib.device_names(strategy)
    peaks = {
        name: tf.config.experimental.get_memory_info(name)["peak"] for name in names if name.startswith("GPU")
    } or {"this process": environment.peak_memory_bytes()}
    return [f"Memory of {name}: {peak / 1e9:.3f} GB at most" for name, peak in peaks.items()]

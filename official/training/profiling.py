"""Profile of some steps of a run, by TensorFlow's profiler."""

from __future__ import annotations

import collections
import contextlib
import glob
import os
import socket
import tempfile
import time
from collections.abc import Sequence

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from official.config.table import Config
from official.io.files import store_of
from official.io.writing import replace_file
from official.optimization.optimizers import TrainState
from official.reporting import tensorboard
from official.reporting.observer import End, Observer
from official.reporting.profiles import tables
from official.reporting.profiles.trace import Places, Trace, read_space, read_trace, split

# -----------------------------------------------------------------------------------------------------------
# Layers of backward passes
#
# The forward pass of a layer is a call with the layer's name. TensorFlow gives the call of its gradient no
# such name, but that call reads the tensors that the forward pass kept.


def stages_of(functions: set[str], stages: Sequence[str]) -> dict[str, str]:
    """Returns {name of a call without a stage in it: stage of which it reads the most tensors}.

    Args:
      functions: names of functions that Python has called; they and the functions that they call are
        searched. Functions that no longer exist are skipped.
      stages: names of stages.
    """
    known, found = frozenset(stages), {}
    for node in _nodes(functions):
        if node.op.endswith("PartitionedCall") and not split(node.name, known)[0]:
            read = collections.Counter(split(name.split(":")[0], known)[0] for name in node.input)
            del read[""]
            if read:
                found[node.name] = read.most_common(1)[0][0]
    return found


def _nodes(functions: set[str]):
    """Yields the nodes of functions, and of all functions that they call."""
    left, seen = list(functions), set()
    while left:
        name = left.pop()
        definition = _definition(name) if name not in seen else None
        seen.add(name)
        for node in definition.node_def if definition is not None else ():
            yield node
            for attribute in node.attr.values():
                left += [attribute.func.name] if attribute.func.name else []
                left += [each.name for each in attribute.list.func]


def _definition(name: str):
    try:
        return context.context().get_function_def(name)
    except tf.errors.OpError:  # an operation by itself
        return None


# -----------------------------------------------------------------------------------------------------------
# Profile


# What TensorFlow raises where its profiler does not work, or somebody else uses it.
_ERRORS = (tf.errors.OpError, AttributeError, ImportError, OSError, RuntimeError)


class Profile(Observer):
    """Profiles the steps of a window. A window that does not come to its end leaves nothing behind."""

    def __init__(self, config: Config, state: TrainState, window: tuple[int, int], devices: list[str]):
        """Args: config: of the run; state: as it is trained; window: the first and the last step; devices:
        those that it computes on."""
        self._config, self._state, self._window, self._devices = config, state, window, devices
        self._folder: tempfile.TemporaryDirectory | None = None
        self._secs = 0.0

    def on_call(self, step: int) -> None:
        if step == self._window[0]:
            self._start()
        self._secs -= time.perf_counter()

    def on_first_step(self, step: int, secs: float) -> None:
        self.on_steps(step, {})

    def on_steps(self, step: int, values: dict) -> None:
        self._secs += time.perf_counter()
        if self._folder and step == self._window[1]:
            try:
                self._finish()
            except Exception as error:  # pylint: disable=broad-except
                # Whatever is odd about a trace, the training is worth more.
                logging.warning("No profile: %s: %s", type(error).__name__, _first_line(error))
                self._drop()

    def on_end(self, end: End) -> None:
        if self._folder:
            first, last = self._window
            logging.warning(
                "No profile: the run ended at step %d, within the profiled steps %d,%d.",
                end.step,
                first,
                last,
            )
            self._drop()

    def close(self) -> None:
        self._drop()

    def _start(self) -> None:
        self._folder, self._secs = tempfile.TemporaryDirectory(), 0.0
        try:
            # Not the calls of Python: those of the loop are of no interest, and each has a cost.
            options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
            tf.profiler.experimental.start(self._folder.name, options)
        except _ERRORS as error:
            logging.warning("No profile: %s", _first_line(error))
            self._folder.cleanup()
            self._folder = None

    def _drop(self) -> None:
        """Ends a profile that is not whole; nothing is written."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        with contextlib.suppress(*_ERRORS):  # it may have stopped already
            tf.profiler.experimental.stop(save=False)
        folder.cleanup()

    def _finish(self) -> None:
        """Writes the trace and the tables."""
        assert self._folder is not None
        tf.profiler.experimental.stop()
        first, last = self._window
        content = _collected(self._folder.name)
        self._folder.cleanup()
        self._folder = None
        where = os.path.join(tensorboard.FOLDER, "plugins", "profile", f"steps-{first}-{last}")
        name = os.path.join(where, f"{socket.gethostname()}.xplane.pb")
        if self._config.profile_steps:
            store_of(self._config.model_dir).make_folder(os.path.join(self._config.model_dir, where))
            replace_file(os.path.join(self._config.model_dir, name), content)
        space = read_space(content)
        if space is None:
            logging.warning("No tables of the profile: this TensorFlow does not bring its format.")
            return
        self._write_tables(read_trace(space), name)

    def _write_tables(self, trace: Trace, name: str) -> None:
        config, (first, last) = self._config, self._window
        stages = [stage.name for stage in self._state.model.stages()]
        places = Places(trace, stages, stages_of(set(trace.functions.values()), stages))
        head = {"steps": [first, last], "devices": self._devices}
        if config.profile_steps:
            table = tables.add_up(trace, places, last - first)
            told = {"secs_per_step": self._secs / (last - first), "trace": name}
            tables.write_times(config.model_dir, head | told, table)
            logging.info("Profile of steps %d,%d: %s", first, last, os.path.join(config.model_dir, name))
        if config.profile_memory:
            found = tables.memories(trace, places)
            if not found:
                logging.warning("No memory profile: this TensorFlow does not tell what takes memory here.")
                return
            tables.write_memory(config.model_dir, head, found, stage_variables(self._state))
            logging.info(
                "Memory: at most %.2f GB of %s, while %s ran (%s)",
                found[0].peak / 1e9,
                found[0].allocator,
                found[0].running.name,
                tables.MEMORY,
            )


def _collected(folder: str) -> bytes:
    """Returns the content of the profiler's .xplane.pb file. Raises OSError where it has written none."""
    paths = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
    if not paths:
        raise OSError("TensorFlow's profiler has written nothing.")
    with open(paths[0], "rb") as file:
        return file.read()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def stage_variables(state: TrainState) -> dict[str, tuple[int, int]]:
    """Returns {stage: (bytes of its weights, bytes of their optimizer slots)}. Variables that two stages
    share count for the first."""
    of_stage: dict[str, str] = {}
    for stage in state.model.stages():
        for variable in stage.variables:
            of_stage.setdefault(variable.name.split(":")[0], stage.name)
    sizes = {stage.name: (0, 0) for stage in state.model.stages()}
    for name, variable in state.variables().items():
        size = variable.shape.num_elements() * variable.dtype.size
        owner = name if name in of_stage else name.rpartition("/")[0]
        if owner in of_stage:
            weights, slots = sizes[of_stage[owner]]
            own = (weights + size, slots) if owner == name else (weights, slots + size)
            sizes[of_stage[owner]] = own
    return sizes

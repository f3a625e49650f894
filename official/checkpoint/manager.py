"""Saves and resumes a run: atomic writes, the last N checkpoints kept, damaged ones skipped."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from official.checkpoint import DamagedError, bundle_reader, canonical
from official.checkpoint.canonical import compare_names
from official.io import signals
from official.io.errors import ConfigError, describe_names, shortened
from official.io.files import is_remote
from official.io.json_files import read_json
from official.io.writing import replace_file, sync

# -----------------------------------------------------------------------------------------------------------
# Background saving


@dataclasses.dataclass
class SaveTimes:
    """Number and times of the checkpoints of a run.

    Attributes:
      saves: number of checkpoints begun.
      wait_secs: seconds for which the training waited for copies of its state and for the previous
        checkpoint.
      write_secs: seconds of writing, from the first byte to the last one on disk.
    """

    saves: int = 0
    wait_secs: float = 0.0
    write_secs: float = 0.0

    @contextlib.contextmanager
    def adding(self, name: str) -> Iterator[None]:
        """Adds the seconds of its block to an attribute."""
        began = time.monotonic()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.monotonic() - began)


def _run_to_the_end(work: Callable[[], None]) -> None:
    """Runs a function to completion, even if a signal ends the process."""
    over = threading.Event()
    with signals.waited_for(over.wait):
        try:
            work()
        finally:
            over.set()


# -----------------------------------------------------------------------------------------------------------
# Checkpoints of a run


_COMPANION = ".interval.json"  # file of a checkpoint between two lines of the metrics


class CheckpointManager:
    """The checkpoints `ckpt-STEP` in the folder of a run.

    Args:
      model_dir: folder, local or remote.
      variables: {name: variable}, the whole state of the run. Read when saved, assigned when resumed.
      keep: number of newest checkpoints to keep.
      read_only: whether `save` writes nothing, as on processes that are not the chief.
    """

    def __init__(self, model_dir: str, variables: dict[str, tf.Variable], keep: int, read_only: bool = False):
        self.read_only = read_only
        self.times = SaveTimes()
        self._model_dir, self._variables, self._keep = model_dir, variables, keep
        self._pinned: int | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._work: concurrent.futures.Future | None = None  # its error is raised once
        self._newest: int | None = None  # newest step that this process has begun to write
        self._origin: str | None = None  # prefix of another run's checkpoint that this run starts from

    def pin(self, step: int | None) -> None:
        """Keeps the checkpoint of this step permanently, instead of the previously pinned one."""
        self._pinned = step

    def save(self, step: int, companion: str | None = None) -> str:
        """Writes `ckpt-STEP` and returns its prefix. TensorFlow writes under temporary names and renames, the
        index last, so that a checkpoint with an index is complete.

        Args:
          step: step of the state.
          companion: JSON that belongs to the state, written before the index and removed with it.

        Raises:
          ConfigError: if the disk is full or the folder cannot be written to.
        """
        if not self.read_only:
            self.wait()
            with self.times.adding("wait_secs"):
                self._snapshot(step, companion)()
        return self._prefix(step)

    def begin_save(self, step: int, companion: str | None = None) -> None:
        """Saves in a background thread: returns as soon as the state is copied to host memory; then the
        training may change it.

        One checkpoint is written at a time: this waits for the previous one. Args and Raises as in `save`; an
        error while writing is raised by the next method that waits, or by `check`.
        """
        if not self.read_only:
            self.wait()
            with self.times.adding("wait_secs"):
                work = self._snapshot(step, companion)
            # Python waits for this thread before it exits.
            self._thread = self._thread or concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
            self._work = self._thread.submit(_run_to_the_end, work)

    def check(self) -> None:
        """Raises ConfigError if a background checkpoint failed; does not wait."""
        if self._work is not None and self._work.done():
            self.wait()

    def wait(self) -> None:
        """Waits until all checkpoints are on the disk. Raises ConfigError as `save` does."""
        work = self._work
        try:
            with self.times.adding("wait_secs"):
                if work is not None:
                    work.result()
        finally:  # after a signal, the write goes on and must still be waited for
            self._work = work if work is not None and not work.done() else None

    def close(self) -> None:
        """Waits as `wait` does, but logs an error, for a run that another error has ended."""
        try:
            self.wait()
        except ConfigError as error:
            logging.error("%s", error)

    def _snapshot(self, step: int, companion: str | None) -> Callable[[], None]:
        """Returns a function that writes the current state. On the CPU a tensor shares the variable's memory,
        which TensorFlow does not overwrite while the tensor exists: the next update allocates new memory.
        From other devices it is copied."""
        with tf.device("/cpu:0"):
            tensors = {name: tf.identity(variable.read_value()) for name, variable in self._variables.items()}
        self._newest, self.times.saves = step, self.times.saves + 1
        return functools.partial(self._write, step, tensors, companion, self._pinned)

    def _write(
        self, step: int, tensors: dict[str, tf.Tensor], companion: str | None, pinned: int | None
    ) -> None:
        """Writes a checkpoint, then removes those that exceed `keep`, except the pinned one. Raises
        ConfigError."""
        prefix = self._prefix(step)
        beside = prefix + _COMPANION
        try:
            with self.times.adding("write_secs"):
                if companion is not None:
                    replace_file(beside, companion)
                elif tf.io.gfile.exists(beside):  # left by a save that was killed before it wrote the index
                    tf.io.gfile.remove(beside)
                self._write_tensors(prefix, tensors)
                if not is_remote(prefix):  # on disk before older ones are removed
                    for path in self._files(step):
                        sync(path)
                steps = self._listed_steps()
                old = [one for one in steps[: -self._keep] if one != pinned]
                self._write_state([one for one in steps if one not in old])
        except (tf.errors.OpError, OSError) as error:
            reason = str(error).splitlines()[0].rpartition("; ")[2][:100]
            raise ConfigError(
                f"--model_dir={self._model_dir}: ckpt-{step} cannot be written ({reason}). Earlier"
                " checkpoints are complete. Free disk space or fix the folder's permissions, then run the"
                " same command again."
            ) from None
        # The index is removed first, so that an interrupted removal leaves no incomplete checkpoint.
        for path in (path for each in old for path in self._files(each)):
            tf.io.gfile.remove(path)

    def _write_tensors(self, prefix: str, tensors: dict[str, tf.Tensor]) -> None:
        names = sorted(tensors)
        slices, values = [""] * len(names), [tensors[name] for name in names]
        with tf.device("/cpu:0"):
            tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=values)

    def companion(self, step: int) -> dict:
        """Returns the companion of `ckpt-STEP`, or of the checkpoint of another run that this one starts
        from; an empty dict if it is missing or damaged."""
        origin = self._origin or ""
        path = (origin if os.path.basename(origin) == f"ckpt-{step}" else self._prefix(step)) + _COMPANION
        if not tf.io.gfile.exists(path):
            return {}
        try:
            return read_json(path)
        except ConfigError as error:
            logging.warning("%s The first line of the metrics covers fewer steps.", error)
            return {}

    def _prefix(self, step: int) -> str:
        return os.path.join(self._model_dir, f"ckpt-{step}")

    def is_saved(self, step: int) -> bool:
        """Returns whether the newest checkpoint, which may still be in progress, is that of a step."""
        return self._newest == step or self._listed_steps()[-1:] == [step]

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, ascending, after pending writes. Raises ConfigError
        as `save` does."""
        self.wait()
        return self._listed_steps()

    def _listed_steps(self) -> list[int]:
        names = tf.io.gfile.listdir(self._model_dir) if tf.io.gfile.isdir(self._model_dir) else []
        found = (re.match(r"ckpt-(\d+)\.index$", name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def restore(self, step: int) -> str | None:
        """Assigns every variable from `ckpt-STEP`. Returns its prefix, or None if it is missing or damaged.
        Raises ConfigError as `restore_newest`."""
        if step not in self.steps():
            return None
        try:
            return self._assign(self._prefix(step))
        except DamagedError:
            return None

    def restore_other(self, prefix: str) -> str:
        """Assigns every variable from a checkpoint of another run that this one starts from, and returns
        its prefix. Raises ConfigError if it is missing, damaged, or of another model."""
        try:
            self._origin = self._assign(prefix)
        except DamagedError as error:
            raise ConfigError(f"{prefix} cannot be read ({error}).") from None
        return prefix

    def _assign(self, prefix: str) -> str:
        with bundle_reader.open_reader(prefix) as reader:
            expected = {name: tuple(variable.shape) for name, variable in self._variables.items()}
            problems = compare_names(expected, bundle_reader.shapes(reader))
            if problems:
                advice = "Change --model_dir, or go back to the settings in its config.json."
                problem = f"is of another model or optimizer. {describe_names(problems)}. {advice}"
                raise ConfigError(f"{prefix} {problem}", problems)
            values = {name: reader.get_tensor(name) for name in self._variables}
        # A slot may overflow in a healthy run.
        weights = [name for name in values if name.rpartition("/")[2] not in canonical.SLOTS]
        if bad := sorted(name for name in weights if not np.isfinite(values[name]).all()):
            raise ConfigError(
                f"{prefix} holds NaN or infinite numbers in {shortened(bad)}. Remove its files to resume"
                " from the previous checkpoint, or change --model_dir."
            )
        for name, value in values.items():
            self._variables[name].assign(value)
        return prefix

    def restore_newest(self) -> str | None:
        """Assigns every variable from the newest undamaged checkpoint. Returns its prefix, or None if there
        is none.

        Raises:
          ConfigError: if a checkpoint is another model's, its weights are not finite, or all checkpoints are
            damaged.
        """
        steps, damaged = self.steps(), []
        for step in reversed(steps):
            try:
                prefix = self._assign(self._prefix(step))
            except DamagedError as error:
                logging.warning("%s is damaged (%s); trying the previous one.", self._prefix(step), error)
                damaged.append(step)
            else:
                self._set_aside(damaged, steps[: len(steps) - len(damaged)])
                return prefix
        if steps:
            problem = "checkpoints are damaged. Remove them to start again, or change --model_dir."
            raise ConfigError(f"model_dir={self._model_dir}: all {len(steps)} {problem}")
        return None

    def _write_state(self, steps: list[int]) -> None:
        """Writes the file `checkpoint`, which tf.train.latest_checkpoint reads. Its names are relative to the
        folder, so that the folder may be moved.

        TensorFlow's function would write names relative to another folder if the path is relative or remote.
        """
        lines = [f'all_model_checkpoint_paths: "ckpt-{step}"\n' for step in steps]
        newest = f'model_checkpoint_path: "ckpt-{steps[-1]}"\n'
        replace_file(os.path.join(self._model_dir, "checkpoint"), newest + "".join(lines))

    def _set_aside(self, damaged: list[int], whole: list[int]) -> None:
        """Renames damaged checkpoints, so that the newest whole one becomes the newest."""
        if self.read_only or not damaged:
            return
        self._write_state(whole)
        for path in (path for step in damaged for path in self._files(step)):
            aside = os.path.join(self._model_dir, f"damaged-{os.path.basename(path)}")
            tf.io.gfile.rename(path, aside, overwrite=True)

    def _files(self, step: int) -> list[str]:
        """Returns the files of a checkpoint, the index first."""
        names = [name for name in tf.io.gfile.listdir(self._model_dir) if name.startswith(f"ckpt-{step}.")]
        names.sort(key=lambda name: not name.endswith(".index"))
        return [os.path.join(self._model_dir, name) for name in names]

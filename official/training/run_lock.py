"""Folder of a run: its lock, and the earlier run in it. A finished run is a record, which is not changed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import tensorflow as tf
from absl import logging

from official.checkpoint import bundle_reader
from official.checkpoint.manager import CheckpointManager
from official.config import FIELDS, bert_config_from_dict, process_rank, replaced
from official.config.model import OF_TRAINING, contradictions, is_hugging_face
from official.config.setting import IDENTITY, LENGTH, RECIPE
from official.config.table import Config, upgraded
from official.io import vocabulary_files
from official.io import writing as writing_lib
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.io.json_files import read_json_or_empty
from official.io.writing import read_lines
from official.reporting.formats import setting_text
from official.reporting.metrics import OPEN_STEPS, read_metrics
from official.reporting.result import FILE_NAME, read_result

_FIRST_OF_SEVERAL = "run-1"  # folder of --num_runs
_MAX_CHANGES, _MAX_VALUE = 100, 36  # characters in a message, which must fit on one line


# ------------------------------------------------------------------------------------------------------------
# The run in the folder


class PreviousRun:
    """The run in a folder, read before this process writes to it; empty for an empty folder, and for one with
    a model of another program.

    Attributes:
      model_dir: the folder.
      settings: the requested settings, from config.json; empty without a run.
      result: content of result.json with valid fields; empty if the run is not over or was killed, or if the
        file of another program or version is invalid.
      step: step of the newest checkpoint; 0 without one.
      command: the command line that last started or resumed it.
    """

    def __init__(self, model_dir: str):
        self.model_dir, self.result = model_dir, read_result(model_dir)
        # With any content, the file shows that there is a run, and that it is over.
        self._unchecked = read_json_or_empty(os.path.join(model_dir, FILE_NAME))
        settings = read_json_or_empty(os.path.join(model_dir, "config.json"))
        self._is_of_others = is_hugging_face(settings)
        if not isinstance(settings.get("model"), dict):
            settings = self.result.get("config", {})  # with --num_runs, there is no config.json
        self.settings: dict[str, Any] = upgraded(settings)
        self.step = max(CheckpointManager(model_dir, {}, 1).steps(), default=0)
        self.command = _content(os.path.join(model_dir, "command.txt")).decode(errors="replace").strip()

    @functools.cached_property
    def _metrics(self) -> list[dict]:
        return read_metrics(self.model_dir)

    @property
    def is_there(self) -> bool:
        """Whether the folder holds a run."""
        return bool(self.settings or self._unchecked or self.step)

    @property
    def is_over(self) -> bool:
        """Whether the training has ended, so that the run is a record."""
        # Interrupted and failed runs can be resumed.
        over = self._unchecked.get("status") in ("success", "finished", "aborted")
        settings = self._unchecked.get("config")
        return over and bool(not isinstance(settings, dict) or settings.get("do_train", True))

    def _has(self, name: str, config: Config) -> bool:
        """Tells whether the run's value of a setting is equivalent to that of `config`."""
        value = self.settings.get(name, FIELDS[name].default)
        if name == "ipu_options" and value != config[name]:
            with contextlib.suppress(ConfigError):  # options of another version
                return replaced(config, ipu_options=value).ipu == config.ipu
        folder = self.result.get("environment", {}).get("working_directory", "")
        return FIELDS[name].is_same(value, config[name], folder)

    def evaluates_like(self, config: Config) -> bool:
        """Tells whether the earlier evaluations used the same set and settings as `config`."""
        evaluating = [name for name, field in FIELDS.items() if field.changes_evaluation(config)]
        return bool(self.settings) and all(self._has(name, config) for name in evaluating)

    def changes(self, config: Config) -> dict[str, list[str]]:
        """Returns the settings that differ from the run's: {part in the training: ['name old -> new', ...]}.

        Settings unknown to the version that wrote the run are not compared.
        """
        found: dict[str, list[str]] = {IDENTITY: [], RECIPE: [], LENGTH: [], "": []}

        def note(part: str, name: str, old: Any, new: Any) -> None:
            found[part].append(f"{name} {_text(old)} -> {_text(new)}")

        for name, field in FIELDS.items():
            if name in self.settings and not self._has(name, config):
                note(field.part_in_training(config) or "", name, self.settings[name], config[name])
        kept = vocabulary_files.find(self.model_dir)
        if kept and config.vocab_file:  # compared by content, not by path
            if vocabulary_files.read(config.vocab_file).content != vocabulary_files.read(kept).content:
                note(IDENTITY, "vocab_file", kept, config.vocab_file)
            lower, asked = vocabulary_files.read(kept).do_lower_case, config.do_lower_case
            if None not in (lower, asked) and lower != asked:
                note(IDENTITY, "do_lower_case", lower, asked)
        try:
            model = dataclasses.asdict(bert_config_from_dict(self.settings.get("model") or {}, ""))
        except ConfigError:  # none, or of another version
            return found
        for key, new in dataclasses.asdict(config.model).items():
            if model[key] != new:  # a run that goes on may have others that change no weight's place
                note(RECIPE if key in OF_TRAINING else IDENTITY, f"model.{key}", model[key], new)
        return found

    def check(self, config: Config, last_step: int | None = None) -> None:
        """Checks that a training continues this run.

        Args:
          config: the requested configuration.
          last_step: number of its last step; None if not known yet.

        Raises:
          ConfigError: if the settings are of another training run, change the recipe of a finished one, or
            change the recipe when no step is left to train; also if the folder holds a model of transformers,
            whose config.json the run would replace.
        """
        if self._is_of_others:
            problem = "holds a model in Hugging Face's format, whose config.json the run would replace"
            raise ConfigError(f"--model_dir={self.model_dir} {problem}. Give another --model_dir.")
        changes, over = self.changes(config), self.is_over
        self._refuse(changes[IDENTITY] + (changes[RECIPE] if over else []), "does not fit")
        changed = changes[LENGTH] + changes[RECIPE]
        if last_step is None or not changed:
            return
        done = max(self.step, self.result.get("step") or 0) if over else self.step
        if over and self.step < done:
            self._refuse(changed, f"needs the checkpoint of step {done}, which is gone, of")
        score, target = self.result.get("eval_accuracy"), config.stop_threshold
        if over and score is not None and target is not None and score >= target:
            self._refuse(changed, f"is not above the {score:.4f} already reached by")
        if last_step < done or last_step == done and (over or changes[RECIPE]):
            self._refuse(changed, f"ends at step {last_step} and leaves nothing to train in")

    def check_weights(self, config: Config) -> None:
        """Raises ConfigError if an evaluation sets --init_checkpoint, and the run has other weights, which
        would be evaluated instead."""
        given, has_weights = config.init_checkpoint, self.step and self.settings
        if given and has_weights and not self._has("init_checkpoint", config):
            raise ConfigError(
                f"init_checkpoint={given} would not be read: the run in"
                f" --model_dir={self.model_dir} has its own weights, of step {self.step}. Drop"
                " --init_checkpoint, or give another --model_dir."
            )

    def _refuse(self, changes: list[str], problem: str) -> None:
        """Raises a ConfigError that names all changed settings, if any, with as many values as fit on the
        line."""
        if not changes:
            return
        state = self._unchecked.get("status") if self.is_over else "not over"
        more = "more steps (--num_train_epochs, --stop_steps), " if self.is_over else ""
        text, names = ", ".join(changes), [change.partition(" ")[0] for change in changes]
        if len(text) > _MAX_CHANGES:
            text = ", ".join(names if len(changes[0]) > _MAX_CHANGES else [changes[0], *names[1:]])
        raise ConfigError(
            f"{text} {problem} the run in --model_dir={self.model_dir}, {state} at step {self.step}. Allowed:"
            f" {more}--do_train=false, another --model_dir, or --overwrite."
        )

    def log_changes(self, asked: Config) -> None:
        """Logs the settings changed since the run was started: a warning for those that affect the
        weights."""
        changes = self.changes(asked)
        if trained := changes[IDENTITY] + changes[RECIPE] + changes[LENGTH]:
            logging.warning("Changed since this run was started: %s", ", ".join(trained))
        if changes[""]:
            logging.info("Also changed, without effect on the weights: %s", ", ".join(changes[""]))

    def check_model(self, config: Config) -> None:
        """Raises ConfigError if the saved model has the same weights but computes differently: other heads,
        activation, epsilon, or other settings of its family that shapes do not show."""
        saved = self.settings.get("model")
        other = contradictions(config.model, saved, is_own_run=True) if isinstance(saved, dict) else []
        if other:
            raise ConfigError(
                f"the run in --model_dir={config.model_dir} {'; it '.join(other)}. Give the config.json there"
                " as --config in place of --bert_config_file, or change --model_dir."
            )

    def evaluations(self, last_step: int) -> dict[int, dict]:
        """Returns {step: values} of the earlier evaluations up to `last_step`."""
        lines = (line for line in self._metrics if line["split"] == "eval")
        return {line["step"]: line for line in lines if line["step"] <= last_step}

    def skipped_steps(self, last_step: int) -> int:
        """Returns the number of updates up to `last_step` that loss scaling skipped, in complete intervals:
        an interrupted interval keeps its own count when it is resumed."""
        lines = (line for line in self._metrics if line["split"] == "train" and OPEN_STEPS not in line)
        return sum(line.get("skipped_steps") or 0 for line in lines if line["step"] <= last_step)

    def baseline(self) -> tuple[str, float] | None:
        """Returns the constant prediction and its score (the baseline) from the result; None without them."""
        prediction, score = (self.result.get(f"majority_{name}") for name in ("prediction", "accuracy"))
        return None if prediction is None or score is None else (prediction, score)


def _content(path: str) -> bytes:
    """Returns the content of a file; empty if it cannot be read, which the first write to the folder
    reports."""
    try:
        return b"".join(read_lines(path))
    except OSError:
        return b""


def _text(value: Any) -> str:
    """Returns a value as text for messages; a long one is shortened to its end."""
    text = setting_text(value)
    return text if len(text) <= _MAX_VALUE else f"...{text[3 - _MAX_VALUE :]}"


@contextlib.contextmanager
def set_aside(config: Config, command: list[str]) -> Iterator[Config]:
    """With --overwrite, renames a folder that holds a run to the next free name of MODEL_DIR.1, MODEL_DIR.2,
    ... If the block fails before it makes a new folder, the old one gets its name back.

    An unfinished run of exactly the same command line is resumed instead: programs that restart a command
    after a loss would otherwise start from scratch each time.

    Yields:
      the configuration, without the flag.

    Raises:
      ConfigError: if the folder is in use or remote, or contains inputs of the new run.
    """
    renamed = _rename(config, command) if config.overwrite and process_rank.rank(config) == 0 else None
    try:
        yield replaced(config, overwrite=False)
    except BaseException:
        if renamed and not os.path.lexists(config.model_dir):
            os.rename(renamed, os.path.normpath(config.model_dir))
            logging.info("%s was renamed back", config.model_dir)
        raise


def _rename(config: Config, command: list[str]) -> str | None:
    """Renames the folder of a run and returns its new path; None if it is not renamed."""
    folder = os.path.normpath(config.model_dir)
    run, first = PreviousRun(config.model_dir), PreviousRun(os.path.join(folder, _FIRST_OF_SEVERAL))
    if not (run.is_there or first.is_there):
        return None
    if is_remote(config.model_dir):
        raise ConfigError(
            f"--overwrite renames a folder of this machine, --model_dir={config.model_dir} is remote. Give"
            " another --model_dir."
        )
    if not run.is_over and shlex.join(command) == (run.command or first.command):
        logging.info("This command started the unfinished run in %s and resumes it", config.model_dir)
        return None
    named = (name for name, field in FIELDS.items() if field.files and config[name])
    given = {name: config[name].split(",") for name in named if name != "bert_config_file"}  # read by now
    return rename(config.model_dir, ((name, path.strip()) for name in given for path in given[name]))


def rename(model_dir: str, read: Iterable[tuple[str, str]]) -> str:
    """Renames the folder of a run to MODEL_DIR.1, MODEL_DIR.2, ... and returns its new path. Raises
    ConfigError if it is in use, or contains one of the files `read`, (name of the flag, path)."""
    folder = os.path.normpath(model_dir)
    top = os.path.realpath(folder)
    for name, path in read:
        if os.path.commonpath([top, os.path.realpath(path)]) == top:
            raise ConfigError(
                f"{name}={path} is in --model_dir={model_dir}, which --overwrite renames. Give another"
                f" --model_dir, or a copy as --{name}."
            )
    with writing(model_dir):
        names = (f"{folder}.{number}" for number in itertools.count(1))
        renamed = next(name for name in names if not os.path.lexists(name))
        os.rename(folder, renamed)
    logging.info("The run in %s was moved to %s", model_dir, renamed)
    return renamed


# ------------------------------------------------------------------------------------------------------------
# Its lock


@contextlib.contextmanager
def writing(model_dir: str, writes: bool = True) -> Iterator[Callable[[], None]]:
    """Makes the folder and, in the process that `writes`, holds its lock, so that no second run writes to it.
    A full disk or a missing permission becomes a ConfigError. Remote folders have no lock.

    Yields a function that raises ConfigError if the folder was removed or moved, so that another run may use
    its name.
    """
    if not writes:
        yield lambda: None
        return
    bundle_reader.check_path(model_dir, f"--model_dir={model_dir}")
    try:
        tf.io.gfile.makedirs(model_dir)
    except tf.errors.OpError as error:
        raise ConfigError(f"--model_dir={model_dir} cannot be made: {error.message}.") from None
    try:
        with contextlib.ExitStack() as stack:
            check: Callable[[], None] = lambda: None
            if not is_remote(model_dir):
                try:
                    file = stack.enter_context(writing_lib.locked(os.path.join(model_dir, ".lock")))
                except BlockingIOError:
                    raise ConfigError(
                        f"--model_dir={model_dir} is in use by another run. Wait for it, or choose another"
                        " folder."
                    ) from None
                check = functools.partial(_check_owned, model_dir, file)
            yield check
    except OSError as error:
        raise ConfigError(
            f"--model_dir={model_dir} cannot be written to: {error.strerror or error}."
        ) from None
    except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
        if error.node_def is not None:  # an operation of the model: memory, not the disk
            raise
        raise ConfigError(f"--model_dir={model_dir} cannot be written to: {error.message}.") from None


def _check_owned(model_dir: str, file: IO[bytes]) -> None:
    """Raises ConfigError if the lock file is no longer the one in the folder."""
    try:
        found = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except OSError as error:  # a file system that does not answer says nothing about the folder
        found = not isinstance(error, (FileNotFoundError, NotADirectoryError))
    if not found:
        raise ConfigError(
            f"--model_dir={model_dir}, or its .lock, was removed or moved while this run wrote to it."
            " The run has stopped; the same command resumes from the folder, or starts again without it."
        )

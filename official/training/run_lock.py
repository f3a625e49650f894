"""Folder of a run: its lock, and the run that it holds, which is a record once it is over."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorflow as tf
from absl import logging

from official.checkpoint import bundle_reader
from official.checkpoint.manager import CheckpointManager
from official.config import FIELDS, bert_config_from_dict, process_rank, replaced
from official.config.setting import IDENTITY, LENGTH, RECIPE
from official.config.table import Config, upgraded
from official.io import model_folder, vocabulary_files
from official.io import writing as writing_lib
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.io.json_files import read_json_or_empty
from official.io.writing import read_lines

# Keys of a model that change no weight's place: a run that goes on may have others.
_MODEL_RECIPE = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
_FIRST_OF_SEVERAL = "run-1"  # folder of --num_runs
_MAX_CHANGES, _MAX_VALUE = 100, 36  # characters of a message, which has to fit into a line


# ------------------------------------------------------------------------------------------------------------
# The run in the folder


@dataclasses.dataclass(frozen=True)
class Record:
    """The run in a folder.

    Attributes:
      model_dir: the folder.
      settings: the settings asked for, from config.json; empty without a run.
      result: content of result.json; empty while the run is not over, and where it was killed.
      step: step of the newest checkpoint; 0 without one.
      command: the command line that last started or resumed it.
    """

    model_dir: str
    settings: dict[str, Any]
    result: dict[str, Any]
    step: int
    command: str

    @property
    def is_there(self) -> bool:
        """Whether the folder holds a run at all."""
        return bool(self.settings or self.result or self.step)

    @property
    def is_over(self) -> bool:
        """Whether the training has ended: from then on the run is a record."""
        settings = self.result.get("config")
        trained = not isinstance(settings, dict) or settings.get("do_train", True)
        # Runs that were interrupted or have failed go on.
        return self.result.get("status") in ("success", "finished", "aborted") and bool(trained)

    def has(self, name: str, value: Any) -> bool:
        """Tells whether the run's value of a setting means the same as `value`."""
        environment, field = self.result.get("environment"), FIELDS[name]
        folder = environment.get("working_directory", "") if isinstance(environment, dict) else ""
        return field.is_same(self.settings.get(name, field.default), value, folder)

    def changes(self, config: Config) -> dict[str, list[str]]:
        """Returns the settings that differ from the run's: {part in the training: ['name old -> new', ...]}.

        Settings unknown to the version that wrote the run are not compared.
        """
        found: dict[str, list[str]] = {IDENTITY: [], RECIPE: [], LENGTH: [], "": []}
        for name, field in FIELDS.items():
            if name in self.settings and not self.has(name, config[name]):
                text = f"{name} {_text(self.settings[name])} -> {_text(config[name])}"
                found[field.part_in_training(config) or ""].append(text)
        kept = os.path.join(self.model_dir, vocabulary_files.VOCABULARY)
        content = _content(kept)
        if content and config.vocab_file:  # compared by content, not by path
            if vocabulary_files.read(config.vocab_file).content != content:
                found[IDENTITY].append(f"vocab_file {_text(kept)} -> {_text(config.vocab_file)}")
            lower, asked = model_folder.tokenizer_settings(kept).do_lower_case, config.do_lower_case
            if None not in (lower, asked) and lower != asked:
                found[IDENTITY].append(f"do_lower_case {_text(lower)} -> {_text(asked)}")
        try:
            old = dataclasses.asdict(bert_config_from_dict(self.settings.get("model") or {}, ""))
        except ConfigError:  # it has none, or one of another version
            return found
        for key, new in dataclasses.asdict(config.model).items():
            if old[key] != new:
                text = f"model.{key} {_text(old[key])} -> {_text(new)}"
                found[RECIPE if key in _MODEL_RECIPE else IDENTITY].append(text)
        return found

    def check(self, config: Config) -> None:
        """Raises ConfigError where the settings belong to another training, or change the recipe of one that
        is over."""
        changes = self.changes(config)
        refused = changes[IDENTITY] + (changes[RECIPE] if self.is_over else [])
        if refused:
            self._refuse(refused, "does not fit")

    def check_steps(self, config: Config, last_step: int) -> None:
        """Raises ConfigError where settings that the weights depend on have changed, and no step is left to
        train with them.

        Args:
          config: the configuration asked for.
          last_step: number of its last step.
        """
        changes = self.changes(config)
        length, others = changes[LENGTH], changes[RECIPE]
        if not (length or others):
            return
        done = max(self.step, self.result.get("step") or 0) if self.is_over else self.step
        changed = length + others
        if self.is_over and self.step < done:
            self._refuse(changed, f"needs the checkpoint of step {done}, which is gone, of")
        score, target = self.result.get("eval_accuracy"), config.stop_threshold
        if self.is_over and score is not None and target is not None and score >= target:
            self._refuse(changed, f"is no more than the {score:.4f} that is reached by")
        if last_step < done or last_step == done and (self.is_over or others):
            self._refuse(changed, f"ends at step {last_step} and leaves nothing to train in")

    def _refuse(self, changes: list[str], problem: str) -> NoReturn:
        """Raises a ConfigError that names all changed settings, with as many values as fit into the line."""
        state = self.result.get("status") if self.is_over else "not over"
        more = "more steps (--num_train_epochs, --stop_steps), " if self.is_over else ""
        text, names = ", ".join(changes), [change.partition(" ")[0] for change in changes]
        if len(text) > _MAX_CHANGES:
            text = ", ".join(names if len(changes[0]) > _MAX_CHANGES else [changes[0], *names[1:]])
        raise ConfigError(
            f"{text} {problem} the run in --model_dir={self.model_dir}, {state} at step {self.step}. Allowed:"
            f" {more}--do_train=false, another --model_dir, or --overwrite."
        )


def read_record(model_dir: str) -> Record:
    """Returns the run in a folder; an empty record for an empty folder, and for one with a model of another
    program."""
    settings: Any = read_json_or_empty(os.path.join(model_dir, "config.json"))
    result = read_json_or_empty(os.path.join(model_dir, "result.json"))
    if not isinstance(settings.get("model"), dict):
        settings = result.get("config")  # of several runs together, which have no config.json
    steps = CheckpointManager(model_dir, {}, 1).steps()
    command = _content(os.path.join(model_dir, "command.txt")).decode(errors="replace").strip()
    settings = upgraded(settings) if isinstance(settings, dict) else {}
    return Record(model_dir, settings, result, steps[-1] if steps else 0, command)


def _content(path: str) -> bytes:
    """Returns the content of a file; empty where it cannot be read, which the first write to the folder
    reports."""
    try:
        return b"".join(read_lines(path))
    except OSError:
        return b""


def _text(value: Any) -> str:
    """Returns a value as text for messages; a long one is shortened to its end."""
    if isinstance(value, bool):
        return str(value).lower()
    text = "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_VALUE else f"...{text[3 - _MAX_VALUE :]}"


@contextlib.contextmanager
def set_aside(config: Config, command: list[str]) -> Iterator[Config]:
    """With --overwrite, renames a folder that holds a run to the next free name of MODEL_DIR.1, MODEL_DIR.2,
    ... Where the block fails before it has made a new folder, the old one gets its name back.

    An unfinished run that this very command line has begun is resumed instead: programs that restart a
    command after a loss would otherwise begin anew each time.

    Yields:
      the configuration, without the flag.

    Raises:
      ConfigError: where the folder is in use or remote, or holds what the new run reads.
    """
    renamed = _rename(config, command) if config.overwrite and process_rank.rank(config) == 0 else None
    try:
        yield replaced(config, overwrite=False)
    except BaseException:
        if renamed and not os.path.lexists(config.model_dir):
            os.rename(renamed, os.path.normpath(config.model_dir))
            logging.info("%s has its name back", config.model_dir)
        raise


def _rename(config: Config, command: list[str]) -> str | None:
    """Renames the folder of a run and returns its new path; None where it is not renamed."""
    folder = os.path.normpath(config.model_dir)
    record, first = read_record(config.model_dir), read_record(os.path.join(folder, _FIRST_OF_SEVERAL))
    if not (record.is_there or first.is_there):
        return None
    if is_remote(config.model_dir):
        raise ConfigError(
            f"--overwrite renames a folder of this machine, --model_dir={config.model_dir} is remote. Give"
            " another --model_dir."
        )
    if not record.is_over and shlex.join(command) == (record.command or first.command):
        logging.info("This command has begun the run in %s, which is not over: it goes on", config.model_dir)
        return None
    top = os.path.realpath(folder)
    for name, field in FIELDS.items():
        if field.files and name != "bert_config_file" and config[name]:  # which has been read
            for path in map(str.strip, config[name].split(",")):
                if os.path.commonpath([top, os.path.realpath(path)]) == top:
                    raise ConfigError(
                        f"{name}={path} lies in --model_dir={config.model_dir}, which --overwrite renames."
                        f" Give another --model_dir, or a copy as --{name}."
                    )
    with locked(config.model_dir):
        number = 1
        while os.path.lexists(f"{folder}.{number}"):
            number += 1
        try:
            os.rename(folder, f"{folder}.{number}")
        except OSError as error:
            raise ConfigError(
                f"--overwrite cannot rename --model_dir={config.model_dir}: {error.strerror}."
            ) from None
    logging.info("The run that was in %s is in %s.%d now", config.model_dir, folder, number)
    return f"{folder}.{number}"


# ------------------------------------------------------------------------------------------------------------
# Its lock


@contextlib.contextmanager
def writing(model_dir: str, writes: bool) -> Iterator[Callable[[], None]]:
    """Locks the folder, in the process that writes to it, and turns a full disk or a missing permission into
    a ConfigError. Yields the check of `locked`."""
    if not writes:
        yield lambda: None
        return
    with locked(model_dir) as check:
        try:
            yield check
        except OSError as error:
            raise _unwritable(model_dir, error) from None
        except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
            if error.node_def is not None:  # an operation of the model: memory, not the disk
                raise
            raise ConfigError(f"--model_dir={model_dir} cannot be written to: {error.message}.") from None


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[Callable[[], None]]:
    """Makes the folder and holds its lock, so that no second run writes to it. Remote folders have no lock.

    Yields a function that raises ConfigError once the folder was removed or moved, and another run may write
    to its name.
    """
    bundle_reader.check_path(model_dir, f"--model_dir={model_dir}")
    try:
        tf.io.gfile.makedirs(model_dir)
    except tf.errors.OpError as error:
        raise ConfigError(f"--model_dir={model_dir} cannot be made: {error.message}.") from None
    if is_remote(model_dir):
        yield lambda: None
        return
    stack = contextlib.ExitStack()
    try:
        file = stack.enter_context(writing_lib.locked(os.path.join(model_dir, ".lock")))
    except BlockingIOError:
        raise ConfigError(
            f"--model_dir={model_dir} is in use by another run. Wait for it, or choose another folder."
        ) from None
    except OSError as error:
        raise _unwritable(model_dir, error) from None

    def check() -> None:
        try:
            found = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
        except OSError as error:  # a file system that does not answer says nothing about the folder
            found = not isinstance(error, (FileNotFoundError, NotADirectoryError))
        if not found:
            raise ConfigError(
                f"--model_dir={model_dir} was removed or moved while this run wrote to it, or its .lock was."
                " The run has stopped; the same command begins anew, or goes on from what is there."
            )

    with stack:
        yield check


def _unwritable(model_dir: str, error: OSError) -> ConfigError:
    return ConfigError(f"--model_dir={model_dir} cannot be written to: {error.strerror or error}.")

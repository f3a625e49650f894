"""Resuming a run: reads and checks the files of its folder.

These are `result.json`, `config.json`, `metrics.jsonl` and `command.txt` of the earlier processes
(`run_lock.PreviousRun`), the newest checkpoint with the loop's file next to it, the assets that give the
weights their meaning, `layout.json`, and `data_files.json`. Other modules read the counts of records
(`data.records.files`), SQuAD's features (`data.rows.text_rows`), and the files of callbacks: `mllog.txt` and
`wandb_id.txt`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import FIELDS
from official.config.setting import IDENTITY, LENGTH, RECIPE
from official.config.table import Config
from official.distribution.batch_plan import Layout
from official.io import files, json_files
from official.io.errors import ConfigError
from official.io.json_files import parse_json
from official.io.writing import put_file, read_lines, replace_file
from official.optimization.train_state import TrainState
from official.reporting import result as result_lib
from official.reporting.result import TrainResult
from official.training.run_lock import PreviousRun
from official.training.task import Task, is_scored

# -----------------------------------------------------------------------------------------------------------
# Start


def left_to_do(config: Config) -> tuple[Config, TrainResult | None]:
    """Determines the remaining work of the run in the folder, before the model is built.

    Returns:
      (configuration of the remaining work, for a finished run perhaps an evaluation without training; result
      of the finished run if no work remains, else None).

    Raises:
      ConfigError: if the folder holds another run, or a finished one with another recipe; for an evaluation,
        if the run has other weights than those of --init_checkpoint.
    """
    previous = PreviousRun(config.model_dir)
    if not config.do_train:
        previous.check_weights(config)
        return config, None
    previous.check(config)
    if config.decay_checkpoint and not previous.step:
        check_decay(config)
    result = previous.result
    if not (previous.is_over and result) or previous.changes(config)[LENGTH]:
        return config, None
    changed = changed_files(config.model_dir)
    if "train" in changed:
        warning = "The run in %s is over, but its training data have changed: %s. --overwrite trains again."
        logging.warning(warning, config.model_dir, changed["train"])
    same = previous.evaluates_like(config) and not changed.keys() - {"train"}
    evaluate = config.do_eval and not (same and result.get("eval_accuracy") is not None)
    predict = config.do_predict and not (same and result.get("predictions"))
    if evaluate or predict:
        logging.info("The run in %s is over: evaluating its weights without training", config.model_dir)
        return config_lib.replaced(config, do_train=False), None
    reason = f"{result['reason']}. The run is over, and nothing in its folder was changed"
    # A saved signal belongs to the earlier process.
    return config, result_lib.from_dict({**result, "reason": reason, "signal": None})


def begin(
    asked: Config,
    config: Config,
    command: list[str],
    manager: CheckpointManager,
    state: TrainState,
    previous: PreviousRun,
    task: Task,
    initialize: Callable[[str], list[str]],
) -> tuple[dict[str, Any], bool]:
    """Restores the state, and then writes the settings and assets of a run to its folder; arguments as in
    `restore` and `write_settings`.

    Returns:
      Fields of the result: `weights`, path of the restored checkpoint; `fresh_variables`, names of the head's
      fresh variables; `data_changed`, whether the data differ from those at the start of the run. And whether
      the evaluation data are unchanged; only the writing process compares them.
    """
    # Before writing to the folder, whose run may have another vocabulary or other data.
    missing = missing_assets(config.model_dir, task.companions)
    weights, fresh = restore(config, manager, state, previous, task, initialize)
    if state.step and config.do_train:
        previous.log_changes(asked)
    if weights == config.decay_checkpoint:
        refuse_other_data(weights, task.data_files())
    data_changed, evaluates_same = False, True
    if not manager.read_only:
        goes_on = config.do_train and state.step > 0
        data_changed, evaluates_same = compare_data(config, task.data_files(), goes_on)
        write_settings(asked, command)
        for name, content in missing.items():
            put_file(os.path.join(config.model_dir, name), content)
    facts = {"weights": weights, "fresh_variables": fresh, "data_changed": data_changed}
    return facts, evaluates_same


def restore(
    config: Config,
    manager: CheckpointManager,
    state: TrainState,
    previous: PreviousRun,
    task: Task,
    initialize: Callable[[str], list[str]],
) -> tuple[str, list[str]]:
    """Sets the state: own newest (without training: best) checkpoint > decay_checkpoint > init_checkpoint >
    fresh.

    Args:
      config, manager, state, task: of the run.
      previous: result, metrics and settings of earlier processes.
      initialize: path -> names; sets the model's variables from a checkpoint, and returns the names of those
        that the checkpoint lacks.

    Returns:
      (path of the restored checkpoint, empty without one; names of the head's fresh variables).

    Raises:
      ConfigError: if there are no weights to evaluate, or a checkpoint is of another model.
    """
    best = previous.result.get("best_step") if is_scored(task) and not config.do_train else None
    prefix = best is not None and manager.restore(best) or manager.restore_newest()
    if not prefix and config.decay_checkpoint and config.do_train:
        prefix = manager.restore_other(config.decay_checkpoint)
        if state.step != config_lib.first_step(config):
            raise ConfigError(f"{prefix} is of step {state.step}. Rename it to ckpt-{state.step}.")
    if prefix:
        previous.check_model(config)
        if state.loss_scale:
            state.loss_scale.go_on(state.step)
        logging.info("Resuming from %s: step %d, %d sequences", prefix, state.step, state.samples_done)
        return prefix, previous.result.get("fresh_variables", [])
    if config.init_checkpoint:
        fresh = initialize(config.init_checkpoint)
        if fresh and is_scored(task) and not config.do_train:
            raise ConfigError(
                f"--init_checkpoint={config.init_checkpoint} has no {', '.join(fresh)}: it was not"
                " fine-tuned for this task. Give a fine-tuned checkpoint, or --do_train."
            )
        return config.init_checkpoint, fresh
    only_timed = config.predict_epochs and config.generated_data
    if not config.do_train and not only_timed:
        raise ConfigError(
            f"do_train=false, but --model_dir={config.model_dir} has no checkpoint to evaluate. Change"
            " --model_dir, or give --init_checkpoint."
        )
    end = "; their predictions for generated data are meaningless" if only_timed else ""
    logging.info("Fresh weights from seed %d%s", config.seed, end)
    return "", []


# -----------------------------------------------------------------------------------------------------------
# Decay that starts from a checkpoint in another run's stable phase


# Settings of the length of a run, and of its decay.
_OF_DECAY = """num_steps_per_epoch num_train_epochs stop_steps stop_threshold warmup_proportion decay_steps
    decay_proportion decay_checkpoint end_learning_rate""".split()


def check_decay(config: Config) -> None:
    """Checks that --decay_checkpoint is in the stable phase of a run with the same settings.

    Raises:
      ConfigError: names the settings that differ, or the step at which the decay of that run begins.
    """
    path, step = str(config.decay_checkpoint), config_lib.first_step(config)
    source = PreviousRun(os.path.dirname(path))
    if step not in CheckpointManager(source.model_dir, {}, 1).steps() or not source.settings:
        raise ConfigError(f"decay_checkpoint={path} is not a checkpoint in the folder of a run.")
    changes = source.changes(config)
    is_wsd = source.settings.get("lr_schedule", "").startswith("wsd")
    free = {*_OF_DECAY, *(["lr_schedule"] if is_wsd else [])}
    differ = [each for each in changes[IDENTITY] + changes[RECIPE] if each.partition(" ")[0] not in free]
    if differ:
        raise ConfigError(
            f"decay_checkpoint={path} is of a run with other settings: {', '.join(differ)[:300]}. Give those"
            " of that run."
        )
    own = {name: source.settings.get(name, FIELDS[name].default) for name in (*_OF_DECAY, "lr_schedule")}
    theirs = config_lib.replaced(config, **own)
    if not config_lib.knows_steps(theirs):
        raise ConfigError(
            f"decay_checkpoint={path} is of a run with num_steps_per_epoch=0, so the step at which its decay"
            " begins is unknown. Give a checkpoint of a run with a number of steps."
        )
    end = config_lib.schedule_steps(theirs) - config_lib.decay_length(theirs)
    if step > end:
        raise ConfigError(
            f"decay_checkpoint={path} is in the decay of its run, which begins at step {end}. Give an"
            " earlier checkpoint."
        )


def refuse_other_data(checkpoint: str, data_files: Mapping[str, list[str]]) -> None:
    """Raises ConfigError if the training files, of {split: paths}, are not those of a checkpoint's run."""
    noted, _ = _read_notes(os.path.dirname(checkpoint))
    difference = (
        _difference(_describe_files(data_files["train"]), noted["train"]) if "train" in noted else None
    )
    if difference:
        raise ConfigError(f"decay_checkpoint={checkpoint} is of a run with other data; {difference}.")


def folder_of_state(config: Config) -> str:
    """Returns the folder of the checkpoint from which a run resumes: its own, or before its first checkpoint
    that of --decay_checkpoint."""
    is_new = config.decay_checkpoint and not CheckpointManager(config.model_dir, {}, 1).steps()
    return os.path.dirname(str(config.decay_checkpoint)) if is_new else config.model_dir


# -----------------------------------------------------------------------------------------------------------
# Assets of a run


_FLAGS = {
    "vocab.txt": "vocab_file",
    "tokenizer_config.json": "do_lower_case",
    "labels.json": "glue_task",
    "modules.json": "init_checkpoint",
    "1_Pooling/config.json": "pooling",
    "sentence_bert_config.json": "max_seq_length",
    "config_sentence_transformers.json": "query_prompt, or --passage_prompt,",
}


def missing_assets(model_dir: str, wanted: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the entries of {name: content} that a run's folder lacks.

    Raises:
      ConfigError: if a file exists with other content (JSON: in a common key): the weights there belong to
        another vocabulary, or other labels.
    """
    missing = {}
    for name, content in wanted.items():
        found = b"".join(read_lines(os.path.join(model_dir, name)))
        same = found == content
        if found and name.endswith(".json"):  # other versions may write other keys
            old, new = (parse_json(each, name, (dict, list)) for each in (found, content))
            if isinstance(old, dict) and isinstance(new, dict):
                same = all(old[key] == new[key] for key in old.keys() & new.keys())
            else:
                same = old == new
        if not found:
            missing[name] = content
        elif not same:
            flag = _FLAGS[name]
            raise ConfigError(
                f"--{flag} is not that of the run in --model_dir={model_dir}, which keeps its own in {name}."
                f" Change --{flag}, or give another --model_dir; if the folder has no run, remove {name}."
            )
    return missing


def write_settings(config: Config, command: list[str]) -> None:
    """Writes the requested settings and the command line. An evaluation does not change the settings of the
    run."""
    path = os.path.join(config.model_dir, "config.json")
    if config.do_train or not tf.io.gfile.exists(path):
        replace_file(path, config_lib.to_json(config))
        replace_file(os.path.join(config.model_dir, "command.txt"), shlex.join(command) + "\n")


# -----------------------------------------------------------------------------------------------------------
# Layout


LAYOUT_FILE = "layout.json"


def read_layout(model_dir: str) -> Layout | None:
    """Returns the saved layout of the run that continues in a folder; None without a checkpoint or a saved
    layout.

    Raises:
      ConfigError: for a damaged file.
    """
    path = os.path.join(model_dir, LAYOUT_FILE)
    if not tf.io.gfile.exists(path) or not CheckpointManager(model_dir, {}, 1).steps():
        return None
    values = json_files.read_json(path)
    names = [field.name for field in dataclasses.fields(Layout)]
    layout = Layout(**{name: json_files.expect(values, name, int, path) for name in names})
    if min(dataclasses.astuple(layout)) < 1 or layout.train_batch_size % layout.micro_batches:
        raise ConfigError(
            f"{path}: {layout.describe()} cannot share {layout.train_batch_size} rows. Remove it."
        )
    return layout


def write_layout(model_dir: str, layout: Layout) -> None:
    """Saves the layout of a run. Raises OSError."""
    replace_file(os.path.join(model_dir, LAYOUT_FILE), json.dumps(dataclasses.asdict(layout)) + "\n")


# -----------------------------------------------------------------------------------------------------------
# Data files
#
# For each file its size and a digest of some of its bytes are saved, so that terabytes are compared in
# seconds. The order of the files matters, their folders do not.


DATA_FILE = "data_files.json"
_WHOLE_BYTES = 1 << 20  # files up to this size are read completely
_READERS = 16
_NOT_EVALUATED = {"train", "test"}  # splits
Notes = dict  # {split: [path, bytes, digest] of each of its files, in the order in which they are read}


def write_data_files(model_dir: str, data_files: Mapping[str, list[str]]) -> None:
    """Saves the data files, {split: paths}, of a run at its start. Raises OSError."""
    found = {split: _describe_files(paths) for split, paths in data_files.items()}
    _write_notes(model_dir, found, False)


def compare_data(config: Config, data_files: Mapping[str, list[str]], goes_on: bool) -> tuple[bool, bool]:
    """Compares the data with the saved ones of the run in the folder; if training resumes, saves the current
    ones.

    Args:
      config: configuration of the run.
      data_files: {split: paths}.
      goes_on: whether a training run is resumed.

    Returns:
      (whether the data of a resumed run differ, or once differed, from those at its start; whether the
      evaluation data are unchanged).

    Raises:
      ConfigError: with --deterministic, if the data of a resumed run differ; for a damaged file.
    """
    noted, changed = _read_notes(config.model_dir)
    found: Notes = {
        split: _describe_files(paths) for split, paths in data_files.items() if goes_on or split in noted
    }
    changes = {split: _difference(found[split], noted[split]) for split in found if split in noted}
    differing = [split for split in changes if changes[split]]
    evaluates_same = not {*differing} - _NOT_EVALUATED
    if not goes_on:
        return False, evaluates_same
    differences = [f"{split}: {changes[split]}" for split in differing]
    if differences and config.deterministic:
        raise ConfigError(
            f"--model_dir={config.model_dir} was begun with other data; {differences[0]}. Give the same"
            " files, drop --deterministic, or give another --model_dir."
        )
    if differences:
        logging.warning("The data have changed since the start of this run; %s", "; ".join(differences))
    changed = changed or bool(differences)
    _write_notes(config.model_dir, {**noted, **found}, changed)
    return changed, evaluates_same


def changed_files(model_dir: str) -> dict[str, str]:
    """Returns {split: difference} of the data files whose content has changed since the run in a folder read
    them. Leaves out evaluation data that are also the training data."""
    found: dict[str, str] = {}
    with contextlib.suppress(ConfigError):  # of damaged notes
        noted, _ = _read_notes(model_dir)
        for split, own in noted.items():
            paths = [str(path) for path, _, _ in own]
            is_known = all(files.is_remote(path) or os.path.isabs(path) for path in paths)
            if not is_known or split != "train" and own == noted.get("train"):  # by an earlier version
                continue
            with contextlib.suppress(ConfigError):  # a file is missing
                if difference := _difference(_describe_files(paths), own):
                    found[split] = difference
    return found


def _write_notes(model_dir: str, notes: Notes, changed: bool) -> None:
    values = json.dumps({"changed": changed, "files": notes})
    replace_file(os.path.join(model_dir, DATA_FILE), values + "\n")


def _read_notes(model_dir: str) -> tuple[Notes, bool]:
    """Returns (notes, whether the data changed earlier), as saved by `_write_notes`; empty if an older
    version started the run."""
    path = os.path.join(model_dir, DATA_FILE)
    if not files.is_file(path):
        return {}, False
    values = json_files.read_json(path)
    try:
        files_of = values["files"].items()
        notes = {split: [[path, size, digest] for path, size, digest in some] for split, some in files_of}
        return notes, bool(values["changed"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(f"{path} is damaged. Restore or remove it.") from None


def _describe_files(paths: list[str]) -> list[list]:
    """Returns path, size and digest of each file."""
    sizes = files.sizes(paths)
    whole = [path if files.is_remote(path) else os.path.abspath(path) for path in paths]
    with ThreadPoolExecutor(_READERS) as readers:
        digests = readers.map(_digest, paths, sizes)
        return [list(about) for about in zip(whole, sizes, digests)]


def _digest(path: str, size: int) -> str:
    """Returns a digest of a small file, or of the beginning, middle and end of a large one."""
    return hashlib.blake2b(files.samples(path, size, _WHOLE_BYTES), digest_size=16).hexdigest()


def _difference(ours: list[list], noted: list[list]) -> str | None:
    """Returns a description of the first difference between the files of a split and the saved ones; None if
    they are equal."""
    if len(ours) != len(noted):
        names, earlier = ({os.path.basename(own[0]) for own in some} for some in (ours, noted))
        changed = [f"{name} is new" for name in sorted(names - earlier)]
        changed += [f"{name} is missing" for name in sorted(earlier - names)]
        return f"{len(ours):,} files, there were {len(noted):,}" + (f" ({changed[0]})" if changed else "")
    for own, before in zip(ours, noted):
        if own[1:] != before[1:]:
            new, old = (
                f"{os.path.basename(path)} ({size:,} bytes, {digest[:8]})"
                for path, size, digest in (own, before)
            )
            return f"{new} in place of {old}"
    return None

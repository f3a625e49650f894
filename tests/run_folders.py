"""What is in the folder of a run, for tests that compare two."""

import json
import os
import pathlib

import numpy as np
import tensorflow as tf

from official.inference import teacher
from official.reporting.metrics import read_metrics
from official.reporting.result import TrainResult
from official.tasks import TASKS
from official.training import run as runner


def run(config, command: list[str] | None = None) -> TrainResult:
    """Runs a configuration with the task that it names."""
    make_task = teacher.make_task if config.teacher else TASKS[config.task]
    return runner.run(config, make_task, command or ["train.py", "--seed=1"])


def result_of(config) -> dict:
    """Returns result.json of a run."""
    return json.loads(pathlib.Path(config.model_dir, "result.json").read_text())


def state_of(folder: str | os.PathLike, step: int) -> dict[str, np.ndarray]:
    """Returns what the checkpoint of a step holds, by name."""
    reader = tf.train.load_checkpoint(f"{folder}/ckpt-{step}")
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def untimed_metrics(folder: str | os.PathLike) -> list[dict]:
    """Returns the lines of metrics.jsonl without what depends on the machine."""
    return [
        {name: value for name, value in line.items() if name != "sequences_per_sec"}
        for line in read_metrics(str(folder))
    ]


def assert_same_state(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def assert_same_run(ours: str | os.PathLike, theirs: str | os.PathLike, step: int) -> None:
    """Checks that two runs ended with the same bits, and said the same on the way."""
    assert_same_state(state_of(ours, step), state_of(theirs, step))
    assert untimed_metrics(ours) == untimed_metrics(theirs)


def assert_resumes(make_config, stop: int, last: int, **settings) -> tuple[TrainResult, ...]:
    """Checks that a run that stops at a step and goes on ends, at its last, with the bits of one that does
    not. Returns the results of the whole run and of both parts, in the folders "whole" and "parts"."""
    folder = os.path.dirname(make_config(**settings).model_dir)
    whole, parts = ({**settings, "model_dir": os.path.join(folder, name)} for name in ("whole", "parts"))
    asked = whole, {**parts, "stop_steps": stop}, parts
    results = tuple(run(make_config(**each)) for each in asked)
    assert_same_run(parts["model_dir"], whole["model_dir"], last)
    return results

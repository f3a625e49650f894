"""What is in the folder of a run, for tests that compare two."""

import os

import numpy as np
import tensorflow as tf

from official.reporting.metrics import read_metrics


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

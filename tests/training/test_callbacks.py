"""What listens to a run hears of all of it, in order; what it hears is counted in sequences."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import BatchPlan
from official.reporting.callback import Callback
from official.training import callbacks, evaluate, feeding
from tests.run_folders import run
from tests.training.test_training import make_loop


class Recorder(Callback):
    """Notes the name and the arguments of every event."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if not (name.startswith("on_") or name == "close"):
            return super().__getattribute__(name)
        return lambda *arguments: self.events.append((name, *arguments))

    @property
    def names(self) -> list[str]:
        return [event[0] for event in self.events]

    def arguments(self, name: str) -> list[tuple]:
        return [event[1:] for event in self.events if event[0] == name]


@pytest.fixture
def recorder(monkeypatch):
    """Returns an callback that hears of every run of the test."""
    found, original = Recorder(), callbacks.of_training
    monkeypatch.setattr(callbacks, "of_training", lambda *arguments: [*original(*arguments), found])
    return found


SMALL = dict(model=dict(num_hidden_layers=1), steps_per_loop=5, num_steps_per_epoch=10)


def test_the_events_of_a_run_in_order(make_config, recorder):
    run(make_config(**SMALL, do_eval=True, num_eval_samples=12, steps_between_eval=10))
    of_interval = ["on_training", "on_steps", "on_interval"]
    evaluation_events = ["on_evaluation_start", "on_evaluation_stop", "on_evaluation"]
    expected = [
        "on_built",
        "on_start",
        "on_training",
        "on_first_step",
        *of_interval[1:],
        "on_checkpoint",
        *of_interval,
    ]
    expected += ["on_checkpoint", *evaluation_events, "on_end", "on_result", "close"]
    names = [name for name in recorder.names if name != "on_call"]
    calls_joined = [name for before, name in zip(["", *names], names) if not name == before == "on_steps"]
    assert calls_joined == expected
    calls = [step for (step,) in recorder.arguments("on_call")]
    assert calls[0] == 0 and calls == sorted(set(calls)) and calls[-1] < 10 and 5 in calls
    (start,), (end,) = recorder.arguments("on_start")[0], recorder.arguments("on_end")[0]
    assert (start.step, start.samples, start.last_step) == (0, 0, 10)
    assert (end.status, end.step, end.samples) == ("finished", 10, 80)
    assert recorder.arguments("on_training") == [(0, 0, 80), (5, 40, 40)]
    (outcome,) = recorder.arguments("on_evaluation")[0]
    assert (outcome.step, outcome.samples, outcome.sequences) == (10, 80, 16)  # whole batches of random ones
    assert recorder.arguments("on_result")[0][0] == "finished"


def test_an_observer_that_fails_keeps_the_end_from_nobody(make_config, recorder, monkeypatch):
    def fail(*_):
        raise OSError("disk")

    monkeypatch.setattr(callbacks.MetricsWriter, "on_end", fail)
    monkeypatch.setattr(callbacks.TensorBoard, "close", fail)
    with pytest.raises(Exception, match="disk"):
        run(make_config(**SMALL))
    assert recorder.names[-2:] == ["on_end", "close"]


# ------------------------------------------------------------------------------------------------------------
# Rows are not sequences


def test_the_input_pipeline_is_asked_for_rows_and_told_of_sequences():
    asked = []

    class Task:
        def train_dataset(self, *arguments):
            asked.append(arguments)
            return tf.data.Dataset.range(1)

    plan = BatchPlan(2, 1, 8, 8, sequences_per_row=2.5)
    assert plan.sequences_per_step == 20
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    feeding.training_batches(Task(), plan, TrainingOrder(3, 60, rows_done=24), strategy)
    assert asked == [(8, 4, TrainingOrder(3, 60, host=0, num_hosts=1, rows_done=24))]  # rows of all replicas


def test_outputs_of_several_sequences_a_row_are_put_in_the_order_of_sequences():
    parts = [
        {"rows": np.array([[3, 0], [1, -1]]), "logits": np.array([[[30], [0]], [[10], [99]]])},
        {"rows": np.array([[2, -1], [-1, -1]]), "logits": np.array([[[20], [99]], [[99], [99]]])},
    ]
    assert evaluate.in_order(parts)["logits"].tolist() == [[0], [10], [20], [30]]


def test_an_evaluation_counts_sequences_by_their_weights(make_config, record_files):
    heard = Recorder()
    files = record_files(files=3, records=7)
    loop = make_loop(make_config(**SMALL, input_files=files, do_eval=True, num_eval_samples=21), [heard])
    loop.evaluate()
    assert heard.arguments("on_evaluation")[0][0].sequences == 21
    assert dataclasses.is_dataclass(heard.arguments("on_evaluation")[0][0])

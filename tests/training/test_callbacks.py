"""Callbacks hear of all events of a run, in order; the MLPerf log has keys and rates of every optimizer."""

import itertools
import json

import pytest

from official import config as config_lib
from official.reporting import mllog
from official.reporting.callback import Callback
from official.training import callbacks
from tests.run_folders import run
from tests.training.test_resume import MPADAMW


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


SMALL = dict(steps_per_loop=5, num_steps_per_epoch=10)


def test_the_events_of_a_run_in_order(make_config, recorder):
    run(make_config(**SMALL, do_eval=True, num_eval_samples=12, steps_between_eval=10))
    expected = """on_built on_start on_training on_first_step on_steps on_interval on_checkpoint
        on_training on_steps on_interval on_checkpoint
        on_evaluation_start on_evaluation_stop on_evaluation on_end on_result close""".split()
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
# The MLPerf log


def test_the_mlperf_log_has_the_keys_that_exist(make_config):
    from mlperf_logging.mllog import constants

    known = {value for value in vars(constants).values() if isinstance(value, str)}
    kinds = config_lib.FIELDS["optimizer_type"].choices
    for kind, settings in itertools.product(kinds, (dict(), dict(lr_schedule="cosine"), MPADAMW)):
        config = make_config(**{**settings, "optimizer_type": kind})
        found = dict(mllog.run_settings(config, "cpu-1", 8, 1))
        json.dumps(found)
        assert found["opt_name"] == kind
        ours = {name for name in found if name.startswith("opt_")}
        ours -= {"opt_epsilon", "opt_gradient_accumulation_steps", "opt_adamw_learning_rate_decay_poly_power"}
        assert ours <= known
        assert ("opt_learning_rate_decay_schedule" in found) == bool(settings)


def test_the_mlperf_log_has_the_rates_that_are_read(make_config):
    rates = '{"0": 2e-3, "5": 4e-3, "7": 1e-3}'
    config = make_config(lr_schedule=rates, learning_rate=None, warmup_steps=None)
    found = dict(mllog.run_settings(config, "cpu-1", 8, 1))
    assert (found["opt_base_learning_rate"], found["opt_end_learning_rate"]) == (4e-3, 1e-3)

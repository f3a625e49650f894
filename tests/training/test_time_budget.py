"""Runs that a time budget ends: what counts, what a run that goes on has left, and their replay by step."""

import json
import os
import signal
import types

import numpy as np
import pytest

from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from official.training import metrics_window
from tests.run_folders import run, state_of
from tests.training.test_training import assert_close

HOUR = 3600
SECS = 90


class Clock:
    """A clock that is a second later each time that somebody looks at it, and interrupts the run once."""

    def __init__(self, interrupts_at: int | None = None):
        self.now, self._interrupts_at = 0, interrupts_at

    def monotonic(self) -> float:
        self.now += 1
        if self.now == self._interrupts_at:
            signal.raise_signal(signal.SIGTERM)
        return float(self.now)


@pytest.fixture
def clock(monkeypatch):
    def start(*arguments) -> Clock:
        made = Clock(*arguments)
        monkeypatch.setattr(metrics_window, "time", types.SimpleNamespace(monotonic=made.monotonic))
        return made

    return start


@pytest.mark.slow
def test_a_budget_goes_on_after_an_interruption_and_its_rates_replay_it(
    make_config, record_files, clock, tmp_path
):
    shared = dict(num_train_epochs=None, num_steps_per_epoch=None, warmup_steps=None)
    shared |= dict(do_eval=True, num_eval_samples=8, async_checkpoints=False, optimizer_type="adamw")
    shared |= dict(input_files=record_files())
    by_time = dict(budget_hours=SECS / HOUR, lr_schedule="wsd_linear", decay_proportion=0.5)
    config = make_config(**shared, **by_time)
    first_clock = clock(SECS // 3)
    first = run(config)
    assert first.status == "interrupted" and first.step > 5 and first.eval_loss is None
    saved = json.loads((tmp_path / "run" / f"ckpt-{first.step}.interval.json").read_text())
    assert SECS // 3 <= saved["budget_used_secs"] < first_clock.now < SECS // 2
    second_clock = clock()
    second = run(config)
    assert second.status == "finished" and second.reason == f"0.025 hours used in {second.step} steps"
    # Within a call and the line of the metrics after it, all of the time is used, and not more.
    assert SECS <= saved["budget_used_secs"] + second_clock.now <= SECS + 10
    assert second.eval_loss is not None  # at the last step, which nobody knew before

    rates = {int(step): rate for step, rate in second.learning_rates.items()}
    assert {step: rate for step, rate in rates.items() if step < first.step} == first.learning_rates
    peak, values = config.learning_rate, [*rates.values()]
    assert max(values) == pytest.approx(peak) and values[0] < 0.3 * peak and values[-1] < 0.1 * peak
    decay = values[values.index(max(values)) :]
    assert len(decay) > 5 and decay == sorted(decay, reverse=True)
    lines = [line for line in read_metrics(config.model_dir) if line["split"] == "train"]
    assert [line["step"] for line in lines] == [*range(5, second.step, 5), second.step]
    assert (np.diff([line["budget_left_secs"] for line in lines]) < 0).all()
    for line in lines:
        assert line["learning_rate"] == rates[max(step for step in rates if step < line["step"])]

    replayed = make_config(
        **{**shared, "num_steps_per_epoch": second.step, "num_train_epochs": 1},
        model_dir=str(tmp_path / "replay"),
        lr_schedule=json.dumps(second.learning_rates),
        learning_rate=None,
    )
    run(replayed)
    assert_close(state_of(tmp_path / "replay", second.step), state_of(tmp_path / "run", second.step))

    assert run(config).step == second.step  # over: nothing is changed
    with pytest.raises(ConfigError, match="budget_hours 0.025 -> 2 does not fit the run"):
        run(make_config(**shared, **{**by_time, "budget_hours": 2}))


def test_a_run_of_steps_has_no_time_that_it_has_used(make_config):
    config = make_config(num_steps_per_epoch=10, stop_steps=5)
    run(config)
    os.remove(os.path.join(config.model_dir, "result.json"))  # as if it were killed: it is not over
    by_time = dict(budget_hours=1, num_steps_per_epoch=None, num_train_epochs=None, warmup_steps=None)
    with pytest.raises(ConfigError, match="ckpt-5 in --model_dir=.* does not record the time used so far"):
        run(make_config(**by_time))

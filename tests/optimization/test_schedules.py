"""Schedules of the learning rate and of the loss scale by step against NumPy."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.cli import flags
from official.config.values import read_by_step
from official.optimization import schedules
from official.optimization.train_state import LossScale
from tests.fixtures import ROOT

PEAK, FLOOR, TOTAL = 0.006, 1e-7, 200
BY_STEP = '{"100": 3e-4, "0": 1e-3, "7": 2e-3}'


def warmed_up(step, warmup, power):
    return PEAK * (step / warmup) ** power if step < warmup else None


def numpy_cosine(step, warmup):
    return max(0.5 * PEAK * (1 + np.cos(np.pi * (step - warmup) / (TOTAL - warmup))), FLOOR)


def numpy_natural_exponential(step, warmup, decay_rate=0.5, decay_steps=30):
    return max(PEAK * np.exp(-decay_rate * ((step - warmup) // decay_steps)), FLOOR)


def numpy_up_down(step, warmup):
    return PEAK if step == warmup else max(PEAK * (TOTAL - step - 1) / (TOTAL - warmup), FLOOR)


def numpy_wsd_linear(step, warmup, steps=30):
    return PEAK if step < TOTAL - steps else max(PEAK * (TOTAL - step) / steps, FLOOR)


def numpy_wsd_sqrt(step, warmup):
    steps = round((TOTAL - warmup) / 10)
    begin = TOTAL - steps
    return PEAK if step < begin else max(PEAK * (1 - np.sqrt((step - begin) / steps)), FLOOR)


DECAYS = {
    "cosine": (numpy_cosine, {}),
    "natural_exponential": (numpy_natural_exponential, dict(decay_rate=0.5, decay_steps=30)),
    "up_down": (numpy_up_down, {}),
    "wsd_linear": (numpy_wsd_linear, dict(decay_steps=30)),
    "wsd_sqrt": (numpy_wsd_sqrt, {}),
}


def config_of(make_config, **settings):
    defaults = dict(learning_rate=PEAK, end_learning_rate=FLOOR, num_steps_per_epoch=TOTAL)
    return make_config(**{**defaults, **settings})


def numpy_schedule(step, peak, total, warmup, start, end, power, decay_from):
    """The schedule of the MLPerf reference (TF1 form), with the decay's origin as an option; float32 like its
    graph."""
    f = np.float32
    begin = f(start + warmup) if warmup else f(0)
    origin = begin if decay_from == "warmup_end" else f(0)
    done = np.clip((f(step) - origin) / f(total - origin), f(0), f(1))
    decayed = (f(peak) - f(end)) * (f(1) - done) ** f(power) + f(end)
    if warmup and step < begin:
        return f(peak) * f(max(step - start, 0)) / f(warmup)
    return decayed


@pytest.mark.parametrize("decay_from", ["step_0", "warmup_end"])
@pytest.mark.parametrize(
    "warmup,start,end,power", [(0, 0, 0.0, 1.0), (420, 0, 0.0, 1.0), (100, 50, 1e-5, 1.0), (100, 0, 0.0, 2.0)]
)
def test_the_polynomial_is_exact(make_config, decay_from, warmup, start, end, power):
    peak, total = 3.5221e-4, 8000
    own = dict(learning_rate=peak, num_steps_per_epoch=total, end_learning_rate=end, poly_power=power)
    own |= dict(warmup_steps=warmup, start_warmup_step=start, decay_from=decay_from)
    schedule = schedules.from_config(make_config(**own))
    last = warmup + start
    for step in (0, 1, start, start + 1, warmup // 2, last - 1, last, last + 1, 4000, 7999, 8000, 9000):
        if step >= 0:
            expected = numpy_schedule(step, peak, total, warmup, start, end, power, decay_from)
            assert abs(float(schedule(tf.constant(step, tf.int64))) - expected) <= 1e-11, step


@pytest.mark.parametrize("warmup", [0, 40])
@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("name", DECAYS)
def test_decay_after_the_warmup(make_config, name, power, warmup):
    decay, settings = DECAYS[name]
    config = config_of(make_config, lr_schedule=name, warmup_steps=warmup, warmup_power=power, **settings)
    schedule = schedules.from_config(config)
    for step in (0, 1, 20, 38, 39, 40, 41, 69, 70, 71, 120, 169, 170, 171, 183, 184, 185, 198, 199):
        expected = warmed_up(step, warmup, power) if step < warmup else decay(step, warmup)
        np.testing.assert_allclose(float(schedule(step)), expected, rtol=2e-5, atol=1e-9, err_msg=str(step))


@pytest.mark.parametrize("powers", [1, [1], [0.5, 1], [1, 1], 2, None])
def test_a_polynomial_of_tensorflow_1_has_its_rates(powers, tmp_path):
    """Graphcore's polynomial_decay, of which a power of 1 alone is a line of its own."""
    values = json.loads((ROOT / "configs/graphcore/tf1/pretrain_tiny_128_lamb.json").read_text())
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values | ({} if powers is None else {"lr_power": powers})))
    schedule = schedules.from_config(flags.parse([f"--config={path}", "--plan"]))
    peak, warmup, total = 0.001, 10, 1000
    steps = np.array([0, 1, 5, 9, 10, 11, 12, 500, 997, 998, 999])
    first, *_, last = (powers if isinstance(powers, list) else [powers or 1]) * 2
    falling = (peak - 1e-7) * (1 - (steps - warmup) / (total - warmup)).clip(0) ** last + 1e-7
    if powers in (1, [1], None):
        falling = peak * (total - steps - 1) / (total - warmup)
    expected = np.where(steps <= warmup, peak * (steps / warmup) ** first, np.maximum(falling, 1e-7))
    rates = [schedule(step).numpy() for step in steps]
    np.testing.assert_allclose(rates, expected, rtol=2e-4, atol=1e-9)


def test_a_share_of_the_steps_is_cut_to_whole_ones(make_config):
    """Graphcore's: int(total * share)."""
    config = config_of(make_config, lr_schedule="up_down", warmup_steps=None, warmup_proportion=0.129)
    schedule = schedules.from_config(config)
    assert config.warmup_steps == pytest.approx(25.8)
    assert float(schedule(24)) == pytest.approx(PEAK * 24 / 25)
    assert float(schedule(25)) == pytest.approx(PEAK)
    assert float(schedule(26)) == pytest.approx(PEAK * 173 / 175)


def test_a_warmup_that_starts_later(make_config):
    config = config_of(make_config, lr_schedule="cosine", warmup_steps=10, start_warmup_step=5)
    schedule = schedules.from_config(config)
    rates = [float(schedule(step)) for step in (0, 5, 10, 15)]
    assert rates == pytest.approx([0, 0, PEAK / 2, PEAK])


def custom(make_config, **settings):
    rest = dict(learning_rate=None, warmup_steps=None, num_steps_per_epoch=TOTAL)
    return make_config(**{**rest, "lr_schedule": BY_STEP, **settings})


def test_rates_by_step(make_config):
    schedule = schedules.from_config(custom(make_config))
    found = {step: float(schedule(step)) for step in (0, 6, 7, 99, 100, 199)}
    expected = {0: 1e-3, 6: 1e-3, 7: 2e-3, 99: 2e-3, 100: 3e-4, 199: 3e-4}
    assert found == {step: pytest.approx(rate) for step, rate in expected.items()}
    assert schedules.corners(custom(make_config)) == found
    inside = tf.function(lambda step: schedule(step))(tf.constant(99, tf.int64))
    assert inside.dtype == tf.float32 and float(inside) == pytest.approx(2e-3)


@pytest.mark.parametrize("name", DECAYS)
def test_corners_draw_the_schedule(make_config, name):
    config = config_of(make_config, lr_schedule=name, warmup_steps=40, warmup_power=0.5, **DECAYS[name][1])
    corners, schedule = schedules.corners(config), schedules.from_config(config)
    assert {0, 39, 40, 199} <= set(corners) and len(corners) < 110
    if name in ("up_down", "wsd_linear"):
        between = np.interp(np.arange(40, TOTAL), list(corners), list(corners.values()))
        rates = [float(schedule(step)) for step in range(40, TOTAL)]
        np.testing.assert_allclose(between, rates, rtol=1e-5, atol=2 * FLOOR)


def test_rates_by_time(make_config):
    """The schedule of a time budget is that of the share that is used, whatever the step."""
    rest = dict(num_steps_per_epoch=None, num_train_epochs=None, warmup_steps=None)
    config = config_of(make_config, budget_hours=2, lr_schedule="wsd_sqrt", decay_proportion=0.4, **rest)
    assert config.warmup_proportion == 0.1
    schedule = schedules.ByTime(schedules.from_config(config))
    for share in (0.0, 0.03, 0.0999, 0.1, 0.5, 0.6, 0.61, 0.9, 0.999, 1.0):
        expected = PEAK * min(share / 0.1, 1 - np.sqrt(max(share - 0.6, 0) / 0.4))
        rate = schedule.hold(share)
        np.testing.assert_allclose(rate, max(expected, FLOOR if share else 0), rtol=2e-4, atol=1e-9)
        assert float(schedule(0)) == float(tf.function(schedule)(tf.constant(7, tf.int64))) == rate


def test_corners_draw_the_polynomial(make_config):
    later = dict(warmup_steps=4.5, start_warmup_step=2, decay_from="warmup_end")
    for settings, expected in (
        (dict(warmup_steps=5, decay_from="warmup_end"), {0: 0.0, 4: 0.8, 5: 1.0, 19: 1 / 15}),
        (dict(warmup_steps=5), {0: 0.0, 4: 0.8, 5: 0.75, 19: 0.05}),
        (later, {0: 0.0, 2: 0.0, 6: 4 / 4.5, 7: 13 / 13.5, 19: 1 / 13.5}),
        (dict(), {0: 1.0, 19: 0.05}),
    ):
        found = schedules.corners(make_config(learning_rate=1.0, **settings))
        assert found == {step: pytest.approx(rate, abs=1e-6) for step, rate in expected.items()}
    # A curved decay has points on the way.
    found = schedules.corners(make_config(learning_rate=1.0, poly_power=2.0, num_steps_per_epoch=1000))
    assert 50 <= len(found) <= 60 and found[500] == pytest.approx(0.25)


def test_the_loss_scale_is_that_of_the_step_that_comes(make_config):
    config = make_config(loss_scale='{"0": 128, "3": 512}')
    values = read_by_step(config.loss_scale, "loss_scale")
    assert config_lib.initial_loss_scale(config) == 128 and not config_lib.dynamic_loss_scale(config)
    scale = LossScale(values[0], False, schedules.by_step(values))
    found = []
    for step in range(5):
        found.append(float(scale.scale.numpy()))
        scale.update(tf.constant(True), tf.constant(step + 1, tf.int64))
    assert found == [128, 128, 128, 512, 512]

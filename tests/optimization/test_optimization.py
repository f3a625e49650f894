"""Optimizers, schedules, loss scale and gradient stages against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from official.optimization import gradients, optimizers, plain_optimizers, schedules
from official.optimization.loss_scale import GROWTH_STEPS, LossScale

NAMES = (
    "layer/kernel",
    "layer/bias",
    "x/LayerNorm/gamma",
    "x/LayerNorm/beta",
    "y/layer_norm/gamma",
    "cls/output_weights",
)
DECAYED = ("layer/kernel", "cls/output_weights")


def numpy_lamb(weights, moments, gradient, rate, step, config, adapted, decayed=False):
    """One LAMB update of one variable in float64 (You et al. 2019). `step` is 1-based."""
    m, v = moments
    m[:] = config.beta_1 * m + (1 - config.beta_1) * gradient
    v[:] = config.beta_2 * v + (1 - config.beta_2) * gradient**2
    update = (m / (1 - config.beta_1**step)) / (np.sqrt(v / (1 - config.beta_2**step)) + config.epsilon)
    ratio = 1.0
    if adapted or decayed:
        update = update + config.weight_decay_rate * weights
    if adapted:
        norms = np.linalg.norm(weights), np.linalg.norm(update)
        ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
    return weights - rate * ratio * update


def numpy_adamw(weights, moments, gradient, rate, step, config, decayed):
    """One AdamW update of one variable in float64, Keras form of Adam. `step` is 1-based."""
    m, v = moments
    if decayed:
        weights = weights - rate * config.weight_decay_rate * weights
    m[:] = config.beta_1 * m + (1 - config.beta_1) * gradient
    v[:] = config.beta_2 * v + (1 - config.beta_2) * gradient**2
    corrected = rate * np.sqrt(1 - config.beta_2**step) / (1 - config.beta_1**step)
    return weights - corrected * m / (np.sqrt(v) + config.epsilon)


def make_optimizer(config, scope: tf.distribute.Strategy, initial: dict[str, np.ndarray]) -> tuple:
    """Returns (optimizer, variables of these names and values, function of gradients that updates them)."""
    with scope.scope():
        variables = [tf.Variable(value, name=name) for name, value in initial.items()]
        optimizer = optimizers.build_optimizer(config, schedules.from_config(config))
        optimizer.create_slots(variables)

    @tf.function
    def apply(values):
        scope.run(lambda: optimizer.update([value * 4 for value in values], variables, tf.constant(0.25)))

    return optimizer, variables, apply


@pytest.mark.parametrize("maker", ["native", "compiled", "plain", "addons"])
@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
@pytest.mark.parametrize("kind,update", [("lamb", numpy_lamb), ("adamw", numpy_adamw)])
def test_optimizer_agrees_with_numpy(make_config, monkeypatch, kind, update, strategy, maker):
    if maker == "addons" and not optimizers.has_addons():
        pytest.skip("tensorflow-addons is not installed")
    monkeypatch.setattr(optimizers, "has_addons", lambda: maker == "addons")
    config = make_config(
        optimizer_type=kind,
        fused_ops=maker in ("native", "compiled"),
        update_kernel="native" if maker == "native" else "tensorflow",
        learning_rate=0.05,
        warmup_steps=2,
        weight_decay_rate=0.1,
        beta_1=0.8,
        beta_2=0.9,
        num_steps_per_epoch=10,
    )
    schedule = schedules.from_config(config)
    scope = (
        tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
        if strategy == "mirrored"
        else tf.distribute.OneDeviceStrategy("cpu:0")
    )
    generator = np.random.default_rng(0)
    initial = [generator.normal(size=(4, 3)).astype(np.float32) for _ in NAMES]
    optimizer, variables, apply = make_optimizer(config, scope, dict(zip(NAMES, initial)))
    expected = [np.asarray(value, np.float64) for value in initial]
    moments = [(np.zeros((4, 3)), np.zeros((4, 3))) for _ in NAMES]
    for step in range(5):
        values = [generator.normal(size=(4, 3)).astype(np.float32) for _ in NAMES]
        apply([tf.constant(value) for value in values])
        rate = float(schedule(step))
        expected = [
            update(w, m, g, rate, step + 1, config, name in DECAYED)
            for w, m, g, name in zip(expected, moments, values, NAMES)
        ]
    for variable, value, name in zip(variables, expected, NAMES):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-6, atol=1e-6, err_msg=name)
    slots = plain_optimizers.slot_variables(optimizer, kind, variables)
    np.testing.assert_allclose(
        slots[f"layer/kernel/{'lamb' if kind == 'lamb' else 'adam'}_v"].numpy(), moments[0][1], rtol=1e-5
    )


@pytest.mark.parametrize("maker", ["native", "compiled", "plain", "addons"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_lamb_decays_gamma_without_adapting_it(make_config, monkeypatch, maker, replicas):
    if maker == "addons" and not optimizers.has_addons():
        pytest.skip("tensorflow-addons is not installed")
    monkeypatch.setattr(optimizers, "has_addons", lambda: maker == "addons")
    config = make_config(
        optimizer_type="lamb",
        lamb_decays_gamma=True,
        fused_ops=maker in ("native", "compiled"),
        update_kernel="native" if maker == "native" else "tensorflow",
        learning_rate=0.05,
        weight_decay_rate=0.1,
        warmup_steps=2,
        num_steps_per_epoch=10,
    )
    schedule, generator = schedules.from_config(config), np.random.default_rng(0)
    scope = tf.distribute.MirroredStrategy([f"cpu:{device}" for device in range(replicas)])
    expected = {name: generator.normal(size=(4, 3)).astype(np.float32) for name in NAMES}
    _, variables, apply = make_optimizer(config, scope, expected)
    moments = {name: (np.zeros((4, 3)), np.zeros((4, 3))) for name in NAMES}
    for step in range(4):
        values = {name: generator.normal(size=(4, 3)).astype(np.float32) for name in NAMES}
        apply([tf.constant(value) for value in values.values()])
        of_step = float(schedule(step)), step + 1, config
        for name in NAMES:
            expected[name] = numpy_lamb(
                expected[name], moments[name], values[name], *of_step, name in DECAYED, "gamma" in name
            )
    for variable, name in zip(variables, NAMES):
        np.testing.assert_allclose(variable.numpy(), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
def test_layers_that_are_alike_are_updated_by_one_function(make_config, kind):
    config = make_config(optimizer_type=kind, update_kernel="tensorflow")
    variables = [
        tf.Variable(tf.ones([4, 3]), name=f"bert/encoder/layer_{layer}/{name}")
        for layer in (0, 1, 10, 11)
        for name in ("kernel", "bias")
    ]
    variables.append(tf.Variable(tf.ones([5]), name="bert/pooler/dense/bias"))
    optimizer = optimizers.build_optimizer(config, schedules.from_config(config))
    optimizer.create_slots(variables)
    apply = tf.function(lambda: optimizer.update(variables, variables, tf.constant(1.0)))
    calls = [
        operation
        for operation in apply.get_concrete_function().graph.get_operations()
        if "PartitionedCall" in operation.type
    ]
    assert len(calls) == 5 and len({call.get_attr("f").name for call in calls}) == 2
    assert all(
        call.name.startswith(f"{type(optimizer).__name__}/") for call in calls
    )  # which is how profiles know them


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
def test_schedule_is_exact(decay_from, warmup, start, end, power):
    arguments = dict(
        peak=3.5221e-4,
        total_steps=8000,
        warmup_steps=warmup,
        start_warmup_step=start,
        end=end,
        power=power,
        decay_from=decay_from,
    )
    schedule = schedules.WarmupPolynomialDecay(**arguments)
    for step in (
        0,
        1,
        start,
        start + 1,
        warmup // 2,
        warmup + start - 1,
        warmup + start,
        warmup + start + 1,
        4000,
        7999,
        8000,
        9000,
    ):
        if step >= 0:
            expected = numpy_schedule(step, 3.5221e-4, 8000, warmup, start, end, power, decay_from)
            assert abs(float(schedule(tf.constant(step, tf.int64))) - expected) <= 1e-11, step


def test_the_two_shapes_at_the_end_of_the_warmup():
    before, after = [
        float(schedules.WarmupPolynomialDecay(1.0, 1000, 100, decay_from=shape)(100))
        for shape in ("step_0", "warmup_end")
    ]
    assert (before, after) == (pytest.approx(0.9), 1.0)


def test_dynamic_loss_scale():
    scale = LossScale(8.0, dynamic=True)
    scale.update(tf.constant(False), 1)
    assert scale.scale.numpy() == 4.0
    for _ in range(3):
        scale.update(tf.constant(False), 1)
    assert scale.scale.numpy() == 1.0  # not below 1
    scale.good_steps.assign(GROWTH_STEPS - 2)
    scale.update(tf.constant(True), 1)
    assert (scale.scale.numpy(), scale.good_steps.numpy()) == (1.0, GROWTH_STEPS - 1)
    scale.update(tf.constant(True), 1)
    assert (scale.scale.numpy(), scale.good_steps.numpy()) == (2.0, 0)


def test_fixed_loss_scale_stays():
    scale = LossScale(128.0, dynamic=False)
    scale.update(tf.constant(False), 1)
    assert scale.scale.numpy() == 128.0


@pytest.mark.parametrize(
    "norm,factor", [(5.0, 0.2), (1.0, 1.0), (0.5, 1.0), (0.0, 1.0), (np.inf, np.nan), (np.nan, np.nan)]
)
def test_clip_factor(norm, factor):
    np.testing.assert_allclose(gradients.clip_factor(tf.constant(norm), 1.0), factor, rtol=1e-6)


def test_accumulate_traces_its_body_once():
    traces = []

    @tf.function
    def total(batch):
        def micro_step(index, micro_batch):
            traces.append(index)
            return tf.reduce_sum(micro_batch["x"], axis=0), tf.cast(index, tf.float32)

        return gradients.accumulate(batch, 4, micro_step, (tf.zeros([3]), tf.zeros([])))

    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    value, indices = total({"x": tf.constant(x)})
    np.testing.assert_allclose(value, x.sum(0))
    assert indices == 6.0 and len(traces) == 1


@pytest.mark.parametrize(
    "settings,expected",
    [
        (dict(warmup_steps=5, decay_from="warmup_end"), {0: 0.0, 4: 0.8, 5: 1.0, 19: 1 / 15}),
        (dict(warmup_steps=5), {0: 0.0, 4: 0.8, 5: 0.75, 19: 0.05}),
        (
            dict(warmup_steps=4.5, start_warmup_step=2, decay_from="warmup_end"),
            {0: 0.0, 2: 0.0, 6: 4 / 4.5, 7: 13 / 13.5, 19: 1 / 13.5},
        ),
        (dict(), {0: 1.0, 19: 0.05}),
    ],
)
def test_corners_draw_the_schedule(make_config, settings, expected):
    found = schedules.corners(make_config(learning_rate=1.0, **settings))
    assert found == {step: pytest.approx(rate, abs=1e-6) for step, rate in expected.items()}


def test_a_curved_decay_has_points_on_the_way(make_config):
    found = schedules.corners(make_config(learning_rate=1.0, poly_power=2.0, num_steps_per_epoch=1000))
    assert 50 <= len(found) <= 60 and found[500] == pytest.approx(0.25)

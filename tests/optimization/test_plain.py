"""Our plain LAMB and AdamW, taken where tensorflow-addons is not installed, against tensorflow-addons."""

import numpy as np
import pytest
import tensorflow as tf

from official.optimization import optimizers, plain_optimizers, schedules

NAMES = ("layer/kernel", "layer/bias", "x/LayerNorm/gamma", "cls/output_weights")
HYPER = dict(weight_decay=0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-6, excluded=list(plain_optimizers.EXCLUDED))


def trained(make, scope) -> dict[str, np.ndarray]:
    """Returns weights and moments, {name: value}, after five updates with the same gradients everywhere."""
    generator = np.random.default_rng(0)
    schedule = schedules.WarmupPolynomialDecay(0.05, 10, 2, 0, 0.0, 1.0, "step_0")
    with scope.scope():
        variables = [
            tf.Variable(generator.normal(size=(4, 3)).astype(np.float32), name=name) for name in NAMES
        ]
        optimizer = make(learning_rate=schedule, **HYPER)
        optimizer.create_slots(variables)

    @tf.function
    def update(gradients):
        scope.run(lambda: optimizer.update(gradients, variables, tf.constant(0.5)))

    for _ in range(5):
        update([tf.constant(generator.normal(size=(4, 3)), tf.float32) for _ in NAMES])
    assert int(optimizer.iterations.numpy()) == 5
    slots = {
        f"{each.name}/{slot}": optimizer.get_slot(each, slot) for each in variables for slot in ("m", "v")
    }
    return {name: each.numpy() for name, each in ({each.name: each for each in variables} | slots).items()}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ["lamb", "adamw"])
def test_plain_optimizers_equal_those_of_addons_to_rounding(kind, replicas):
    pytest.importorskip("tensorflow_addons")
    from official.optimization import optimizers

    scope = tf.distribute.MirroredStrategy([f"cpu:{index}" for index in range(replicas)])
    ours = trained({"lamb": plain_optimizers.Lamb, "adamw": plain_optimizers.AdamW}[kind], scope)
    theirs = trained({"lamb": optimizers.make_lamb, "adamw": optimizers.make_adamw}[kind], scope)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    "kind,expected", [("lamb", plain_optimizers.Lamb), ("adamw", plain_optimizers.AdamW)]
)
def test_without_addons_the_plain_optimizers_are_ours(make_config, monkeypatch, kind, expected):
    monkeypatch.setattr(optimizers, "has_addons", lambda: False)
    config = make_config(optimizer_type=kind, fused_ops=False)
    assert isinstance(optimizers.build_optimizer(config, schedules.from_config(config)), expected)


def test_a_weight_of_zeros_and_an_update_of_zeros_are_not_scaled():
    """LAMB's ratio is 1 where one of the norms is 0."""
    optimizer = plain_optimizers.Lamb(learning_rate=lambda step: tf.constant(0.5), **HYPER)
    zeros, ones = tf.Variable(tf.zeros([2, 2]), name="zeros"), tf.Variable(tf.ones([2, 2]), name="ones")
    optimizer.create_slots([zeros, ones])
    optimizer.update([tf.ones([2, 2]), tf.zeros([2, 2])], [zeros, ones], tf.constant(1.0))
    np.testing.assert_allclose(zeros.numpy(), -0.5, rtol=1e-5)
    np.testing.assert_allclose(ones.numpy(), 0.5)  # decayed only: the ratio of the norms is 10

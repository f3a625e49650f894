"""Every kind of optimizer against NumPy, on all operation sets and on one and two replicas."""

import numpy as np
import pytest
import tensorflow as tf

from official.io.errors import ConfigError
from official.optimization import optimizers, plain_optimizers, schedules
from tests.optimization.test_optimization import make_optimizer

NAMES = ("layer/kernel", "layer/bias", "x/LayerNorm/gamma", "cls/output_weights")
DECAYED = ("layer/kernel", "cls/output_weights")
SCALE = 64.0
STEPS = 4


def numpy_sgd(weights, slots, gradient, rate, step, config, decayed):
    return weights - rate * gradient


def numpy_momentum(weights, slots, gradient, rate, step, config, decayed):
    slots["m"] = config.momentum * slots["m"] + gradient
    return weights - rate * slots["m"]


def numpy_adam(weights, slots, gradient, rate, step, config, decayed, kept=lambda m: m):
    """Adam in Keras' form, in float64; `kept` is what is left of the first moment where it is stored."""
    if decayed and config.optimizer_type != "adam":
        weights = weights * (1 - rate * config.weight_decay_rate)
    slots["m"] = kept(config.beta_1 * slots["m"] + (1 - config.beta_1) * gradient)
    slots["v"] = config.beta_2 * slots["v"] + (1 - config.beta_2) * gradient**2
    if config.bias_correction:
        rate = rate * np.sqrt(1 - config.beta_2**step) / (1 - config.beta_1**step)
    return weights - rate * slots["m"] / (np.sqrt(slots["v"]) + config.epsilon)


def numpy_mpadamw(*arguments):
    def kept(m):
        return (m * SCALE).astype(np.float16).astype(np.float64) / SCALE

    return numpy_adam(*arguments, kept=kept)


def numpy_lamb(weights, slots, gradient, rate, step, config, decayed):
    slots["m"] = config.beta_1 * slots["m"] + (1 - config.beta_1) * gradient
    slots["v"] = config.beta_2 * slots["v"] + (1 - config.beta_2) * gradient**2
    m, v = slots["m"], slots["v"]
    if config.bias_correction:
        m, v = m / (1 - config.beta_1**step), v / (1 - config.beta_2**step)
    update = m / (np.sqrt(v) + config.epsilon)
    if not decayed:
        return weights - rate * update
    update = update + config.weight_decay_rate * weights
    return weights - rate * np.linalg.norm(weights) / np.linalg.norm(update) * update


BETAS = dict(beta_1=0.8, beta_2=0.9)
CASES = {
    "sgd": (numpy_sgd, dict(optimizer_type="sgd"), 1e-6),
    "momentum": (numpy_momentum, dict(optimizer_type="momentum", momentum=0.75), 1e-6),
    "adam": (numpy_adam, dict(optimizer_type="adam", **BETAS), 1e-6),
    "adam, not corrected": (
        numpy_adam,
        dict(optimizer_type="adam", bias_correction=False, **BETAS),
        1e-6,
    ),
    "adamw, not corrected": (
        numpy_adam,
        dict(optimizer_type="adamw", bias_correction=False, **BETAS),
        1e-6,
    ),
    "mpadamw": (numpy_mpadamw, dict(optimizer_type="mpadamw", loss_scale=SCALE), 1e-5),
    "lamb": (numpy_lamb, dict(optimizer_type="lamb", weight_decay_rate=0.1), 1e-6),
    "lamb, not corrected": (
        numpy_lamb,
        dict(optimizer_type="lamb", bias_correction=False, **BETAS),
        1e-6,
    ),
}


def strategy_of(replicas: int) -> tf.distribute.Strategy:
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("cpu:0")
    return tf.distribute.MirroredStrategy([f"cpu:{index}" for index in range(replicas)])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("operations", ["native", "tensorflow", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_optimizer_agrees_with_numpy(make_config, case, operations, replicas):
    update, settings, tolerance = CASES[case]
    kernel = "tensorflow" if operations == "tensorflow" else "auto"
    config = make_config(
        **settings, fused_ops=operations != "plain", update_kernel=kernel, learning_rate=0.05
    )
    schedule, scope = schedules.from_config(config), strategy_of(replicas)
    generator = np.random.default_rng(0)
    expected = [generator.normal(size=(4, 3)).astype(np.float32) for _ in NAMES]
    optimizer, variables, apply = make_optimizer(config, scope, dict(zip(NAMES, expected)))
    slots = [{"m": np.zeros((4, 3)), "v": np.zeros((4, 3))} for _ in NAMES]
    expected = [value.astype(np.float64) for value in expected]
    for step in range(STEPS):
        gradients = [generator.normal(size=(4, 3)).astype(np.float32) for _ in NAMES]
        apply([tf.constant(value) for value in gradients])
        rate = float(schedule(step))
        expected = [
            update(w, kept, g, rate, step + 1, config, name in DECAYED)
            for w, kept, g, name in zip(expected, slots, gradients, NAMES)
        ]
    assert int(optimizer.iterations.numpy()) == STEPS
    for variable, value, name in zip(variables, expected, NAMES):
        for local in scope.experimental_local_results(variable):
            np.testing.assert_allclose(local.numpy(), value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    "kind,names",
    [
        ("sgd", []),
        ("momentum", ["Momentum"]),
        ("adam", ["adam_m", "adam_v"]),
        ("mpadamw", ["adam_m", "adam_v"]),
        ("lamb", ["lamb_m", "lamb_v"]),
    ],
)
def test_slots_have_the_names_of_tf1(make_config, kind, names):
    config = make_config(optimizer_type=kind)
    variable = tf.Variable(tf.ones([2, 2]), name="bert/pooler/dense/kernel")
    optimizer = optimizers.build_optimizer(config, schedules.from_config(config))
    optimizer.create_slots([variable])
    found = plain_optimizers.slot_variables(optimizer, kind, [variable])
    assert list(found) == [f"bert/pooler/dense/kernel/{name}" for name in names]
    assert [each.dtype for each in found.values()] == [
        tf.float16 if kind == "mpadamw" and name == "adam_m" else tf.float32 for name in names
    ]


@pytest.mark.parametrize("fused_ops", [True, False])
def test_a_first_moment_beyond_float16_is_cut(make_config, fused_ops):
    config = make_config(optimizer_type="mpadamw", loss_scale=2.0**15, fused_ops=fused_ops)
    variable = tf.Variable([1.0, 1.0], name="weight")
    optimizer = optimizers.build_optimizer(config, schedules.from_config(config))
    optimizer.create_slots([variable])
    tf.function(lambda: optimizer.update([tf.constant([100.0, -100.0])], [variable], tf.constant(1.0)))()
    largest = float(np.finfo(np.float16).max)
    assert optimizer.get_slot(variable, "m").numpy().tolist() == [largest, -largest]
    assert np.isfinite(variable.numpy()).all()


@pytest.mark.parametrize(
    "settings,message",
    [
        (dict(optimizer_type="adamw", momentum=0.5), "momentum=0.5 is not read by optimizer_type=adamw"),
        (dict(optimizer_type="momentum", bias_correction=False), "bias_correction=False is not read"),
        (dict(optimizer_type="adam", weight_decay_rate=0.1), "by lamb, adamw, mpadamw. Drop --weight_decay"),
        (dict(optimizer_type="sgd", beta_1=0.5), "beta_1=0.5 is not read by optimizer_type=sgd"),
        (dict(optimizer_type="momentum", momentum=1.0), r"momentum=1.0, expected a number in \[0, 1\)"),
        (dict(lamb_variant="nvlamb", clip_norm=2.0), "and so does clip_norm=2. Drop --clip_norm"),
        (
            dict(lamb_variant="mpclip", clip_scope="micro_batch", loss_normalization="local"),
            "and so does clip_scope=micro_batch",
        ),
        (dict(gradient_reduction="sum"), "loss_normalization=global makes a mean of them"),
        (
            dict(gradient_reduction="sum", loss_normalization="local", scale_loss=True),
            "scale_loss makes a mean of them",
        ),
    ],
)
def test_contradictions_are_refused(make_config, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(**settings)


def test_no_weight_decay_is_no_contradiction(make_config):
    assert make_config(optimizer_type="sgd", weight_decay_rate=0.0).weight_decay_rate == 0

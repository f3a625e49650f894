"""Optimizers against NumPy, with all kernels, on one and two replicas."""

import numpy as np
import pytest
import tensorflow as tf

from official.optimization import optimizers, plain_optimizers, schedules

NAMES = "layer/kernel layer/bias x/LayerNorm/gamma x/LayerNorm/beta y/layer_norm/gamma".split()
NAMES += ["cls/output_weights"]
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


def numpy_stable_adamw(weights, slots, gradient, rate, step, config, decayed):
    """Algorithm 2 of Wortsman et al. 2023 in float64, with its own, corrected moments."""
    beta_1, beta_2 = (
        beta * (1 - beta ** (step - 1)) / (1 - beta**step) for beta in (config.beta_1, config.beta_2)
    )
    slots["m"] = beta_1 * slots["m"] + (1 - beta_1) * gradient
    slots["v"] = beta_2 * slots["v"] + (1 - beta_2) * gradient**2
    root = np.sqrt(np.mean(gradient**2 / np.maximum(slots["v"], config.epsilon**2)))
    rate = rate / max(1, root)
    decay = config.weight_decay_rate if decayed else 0
    return weights - rate * decay * weights - rate * slots["m"] / (np.sqrt(slots["v"]) + config.epsilon)


def numpy_lamb(weights, slots, gradient, rate, step, config, decayed):
    """LAMB (You et al. 2019) in float64; `decayed` is "only" for a weight that is decayed and not adapted."""
    slots["m"] = config.beta_1 * slots["m"] + (1 - config.beta_1) * gradient
    slots["v"] = config.beta_2 * slots["v"] + (1 - config.beta_2) * gradient**2
    m, v = slots["m"], slots["v"]
    if config.bias_correction:
        m, v = m / (1 - config.beta_1**step), v / (1 - config.beta_2**step)
    update = m / (np.sqrt(v) + config.epsilon)
    if decayed:
        update = update + config.weight_decay_rate * weights
    if not decayed or decayed == "only":
        return weights - rate * update
    norms = np.linalg.norm(weights), np.linalg.norm(update)
    return weights - rate * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * update


BETAS = dict(beta_1=0.8, beta_2=0.9, weight_decay_rate=0.1)
NO_DECAY = dict(beta_1=0.8, beta_2=0.9)
CASES = {
    "sgd": (numpy_sgd, {}, 1e-6),
    "momentum": (numpy_momentum, dict(momentum=0.75), 1e-6),
    "adam": (numpy_adam, NO_DECAY, 1e-6),
    "adam, not corrected": (numpy_adam, dict(bias_correction=False, **NO_DECAY), 1e-6),
    "adamw": (numpy_adam, dict(warmup_steps=2, **BETAS), 1e-6),
    "adamw, not corrected": (numpy_adam, dict(bias_correction=False, **BETAS), 1e-6),
    "mpadamw": (numpy_mpadamw, dict(loss_scale=SCALE), 1e-5),
    "stable_adamw": (numpy_stable_adamw, dict(warmup_steps=2, **BETAS), 1e-6),
    "lamb": (numpy_lamb, dict(warmup_steps=2, **BETAS), 1e-6),
    "lamb, not corrected": (numpy_lamb, dict(bias_correction=False, **BETAS), 1e-6),
    "lamb, gamma decays": (numpy_lamb, dict(lamb_decays_gamma=True, **BETAS), 1e-6),
}


def built(config, variables=()):
    """Returns the optimizer of a configuration, with the slots of some variables."""
    optimizer = optimizers.build_optimizer(config, schedules.from_config(config))
    optimizer.create_slots(variables)
    return optimizer


def make_optimizer(config, scope: tf.distribute.Strategy, initial: dict[str, np.ndarray]) -> tuple:
    """Returns (optimizer, variables of these names and values, function of gradients that updates them)."""
    with scope.scope():
        variables = [tf.Variable(value, name=name) for name, value in initial.items()]
        optimizer = built(config, variables)

    @tf.function
    def apply(values):
        scope.run(lambda: optimizer.update([value * 4 for value in values], variables, tf.constant(0.25)))

    return optimizer, variables, apply


def strategy_of(replicas: int) -> tf.distribute.Strategy:
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("cpu:0")
    return tf.distribute.MirroredStrategy([f"cpu:{index}" for index in range(replicas)])


def numpy_steps(update, config, initial: dict[str, np.ndarray], gradients: list[list], decays: dict) -> tuple:
    """Returns the weights after some steps of a formula, and its slots, in float64."""
    schedule = schedules.from_config(config)
    weights = [value.astype(np.float64) for value in initial.values()]
    slots = [{"m": np.zeros(value.shape), "v": np.zeros(value.shape)} for value in weights]
    for step, of_step in enumerate(gradients):
        given = zip(weights, slots, of_step, initial)
        rate = float(schedule(step))
        weights = [update(w, kept, g, rate, step + 1, config, decays.get(name)) for w, kept, g, name in given]
    return weights, slots


@pytest.mark.parametrize("kernels,replicas", [("native", 2), ("fused", 2), ("plain", 1)])
@pytest.mark.parametrize("case", CASES)
def test_optimizer_agrees_with_numpy(make_config, case, kernels, replicas):
    update, settings, tolerance = CASES[case]
    kind = case.partition(",")[0]
    config = make_config(optimizer_type=kind, kernels=kernels, learning_rate=0.05, **settings)
    scope, generator = strategy_of(replicas), np.random.default_rng(0)
    initial = {name: generator.normal(size=(4, 3)).astype(np.float32) for name in NAMES}
    gradients = [[generator.normal(size=(4, 3)).astype(np.float32) for _ in NAMES] for _ in range(STEPS)]
    decays = dict.fromkeys(DECAYED, True)
    if config.lamb_decays_gamma:
        decays |= {name: "only" for name in NAMES if "gamma" in name}
    optimizer, variables, apply = make_optimizer(config, scope, initial)
    for of_step in gradients:
        apply([tf.constant(value) for value in of_step])
    assert int(optimizer.iterations.numpy()) == STEPS
    expected, _ = numpy_steps(update, config, initial, gradients, decays)
    for variable, value, name in zip(variables, expected, NAMES):
        for local in scope.experimental_local_results(variable):
            np.testing.assert_allclose(local.numpy(), value, rtol=tolerance, atol=tolerance, err_msg=name)


class _Scaled(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule times a constant: decoupled weight decay follows the learning rate."""

    def __init__(self, schedule, factor: float):
        self.schedule, self.factor = schedule, factor

    def __call__(self, step):
        return self.factor * self.schedule(step)

    def get_config(self):
        return dict(vars(self))


class _AddonsAdamW:
    """tensorflow-addons' AdamW; the parent compares variable objects, which are never a replica's own."""

    def __new__(cls, excluded, **arguments):
        import tensorflow_addons as tfa

        class ByName(tfa.optimizers.AdamW):
            def _do_use_weight_decay(self, variable):
                return not any(name in variable.name for name in excluded)

        return ByName(exclude_from_weight_decay=excluded, **arguments)


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
def test_plain_optimizers_equal_those_of_tensorflow_addons(make_config, kind):
    tfa = pytest.importorskip("tensorflow_addons")
    config = make_config(optimizer_type=kind, kernels="plain", learning_rate=0.05, **BETAS)
    schedule, generator = _Scaled(schedules.from_config(config), 1.0), np.random.default_rng(0)
    excluded = list(plain_optimizers.EXCLUDED)
    initial = {name: generator.normal(size=(4, 3)).astype(np.float32) for name in NAMES}
    _, ours, apply = make_optimizer(config, strategy_of(1), initial)
    theirs = [tf.Variable(value, name=name) for name, value in initial.items()]
    hyper = dict(learning_rate=schedule, beta_1=0.8, beta_2=0.9, epsilon=config.epsilon)
    if kind == "lamb":
        hyper |= dict(exclude_from_weight_decay=excluded, exclude_from_layer_adaptation=excluded)
        other = tfa.optimizers.LAMB(weight_decay=0.1, **hyper)
    else:
        other = _AddonsAdamW(excluded, weight_decay=_Scaled(schedule, 0.1), **hyper)
    for _ in range(5):
        gradients = [tf.constant(generator.normal(size=(4, 3)), tf.float32) for _ in NAMES]
        apply(gradients)
        other.apply_gradients(zip(gradients, theirs))
    for one, two in zip(ours, theirs):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=2e-6, atol=1e-6, err_msg=two.name)


def test_a_weight_of_zeros_and_an_update_of_zeros_are_not_scaled(make_config):
    """LAMB's ratio is 1 where one of the norms is 0."""
    config = make_config(kernels="plain", learning_rate=0.5, warmup_steps=0, **BETAS)
    optimizer = optimizers.build_plain(config, lambda step: tf.constant(0.5))
    zeros, ones = tf.Variable(tf.zeros([2, 2]), name="zeros"), tf.Variable(tf.ones([2, 2]), name="ones")
    optimizer.create_slots([zeros, ones])
    optimizer.update([tf.ones([2, 2]), tf.zeros([2, 2])], [zeros, ones], tf.constant(1.0))
    np.testing.assert_allclose(zeros.numpy(), -0.5, rtol=1e-5)
    np.testing.assert_allclose(ones.numpy(), 0.5)  # decayed only: the ratio of the norms is 10


def test_slots_have_the_names_of_tf1(make_config):
    for kind, names, dtype in (
        ("sgd", [], None),
        ("momentum", ["Momentum"], tf.float32),
        ("adam", ["adam_m", "adam_v"], tf.float32),
        ("mpadamw", ["adam_m", "adam_v"], tf.float16),
        ("lamb", ["lamb_m", "lamb_v"], tf.float32),
    ):
        config = make_config(optimizer_type=kind)
        variable = tf.Variable(tf.ones([2, 2]), name="bert/pooler/dense/kernel")
        found = plain_optimizers.slot_variables(built(config, [variable]), kind, [variable])
        assert list(found) == [f"bert/pooler/dense/kernel/{name}" for name in names]
        assert [each.dtype for each in found.values()] == [dtype, tf.float32][: len(names)]


def test_a_first_moment_beyond_float16_is_cut(make_config):
    config = make_config(optimizer_type="mpadamw", loss_scale=2.0**15)
    variable = tf.Variable([1.0, 1.0], name="weight")
    optimizer = built(config, [variable])
    tf.function(lambda: optimizer.update([tf.constant([100.0, -100.0])], [variable], tf.constant(1.0)))()
    largest = float(np.finfo(np.float16).max)
    assert optimizer.get_slot(variable, "m").numpy().tolist() == [largest, -largest]
    assert np.isfinite(variable.numpy()).all()


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
def test_layers_that_are_alike_are_updated_by_one_function(make_config, kind):
    config = make_config(optimizer_type=kind, kernels="fused")
    variables = [
        tf.Variable(tf.ones([4, 3]), name=f"bert/encoder/layer_{layer}/{name}")
        for layer in (0, 1, 10, 11)
        for name in ("kernel", "bias")
    ]
    variables.append(tf.Variable(tf.ones([5]), name="bert/pooler/dense/bias"))
    optimizer = built(config, variables)
    apply = tf.function(lambda: optimizer.update(variables, variables, tf.constant(1.0)))
    operations = apply.get_concrete_function().graph.get_operations()
    calls = [each for each in operations if "PartitionedCall" in each.type]
    assert len(calls) == 5 and len({call.get_attr("f").name for call in calls}) == 2
    # Which is how profiles know them.
    assert all(call.name.startswith(f"{type(optimizer).__name__}/") for call in calls)


def test_no_weight_decay_is_no_contradiction(make_config):
    assert make_config(optimizer_type="sgd", weight_decay_rate=0.0).weight_decay_rate == 0

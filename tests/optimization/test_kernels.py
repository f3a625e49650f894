"""The update as an operation of our own: against NumPy in all types of gradients, with any threads, its
copies, and where it cannot be."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from official import native
from official.config import ConfigError, build_config, encoder_options, to_json
from official.modeling import operations
from official.modeling.operations import choose, fused, plain
from official.optimization import optimizers
from official.optimization.optimizers import NativeAdamW, NativeLamb
from tests import programs
from tests.optimization.test_optimizers import built, numpy_adam, numpy_lamb, numpy_steps

# Several chunks, the last one ragged; less than a vector; one number.
SHAPES = {"a/kernel": (300, 331), "a/bias": (7,), "b/kernel": (33, 31), "c/LayerNorm/gamma": (1,)}
TYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
HYPER = dict(learning_rate=0.05, weight_decay_rate=0.1, beta_1=0.8, beta_2=0.9, kernels="native")


def make(config, dtype=tf.float32):
    """Returns (optimizer, its variables with copies in a type other than float32, updates with gradients)."""
    generator = np.random.default_rng(0)
    drawn = {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    variables = [tf.Variable(value, name=name) for name, value in drawn.items()]
    optimizer = built(config, variables)
    if dtype != tf.float32:
        optimizer.make_copies(variables, dtype)

    @tf.function
    def update(gradients, factor, *is_finite):
        optimizer.update(gradients, variables, factor, *is_finite)

    return optimizer, variables, update


def draw(generator, dtype) -> list[tf.Tensor]:
    return [tf.cast(generator.normal(size=shape), dtype) for shape in SHAPES.values()]


FORMULAS = pytest.mark.parametrize("kind,formula", [("lamb", numpy_lamb), ("adamw", numpy_adam)])


def updated(config, formula, dtype=tf.float32, *is_finite):
    """Takes three steps and compares the weights with NumPy's.

    Returns:
      optimizer, its variables, its update, the gradients of each step, and what NumPy says of the slots.
    """
    optimizer, variables, update = make(config, dtype)
    generator, decays = np.random.default_rng(1), {name: True for name in SHAPES if "kernel" in name}
    initial = {name: variable.numpy().copy() for name, variable in zip(SHAPES, variables)}
    steps = [draw(generator, dtype) for _ in range(3)]
    for gradients in steps:
        update(gradients, tf.constant(0.25), *is_finite)
    given = [[tf.cast(each, tf.float64).numpy() / 4 for each in gradients] for gradients in steps]
    expected, moments = numpy_steps(formula, config, initial, given, decays)
    for variable, value in zip(variables, expected):
        np.testing.assert_allclose(variable.numpy(), value, rtol=2e-6, atol=2e-6, err_msg=variable.name)
    return optimizer, variables, update, steps, moments


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@FORMULAS
def test_it_agrees_with_numpy(make_config, kind, formula, dtype):
    optimizer, variables, *_, moments = updated(make_config(optimizer_type=kind, **HYPER), formula, dtype)
    assert isinstance(optimizer, {"lamb": NativeLamb, "adamw": NativeAdamW}[kind])
    for variable, kept in zip(variables, moments):
        for slot, moment in kept.items():
            found = optimizer.get_slot(variable, slot).numpy()
            np.testing.assert_allclose(found, moment, rtol=1e-5, atol=1e-7, err_msg=variable.name)
        if dtype != tf.float32:
            copy = optimizer.make_copies([variable], dtype)[variable.name]
            np.testing.assert_array_equal(copy.numpy(), tf.cast(variable, dtype).numpy())


@FORMULAS
def test_an_update_as_one_program_agrees_with_numpy(make_config, monkeypatch, kind, formula):
    """As GPUs take it: a gradient that is not finite changes nothing but the step counter."""
    monkeypatch.setattr(native, "on_gpus", lambda strategy=None: True)
    config = make_config(optimizer_type=kind, **{**HYPER, "kernels": "fused"})
    optimizer, variables, update, steps, _ = updated(config, formula, tf.float32, tf.constant(True))
    norm = tf.function(optimizer.global_norm)(steps[0])
    np.testing.assert_allclose(norm, tf.linalg.global_norm(steps[0]), rtol=1e-6)
    before = [variable.numpy() for variable in variables]
    update([each * np.inf for each in steps[0]], tf.constant(0.25), tf.constant(False))
    assert optimizer.compiles and int(optimizer.iterations) == 4
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.name)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16], ids=["bf16", "fp16"])
def test_a_copy_is_the_cast_to_the_bit(make_config, dtype):
    """Also of what lies between two numbers, overflows, is below the normal numbers, or is none."""
    values = np.concatenate([np.random.default_rng(0).normal(size=3000) * 10.0**k for k in range(-9, 6)])
    halfway = [1 + 2**-9, 1 + 3 * 2**-9, 2**-25, 2**-24 * 1.5]
    special = [0.0, -0.0, 65504, 65519, 65520, np.inf, -np.inf, *halfway]
    values = np.concatenate([special, [np.nan], values]).astype(np.float32)
    config = make_config(**{**HYPER, "learning_rate": 0.0})  # the weights stay what they are
    variable = tf.Variable(values, name="bias")
    optimizer = built(config, [variable])
    copy = optimizer.make_copies([variable], dtype)["bias:0"]
    optimizer.update([tf.zeros(values.shape)], [variable], tf.constant(1.0))
    np.testing.assert_array_equal(variable.numpy(), values)
    bits, expected = (each.numpy().view(np.uint16) for each in (copy, tf.cast(values, dtype)))
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(bits[numbers], expected[numbers])
    assert np.isnan(copy.numpy()[~numbers].astype(np.float32)).all()


def test_the_norm_is_that_of_all_numbers(make_config):
    optimizer, *_ = make(make_config(**HYPER))
    generator = np.random.default_rng(2)
    tensors = [*draw(generator, tf.float32), *draw(generator, tf.bfloat16), *draw(generator, tf.float16)]
    expected = np.sqrt(sum(np.sum(tf.cast(each, tf.float64).numpy() ** 2) for each in tensors))
    np.testing.assert_allclose(optimizer.global_norm(tensors), expected, rtol=1e-6)
    for bad in (np.nan, np.inf):
        tensors[2] = tf.tensor_scatter_nd_update(tensors[2], [[5, 5]], [bad])
        assert not np.isfinite(optimizer.global_norm(tensors))


def test_a_value_that_was_read_before_stays(make_config):
    """Variables are written in place: not where somebody still holds what they were."""
    optimizer, variables, update = make(make_config(**HYPER), tf.bfloat16)
    copy = optimizer.make_copies(variables, tf.bfloat16)["a/kernel:0"]
    held = list(map(tf.convert_to_tensor, (variables[0], optimizer.get_slot(variables[0], "m"), copy)))
    before = [np.array(each) for each in held]
    update(draw(np.random.default_rng(0), tf.float32), tf.constant(1.0))
    for tensor, value in zip(held, before):
        np.testing.assert_array_equal(tensor.numpy(), value)
    assert np.abs(variables[0].numpy() - before[0]).max() > 1e-3
    assert np.abs(copy.numpy().astype(np.float32) - variables[0].numpy()).max() < 0.02


def test_what_is_no_number_shows_and_another_size_is_an_error(make_config):
    optimizer, variables, update = make(make_config(**HYPER))
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient of 3 elements"):
        optimizer.update([tf.ones([3])], variables[:1], tf.constant(1.0))
    update(draw(np.random.default_rng(0), tf.float32), tf.constant(np.nan))
    assert all(np.isnan(variable.numpy()).all() for variable in variables)


_DIGEST = """
import hashlib, sys
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
import numpy as np
from official.config import build_config
from official.modeling.layers import Norm
from tests.modeling.test_native_blocks import SEED, draw, native, with_gradients
from tests.optimization import test_kernels
model = dict(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
settings = dict(test_kernels.HYPER, use_synthetic_data=True, model_dir="unused", model=model, warmup_steps=0,
                train_batch_size=8, distribution_strategy="one_device", max_seq_length=16,
                max_predictions_per_seq=3)
generator, found = np.random.default_rng(0), []
for kind in ("lamb", "adamw"):
    config = build_config([("test", dict(settings, optimizer_type=kind))])
    optimizer, variables, update = test_kernels.make(config)
    for _ in range(3):
        update(test_kernels.draw(generator, tf.float32), tf.constant(1.0))
    found += [variable.numpy() for variable in variables]
    found.append(optimizer.global_norm(test_kernels.draw(generator, tf.float32)).numpy())
x, other = (draw(301, 520, seed=seed) for seed in range(2))
bias, gamma, beta = (draw(520, seed=seed) for seed in range(3))
block = lambda x, bias, other, *norm: native.residual_norm(
    x, bias, other, Norm(*norm), 1e-12, 0.1, tf.constant(SEED))
found += with_gradients(block, x, bias, other, gamma, beta)
found += with_gradients(lambda x, bias: native.bias_activation(x, bias, "gelu_tanh"), x, bias)
print(hashlib.sha256(b"".join(each.tobytes() for each in found)).hexdigest())
"""


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_bits():
    """Of updates, and of the operations of blocks."""
    done = [programs.call(sys.executable, "-c", _DIGEST, threads) for threads in ("1", "2", "5")]
    digests = {each.stdout for each in done}
    assert len(digests) == 1 and len(digests.pop()) > 60, done


@pytest.fixture
def nothing_loaded():
    """Lets the library be looked for again, before the test and after it."""
    cached = (native.library_path, native.operations, native._not_built, native.log_choice)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def test_without_a_compiler_a_line_says_that_others_run(make_config, monkeypatch, tmp_path, nothing_loaded):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    told: list = []
    monkeypatch.setattr(native.logging, "info", lambda message, *values: told.append(message % values))
    for _ in range(2):
        assert type(built(make_config())) is optimizers.CompiledLamb and choose("auto") is fused
    assert len(told) == 1 and "Kernels: fused, not native: there is no C++ compiler" in told[0]
    for refused in (lambda: built(make_config(kernels="native")), lambda: choose("native")):
        with pytest.raises(ConfigError, match="kernels=native is not possible here: there is no C"):
            refused()


def test_a_library_that_cannot_be_loaded_is_not_taken(make_config, monkeypatch, tmp_path, nothing_loaded):
    broken = tmp_path / "kernels.so"
    broken.write_bytes(b"\x7fELF")
    monkeypatch.setattr(native.native_library, "built", lambda *_, **__: str(broken))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        built(make_config(kernels="native"))


@pytest.mark.parametrize("others,expected", [([], "native"), ([0], "fused"), ([7], "fused")])
def test_processes_of_one_run_take_it_where_all_have_the_same(make_config, monkeypatch, others, expected):
    """0 is the mark of a process without it."""
    gather = lambda marks: {"mark": tf.concat([marks["mark"], tf.constant(others, tf.int32)], axis=0)}
    monkeypatch.setattr(optimizers.gradients_lib, "gather", gather)
    workers = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1", task_index=0)
    assert optimizers.update_kernels(make_config(**workers)) == expected
    if expected != "native":
        with pytest.raises(ConfigError, match="do not all have the same library"):
            optimizers.update_kernels(make_config(**workers, kernels="native"))
    assert optimizers.update_kernels(make_config(**workers, kernels="fused")) == "fused"


def test_accelerators_are_left_alone(make_config, monkeypatch):
    monkeypatch.setattr(native, "on_cpus", lambda: False)
    assert choose("auto") is fused and optimizers.update_kernels(make_config()) == "fused"
    for refused in (choose, lambda kernels: built(make_config(kernels=kernels))):
        with pytest.raises(ConfigError, match="they are for CPUs only"):
            refused("native")


def test_which_runs_take_which(make_config):
    asked = {name: dict(kernels=name) for name in ("auto", "plain", "fused", "native")}
    asked |= {"xla": dict(enable_xla=True), "xla, plain": dict(enable_xla=True, kernels="plain")}
    found = {name: encoder_options(make_config(**settings))["kernels"] for name, settings in asked.items()}
    assert found == {**{name: name for name in asked}, "xla": "fused", "xla, plain": "plain"}
    assert choose("native") is operations.native and choose("fused") is fused and choose("plain") is plain


def test_settings_of_earlier_versions(make_config):
    """A saved config.json is read; elsewhere the old names are errors that name the new one."""
    old = {"fused_ops": True, "block_kernels": "auto", "update_kernel": "auto"}
    cases = [
        ({}, "auto"),
        ({"fused_ops": False}, "plain"),
        ({"block_kernels": "compiled"}, "fused"),
        ({"update_kernel": "tensorflow"}, "fused"),
        ({"block_kernels": "native", "update_kernel": "native"}, "native"),
    ]
    for changed, expected in cases:
        saved = json.loads(to_json(make_config()))
        del saved["kernels"]
        assert build_config([("config.json", {**saved, **old, **changed})]).kernels == expected, changed
    for name, value in (("fused_ops", False), ("block_kernels", "native"), ("update_kernel", "native")):
        with pytest.raises(ConfigError, match=f"{name}=.*--kernels="):
            make_config(**{name: value})

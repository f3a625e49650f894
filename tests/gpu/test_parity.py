"""Losses and gradients of a step on a GPU against plain float32 on the CPU, dropout included."""

import contextlib
import functools

import numpy as np
import pytest

from tests.gpu.devices import CPU, full_float32, small_config
from tests.gpu.steps import losses_and_gradients, make_step

pytestmark = pytest.mark.gpu

# Largest errors: of a loss over it; of a variable's gradient over its norm, or over 1 % of that of all
# gradients, where it is smaller. fp16 and TensorFloat-32 have 10 bits of fraction, bf16 has 7.
TOLERANCES = {"fp32": (1e-5, 2e-3), "tf32": (1e-3, 5e-2), "fp16": (2e-3, 5e-2), "bf16": (1e-2, 2e-1)}


def config_of(is_packed: bool, **settings):
    packed = dict(pack_on_the_fly=True, max_sequences_per_pack=3) if is_packed else {}
    return small_config(num_accumulation_steps=2, **packed, **{**CPU, **settings})


@functools.cache
def reference(is_packed: bool):
    """Returns a batch, weights, and their losses and gradients in plain float32 on the CPU."""
    step = make_step(config_of(is_packed, kernels="plain"))
    batch = next(step.batches())
    batch = {name: value.numpy() for name, value in batch.items()}
    return batch, step.weights(), losses_and_gradients(step, batch)


def check(device, precision: str, is_packed: bool = False, **settings) -> None:
    batch, weights, (losses, gradients) = reference(is_packed)
    dtype = "fp32" if precision == "tf32" else precision
    config = config_of(is_packed, dtype=dtype, **device.settings, **settings)
    with full_float32() if precision == "fp32" else contextlib.nullcontext():
        step = make_step(config, weights)
    found_losses, found = losses_and_gradients(step, batch)
    of_loss, of_gradient = TOLERANCES[precision]
    for name in ("mlm_loss", "nsp_loss"):
        assert found_losses[name] == pytest.approx(losses[name], rel=of_loss), name
    total = np.linalg.norm([np.linalg.norm(gradient) for gradient in gradients.values()])
    assert total > 0.1  # there is something to compare
    for name, expected in gradients.items():
        error = np.linalg.norm(found[name] - expected) / max(np.linalg.norm(expected), 0.01 * total)
        assert error <= of_gradient, f"{name}: {error:.2g}"


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
@pytest.mark.parametrize("kernels", ["plain", "fused"])
@pytest.mark.parametrize(
    "precision, rows", [*((name, "") for name in TOLERANCES), ("fp32", "packed"), ("fp16", "packed")]
)
def test_a_step_is_that_of_the_cpu(device, precision, rows, kernels, xla):
    check(device, precision, is_packed=rows == "packed", kernels=kernels, enable_xla=xla)


@pytest.mark.parametrize("recompute", ["attention", "block"])
def test_what_is_computed_again_is_that_of_the_cpu(device, recompute):
    check(device, "fp32", recompute=recompute)

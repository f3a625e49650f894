"""Small modules of the API: gelu, lookups, serialized products, outlined functions, seeds, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine, replicas

DIMENSIONS = ("a_columns", "a_rows_b_columns", "b_rows")


def check_factor(factor: Any) -> int:
    """Returns a serialization factor.

    Raises:
      ValueError: less than 1.
    """
    if int(factor) < 1:
        raise ValueError(f"serialization_factor has to be at least 1, but was {int(factor)}.")
    return int(factor)


@tf.autograph.experimental.do_not_convert
def gelu(x: Any, name: str | None = None) -> tf.Tensor:
    """Returns x times the normal distribution function of x, in its approximation by tanh.

    Source: https://arxiv.org/abs/1606.08415, section 2.
    """
    x = tf.convert_to_tensor(x)
    inner = tf.cast(0.7978845608028654, x.dtype) * (x + tf.cast(0.044715, x.dtype) * x * x * x)
    return tf.multiply(tf.cast(0.5, x.dtype) * x, 1 + tf.tanh(inner), name=name)


@tf.autograph.experimental.do_not_convert
def embedding_lookup(
    params: Any,
    ids: tf.Tensor,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
) -> tf.Tensor:
    """Returns rows of a table.

    Args:
      params: the table, [rows, ...], one tensor or variable.
      ids: int32, [...]: which rows.
      name: a name.
      serialization_factor: into how many lookups in parts of the table this is broken up.
      indices_are_sorted: bool, without effect here.

    Raises:
      ValueError: the factor does not divide the rows.
      TypeError: other types, or a list of tables (strict: not in the sources read).
    """
    factor = check_factor(serialization_factor)
    if isinstance(params, (list, tuple)):
        raise TypeError("embedding_lookup: params must be one tensor")
    if ids.dtype != tf.int32:
        raise TypeError(f"embedding_lookup: ids must be int32, but are {ids.dtype.name}")
    if params.shape[0] % factor:
        raise ValueError(
            f"The serialization_factor ({factor}) must divide the size of the 0th dimension of params "
            f"({params.shape[0]})."
        )
    return tf.gather(params, ids, name=name)


@tf.autograph.experimental.do_not_convert
def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Returns a matrix product that is computed in parts, here in one.

    Args:
      a, b: tensors of at least 2 dimensions.
      serialization_factor: number of parts; must divide the dimension.
      serialization_dimension: a_columns (rows of the product), a_rows_b_columns (the summed one) or b_rows
        (columns of the product).
      transpose_a, transpose_b: whether they are transposed first.
      name: a name.

    Raises:
      ValueError: anything else.
    """
    factor = check_factor(serialization_factor)
    for letter, tensor in (("a", a), ("b", b)):
        if len(tensor.shape) < 2:
            raise ValueError(f"Expected tensor '{letter}' to have a minimum rank of 2")
    if serialization_dimension not in DIMENSIONS:
        raise ValueError(
            f"Invalid serialization_dimension={serialization_dimension}, expected one of: {DIMENSIONS}."
        )
    sizes = {
        "a_columns": a.shape[-1 if transpose_a else -2],
        "a_rows_b_columns": a.shape[-2 if transpose_a else -1],
        "b_rows": b.shape[-2 if transpose_b else -1],
    }
    size = sizes[serialization_dimension]
    if size % factor:
        raise ValueError(
            f"Expected 'serialization_factor' ({factor}) to divide the dimension "
            f"{serialization_dimension} ({size})."
        )
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, name=name)


def outlined_function(
    func: Callable | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Callable:
    """Returns a function whose code the IPU holds once; decorator with or without arguments.

    Raises:
      ValueError: the function gives no tensor.
    """
    if func is None:
        return lambda given: outlined_function(given, unique_sharding, keep_input_layouts, name)

    @tf.autograph.experimental.do_not_convert
    def outlined(*args: Any) -> Any:
        outputs = func(*[tf.convert_to_tensor(each) for each in args])
        if outputs is None or isinstance(outputs, tf.Operation):
            raise ValueError("an outlined function must return at least one tensor")
        return outputs

    return outlined


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Sets the seed of an IPU device's random numbers and of stochastic rounding: noted on the machine.

    Raises:
      RuntimeError: nothing is configured, or no such device.
      TypeError: no int.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed={seed!r}: must be an int")
    here = machine.configured()
    here.configured_ipus(tf.DeviceSpec.from_string(device).device_index or 0)
    here.seeds.append((seed, device, experimental_identical_replicas))


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """Returns the number of IPUs of an IPU device."""
    return machine.configured().configured_ipus(tf.DeviceSpec.from_string(ipu_device).device_index or 0)


class CrossReplicaOptimizer(tf.compat.v1.train.Optimizer):
    """Averages gradients over the replicas before another optimizer applies them.

    Args:
      opt: a TF1 optimizer.
      name: a name.
    """

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer"):
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise TypeError("CrossReplicaOptimizer: opt must be a TensorFlow Optimizer object")
        super().__init__(False, name)
        self._opt = opt

    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        return self._opt.compute_gradients(loss, *args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        pairs = [
            (None if gradient is None else replicas.cross_replica_mean(gradient), variable)
            for gradient, variable in grads_and_vars
        ]
        return self._opt.apply_gradients(pairs, global_step, name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self) -> list[str]:
        return self._opt.get_slot_names()

    def variables(self) -> list[Any]:
        return self._opt.variables()


def modules() -> dict[str, dict[str, Any]]:
    """Returns the modules: dotted name below the package -> names in it."""
    return {
        "ops.nn_ops": {"gelu": gelu},
        "ops.embedding_ops": {"embedding_lookup": embedding_lookup},
        "ops.math_ops": {"serialized_matmul": serialized_matmul},
        "ops.functional_ops": {"outlined_function": outlined_function},
        "utils": {
            "reset_ipu_seed": reset_ipu_seed,
            "get_num_of_ipus_in_device": get_num_of_ipus_in_device,
            "running_on_ipu_model": machine.running_on_ipu_model,
        },
        "optimizers": {"CrossReplicaOptimizer": CrossReplicaOptimizer},
        "optimizers.cross_replica_optimizer": {"CrossReplicaOptimizer": CrossReplicaOptimizer},
    }

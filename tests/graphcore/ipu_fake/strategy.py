"""`ipu.ipu_strategy`: the strategy of one process: creates variables on the IPU, and runs programs there.

Programs run as ordinary graphs: a `tf.function(jit_compile=True)` is traced again without `jit_compile`,
because XLA on a CPU cannot hold what the queues need. What the IPU's compiler would refuse is refused after
tracing.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, one_device_strategy

from tests.graphcore.ipu_fake import compiler, machine, replicas

UNTRACED: Any = weakref.WeakKeyDictionary()


class IPUExtended(one_device_strategy.OneDeviceExtended):
    """Variables and reductions of the strategies.

    Args:
      container_strategy: the strategy.
      reduces: whether optimizers of TensorFlow reduce over the replicas through the strategy. For
        IPUStrategyV1 the sources read leave it open: here they do not, so that a missing
        CrossReplicaOptimizer is found.
    """

    def __init__(self, container_strategy: Any, reduces: bool = False):
        super().__init__(container_strategy, "/device:CPU:0")
        self._reduces = reduces

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        variable = super()._create_variable(next_creator, **kwargs)
        machine.current.register(variable)
        return variable

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if machine.current.running is None or not self._reduces:
            return value
        if reduce_op == tf.distribute.ReduceOp.SUM:
            return replicas.cross_replica_sum(value)
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            return replicas.cross_replica_mean(value)
        raise ValueError(f"Unsupported reduce op: {reduce_op}")


class IPUStrategyV1(distribute_lib.StrategyV1):
    """Runs programs on one device /device:IPU:N, which has one or more IPUs.

    Args:
      ipu_device: the IPU device.
      cpu_device: the device on which initial values are made.
      enable_dataset_iterators, enable_keras_extensions: bools, without effect here.

    Raises:
      RuntimeError: no configuration, or no such device.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ):
        self._set_device(ipu_device)
        super().__init__(IPUExtended(self))

    def _set_device(self, ipu_device: str) -> None:
        spec = tf.DeviceSpec.from_string(ipu_device)
        if spec.device_type != "IPU":
            raise ValueError(f"{ipu_device} is not an IPU device")  # not in the sources read
        self._ordinal = spec.device_index or 0
        machine.configured().configured_ipus(self._ordinal)

    @property
    def _device_ordinal(self) -> int:
        return self._ordinal

    @property
    def supports_loss_scaling(self) -> bool:
        return True

    def run(self, fn: Any, args: tuple = (), kwargs: Any = None, options: Any = None) -> Any:
        """Compiles a tf.function for the IPU and runs it.

        Raises:
          ValueError: not a tf.function, in eager mode.
          TypeError: float64 goes in or comes out.
          tf.errors.OpError: the program cannot be compiled, or does not fit.
        """
        if tf.executing_eagerly() and not hasattr(fn, "get_concrete_function"):
            raise ValueError(
                "IPUStrategyV1.run(fn, ...) does not support eager execution. Either convert `fn` into a "
                "tf.function or consider calling strategy.run inside a tf.function."
            )
        machine.configured()
        with machine.program_of(self):
            if not tf.executing_eagerly():
                return super().run(fn, args, kwargs, options)
            return super().run(program(uncompiled(fn)), args, kwargs, options)

    def check_replicas(self, local: int) -> None:
        """Whether a program may run with so many replicas in this process: here with any."""

    def check_sharding(self, sharded: bool) -> None:
        """Whether optimizer states may be shared out over the replicas: here they may."""

    def experimental_run_v2(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("`experimental_run_v2` has been deleted. Use `run` instead.")


def uncompiled(fn: Any) -> Any:
    """Returns the function without jit_compile, the same each time; it must have been asked for.

    Raises:
      ValueError: no jit_compile=True: the real one would run parts of it on the host (strict: not in
        the sources read).
    """
    if fn not in UNTRACED:
        if not getattr(fn, "_jit_compile", None):
            raise ValueError("strategy.run(fn): fn must be a tf.function(jit_compile=True)")
        copy = fn._clone(None)
        copy._jit_compile = False
        UNTRACED[fn] = copy
    return UNTRACED[fn]


def program(fn: Any) -> Any:
    """Returns a function that compiles a tf.function for its arguments, checks it and runs it."""

    @tf.autograph.experimental.do_not_convert
    def compile_and_run(*args: Any, **kwargs: Any) -> Any:
        compiled = fn.get_concrete_function(*args, **kwargs)
        compiler.check_program(compiled)
        if machine.current.executes():
            return fn(*args, **kwargs)
        return zeros_of(compiled)

    return compile_and_run


def zeros_of(compiled: Any) -> Any:
    """Returns what a program that is only compiled gives: zeros, also in its outfeeds.

    Raises:
      RuntimeError: the connection type is NEVER (the kind of the error: not in the sources read).
    """
    if machine.current.config.device_connection.type.name == "NEVER":
        raise RuntimeError("device_connection.type is NEVER: no device to run the program on")
    for graph, queue, elements in machine.current.fed:
        if graph is compiled.graph:
            queue.put_zeros(elements)
    is_tensor = lambda each: isinstance(each, (tf.Tensor, tf.TensorSpec))
    return tf.nest.map_structure(
        lambda each: tf.zeros(each.shape, each.dtype) if is_tensor(each) else each,
        compiled.structured_outputs,
    )


def module_names() -> dict[str, Any]:
    """Returns what the module ipu.ipu_strategy has."""
    return {"IPUStrategyV1": IPUStrategyV1, "IPUStrategy": IPUStrategyV1}

"""`ipu.ipu_strategy` and `ipu.distributed.popdist_strategy`: variables and programs on the IPU.

Programs run as ordinary graphs: a `tf.function(jit_compile=True)` is traced again without `jit_compile`,
because XLA on a CPU cannot hold what the queues need. What the IPU's compiler would refuse is refused after
tracing.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, one_device_strategy

from tests.graphcore.ipu_fake import machine, stages

UNTRACED: Any = weakref.WeakKeyDictionary()


class IPUExtended(one_device_strategy.OneDeviceExtended):
    """Registers variables. It reduces nothing over the replicas: a reduction that is missing is found."""

    def __init__(self, container_strategy: Any):
        super().__init__(container_strategy, "/device:CPU:0")

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        variable = super()._create_variable(next_creator, **kwargs)
        machine.current.register(variable)
        return variable


class IPUStrategyV1(distribute_lib.StrategyV1):
    """Runs programs on the configured IPUs. Raises RuntimeError where nothing is configured."""

    def __init__(self, enable_keras_extensions: bool = True):
        if enable_keras_extensions:
            raise NotImplementedError("this fake knows no extensions of Keras")
        machine.configured()
        super().__init__(IPUExtended(self))

    def run(self, fn: Any, args: tuple = (), kwargs: Any = None, options: Any = None) -> Any:
        """Compiles a tf.function for the IPU and runs it.

        Raises:
          ValueError: not a tf.function(jit_compile=True).
          tf.errors.OpError: the program cannot be compiled, or does not fit.
        """
        with machine.program_of(self):
            return super().run(_program(_uncompiled(fn)), args, kwargs, options)


def _uncompiled(fn: Any) -> Any:
    """Returns the function without jit_compile, the same each time. It must have been asked for: the real one
    would run parts of it on the host (strict: not in the sources read)."""
    if fn not in UNTRACED:
        if not getattr(fn, "_jit_compile", None):
            raise ValueError("strategy.run(fn): fn must be a tf.function(jit_compile=True)")
        UNTRACED[fn] = fn._clone(None)
        UNTRACED[fn]._jit_compile = False
    return UNTRACED[fn]


def _program(fn: Any) -> Any:
    """Returns a function that compiles a tf.function, checks it, and runs it or feeds out zeros."""

    @tf.autograph.experimental.do_not_convert
    def compile_and_run() -> Any:
        graph = fn.get_concrete_function().graph
        stages.check_graph(graph, "the program", inner=False)
        if machine.current.executes():
            return fn()
        for fed_by, queue, elements in machine.current.fed:
            if fed_by is graph:
                queue.put_zeros(elements)
        return None

    return compile_and_run


class PopDistStrategy(IPUStrategyV1):
    """The strategy of one of several processes that poprun has started, whose programs do not run here."""

    def __init__(self, add_ipu_cross_replica_reductions: bool = True):
        if add_ipu_cross_replica_reductions:
            raise NotImplementedError("this fake lets no optimizer reduce over the replicas by itself")
        super().__init__(enable_keras_extensions=False)

    def run(self, fn: Any, args: tuple = (), kwargs: Any = None, options: Any = None) -> Any:
        raise NotImplementedError("this fake runs programs in one instance only")

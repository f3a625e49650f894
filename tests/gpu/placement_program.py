"""Prints, as JSON, {"device operation types": how many} of all that a training step runs, by device.

In a process of its own: functions that stay calls would be placed out of sight, and are written into the step
here, which is to come before any of them is traced.

  python -m tests.gpu.placement_program SETTINGS_IN_JSON
"""

import collections
import json
import sys

import tensorflow as tf
from tensorflow.python.eager import context  # no public name
from tensorflow.python.eager.polymorphic_function import polymorphic_function

import official  # noqa: F401  first: sets what TensorFlow reads when it is imported


def write_calls_into_callers() -> None:
    """Makes functions that are not compiled forget that they stay calls."""
    make = polymorphic_function.Function._generate_tracing_options

    def inlined(self, *arguments):
        options = make(self, *arguments)
        if not self._jit_compile:
            options.attributes.pop("_noinline", None)
        return options

    polymorphic_function.Function._generate_tracing_options = inlined


def placed(settings: dict) -> collections.Counter:
    """Returns {(device, operation, types): how many} of the graphs that a step runs as, after TensorFlow has
    placed, optimised and cut them up."""
    from tests.gpu.devices import small_config
    from tests.gpu.kernels import types_of
    from tests.gpu.steps import make_step

    step = make_step(small_config(**settings))
    loop, batches = step.loop(), step.batches()
    context.context().enable_graph_collection()
    loop(batches, tf.constant(1), step.nothing())
    graphs = context.context().export_run_metadata().function_graphs
    return collections.Counter(
        (node.device.split("device:")[-1], node.op, types_of(node))
        for function in graphs
        for graph in function.partition_graphs
        for node in graph.node
    )


if __name__ == "__main__":
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    write_calls_into_callers()
    found = placed(json.loads(sys.argv[1]))
    print(json.dumps({" ".join(where): count for where, count in found.items()}))

"""Which operations of a graph have a kernel for GPUs, by what this TensorFlow has registered, and whether
XLA lowers its functions for GPUs: known without a GPU, too."""

import collections
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# No public names.
from tensorflow.python.eager.polymorphic_function import compiler_ir
from tensorflow.python.framework import kernels
from tensorflow.python.ops import handle_data_util

# Compiled by XLA as a whole: what is inside has no kernels.
_COMPILED = "_XlaMustCompile"


# Device types whose kernels count on a GPU, those for any device, too; and where XLA compiles for one.
GPU, COMPILED_FOR_GPU = ("GPU", "DEFAULT"), ("XLA_GPU_JIT",)
# Are no operations there, or calls.
_NO_KERNEL_NEEDED = {"Placeholder"}, {"Placeholder", "PartitionedCall", "StatefulPartitionedCall"}


@functools.cache
def kernels_of(operation: str, devices: tuple[str, ...]) -> list:
    """Returns the kernels of an operation for some device types."""
    known = kernels.get_registered_kernels_for_op(operation).kernel
    return [kernel for kernel in known if kernel.device_type in devices and not kernel.label]


def has_kernel(node, devices: tuple[str, ...]) -> bool:
    """Tells whether a NodeDef has a kernel with its types."""

    def takes(constraint) -> bool:
        given, allowed = node.attr[constraint.name], constraint.allowed_values.list
        if allowed.s:
            return given.s in allowed.s
        types = list(given.list.type) or [given.type]
        return all(each in allowed.type for each in types)

    return any(all(map(takes, kernel.constraint)) for kernel in kernels_of(node.op, devices))


def types_of(node) -> str:
    """Returns the types of a NodeDef, such as uint32."""
    given = {value.type for value in node.attr.values() if value.WhichOneof("value") == "type"}
    return ", ".join(sorted(tf.dtypes.as_dtype(each).name for each in given))


def nodes(graph, compiled: bool = False) -> Iterator:
    """Yields the NodeDefs of a GraphDef that run one by one: its own, and those of the functions that these
    call, unless XLA compiles them; with `compiled` of all."""
    functions = {function.signature.name: function for function in graph.library.function}
    left, seen = [graph.node], set()
    while left:
        for node in left.pop():
            yield node
            for value in node.attr.values():
                for name in {value.func.name, *(each.name for each in value.list.func)} & functions.keys():
                    if name not in seen and (compiled or not functions[name].attr[_COMPILED].b):
                        left.append(functions[name].node_def)
                    seen.add(name)


def without_kernel(graph, compiled: bool = False) -> collections.Counter:
    """Returns {(operation, types): how many} of a GraphDef that a GPU has no kernel for; with `compiled` that
    XLA has none for there."""
    devices, others = (GPU, COMPILED_FOR_GPU)[compiled], _NO_KERNEL_NEEDED[compiled]
    return collections.Counter(
        (node.op, types_of(node))
        for node in nodes(graph, compiled)
        if node.op not in others and not has_kernel(node, devices)
    )


# -----------------------------------------------------------------------------------------------------------
# Functions that XLA compiles

_ANY_SIZE = 1  # stands in for a size that is known when it runs: it goes with any other


@contextlib.contextmanager
def recorded_functions(run: Callable[[Callable], Any]) -> Iterator[dict[str, Callable]]:
    """Yields {function that XLA compiles, with its shapes: () -> its ConcreteFunction}, which is filled with
    those that are called while graphs are traced in the block.

    Args:
      run: calls a function as a replica does.
    """
    found: dict[str, Callable] = {}
    kind: Any = type(tf.function(lambda: None))
    original = kind.__call__

    def call(self, *args, **named):
        if self._jit_compile:
            leaves = tf.nest.flatten((args, named))
            shown = ", ".join(str(_spec(each)) for each in leaves if tf.is_tensor(each))
            function = self.python_function
            name = f"{getattr(function, 'func', function).__name__}({shown})"  # of a partial, too
            specs = tf.nest.map_structure(_spec, (args, named))
            found.setdefault(name, functools.partial(_concrete, self, specs, run))
        return original(self, *args, **named)

    kind.__call__ = call
    try:
        yield found
    finally:
        kind.__call__ = original


def _spec(value: Any) -> Any:
    """Returns a tensor's shape and type, of a variable's handle those of the variable; other values as they
    are."""
    if not tf.is_tensor(value):
        return value
    shape, dtype, is_variable = value.shape, value.dtype, value.dtype == tf.resource
    if is_variable:
        held = handle_data_util.get_resource_handle_data(value).shape_and_type[0]
        shape, dtype = tf.TensorShape(held.shape), tf.as_dtype(held.dtype)
    shape = [_ANY_SIZE if size is None else size for size in shape]
    return tf.TensorSpec(shape, dtype, name="variable" if is_variable else None)


def _concrete(function: Callable, specs: Any, run: Callable) -> Any:
    """Returns the ConcreteFunction of a call whose handles are those of variables made for it."""
    leaves = tf.nest.flatten(specs)
    for number, each in enumerate(leaves):
        if isinstance(each, tf.TensorSpec) and each.name == "variable":
            leaves[number] = tf.Variable(tf.zeros(each.shape, each.dtype))
    tensors = [each for each in leaves if isinstance(each, tf.TensorSpec)]

    @functools.partial(tf.function, autograph=False, jit_compile=True)
    def call(*given):
        left = iter(given)
        values = [next(left) if isinstance(each, tf.TensorSpec) else each for each in leaves]
        values = [value.handle if isinstance(value, tf.Variable) else value for value in values]
        args, named = tf.nest.pack_sequence_as(specs, values)
        return run(lambda: function(*args, **named))

    return call.get_concrete_function(*tensors)


def can_lower() -> bool:
    """Tells whether this TensorFlow lowers for a platform that is not there. Sets up no devices."""
    return "platform_name" in inspect.getsource(compiler_ir.from_concrete_function)


def lowered(function: Any) -> str:
    """Returns the HLO of a ConcreteFunction for GPUs. Raises ValueError where XLA has no kernel of theirs for
    one of its operations."""
    return compiler_ir.from_concrete_function(function)(stage="hlo", platform_name="GPU")

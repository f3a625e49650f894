"""What an operation of a graph asks of the machine: the kernel that it runs, and the bytes that it moves.

The names of kernels are those of a machine file: what has no kernel of its own there counts as another one
that uses memory alike.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import tensorflow as tf

PRODUCT, BATCHED = "product", "batched product"
ELEMENTWISE, COPY = "elementwise", "copy"


class Product(NamedTuple):
    """The shape of a matrix product: `batch` times [rows, inner] x [inner, columns].

    Attributes:
      transposed: which factor lies in memory with its axes exchanged: none, left or right.
    """

    batch: int
    rows: int
    inner: int
    columns: int
    transposed: str = "none"

    @property
    def flops(self) -> int:
        """Returns its multiplications and additions."""
        return 2 * self.batch * self.rows * self.inner * self.columns


class Work(NamedTuple):
    """What one run of an operation asks of the machine.

    Attributes:
      kernel: its name; "" for what costs no time: other names of a tensor, constants, reads of variables.
      dtype: what is computed in: fp32, bf16, fp16, or another type of TensorFlow.
      bytes: that it reads and writes, each once.
      product: of a matrix product.
    """

    kernel: str
    dtype: str = "fp32"
    bytes: int = 0
    product: Product | None = None


NOTHING = Work("")
DTYPES = {tf.float32: "fp32", tf.bfloat16: "bf16", tf.float16: "fp16"}
_FREE = set(
    "Identity IdentityN Reshape ExpandDims Squeeze Snapshot StopGradient PreventGradient EnsureShape Bitcast"
    " Const Placeholder VarHandleOp ReadVariableOp AssignVariableOp NoOp Shape ShapeN Size Rank"
    " Unpack".split()
)
_KERNELS = {
    kernel: set(types.split())
    for kernel, types in {
        "tanh": "Tanh Sigmoid Erf Erfc Exp Log Log1p Sin Cos",
        "power": "Pow",
        "shift": "RightShift LeftShift",
        "softmax": "Softmax LogSoftmax",
        "cross entropy": "SparseSoftmaxCrossEntropyWithLogits",
        "transpose": "Transpose",
        COPY: "Slice Pack ConcatV2 Split SplitV StridedSlice StridedSliceGrad Tile Pad PadV2",
        "bias": "BiasAdd",
        "column sums": "BiasAddGrad",
        "norm": "L2Loss",
        "rows": "GatherV2 ResourceGather",
        "row sums to": "UnsortedSegmentSum ResourceScatterAdd ScatterNd",
        "arg max": "ArgMax ArgMin",
        "cast": "Cast",
        "descent": "ResourceApplyGradientDescent",
        "adam": "ResourceApplyAdam",
    }.items()
}
_KERNEL_OF = {kind: kernel for kernel, kinds in _KERNELS.items() for kind in kinds}
_REDUCTIONS = {"Sum", "Mean", "Max", "Min", "Prod"}
# Times that a kernel reads or writes a variable, over the bytes of the gradient that it takes.
_VARIABLE_PASSES = {"ResourceApplyGradientDescent": 2, "ResourceApplyAdam": 6}
_BATCHED_TYPES = {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
_TRACED = re.compile(r"^(__inference_)?_*(.*?)(_\d+)?$")


def work_of(operation: tf.Operation) -> Work:
    """Returns what an operation that is no call of a function asks for."""
    product = product_of(operation)
    moved = bytes_of((*operation.inputs, *operation.outputs))
    if product is not None:
        kernel = BATCHED if operation.type in _BATCHED_TYPES else PRODUCT
        return Work(kernel, dtype_of(operation.outputs), moved, product)
    if operation.type in _FREE or _is_one_type(operation):
        return NOTHING
    moved += _VARIABLE_PASSES.get(operation.type, 0) * bytes_of(operation.inputs)
    kernel = _reduction(operation) or _KERNEL_OF.get(operation.type, ELEMENTWISE)
    return Work(kernel, dtype_of((*operation.outputs, *operation.inputs)), moved)


def squared(work: Work) -> Work:
    """Returns the work of a power of 2, of which TensorFlow's optimiser of graphs makes a product."""
    return work._replace(kernel=ELEMENTWISE)


def compiled_work(operation: tf.Operation, body: Any) -> Work:
    """Returns what the call of a compiled function asks for.

    Args:
      operation: the call.
      body: the function's graph, which says what it reads and writes of variables.
    """
    reads = [inner.outputs[0] for inner in body.get_operations() if inner.type == "ReadVariableOp"]
    writes = [inner.inputs[1] for inner in body.get_operations() if inner.type == "AssignVariableOp"]
    moved = bytes_of((*operation.inputs, *operation.outputs, *reads, *writes))
    name = compiled_name(body.name)
    return Work(name, dtype_of((*operation.outputs, *operation.inputs)), moved)


def compiled_name(function: str) -> str:
    """Returns the kernel of a compiled function: its name in the source, without what tracing adds; also of
    one that stands for an operation of our own, see `native_update`."""
    match = _TRACED.match(function)
    name = (match.group(2) if match else function).replace("_", " ")
    return name if name.startswith("native ") else f"compiled {name}"


def product_of(operation: tf.Operation) -> Product | None:
    """Returns the shape of a matrix product; None of any other operation."""
    if operation.type == "Einsum":
        return _einsum(operation)
    if operation.type != "MatMul" and operation.type not in _BATCHED_TYPES:
        return None
    names = ("transpose_a", "transpose_b") if operation.type == "MatMul" else ("adj_x", "adj_y")
    left, right = map(operation.get_attr, names)
    *batch, rows, columns = operation.outputs[0].shape
    inner = operation.inputs[0].shape[-2 if left else -1]
    return Product(math.prod(batch), rows, inner, columns, "left" if left else "right" if right else "none")


def _einsum(operation: tf.Operation) -> Product | None:
    terms, _, result = operation.get_attr("equation").decode().partition("->")
    sizes = {
        letter: size
        for term, tensor in zip(terms.split(","), operation.inputs)
        for letter, size in zip(term, tensor.shape)
    }
    if "," not in terms:
        return None
    left, right = map(set, terms.split(","))

    def size(letters: set[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    kept, both = set(result), left & right
    return Product(
        size(both & kept), size((left & kept) - right), size(both - kept), size((right & kept) - left)
    )


def bytes_of(tensors: Any) -> int:
    """Returns the bytes of tensors of known shapes; of resources none."""
    return sum(
        tensor.shape.num_elements() * tensor.dtype.size
        for tensor in tensors
        if tensor.dtype not in (tf.resource, tf.variant) and tensor.shape.is_fully_defined()
    )


def dtype_of(tensors: Any) -> str:
    """Returns the type of the first of some tensors that is no resource."""
    kinds = [tensor.dtype for tensor in tensors if tensor.dtype not in (tf.resource, tf.variant)]
    return DTYPES.get(kinds[0], kinds[0].name) if kinds else "fp32"


def _is_one_type(operation: tf.Operation) -> bool:
    """Tells whether an operation is a cast that changes nothing."""
    return operation.type == "Cast" and operation.inputs[0].dtype == operation.outputs[0].dtype


def _reduction(operation: tf.Operation) -> str | None:
    """Returns the kernel of a reduction: over the last axis, or over others."""
    if operation.type not in _REDUCTIONS:
        return None
    axes = tf.get_static_value(operation.inputs[1])
    rank = operation.inputs[0].shape.rank
    if axes is None or rank is None or axes.size == 0:
        return ELEMENTWISE
    return "row sums" if (axes.reshape(-1) % rank == rank - 1).any() else "column sums"

"""What is timed of a machine: matrix products and the kernels of a step that are bound by memory.

The sizes are those of BERT-base at 128 and 512 tokens, and a few beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from official.modeling.layers import Norm
from official.modeling.operations import fused
from official.optimization import compiled, moments
from official.planning import kernels
from official.planning.flat_graph import FlatGraph
from official.planning.kernels import Product, Work

TYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
_COLD_BYTES = 96e6  # more than caches hold: what a step reads, other operations have displaced
_MOST_SETS = 16
_D, _F, _V = 768, 3072, 30522

# (rows, inner, columns) of products of `tokens` vectors, as in the forward pass.
_FORWARD = [(_D, 3 * _D), (_D, _D), (_D, _F), (_F, _D)]


class Case(NamedTuple):
    """What is timed.

    Attributes:
      work: of one run.
      run: runs it `sets` times, each time on other numbers, and returns when it is done.
      sets: runs of a call.
    """

    work: Work
    run: Callable[[], None]
    sets: int


def products() -> list[tuple[str, Product]]:
    """Returns (kernel, shape) of the products that are measured in every type."""
    found = [Product(1, 2048, 2048, 2048)]
    for tokens in (1024, 128):
        for inner, columns in _FORWARD:
            found += [
                Product(1, tokens, inner, columns),
                Product(1, tokens, columns, inner, "right"),
                Product(1, inner, tokens, columns, "left"),
            ]
    found += [
        Product(1, 160, _D, _V, "right"),
        Product(1, 160, _V, _D),
        Product(1, _V, 160, _D, "left"),
        Product(1, 8, _D, _D),
        Product(1, 8, _D, _D, "right"),
        Product(1, _D, 8, _D, "left"),
        Product(1, 1024, 256, 1024),
        Product(1, 1024, 1024, 256, "right"),
        Product(1, 256, 1024, 1024, "left"),
    ]
    attention = []
    for batch, length in ((96, 128), (24, 512), (12, 128), (12, 384)):
        attention += [
            Product(batch, length, 64, length, "right"),
            Product(batch, length, length, 64),
            Product(batch, length, length, 64, "left"),
        ]
    return [(kernels.PRODUCT, each) for each in found] + [(kernels.BATCHED, each) for each in attention]


def product_case(kernel: str, product: Product, dtype: str) -> Case:
    """Returns what multiplies matrices of a shape."""
    left, right = [product.rows, product.inner], [product.inner, product.columns]
    if product.transposed == "left":
        left.reverse()
    if product.transposed == "right":
        right.reverse()
    lead = [product.batch] if kernel == kernels.BATCHED else []
    options = {f"transpose_{'a' if product.transposed == 'left' else 'b'}": product.transposed != "none"}
    return make_case(
        lambda x, y: tf.matmul(x, y, **options), [_normal(lead + left, dtype), _normal(lead + right, dtype)]
    )


def kernel_cases(dtype: str) -> list[Case]:
    """Returns what is timed beside products, in a type."""
    rows = [_tokens(1024, dtype), _tokens(8192, dtype)]
    cases = [case for x in rows for case in (*_elementwise(x), *_of_rows(x), *_ends_of_blocks(x, dtype))]
    for shape in ([8, 12, 128, 128], [2, 12, 512, 512]):
        cases += _of_scores(shape, dtype)
    for columns in (_D, _F):
        cases += _activations(_normal([1024, columns], dtype))
    if dtype == "fp32":
        cases += [case for rows_ in (_D, _V) for case in of_weights([rows_, _F if rows_ == _D else _D])]
    else:
        cases += [case for x in rows for case in _casts(x, dtype)]
    return cases


def _tokens(rows: int, dtype: str) -> tf.Tensor:
    return _normal([rows, _D], dtype)


def _normal(shape: list[int], dtype: str) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal(shape, [1, 2], stddev=0.02), TYPES[dtype])


def _elementwise(x: tf.Tensor) -> list[Case]:
    words = tf.cast(tf.abs(tf.cast(x, tf.float32)) * 1e4, tf.uint32)
    return [
        make_case(lambda x, y: x + y, [x, x]),
        make_case(tf.tanh, [x]),
        make_case(lambda x: tf.pow(x, 3.0), [x]),
        make_case(tf.bitwise.bitwise_xor, [words, words]),
        make_case(lambda words: tf.bitwise.right_shift(words, tf.constant(15, tf.uint32)), [words]),
        make_case(lambda x, y: tf.concat([x, y], axis=-1), [x, x]),
    ]


def _of_rows(x: tf.Tensor) -> list[Case]:
    ids = tf.range(x.shape[0], dtype=tf.int32)
    by_heads = tf.reshape(x, [8, -1, 12, 64])
    return [
        make_case(lambda x: tf.reduce_sum(x, axis=-1), [x]),
        make_case(lambda x: tf.reduce_sum(x, axis=0), [x]),
        make_case(lambda x: tf.transpose(x, [0, 2, 1, 3]), [by_heads]),
        make_case(tf.nn.bias_add, [x, x[0]]),
        make_case(lambda x: tf.raw_ops.BiasAddGrad(out_backprop=x), [x]),
        make_case(tf.gather, [x, ids]),
        make_case(lambda x, ids: tf.math.unsorted_segment_sum(x, ids, x.shape[0]), [x, ids]),
        make_case(lambda x: tf.argmax(x, axis=-1, output_type=tf.int32), [x]),
    ]


def _casts(x: tf.Tensor, dtype: str) -> list[Case]:
    return [
        make_case(lambda x: tf.cast(x, tf.float32), [x]),
        make_case(lambda x: tf.cast(x, TYPES[dtype]), [tf.cast(x, tf.float32)]),
    ]


def _seed() -> tf.Tensor:
    return tf.constant([1, 2])


def _ends_of_blocks(x: tf.Tensor, dtype: str) -> list[Case]:
    """Returns bias, dropout, residual and LayerNorm, and their gradients."""
    functions = fused.COMPILED
    row, column = tf.ones([_D]), tf.ones([x.shape[0], 1])
    normal = tf.cast(x, tf.float32)
    return [
        make_case(
            lambda x, bias, y, gamma, beta, seed: functions["normalize"](
                x, bias, y, Norm(gamma, beta), 1e-12, 0.1, seed
            ),
            [x, row, x, row, row, _seed()],
        ),
        make_case(
            lambda up, normal, scale, gamma, seed: functions["norm gradient"](
                up, normal, scale, gamma, 0.1, seed, TYPES[dtype]
            ),
            [x, normal, column, row, _seed()],
        ),
        make_case(functions["sum of rows"], [x]),
    ]


def _activations(x: tf.Tensor) -> list[Case]:
    functions, bias = fused.COMPILED, tf.zeros([x.shape[-1]])
    return [
        make_case(lambda x, bias: functions["activate"](x, bias, "gelu_tanh"), [x, bias]),
        make_case(
            lambda x, bias, up: functions["activation gradient"](x, bias, up, "gelu_tanh"), [x, bias, x]
        ),
    ]


def _of_scores(shape: list[int], dtype: str) -> list[Case]:
    """Returns softmax and dropout of attention's weights, and their gradient; softmax is float32."""
    functions, weights, narrow = fused.COMPILED, _normal(shape, "fp32"), _normal(shape, dtype)
    cases = [
        make_case(lambda x, seed: functions["drop"](x, 0.1, seed, TYPES[dtype]), [weights, _seed()]),
        make_case(
            lambda weights, up, along, seed: functions["attention gradient"](
                weights, up, along, 0.125, 0.1, seed
            ),
            [weights, narrow, weights[..., :1], _seed()],
        ),
    ]
    return cases if dtype != "fp32" else [*cases, make_case(tf.nn.softmax, [weights])]


def of_weights(shape: list[int]) -> list[Case]:
    """Returns the parts of an optimizer's update, and of the loss over a vocabulary."""
    gradient = _normal(shape, "fp32")
    sets = range(num_sets(4 * kernels.bytes_of([gradient])))
    variables = [[tf.Variable(tf.ones_like(gradient)) for _ in range(3)] for _ in sets]
    handles = [[each.handle for each in three] for three in variables]
    constants, one = moments.Constants(0.01, 0.9, 0.999, 1e-6), np.float32(1.0)
    numbers = dict.fromkeys(("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon"), 0.5)

    def keep(*_: Any) -> list[list[tf.Variable]]:
        return variables  # that lives as long as what it is captured by

    def updated(name: str, rates: tuple) -> Callable:
        return lambda three, x: (keep(), compiled.COMPILED[name](three, x, one, rates, constants))[1]

    return [
        make_case(tf.nn.l2_loss, [gradient]),
        make_case(updated("update adamw", (one, one)), [gradient], handles),
        make_case(updated("lamb direction", (one, one)), [gradient], handles),
        make_case(
            lambda three, x: tf.raw_ops.ResourceApplyGradientDescent(var=three[0], alpha=0.01, delta=x),
            [gradient],
            handles,
        ),
        make_case(
            lambda three, x: tf.raw_ops.ResourceApplyAdam(
                var=three[0], m=three[1], v=three[2], grad=x, **numbers
            ),
            [gradient],
            handles,
        ),
    ]


def num_sets(moved: int) -> int:
    """Returns how many runs on other numbers move more than caches hold, each of them `moved` bytes."""
    return int(min(max(_COLD_BYTES // moved, 2), _MOST_SETS))


def make_case(
    operation: Callable[..., Any],
    inputs: list[tf.Tensor],
    handles: list[list] | None = None,
    counted: Callable[..., Any] | None = None,
) -> Case:
    """Returns what runs an operation on several sets of inputs, one after the other; what it makes lives
    until the last of them is done, as in a forward pass.

    Args:
      operation: of the inputs, or of handles of variables and the inputs.
      inputs: of a set; the others are copies.
      handles: of each set.
      counted: what plans have in place of the operation; None: the operation itself.
    """
    work = _work(counted or operation, inputs, handles)
    count = len(handles) if handles else num_sets(work.bytes)
    sets = [[tf.identity(each) + tf.zeros([], each.dtype) for each in inputs] for _ in range(count)]

    @tf.function(autograph=False)
    def run(sets):
        done: list = []
        last: list = []
        for number, each in enumerate(sets):
            arguments = ([handles[number]] if handles else []) + list(each)
            with tf.control_dependencies(last):
                made = operation(*arguments)
            made = tf.nest.flatten(made)
            done += [each for each in made if isinstance(each, tf.Tensor)]
            last = [each.op if isinstance(each, tf.Tensor) else each for each in made if each is not None]
            # A compiled function that gives nothing is the last operation that was made.
            last = last or tf.compat.v1.get_default_graph().get_operations()[-1:]
        with tf.control_dependencies(last):
            # Reads a number of each, so that all of them are there until now.
            ends = [tf.cast(tf.reshape(tensor, [-1])[0], tf.float32) for tensor in done]
            return tf.add_n([*ends, tf.constant(0.0)])

    return Case(work, lambda: run(sets).numpy(), count)


def _work(operation: Callable[..., Any], inputs: list[tf.Tensor], handles: list[list] | None) -> Work:
    """Returns what a plan takes one run of an operation for: that of its graph which moves most."""
    with tf.Graph().as_default() as graph:
        stand_ins = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in inputs]
        places = [tf.compat.v1.placeholder(tf.resource, []) for _ in handles[0]] if handles else []
        operation(*([places] if handles else []), *stand_ins)
        flat = FlatGraph()
        flat.add(graph, graph.get_operations(), {})
    return max((node.work for node in flat.nodes), key=lambda work: work.bytes)


def call_case() -> Callable[[], None]:
    """Returns a call of a function that does next to nothing."""
    one = tf.constant(1.0)
    run = tf.function(lambda: one + 1.0, autograph=False)
    return lambda: run().numpy()


def operations_case(count: int) -> Callable[[], None]:
    """Returns a call of a function of so many operations that do next to nothing, one after the other."""
    one = tf.constant(1.0)

    @tf.function(autograph=False)
    def run():
        value = one
        for _ in range(count):
            value = value * one
        return value

    return lambda: run().numpy()

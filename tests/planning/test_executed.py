"""Operations that ran, found in the graph of the function that was traced."""

import pytest
import tensorflow as tf

from official.planning.executed import Executed
from official.planning.kernels import Product

ROOT, CALL = 1, 2


@tf.function(jit_compile=True, autograph=False)
def _doubled(x):
    return x + x


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _multiplied(x, kernel):
    return tf.matmul(_doubled(x), kernel, transpose_b=True, name="product")


@tf.function(autograph=False)
def train(x, kernel, count):
    def more(index, x):
        return index + 1, _multiplied(x, kernel) + tf.nn.bias_add(tf.matmul(x, kernel), kernel[0])

    return tf.while_loop(lambda index, _: index < count, more, (tf.constant(0), x))


@pytest.fixture(scope="module")
def executed():
    x, kernel = tf.ones([3, 4]), tf.ones([4, 4])
    graph = train.get_concrete_function(x, kernel, tf.constant(2)).graph
    return Executed(graph, [ROOT], {CALL: (ROOT, "while/body/_7/while/PartitionedCall")})


@pytest.mark.parametrize(
    "run, node, kind, product",
    [
        (ROOT, "while/body/_7/while/MatMul", "_MklMatMul", Product(1, 3, 4, 4)),
        (ROOT, "while/body/_7/while/BiasAdd", "_FusedMatMul", Product(1, 3, 4, 4)),  # it ran with the product
        (CALL, "product", "MatMul", Product(1, 3, 4, 4, "right")),
        # TensorFlow may put the function in place of its call.
        (ROOT, "while/body/_7/while/PartitionedCall/product", "MatMul", Product(1, 3, 4, 4, "right")),
    ],
)
def test_products_are_found_by_the_names_that_ran(executed, run, node, kind, product):
    asked = executed.asked(run, node, kind)
    assert asked.is_known and asked.work.product == product


def test_bytes_are_those_of_what_an_operation_reads_and_writes(executed):
    compiled = executed.asked(CALL, "PartitionedCall", "PartitionedCall")
    assert compiled.work.kernel == "compiled doubled" and compiled.shape == (3, 4)
    assert compiled.work.bytes == 2 * 4 * 3 * 4
    assert executed.asked(ROOT, "while/body/_7/while/BiasAdd", "BiasAdd").work.bytes == 4 * (12 + 4 + 12)


def test_a_call_has_no_bytes_of_its_own(executed):
    call = executed.asked(ROOT, "while/body/_7/while/PartitionedCall", "PartitionedCall")
    assert call.is_known and not call.work.bytes and not call.work.kernel


def test_an_operation_in_place_of_another_goes_by_its_name_with_a_number(executed):
    name = "while/body/_7/while/BiasAdd"
    assert executed.asked(ROOT, f"{name}_0", "BiasAdd") == executed.asked(ROOT, name, "BiasAdd")
    assert not executed.asked(ROOT, f"{name}_0", "Mul").is_known


def test_what_is_not_in_the_graph_is_said_to_be_unknown(executed):
    for run, node in ((ROOT, "ArithmeticOptimizer/Reorder_Cast"), (CALL, "while/MatMul"), (7, "nothing")):
        asked = executed.asked(run, node, "Cast")
        assert not asked.is_known and not asked.work.bytes


def test_sizes_that_are_known_only_when_it_runs_are_unknown():
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 4])])
    def multiply(x):
        return tf.matmul(x, tf.ones([4, 4]), name="product")

    asked = Executed(multiply.get_concrete_function().graph, [ROOT], {}).asked(ROOT, "product", "MatMul")
    assert not asked.is_known and asked.work.product is None

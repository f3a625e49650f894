"""oneDNN's fused operations, called by their names: products with what follows them, LayerNorm, scores.

TensorFlow makes them of its own operations where it recognises a pattern in a graph of constants. Called
directly they need no constants in graphs, which take seconds and copies of all weights to make, no patterns,
and no compiler: shapes may change from call to call. Shapes: T tokens, N sequences of W tokens, H heads of
size K.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_def_library, op_def_registry

from official.io.processor import processor
from official.modeling.layers import Affine, Norm

_PRODUCT, _BATCH_PRODUCT, _NORM = "_MklNativeFusedMatMul", "_MklFusedBatchMatMulV2", "_MklLayerNorm"
# The kernels of some operations are registered under this label, the others' under none.
_LABEL = attr_value_pb2.AttrValue(s=b"MklNameChangeOp")
_INTEGER_PRODUCT = "_MklQuantizedMatMulWithBiasAndDequantize"
_INTEGER_LABEL = attr_value_pb2.AttrValue(s=b"QuantizedMklOp")
_ACTIVATIONS = {"gelu_tanh": "GeluApproximate", "gelu_erf": "GeluExact", "relu": "Relu"}
_MULTIPLY_BF16 = {"avx512f", "bf16"}  # oneDNN needs one of them: of x86, of Arm
_REST = {"epsilon": 1e-4, "leakyrelu_alpha": 0.2}  # what the fused operations ask for beside


def are_here(dtype: str = "float32") -> bool:
    """Tells whether this TensorFlow has the operations on this CPU: it runs each of them once in float32.

    Args:
      dtype: of their numbers. Whether a CPU has those in bfloat16 is told by its instructions: where it has
        not, oneDNN ends the process instead of reporting it.
    """
    if dtype == "bfloat16" and not _MULTIPLY_BF16.intersection(processor().instructions):
        return False
    if any(op_def_registry.get(name) is None for name in (_PRODUCT, _BATCH_PRODUCT, _NORM)):
        return False

    @tf.function(autograph=False)
    def try_all(x):
        one = Affine(x, x[0])
        y = norm(dense(x, one, "relu", None) + dense(x, one, None, x), Norm(x[0], x[0]), 1e-6)
        return scores(y[None, None], y[None, None], tf.zeros([1, 1, 1, 2], x.dtype))

    try:
        try_all(tf.ones([2, 2]))
    except tf.errors.OpError:
        return False
    return True


def dense(x: tf.Tensor, weights: Affine, activation: str | None, residual: tf.Tensor | None) -> tf.Tensor:
    """Returns activation(x @ kernel + bias), or x @ kernel + bias + residual, in the type of x.

    The kernel's values are those of the first call for ever: the operation keeps them in the order that it
    multiplies fastest.

    Args:
      x: [T, in], float32 or bfloat16.
      weights: in the type of x.
      activation: a name of `modeling.activations.ACTIVATIONS`, or None.
      residual: [T, out], in the type of x, where there is no activation; or None.
    """
    steps = ["BiasAdd"]
    arguments = [weights.bias]
    if activation is not None:
        steps.append(_ACTIVATIONS[activation])
    elif residual is not None:
        steps.append("Add")
        arguments.append(residual)
    settings = {"is_filter_const": True, "transpose_a": False, "transpose_b": False, **_REST}
    inputs = {"a": x, "b": weights.kernel, "args": arguments}
    return _call(_PRODUCT, _LABEL, inputs, fused_ops=steps, **settings)


def scores(query_NHWK: tf.Tensor, key_NHWK: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
    """Returns query key^T + added, [N, H, W, W]; `added` [N, 1, 1, W], in the type of the others."""
    inputs = {"x": query_NHWK, "y": key_NHWK, "args": [tf.ones([], added.dtype), added]}
    return _call(_BATCH_PRODUCT, None, inputs, fused_ops=["Mul", "Add"], adj_x=False, adj_y=True, **_REST)


def norm(x: tf.Tensor, weights: Norm, epsilon: float) -> tf.Tensor:
    """Returns LayerNorm of x [T, D] in its type, which gamma and beta [D] have, too; inside it is float32."""
    return _call(_NORM, None, {"x": x, "scale": weights.gamma, "offset": weights.beta}, epsilon=epsilon)


def integer_product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns x @ kernel + bias, float32 [T, out], of integers: quint8 [T, in], qint8 [in, out] and qint32
    [out]. As in `dense` the kernel's and the bias's values are those of the first call."""
    # Ranges by which one is worth one.
    ranges = {"min_a": 0.0, "max_a": 255.0, "min_b": -127.0, "max_b": 127.0}
    inputs = {"a": x, "b": kernel, "bias": bias, "min_freezed_output": 0.0, "max_freezed_output": 1.0}
    settings = {"Toutput": tf.float32, "transpose_a": False, "transpose_b": False}
    constant = {"is_weight_const": True, "is_bias_const": True, "input_quant_mode": "SCALED"}
    return _call(_INTEGER_PRODUCT, _INTEGER_LABEL, {**inputs, **ranges}, **settings, **constant)


def has_integers() -> bool:
    """Tells whether this TensorFlow has products of integers on this CPU."""
    if op_def_registry.get(_INTEGER_PRODUCT) is None:
        return False

    @tf.function(autograph=False)
    def try_it(x):
        x_8 = tf.bitcast(tf.cast(x, tf.uint8), tf.quint8)
        kernel, bias = tf.bitcast(tf.cast(x, tf.int8), tf.qint8), tf.bitcast(x[0], tf.qint32)
        return integer_product(x_8, kernel, bias)

    try:
        return bool(tf.reduce_all(try_it(tf.ones([4, 4], tf.int32)) == 5.0))
    except tf.errors.OpError:
        return False


def _call(name: str, label: Any, inputs: dict[str, Any], **settings: Any) -> Any:
    result = op_def_library.apply_op(name, name="fused", **inputs, **settings)
    if isinstance(result, (list, tuple)):
        result = result[0]
    if label is not None:
        result.op._set_attr("_kernel", label)
    return result

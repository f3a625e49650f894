"""Attention of cuDNN on GPUs, which never writes the scores of a row to memory: O(L) instead of O(L^2).

TensorFlow has no operation for it, but its XLA calls cuDNN for custom calls in StableHLO modules, and there
is an operation for such modules. Only without dropout: cuDNN numbers its random bits itself, so that a
resumed run would draw others. Only in steps that are compiled as a whole, which work on an H200; on its own
it corrupted a training in float16. `plain.attend` is the oracle.

Source: Dao et al. 2022, "FlashAttention"; the custom calls of XLA's cuDNN fused attention.
"""

from __future__ import annotations

import functools
import json

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # no public API

from official import native

_VERSION = 8  # version of modules for every TensorFlow from 2.15 on
_PLATFORM = "CUDA"
_MAX_HEAD_SIZE = 128
_MIN_CAPABILITY = (8, 0)
_TYPES = {tf.bfloat16: ("bf16", "BF16"), tf.float16: ("f16", "F16")}


def takes(query_BHLK: tf.Tensor, scores_B1LM: tf.Tensor) -> bool:
    """Returns whether `attend` supports the attention that is being traced: in an XLA program, on GPUs from
    Ampere on, in float16 or bfloat16, with static sizes, and a mask of padding only."""
    if not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return False
    heads_fit = query_BHLK.shape[-1] % 8 == 0 and query_BHLK.shape[-1] <= _MAX_HEAD_SIZE
    of_padding = scores_B1LM.shape[2] == 1
    if not (query_BHLK.dtype in _TYPES and heads_fit and of_padding and query_BHLK.shape.is_fully_defined()):
        return False
    return native.on_gpus() and _works()


@functools.cache
def _works() -> bool:
    """Tries a small attention, forward and backward."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    if not all(each.get("compute_capability", (0, 0)) >= _MIN_CAPABILITY for each in details):
        return False

    shape = [1, 1, 64, 64]

    def tried() -> tf.Tensor:  # in a function, since a tape records nothing during other tracing
        x, length = tf.ones(shape, tf.bfloat16), tf.constant([64])
        forward, backward = _modules(tuple(shape), 64, x.dtype)
        y, sums = _call(forward, [x, x, x, length], [shape, shape[:3]], [x.dtype, tf.float32])
        gradients = _call(backward, [x, x, x, sums, y, y, length], [shape] * 3, [x.dtype] * 3)
        return tf.add_n([tf.reduce_sum(tf.cast(each, tf.float32)) for each in gradients])

    try:
        with tf.init_scope(), tf.device("GPU:0"):
            return bool(tf.math.is_finite(tf.function(tried, jit_compile=True, autograph=False)()))
    except (tf.errors.OpError, AttributeError):
        return False


def attend(
    query_BHLK: tf.Tensor, key_BHMK: tf.Tensor, value_BHMK: tf.Tensor, scores_B1LM: tf.Tensor
) -> tf.Tensor:
    """Returns softmax(query key^T / sqrt(K) + scores) value, like `plain.attend` without dropout.

    Padding must be at the end of a row, as in every record and batch of this project: vectors of a row whose
    mask has a gap are NaN, which stops a training.
    """
    is_token_BM = scores_B1LM[:, 0, 0] > -1.0
    lengths_B = tf.reduce_sum(tf.cast(is_token_BM, tf.int32), axis=-1)
    is_whole_B = tf.reduce_all(tf.sequence_mask(lengths_B, is_token_BM.shape[1]) == is_token_BM, axis=-1)
    forward, backward = _modules(tuple(query_BHLK.shape), key_BHMK.shape[2], query_BHLK.dtype)

    @tf.custom_gradient
    def weigh(query, key, value):
        shape = query.shape.as_list()
        kinds = [query.dtype, tf.float32]
        output, sums = _call(forward, [query, key, value, lengths_B], [shape, shape[:3]], kinds)

        def gradient(upstream):
            shapes = [each.shape.as_list() for each in (query, key, value)]
            arguments = [query, key, value, sums, upstream, output, lengths_B]
            return _call(backward, arguments, shapes, [query.dtype] * 3)

        return output, gradient

    output = weigh(query_BHLK, key_BHMK, value_BHMK)
    return tf.where(is_whole_B[:, None, None, None], output, tf.constant(float("nan"), output.dtype))


def _call(module: bytes, arguments: list, shapes: list, types: list) -> list:
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # no public API

    return gen_xla_ops.xla_call_module(
        args=arguments,
        version=_VERSION,
        module=module,
        Sout=shapes,
        Tout=types,
        platforms=[_PLATFORM],
        dim_args_spec=[],
        function_list=[],
        has_token_input_output=False,
        disabled_checks=[],
    )


@functools.cache
def _modules(sizes: tuple[int, int, int, int], attended: int, dtype: tf.DType) -> tuple[bytes, bytes]:
    """Returns the modules of the forward and the backward pass for queries [B, H, L, K] and M keys."""
    batch, heads, length, size = sizes
    name, xla_name = _TYPES[dtype]
    query, key = (f"tensor<{batch}x{heads}x{each}x{size}x{name}>" for each in (length, attended))
    sums, lengths, space = f"tensor<{batch}x{heads}x{length}xf32>", f"tensor<{batch}xi32>", "tensor<0xui8>"
    layouts = {
        kind: f"dense<{order}> : tensor<{len(order)}xindex>"
        for kind, order in {query: [3, 2, 1, 0], key: [3, 2, 1, 0], sums: [2, 1, 0]}.items()
    } | dict.fromkeys((lengths, space), "dense<0> : tensor<1xindex>")

    def module(call: str, takes: list[str], gives: list[str], products: dict[str, tuple[int, int]]) -> bytes:
        """Returns a module with one call, whose last arguments are the lengths of queries and keys."""
        config = _config(sizes, attended, xla_name, products).replace('"', "\\22")
        arguments = ", ".join(f"%{number}: {kind}" for number, kind in enumerate(takes))
        given = [*(f"%{number}" for number in range(len(takes))), f"%{len(takes) - 1}"]
        taken, results = [*takes, lengths], [*gives, space]
        orders = (", ".join(layouts[kind] for kind in kinds) for kinds in (taken, results))
        values = ", ".join(f"%r#{number}" for number in range(len(gives)))
        return (
            f"module @attention {{ func.func public @main({arguments}) -> ({', '.join(gives)}) {{\n"
            f"%r:{len(results)} = stablehlo.custom_call @{call}({', '.join(given)}) {{api_version = 2 : i32,"
            f' backend_config = "{config}", operand_layouts = [{next(orders)}],'
            f" result_layouts = [{next(orders)}]}} : ({', '.join(taken)}) -> ({', '.join(results)})\n"
            f"return {values} : {', '.join(gives)} }} }}"
        ).encode()

    forward = module(
        "__cudnn$fmhaSoftmax", [query, key, key, lengths], [query, sums], {"bmm1": (3, 3), "bmm2": (3, 2)}
    )
    backward = module(
        "__cudnn$fmhaSoftmaxBackward",
        [query, key, key, sums, query, query, lengths],
        [query, key, key],
        {
            "bmm1_grad_gemm1": (2, 2),
            "bmm1_grad_gemm2": (3, 2),
            "bmm2_grad_gemm1": (2, 2),
            "bmm2_grad_gemm2": (3, 3),
        },
    )
    return forward, backward


def _config(
    sizes: tuple[int, int, int, int], attended: int, xla_name: str, products: dict[str, tuple[int, int]]
) -> str:
    """Returns the call's settings, XLA's CudnnfMHABackendConfig as JSON; `products` are its matrix products
    and their contracted axes."""
    batch, heads, length, size = sizes
    layout = {"minor_to_major": ["3", "2", "1", "0"], "element_size_in_bits": "0", "memory_space": "0"}
    config = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": size**-0.5,
        "intermediate_tensor_shape": {
            "element_type": xla_name,
            "dimensions": [str(each) for each in (batch, heads, length, attended)],
            "layout": layout,
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "PADDING",
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    for name, (left, right) in products.items():
        config[f"{name}_dot_dimension_numbers"] = {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": ["0", "1"],
            "rhs_batch_dimensions": ["0", "1"],
        }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": config})

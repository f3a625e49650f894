"""Parts of all layers: initial weights, activations, dropout, products, LayerNorm, recomputation."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from official import native
from official.config.values import POLICIES
from official.io import quiet
from official.io.native_library import Processor, processor
from official.modeling import stages

# -----------------------------------------------------------------------------------------------------------
# Precision and shapes


@contextlib.contextmanager
def computing_in(dtype: str) -> Iterator[None]:
    """Context manager: models created in it compute in a type, one of `official.config.values.POLICIES`, or
    by a Keras policy."""
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(POLICIES.get(dtype, dtype))
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def sizes(x: tf.Tensor) -> list:
    """Returns the sizes of a tensor: ints where they are static, scalar tensors where they are dynamic (as L
    with length buckets)."""
    return [
        dynamic if static is None else static for static, dynamic in zip(x.shape, tf.unstack(tf.shape(x)))
    ]


# -----------------------------------------------------------------------------------------------------------
# Initial values of weights


TRUNCATED_STDDEV = 0.87962566  # deviation of a standard normal distribution truncated at 2


def normal_initializer(stddev: float) -> Callable:
    """Returns BERT's initializer: a normal distribution truncated at two standard deviations, seeded by the
    run's seed."""

    def draw(shape, dtype=tf.float32):
        if tf.executing_eagerly():
            # In commands without a strategy, an initial weight is the first compilation.
            quiet.silence_compiler()
        # Always on the CPU: the same numbers on all devices, and XLA's compiler for GPUs may be broken.
        with tf.device("/cpu:0"):
            seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
            numbers = _truncated_normal(tf.TensorShape(shape).num_elements())(seed, tf.constant(stddev))
            return tf.cast(tf.reshape(numbers, shape), dtype)

    return draw


def glorot_initializer(shape: tuple[int, ...], dtype=tf.float32, **_) -> tf.Tensor:
    """Returns uniform numbers of variance 2 / (sum of both fans), the fans as in Keras for a shape
    [..., in, out]. Source: Glorot and Bengio 2010."""
    taps = math.prod(shape[:-2])
    limit = math.sqrt(6 / (taps * (shape[-2] + shape[-1])))
    seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
    words = random_words(seed, taps * shape[-2], shape[-1])
    return tf.cast(tf.reshape(limit * (tf.cast(words, tf.float32) * (2 / RANDOM_WORDS) - 1), shape), dtype)


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _truncated_normal(count: int) -> Callable:
    """Returns a compiled function (seed, stddev) -> float32 [count]: TensorFlow's own takes four times as
    long, seconds for BERT-base.

    It applies the inverse distribution function to uniform numbers, which is equivalent to redrawing.
    """

    columns = math.gcd(count, 1024)  # threads share rows

    @tf.function(jit_compile=True, autograph=False)
    def draw(seed, stddev):
        uniform = tf.cast(random_words(seed, count // columns, columns), tf.float32) * (2 / RANDOM_WORDS) - 1
        return stddev * math.sqrt(2) * tf.math.erfinv(math.erf(math.sqrt(2)) * uniform)

    return draw


# -----------------------------------------------------------------------------------------------------------
# Activations
#
# The names are those of `official.config.model.ACTIVATIONS`, which also has the names in other projects.


class Activation(NamedTuple):
    """An activation.

    Attributes:
      function: function of a float tensor, with a result of the same type.
      slope: derivative, a function of a float32 tensor.
    """

    function: Callable
    slope: Callable


def _gelu(x: tf.Tensor, approximate: bool) -> tf.Tensor:
    """Returns GELU in the type of x, computed in float32: the cube of the tanh form overflows float16."""
    return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate=approximate), x.dtype)


def _gelu_tanh_slope(x: tf.Tensor) -> tf.Tensor:
    """Derivative of 0.5 x (1 + tanh(c (x + 0.044715 x^3))), c = sqrt(2 / pi)."""
    c, cubic = 0.7978845608028654, 0.044715
    tanh = tf.tanh(c * x * (1 + cubic * x * x))
    return 0.5 * (1 + tanh) + 0.5 * c * x * (1 - tanh * tanh) * (1 + 3 * cubic * x * x)


def _gelu_erf_slope(x: tf.Tensor) -> tf.Tensor:
    """Derivative of x P(x), P the standard normal distribution function: P(x) + x p(x), p its density."""
    return 0.5 * (1 + tf.math.erf(x * 0.5**0.5)) + x * tf.exp(-0.5 * x * x) * (2 * math.pi) ** -0.5


# Source of both GELUs: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
ACTIVATIONS = {
    "gelu_tanh": Activation(functools.partial(_gelu, approximate=True), _gelu_tanh_slope),  # Google's BERT
    "gelu_erf": Activation(functools.partial(_gelu, approximate=False), _gelu_erf_slope),  # Hugging Face's
    "relu": Activation(tf.nn.relu, lambda x: tf.cast(x > 0, x.dtype)),
}


# -----------------------------------------------------------------------------------------------------------
# Dropout


RANDOM_WORDS = 2**32  # number of values of a random word


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Zeroes a share `rate` of `x` and scales the rest, as a pure function of the seed.

    Args:
      x: any float tensor.
      rate: probability in [0, 1) of zeroing an element.
      seed: int32 [2], unique to this place and (run, step, micro batch, replica), see `split_seed`; or None
        to switch dropout off.
    """
    if seed is None or rate == 0:
        return x
    return tf.where(keep_mask(x, rate, seed), x * (1 / (1 - rate)), tf.zeros([], x.dtype))


def split_seed(seed: tf.Tensor | None, count: int) -> list:
    """Returns `count` seeds, int32 [2], derived from one, int32 [N]; for None, as many None.

    They are hashes, for the reasons given in `keep_mask`; TensorFlow's own `fold_in` returns different
    numbers in compiled functions.
    """
    if seed is None:
        return [None] * count
    # Two different numbers: each half is a separate hash.
    state = tf.constant([[0x9E3779B9, 0x85EBCA6B]], tf.uint32)
    for word in (*_words(seed), tf.cast(tf.range(count), tf.uint32)[:, None]):
        state = _mixed(tf.bitwise.bitwise_xor(state, word))
    return [tf.bitcast(state[index], tf.int32) for index in range(count)]


def keep_mask(x: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns the dropout mask, bool of the shape of `x`: each element is kept with probability 1 - rate, to
    within 2^-32.

    It is a hash of the seed and the element's index. In a compiled function it costs almost nothing, so the
    backward pass recomputes the mask instead of storing it, and it is the same in every function, compiled or
    not, on every device.
    """
    *rows, columns = sizes(x)
    dropped = tf.constant(least_kept(rate), tf.uint32)
    return tf.reshape(random_words(seed, tf.reduce_prod(rows), columns) >= dropped, tf.shape(x))


def least_kept(rate: float) -> int:
    """Returns the threshold of dropout: elements whose random word is at least this are kept."""
    return min(round(rate * RANDOM_WORDS), RANDOM_WORDS - 1)


def random_words(seed: tf.Tensor, rows: int | tf.Tensor, columns: int | tf.Tensor) -> tf.Tensor:
    """Returns uint32 [rows, columns], at most 2^32 numbers: hashes of the seed, int32 [2], and the element's
    index.

    One half of the seed is the start of the hash's counter, the other its stride, so that no sequence is a
    shifted copy of another.
    """
    first, stride = _words(seed)
    stride = tf.bitwise.bitwise_or(stride, tf.constant(1, tf.uint32))
    # Two short ranges: a range of all elements would be computed on the host.
    row = tf.cast(tf.range(rows), tf.uint32)[:, None] * (tf.cast(columns, tf.uint32) * stride) + first
    return _mixed(row + tf.cast(tf.range(columns), tf.uint32) * stride)


def hashed(seed: tf.Tensor, *parts: tf.Tensor) -> tf.Tensor:
    """Returns uint32 hashes of a seed, int32 [N], and of int32 tensors of one shape, in that shape."""
    state = tf.constant(0x9E3779B9, tf.uint32)
    for word in (*_words(seed), *(tf.bitcast(part, tf.uint32) for part in parts)):
        state = _mixed(tf.bitwise.bitwise_xor(state, word))
    return state


def _words(seed: tf.Tensor) -> list[tf.Tensor]:
    """Returns the words of a seed, int32 [N], as N scalars of uint32.

    It uses slices, because GPUs have no Unpack for uint32, and for int32 only in host memory, so that either
    would wait for the host.
    """
    words = tf.bitcast(seed, tf.uint32)
    return [words[index] for index in range(words.shape[0])]


def _mixed(word: tf.Tensor) -> tf.Tensor:
    """Returns the hash of uint32 numbers. Source: the 32-bit integer hash "lowbias32" (C. Wellons, Hash
    Prospector, 2018)."""
    word = _xor_shifted(word, 16) * tf.constant(0x21F0AAAD, tf.uint32)
    word = _xor_shifted(word, 15) * tf.constant(0x735A2D97, tf.uint32)
    return _xor_shifted(word, 15)


def _xor_shifted(word: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(bits, tf.uint32)))


# -----------------------------------------------------------------------------------------------------------
# Matrix products


_WIDE, _MIN_ROWS, _MAX_ROWS = 3, 128, 1024  # see `is_wide`


def matmul(x_NI: tf.Tensor, kernel_IO: tf.Tensor) -> tf.Tensor:
    """Returns x @ kernel, of one type and in it."""
    is_widened = x_NI.dtype == tf.bfloat16 and widens()
    if is_widened or x_NI.dtype == tf.float32 and is_wide(kernel_IO) and native.on_cpus():
        return _matmul_on_cpus(x_NI, kernel_IO)
    return tf.matmul(x_NI, kernel_IO)


def is_wide(kernel_IO: tf.Tensor) -> bool:
    """Returns whether a product with the transpose of a float32 kernel (as in the gradient) is faster on CPUs
    if the kernel is transposed to a copy first.

    For these shapes, products with a transposed operand are 8 to 20 % slower than products with a transposed
    copy, and the copy takes 3 to 7 % of the product's time. Other shapes gain nothing.
    """
    rows, columns = kernel_IO.shape
    return _MIN_ROWS <= rows < _MAX_ROWS and columns >= _WIDE * rows


def widens() -> bool:
    """Returns whether bfloat16 products are computed as float32 products, because that is faster here."""
    return native.on_cpus() and multiplies_bf16_slowly(_own_processor())


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _own_processor() -> Processor:
    return processor()


def multiplies_bf16_slowly(cpu: Processor) -> bool:
    """Returns whether a processor's bfloat16 instructions are slower than its float32 instructions.

    Intel processors with AMX are built to multiply bfloat16 with it. If a virtual machine hides AMX, only
    their AVX-512 bfloat16 instructions remain, which are no faster than those for float32, and products with
    them are slower. These processors are recognised by AVX512-FP16, which came with AMX.
    """
    has = set(cpu.instructions)
    return "Intel" in cpu.name and {"avx512_bf16", "avx512_fp16"} <= has and "amx_bf16" not in has


def matmul_transposed(x_NO: tf.Tensor, kernel_IO: tf.Tensor) -> tf.Tensor:
    """Returns x @ kernel^T, of one type and in it: the gradient of x of `matmul` on CPUs."""
    if x_NO.dtype == tf.float32 and is_wide(kernel_IO):
        return tf.matmul(x_NO, tf.transpose(kernel_IO))
    return _product(x_NO, kernel_IO, transpose_b=True)


def matmul_of_rows(x_NI: tf.Tensor, y_NO: tf.Tensor) -> tf.Tensor:
    """Returns x^T @ y, of one type and in it: the gradient of the kernel of `matmul` on CPUs."""
    return _product(x_NI, y_NO, transpose_a=True)


@tf.custom_gradient
def _matmul_on_cpus(x_NI, kernel_IO):
    def gradient(upstream):
        return matmul_transposed(upstream, kernel_IO), matmul_of_rows(x_NI, upstream)

    return _product(x_NI, kernel_IO), gradient


def _product(x: tf.Tensor, y: tf.Tensor, **transposed: bool) -> tf.Tensor:
    """Returns a product in the type of both. In bfloat16, products of two numbers are exact in float32, where
    they are summed up."""
    if x.dtype == tf.bfloat16 and widens():
        wide = tf.matmul(tf.cast(x, tf.float32), tf.cast(y, tf.float32), **transposed)
        return tf.cast(wide, x.dtype)
    return tf.matmul(x, y, **transposed)


# -----------------------------------------------------------------------------------------------------------
# Layers
#
# A class holds variables, a NamedTuple their tensors, and a function computes with the tensors. Layers create
# their variables in the constructor, under the name scope of the caller: shapes follow from the
# configuration, and names do not depend on the use of a layer.


Bias = Literal["zeros", "normal", "frozen", "none"]


class Affine(NamedTuple):
    """Weights of a dense product: kernel [in, out] and bias [out], in the compute dtype; None for no bias."""

    kernel: tf.Tensor
    bias: tf.Tensor | None


class Norm(NamedTuple):
    """Weights of LayerNorm over D: gamma and beta [D], float32; None for no beta."""

    gamma: tf.Tensor
    beta: tf.Tensor | None


class Dense(tf.keras.layers.Layer):
    """The variables of x @ kernel + bias: `kernel` [in, out] and `bias` [out]. See `dense`."""

    def __init__(self, scope: str, in_size: int, out_size: int, stddev: float, bias: Bias = "zeros"):
        """Makes the variables.

        Args:
          scope: scope of the variable names.
          in_size, out_size: sizes of input and output vectors.
          stddev: standard deviation of the kernel's initial values.
          bias: initial values of the bias: zeros, or normal like the kernel; `frozen` stays zero and is not
            trained; `none` means that there is no bias.
        """
        super().__init__(name=scope.replace("/", "_"))
        normal, self.bias = normal_initializer(stddev), None
        with tf.name_scope(scope):
            self.kernel = self.add_weight(name="kernel", shape=(in_size, out_size), initializer=normal)
            if bias != "none":
                self.bias = self.add_weight(
                    name="bias",
                    shape=(out_size,),
                    initializer=normal if bias == "normal" else "zeros",
                    trainable=bias != "frozen",
                )

    def tensors(self) -> Affine:
        bias = None if self.bias is None else read(self.bias, self.compute_dtype)
        return Affine(read(self.kernel, self.compute_dtype), bias)


class LayerNorm(tf.keras.layers.Layer):
    """The variables of LayerNorm: `gamma` and, unless it has no bias, `beta` [size]. See `layer_norm`."""

    def __init__(self, size: int, has_bias: bool = True):
        super().__init__(name="LayerNorm", dtype="float32")
        self.beta = None
        with tf.name_scope("LayerNorm"):
            self.gamma = self.add_weight(name="gamma", shape=(size,), initializer="ones")
            if has_bias:
                self.beta = self.add_weight(name="beta", shape=(size,), initializer="zeros")

    def tensors(self) -> Norm:
        beta = None if self.beta is None else tf.convert_to_tensor(self.beta)
        return Norm(tf.convert_to_tensor(self.gamma), beta)


def read(variable: tf.Variable, dtype: str, is_shared: bool = False) -> tf.Tensor:
    """Returns a variable's value in the compute dtype. `is_shared`: it is read twice, and the gradients are
    added."""
    return stages.read_as(variable, dtype, is_shared)


def dense(x: tf.Tensor, weights: Affine) -> tf.Tensor:
    """Returns x @ kernel + bias over the last axis, in the type of `x`."""
    product = matmul_2d(x, weights.kernel)
    return product if weights.bias is None else tf.nn.bias_add(product, tf.cast(weights.bias, x.dtype))


def bias_of(weights: Affine) -> tf.Tensor:
    """Returns the bias [out]; zeros if there is none."""
    return tf.zeros_like(weights.kernel[0]) if weights.bias is None else weights.bias


def with_beta(norm: Norm) -> Norm:
    """Returns the weights of a LayerNorm, with zeros for a missing beta."""
    return norm if norm.beta is not None else Norm(norm.gamma, tf.zeros_like(norm.gamma))


def side_by_side(parts: Sequence[Affine]) -> Affine:
    """Concatenates dense layers of the same input to one; all of them have a bias, or none has."""
    kernels, biases = zip(*parts)
    return Affine(tf.concat(kernels, axis=-1), None if biases[0] is None else tf.concat(biases, axis=-1))


def layer_norm(x: tf.Tensor, norm: Norm, epsilon: float) -> tf.Tensor:
    """Normalises float32 `x` [..., D] over its last axis, times gamma, plus beta.

    Statistics and output are float32 whatever the compute dtype; the caller casts. `epsilon` is added to the
    variance. Source: Ba et al. 2016, "Layer Normalization".
    """
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    y = (x - mean) * tf.math.rsqrt(variance + epsilon) * norm.gamma
    return y if norm.beta is None else y + norm.beta


def matmul_2d(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """x [B, ..., in] @ kernel [in, out] as one two-dimensional product, the fastest form for vendor
    libraries."""
    product = matmul(tf.reshape(x, [-1, kernel.shape[0]]), tf.cast(kernel, x.dtype))
    return tf.reshape(product, [-1, *sizes(x)[1:-1], kernel.shape[1]])


def exact_matmul_2d(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """`matmul_2d` in full float32 precision, even if GPUs round float32 products; for small products."""
    if not rounds_products():
        return matmul_2d(x, kernel)
    return tf.cast(matmul_2d(tf.cast(x, tf.float64), kernel), tf.float32)


def rounds_products() -> bool:
    """Returns whether float32 products are computed in TensorFloat-32 (10-bit fractions), as GPUs from Ampere
    on do unless `NVIDIA_TF32_OVERRIDE=0` is set."""
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    return enabled and not native.on_cpus()


def gather_positions(x_BLD: tf.Tensor, positions_BP: tf.Tensor) -> tf.Tensor:
    """Returns the vectors at some positions of each row, [B, P, D]; positions int32, in [0, L)."""
    batch, length, hidden = sizes(x_BLD)
    flat_positions_BP = positions_BP + tf.range(batch)[:, None] * length
    return gather_rows(tf.reshape(x_BLD, [batch * length, hidden]), flat_positions_BP)


def put_at_positions(
    ids_BL: tf.Tensor, positions_BP: tf.Tensor, values_BP: tf.Tensor, is_put_BP: tf.Tensor
) -> tf.Tensor:
    """Replaces ids, int32 [B, L] >= 0, at those positions of each row for which `is_put_BP` is true."""
    batch, length = sizes(ids_BL)
    flat_positions_N1 = tf.reshape(positions_BP + tf.range(batch)[:, None] * length, [-1, 1])
    # Others add 0 at any position.
    marked = tf.reshape(tf.where(is_put_BP, values_BP + 1, 0), [-1])
    put_BL = tf.reshape(tf.scatter_nd(flat_positions_N1, marked, [batch * length]), [batch, length])
    return tf.where(put_BL > 0, put_BL - 1, ids_BL)


def picked(x_BLD: tf.Tensor, positions_BP: tf.Tensor | None) -> tf.Tensor:
    """Returns the vectors at some positions of each row; all vectors for None."""
    return x_BLD if positions_BP is None else gather_positions(x_BLD, positions_BP)


@tf.custom_gradient
def gather_rows(table, indices):
    """Rows of `table` [N, D] at `indices`, with a dense gradient.

    tf.gather's gradient is an IndexedSlices, which next to the dense gradient of a tied output layer is
    turned into N more slices; one segment sum is both smaller and faster.
    """

    def gradient(upstream):
        flat = tf.reshape(upstream, [-1, table.shape[1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(indices, [-1]), tf.shape(table)[0]), None

    return tf.gather(table, indices), gradient


def shared_function(function: Callable) -> Callable:
    """Wraps a function of tensors so that it is traced and optimised only once, even if a graph calls
    it many times: it remains a function call in the graph."""
    shared = tf.function(
        function, autograph=False, reduce_retracing=True, experimental_attributes={"_noinline": True}
    )
    # Inside another function: Keras would save a tf.function with its layer.
    return lambda *arguments: shared(*arguments)


# -----------------------------------------------------------------------------------------------------------
# Recomputation
#
# Random numbers follow from a seed, so that both computations are bit-identical. Source: Chen et al. 2016,
# "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174).


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def recomputed(function: Callable[..., tf.Tensor], as_kept: bool = False) -> Callable[..., tf.Tensor]:
    """Wraps a function so that only its arguments are stored for the backward pass, which recomputes the rest
    (gradient checkpointing).

    Args:
      function: (x, seed, *others) -> tensor; `x` is a tensor, `seed` a seed or None, `others` nests of
        tensors and None. It reads nothing else that has a gradient, and all of its large tensors depend on
        `x` or the seed.
      as_kept: for a function that remains a call in the graph: with a seed, its forward pass has the same
        bits and peak memory as one whose tensors are stored, see `_called_as_kept`.
    """

    # Defined here, not in the module: only some versions of TensorFlow have such calls.
    take_first = shared_function(_first) if as_kept else None

    def run(*arguments: Any) -> tf.Tensor:
        flat, seed = tf.nest.flatten(arguments), arguments[1]
        there = [place for place, value in enumerate(flat) if value is not None]
        first = 1 if seed is None else 2

        def call(tensors: Sequence) -> tf.Tensor:
            values = dict(zip(there, tensors))
            all_values = [values.get(place) for place in range(len(flat))]
            return function(*tf.nest.pack_sequence_as(arguments, all_values))

        @tf.custom_gradient
        def compute(*tensors):
            def gradient(upstream):
                waiting = [*after(upstream, tensors[:first]), *map(tf.identity, tensors[first:])]
                return _with_gradients(call, waiting, upstream)[1]

            if take_first is None or seed is None:  # there is no seed in an evaluation
                return call(tensors), gradient
            return _called_as_kept(call, tensors, take_first), gradient

        return compute(*(flat[place] for place in there))

    return run


def after(upstream: tf.Tensor, tensors: Sequence) -> list:
    """Makes the tensors depend on `upstream`, so that operations on them run in the backward pass.

    Otherwise TensorFlow would run the recomputation early, or merge it with the first computation, and store
    the results. Compilers order operations only by data dependencies, so the choice below is one that they
    cannot evaluate in advance. If the upstream gradient is NaN, so are the gradients.
    """
    # The maximum of an empty tensor is -inf: packed rows may have no sequence of some length.
    missing = tf.math.is_nan(tf.reduce_max(tf.reshape(upstream, [-1])[:1]))
    return [tf.where(missing, tf.zeros([], tensor.dtype), tensor) for tensor in tensors]


def _with_gradients(function: Callable, tensors: Sequence, upstream: tf.Tensor | None) -> tuple:
    """Returns (result, the gradient of each tensor, None without one)."""
    watched = [tensor for tensor in tensors if tensor.dtype.is_floating]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watched)
        result = function(tensors)
    found = iter(tape.gradient(result, watched, output_gradients=upstream))
    return result, [next(found) if tensor.dtype.is_floating else None for tensor in tensors]


def _called_as_kept(function: Callable, tensors: Sequence, take_first: Callable) -> tf.Tensor:
    """Returns the result of a function call, with the same bits as in a step that stores its tensors.

    In such a step the call also returns all tensors that the backward pass reads. Without them TensorFlow's
    graph optimizer would combine constant factors whose product has no other reader, which rounds
    differently. So the call returns these tensors here, too, although only its result is used.
    """
    result, _ = _with_gradients(function, tensors, None)  # the gradients are unused, so they do not run
    if tf.executing_eagerly() or result.op.type not in _CALLS:
        return result
    return take_first(*result.op.outputs)


def _first(*values):
    return values[0]

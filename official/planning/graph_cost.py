"""What a training step costs, read from its graph: FLOPs of matrix products, most bytes alive at once.

The graph is that of the program itself: the task's model and loss, the replica's step, the optimizer. Its
variables are symbolic and nothing in it runs, so a large model costs no more memory than a small one.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.ops import (
    resource_variable_ops,
)  # for variables without initial values, which have no public name

from official.config import Config
from official.distribution.batch_plan import BatchPlan
from official.modeling import copies as copies_lib
from official.optimization import gradients as gradients_lib
from official.optimization import kinds, optimizers, replica_step
from official.optimization.native.optimizers import NativeOptimizer
from official.optimization.state import TrainState
from official.optimization.train_state import build_state
from official.planning.flat_graph import FlatGraph
from official.planning.memory import execution_order, peak_bytes
from official.planning.native_update import StandIn


class PlannedTask(replica_step.Objective, Protocol):
    """What a plan asks of a task."""

    def build_model(self) -> tf.keras.Model:
        """Makes the model."""

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        """Returns random records in the shape of those that are trained on, or evaluated on."""

    def evaluate(self, model: tf.keras.Model, batch: dict[str, tf.Tensor]) -> tuple:
        """Returns what an evaluation takes from a batch."""

    @property
    def sequences_per_row(self) -> float | None:
        """Returns how many sequences a packed row is expected to hold; None where every row is a sequence."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one optimizer step of one replica costs, or one batch of an evaluation.

    Attributes:
      tensors, parameters: number of the model's trainable variables, and of the numbers in them.
      parameter_bytes: bytes of these variables.
      slot_bytes: bytes of the optimizer's slots.
      flops: multiplications and additions of all matrix products, forward and backward, all micro batches.
      peak_bytes: most bytes that live at once beside variables: gradients and activations.
      gradient_bytes: bytes of the variables' gradients.
      copy_bytes: bytes of the weights' copies in the type that is computed in.
    """

    tensors: int
    parameters: int
    parameter_bytes: int
    slot_bytes: int
    flops: int
    peak_bytes: int
    gradient_bytes: int = 0
    copy_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Returns the most bytes at once."""
        return self.parameter_bytes + self.slot_bytes + self.copy_bytes + self.peak_bytes


def step_cost(config: Config, task: PlannedTask, plan: BatchPlan) -> Cost:
    """Builds the training step of one replica and reads its cost.

    Args:
      config: the configuration; the mixed-precision policy must be that of its dtype. Its update_kernel says
        which of the two the run takes.
      task: the task.
      plan: the batches of the run.
    """
    # Shapes are all that is wanted of the data: one row is enough.
    spec = task.synthetic_dataset(1).element_spec
    with tf.Graph().as_default() as graph, tf.variable_creator_scope(symbolic_variable):
        batch = symbolic_batch(spec, plan.replica_batch_size)
        state, copies = _symbolic_state(config, task)
        accumulate = _accumulate_to_send(config, task, state, plan)
        step = replica_step.make_replica_gradients(
            config, task, state, plan.num_accumulation_steps, accumulate
        )
        with copies_lib.reading(copies):
            # Nothing here is Python that a graph would have to be made of, and looking for it takes seconds.
            gradients, factor, sums, norm = tf.autograph.experimental.do_not_convert(step)(batch)
        flat = FlatGraph()
        numbers: dict[str, int] = {}  # of tensors, by name
        flat.add(graph, graph.get_operations(), numbers)
        _add_update(flat, numbers, state, gradients, factor, norm)
    variables = state.model.trainable_variables
    slots = kinds.slot_variables(state.optimizer, config.optimizer_type, variables).values()
    cost = _cost(variables, slots, flat, [numbers[sums.name], numbers[norm.name]])
    return dataclasses.replace(cost, gradient_bytes=_bytes(gradients), copy_bytes=_bytes(copies.values()))


def _symbolic_state(config: Config, task: PlannedTask) -> tuple[TrainState, dict[str, tf.Variable]]:
    """Returns the state of a run, and the copies of weights that its update keeps, by the weights' names."""
    dtype = tf.as_dtype(tf.keras.mixed_precision.global_policy().compute_dtype)
    operations = StandIn(dtype) if config.update_kernel == "native" else None
    build_optimizer = functools.partial(optimizers.build_optimizer, operations=operations)
    state = build_state(config, lambda: model_of_whole_rows(task), build_optimizer)
    optimizer, model = state.optimizer, state.model
    if not isinstance(optimizer, NativeOptimizer):
        return state, {}
    return state, optimizer.make_copies(copies_lib.wanted(model, dtype), dtype)


def _accumulate_to_send(
    config: Config, task: PlannedTask, state: TrainState, plan: BatchPlan
) -> replica_step.Accumulate | None:
    """Returns what adds up the micro batches of a replica that is one of several, whose gradients are cast to
    the type in which they are sent and back to float32; None where there is one replica."""
    if plan.num_replicas == 1:
        return None

    def accumulate(batch: replica_step.Batch, shared: replica_step.Shared) -> tuple:
        count = plan.num_accumulation_steps
        gradients, sums = replica_step.sum_micro_batches(config, task, state.model, count, batch, shared)
        sent = [tf.cast(gradient, config.allreduce_dtype) for gradient in gradients]
        return gradients_lib.as_float32(sent), sums

    return accumulate


def evaluation_cost(task: PlannedTask, rows: int) -> Cost:
    """Builds the forward pass of an evaluation or prediction and reads its cost.

    Args:
      task: the task; the mixed-precision policy must be that of its dtype.
      rows: of a batch of one replica.
    """
    spec = task.synthetic_dataset(1, for_evaluation=True).element_spec
    return forward_cost(
        lambda: model_of_whole_rows(task), lambda model: task.evaluate(model, symbolic_batch(spec, rows))
    )


def forward_cost(build_model: Callable[[], Any], run: Callable[[Any], Any]) -> Cost:
    """Builds a forward pass and reads its cost.

    Args:
      build_model: makes the model.
      run: (model) -> nested tensors, all that is wanted.
    """
    with tf.Graph().as_default() as graph, tf.variable_creator_scope(symbolic_variable):
        model = build_model()
        given = tf.nest.flatten(tf.autograph.experimental.do_not_convert(run)(model))
        results = [each for each in given if each is not None]
        flat = FlatGraph()
        numbers: dict[str, int] = {}
        flat.add(graph, graph.get_operations(), numbers)
    kept = [numbers[result.name] for result in results]
    return _cost(model.trainable_variables, (), flat, kept)


def model_of_whole_rows(task: PlannedTask) -> tf.keras.Model:
    """Returns the task's model without sizes that are known only when it runs: no scores are left out, and
    no padding."""
    model: Any = task.build_model()
    model.encoder.by_sequence = model.encoder.unpad = False
    return model


def symbolic_model(build_model: Callable[[], tf.keras.Model]) -> tf.keras.Model:
    """Returns a model whose variables have names and shapes and no values."""
    with tf.Graph().as_default(), tf.variable_creator_scope(symbolic_variable):
        return build_model()


def _cost(variables: list, slots: Iterable, flat: FlatGraph, kept: list[int]) -> Cost:
    """Returns the cost of a graph whose tensors `kept` live to its end."""
    return Cost(
        len(variables),
        sum(variable.shape.num_elements() for variable in variables),
        _bytes(variables),
        _bytes(slots),
        flat.flops(),
        peak_bytes(flat, execution_order(flat, kept), kept),
    )


def symbolic_batch(spec: dict[str, tf.TensorSpec], rows: int) -> dict[str, tf.Tensor]:
    """Returns a batch of the shapes of `spec` in the graph that is being built."""
    return {
        name: tf.compat.v1.placeholder(feature.dtype, [rows, *feature.shape[1:]])
        for name, feature in spec.items()
    }


def _bytes(variables: Any) -> int:
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


def symbolic_variable(next_creator: Any, **arguments: Any) -> Any:
    """Makes a variable without the operations that would fill it, which are more than those of a small
    model."""
    known = getattr(arguments["initial_value"], "keywords", {})  # of a partial, which is what Keras passes
    shape, dtype = (arguments.get(name) or known.get(name) for name in ("shape", "dtype"))
    if shape is None or dtype is None:
        return next_creator(**arguments)
    return resource_variable_ops.UninitializedVariable(
        trainable=arguments["trainable"],
        name=arguments["name"],
        shape=tf.TensorShape(shape),
        dtype=tf.as_dtype(dtype),
    )


def _add_update(
    flat: FlatGraph, numbers: dict[str, int], state: TrainState, gradients: list, factor: Any, norm: tf.Tensor
) -> None:
    """Adds the update of every variable.

    The native one is one operation. Else TensorFlow is asked for one of each kind, such as
    layer_{}/output/dense/kernel; the others are copies of it, since hundreds of equal updates would take
    longer to build than the model.
    """
    built: dict[tuple, tuple] = {}
    graph = norm.graph
    if isinstance(state.optimizer, NativeOptimizer):
        known = len(graph.get_operations())
        with tf.control_dependencies([norm] if state.loss_scale else []):
            state.optimizer.update(gradients, state.model.trainable_variables, factor)
        flat.add(graph, graph.get_operations()[known:], numbers, after=())
        return
    for variable, gradient in zip(state.model.trainable_variables, gradients):
        kind = (re.sub(r"layer_\d+", "layer_{}", variable.name), variable.shape)
        if kind in built:
            first_gradient, start, stop = built[kind]
            flat.repeat(start, stop, {numbers[first_gradient.name]: numbers[gradient.name]})
            continue
        start, known = len(flat.nodes), len(graph.get_operations())
        # With loss scaling the update is a branch, which starts when the norm is known to be finite.
        with tf.control_dependencies([norm] if state.loss_scale else []):
            state.optimizer.update([gradient], [variable], factor)
        flat.add(graph, graph.get_operations()[known:], numbers, after=())
        built[kind] = gradient, start, len(flat.nodes)

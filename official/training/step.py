"""The graphs that run on the devices: a loop of optimizer steps, and an evaluation step.

A replica's part of an optimizer step, from the accumulation of gradients to their clipping, is
`official.optimization.replica_step`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from official.data.pipeline import MOST_STREAMS
from official.distribution import strategy as strategy_lib
from official.distribution.strategy import as_pipeline
from official.modeling import stages as copies_lib
from official.optimization import gradients as gradients_lib
from official.optimization import replica_step
from official.training import pipelined

if TYPE_CHECKING:
    from official.config.table import Config
    from official.distribution.batch_plan import BatchPlan
    from official.optimization.train_state import TrainState
    from official.training.task import Task

# AutoGraph would take seconds to convert model and optimizer, which do not need it.
_graph = functools.partial(tf.function, autograph=False)
Totals = dict[str, tf.Tensor]


class HostWait:
    """Total time in seconds that steps wait for their batches, accumulated inside the graphs.

    On GPUs the host runs ahead of the devices. Waiting while they still compute is included, so the sum is an
    upper bound.
    """

    def __init__(self) -> None:
        with tf.device("CPU"):
            self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def timed(self, take: Callable[[], Any], after: Iterable[tf.Tensor]) -> Any:
        """Calls `take` in a graph, adds the time that it took to the sum, and returns its batch.

        Args:
          take: function that returns the batch of every replica.
          after: tensors of the previous step; the clock starts when they are computed.
        """
        with tf.device("CPU"), tf.control_dependencies(list(after)):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            batch = take()
        with tf.device("CPU"), tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            self._secs.assign_add(tf.timestamp() - began)
        return batch

    def take_secs(self) -> float:
        """Returns the seconds summed since the last call, and resets the sum."""
        secs = float(self._secs.numpy())
        self._secs.assign(0.0)
        return secs


def _low_precision_weights(
    config: Config, state: TrainState, strategy: tf.distribute.Strategy
) -> tuple[Callable[[Callable], Callable], Callable[[], None]]:
    """Creates copies of the weights in the compute dtype, which the native update keeps equal to the weights.
    Has no effect with other kernels, with XLA, or in a pipeline.

    Returns:
      (wrapper that makes a replica's function read the copies, function that casts the weights to the
      copies). The latter is called at the start of each device call, so that the copies are right whatever
      has changed the weights.
    """
    optimizer: Any = state.optimizer
    dtype = tf.as_dtype(tf.keras.mixed_precision.global_policy().compute_dtype)
    updates_copies = hasattr(optimizer, "make_copies")  # the compiled update does
    if not updates_copies or config.enable_xla or as_pipeline(strategy):
        return lambda function: function, lambda: None
    # TensorFlow broadcasts initial values of a strategy's variables between processes, but not in bfloat16.
    # Copies exist only on CPUs, where a process has one replica, so a local variable suffices.
    scope = contextlib.nullcontext() if strategy_lib.has_peers(strategy) else strategy.scope()
    with scope:
        variables = copies_lib.variables_to_copy(state.model, dtype)
        copies = optimizer.make_copies(variables, dtype)

    def reading(function: Callable) -> Callable:
        @functools.wraps(function)
        def with_copies(*arguments):
            with copies_lib.reading_copies(copies):
                return function(*arguments)

        return with_copies

    return reading, lambda: strategy.run(lambda: optimizer.renew_copies(variables))


def no_totals(task: Task, plan: BatchPlan) -> Totals:
    """Returns the initial totals of a training loop: `sums` [2 x metrics] over all steps, `norm` the sum of
    gradient norms, `skipped` the number of updates that loss scaling skipped, `bad_step` the first step with
    a non-finite loss (or, without loss scaling, gradient), else -1. For packed rows also `counts`, int64
    [MOST_STREAMS + 1]: the sequences of each stream of the data, and the tokens."""
    totals = {
        "sums": tf.zeros([2 * len(task.metrics)]),
        "norm": tf.constant(0.0),
        "skipped": tf.constant(0, tf.int64),  # int32 lives in the host's memory, which would wait for the GPU
        "bad_step": tf.constant(-1, tf.int64),
    }
    return totals | ({"counts": tf.zeros([MOST_STREAMS + 1], tf.int64)} if plan.is_packed else {})


def make_train_loop(
    config: Config,
    task: Task,
    state: TrainState,
    strategy: tf.distribute.Strategy,
    plan: BatchPlan,
    wait: HostWait | None = None,
) -> Callable:
    """Returns a function (iterator, number of steps, totals so far) -> totals, which runs that many optimizer
    steps on the devices.

    A step adds the sequences that it trains on to `state.samples`. The first call gets `no_totals`, each
    later one the totals of the previous call, so that two calls give the same totals as one. `wait`
    accumulates the time that steps wait for batches.
    """
    accumulate = pipelined.make_accumulate(config, task, state.model, strategy)
    layout = plan.layout  # replicas and micro batches of the step's arithmetic
    counts_as = replica_step.LaidOut(layout.num_replicas, layout.num_accumulation_steps) if layout else None
    gradients = replica_step.make_replica_gradients(
        config, task, state, plan.num_accumulation_steps, accumulate, counts_as
    )
    reading_copies, renew_copies = _low_precision_weights(config, state, strategy)
    make_step = _scaled_step if state.loss_scale else _plain_step
    run_step, count = make_step(reading_copies(gradients), state, strategy), _make_counting(strategy)

    @_graph()
    def train_loop(iterator, num_steps, totals):
        renew_copies()

        def one_more(index, totals):
            take = functools.partial(strategy_lib.next_batch, iterator, strategy)
            batch = wait.timed(take, [totals["sums"], totals["norm"]]) if wait else take()
            sums, norm, skipped = run_step(batch)
            added = _added(totals, sums, norm, skipped, state.optimizer.iterations)
            if plan.is_packed:
                counts = count(batch)
                state.samples.assign_add(tf.reduce_sum(counts[:-1]))
                added["counts"] = totals["counts"] + counts
            else:
                state.samples.assign_add(plan.sequences_per_step)
            return index + 1, added

        return tf.while_loop(lambda index, _: index < num_steps, one_more, (tf.constant(0), totals))[1]

    return train_loop


def _make_counting(strategy: tf.distribute.Strategy) -> Callable:
    """Returns a function (batch of packed rows) -> int64 [MOST_STREAMS + 1], summed over all replicas: number
    of sequences of each stream, and of tokens. A batch without `streams` belongs to the first stream."""

    def replica_counts(batch):
        sequences_B = tf.reduce_sum(batch["example_weights"], axis=1)
        streams_B = batch.get("streams", tf.zeros(tf.shape(sequences_B), tf.int32))
        tokens = tf.reduce_sum(tf.cast(batch["input_mask"], tf.float32))
        by_stream = tf.reduce_sum(tf.one_hot(streams_B, MOST_STREAMS) * sequences_B[:, None], axis=0)
        return gradients_lib.reduce_sum(tf.concat([by_stream, [tokens]], axis=0))

    def count(batch):  # whole numbers far below 2^24, exact in float32
        return tf.cast(_first(strategy, strategy.run(replica_counts, args=(batch,))), tf.int64)

    return count


def _plain_step(replica_gradients: Callable, state: TrainState, strategy: tf.distribute.Strategy) -> Callable:
    """Returns the step without loss scaling: (batch) -> (sums, gradient norm, False: not skipped)."""

    def replica_step_and_update(batch):
        gradients, factor, sums, norm = replica_gradients(batch)
        state.optimizer.update(gradients, state.model.trainable_variables, factor)
        return sums, norm

    def step(batch):
        sums, norm = strategy.run(replica_step_and_update, args=(batch,))
        return _first(strategy, sums), _first(strategy, norm), tf.constant(False)

    return step


def _scaled_step(gradients_of: Callable, state: TrainState, strategy: tf.distribute.Strategy) -> Callable:
    """Returns the step with loss scaling: (batch) -> (sums, gradient norm, whether the update was skipped).
    The update is skipped if the scaled gradient is not finite."""

    loss_scale = cast(Any, state.loss_scale)

    def apply(gradients, factor, finite=None):
        state.optimizer.update(gradients, state.model.trainable_variables, factor, finite)

    def step(batch):
        gradients, factor, sums, norm = strategy.run(gradients_of, args=(batch,))
        norm = _first(strategy, norm)
        finite = tf.math.is_finite(norm)

        def update():
            strategy.run(apply, args=(gradients, factor))

        def skip():  # a skipped step is a step; source: TensorFlow's LossScaleOptimizer
            state.optimizer.iterations.assign_add(1)

        if state.optimizer.compiles:  # with tf.cond the host would wait for the device
            strategy.run(apply, args=(gradients, factor, finite))
        else:
            tf.cond(finite, update, skip)  # outside of the replicas: all have the same reduced gradient
        loss_scale.update(finite, state.optimizer.iterations)
        return _first(strategy, sums), norm, tf.logical_not(finite)

    return step


def _added(totals: Totals, sums, norm, skipped, step) -> Totals:
    """Returns the totals with those of step number `step` added."""
    finite = tf.reduce_all(tf.math.is_finite(sums)) & (tf.math.is_finite(norm) | skipped)
    return {
        "sums": totals["sums"] + sums,
        "norm": totals["norm"] + tf.where(skipped, 0.0, norm),
        "skipped": totals["skipped"] + tf.cast(skipped, tf.int64),
        "bad_step": tf.where(finite | (totals["bad_step"] >= 0), totals["bad_step"], step),
    }


def make_eval_step(task: Task, state: TrainState, strategy: tf.distribute.Strategy) -> Callable:
    """Returns (batch) -> (sums, outputs) over all replicas.

    `sums` is float32 [2 x eval metrics + 1]: weighted sums, weights and number of sequences. `outputs` are
    the task's, with `rows`.
    """

    def replica_eval(batch):
        terms, outputs = task.evaluate(pipelined.on_devices(state.model, strategy), batch)
        # In rows with several sequences, each sequence has its own weight.
        sequences = tf.reduce_sum(batch["example_weights"])
        sums = tf.concat([replica_step.stack_terms(terms, task.eval_metrics), [sequences]], axis=0)
        gathered = gradients_lib.gather({**outputs, "rows": batch["rows"]}) if outputs else {}
        return gradients_lib.reduce_sum(sums), gathered

    @_graph(reduce_retracing=True)  # with batches of different lengths the function is traced only twice
    def eval_step(batch):
        sums, outputs = strategy.run(replica_eval, args=(batch,))
        return _first(strategy, sums), {name: _first(strategy, value) for name, value in outputs.items()}

    return eval_step


def make_finite_check(state: TrainState) -> Callable[[], tf.Tensor]:
    """Returns a function () -> whether all weights of the model are finite."""

    @_graph()
    def weights_are_finite():
        return tf.math.is_finite(
            tf.add_n([tf.reduce_sum(tf.abs(variable)) for variable in state.model.trainable_variables])
        )

    return weights_are_finite


def peers(strategy: tf.distribute.Strategy) -> tuple[Callable[[tf.Tensor], tf.Tensor] | None, int]:
    """Returns the arguments of a `ProcessGroup`: (tensor -> its sum over all replicas, None for one process;
    number of replicas)."""

    @_graph()
    def sum_over_replicas(value):
        own = strategy.run(lambda own: gradients_lib.reduce_sum(tf.identity(own)), args=(value,))
        return _first(strategy, own)

    def add(value: tf.Tensor) -> tf.Tensor:
        strategy_lib.note_passed(strategy)
        return sum_over_replicas(value)

    return add if strategy_lib.has_peers(strategy) else None, strategy.num_replicas_in_sync


def _first(strategy, value):
    """Returns the first replica's value of a result that is the same on all replicas."""
    return strategy.experimental_local_results(value)[0]

"""One optimizer step and the loop around it, as graphs.

A replica's step is a line of stages: accumulate -> reduce across replicas -> find the factor that unscales and clips -> apply.
"""

import contextlib
import dataclasses
import functools

import numpy as np
import tensorflow as tf

from official.config import dynamic_loss_scale, initial_loss_scale
from official.distribution import strategy as strategy_lib
from official.optimization import gradients as gradients_lib
from official.optimization import optimizers, schedules
from official.optimization.loss_scale import LossScale

_graph = functools.partial(
    tf.function, autograph=False
)  # AutoGraph would read model and optimizer, nothing in which needs it, for seconds


@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything a run changes: model, optimizer with its slots and step counter, loss scale, data
    position."""

    model: tf.keras.Model
    optimizer: optimizers.Optimizer
    schedule: schedules.WarmupPolynomialDecay
    loss_scale: LossScale | None
    samples: tf.Variable
    optimizer_type: str

    @property
    def step(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def model_variables(self) -> dict[str, tf.Variable]:
        return {variable.name.split(":")[0]: variable for variable in self.model.variables}

    def variables(self) -> dict[str, tf.Variable]:
        """Returns {checkpoint name: variable} of the whole state."""
        state = self.model_variables()
        state |= optimizers.slot_variables(
            self.optimizer, self.optimizer_type, self.model.trainable_variables
        )
        state |= {"global_step": self.optimizer.iterations, "samples": self.samples}
        if self.loss_scale:
            state |= {
                "loss_scale/scale": self.loss_scale.scale,
                "loss_scale/good_steps": self.loss_scale.good_steps,
            }
        return state


def make_state(config, task, strategy) -> TrainState:
    """Builds model and optimizer with all their variables, in the strategy's scope."""
    with strategy.scope():
        model = task.build_model()
        schedule = schedules.from_config(config)
        optimizer = optimizers.build_optimizer(config, schedule)
        optimizer.create_slots(model.trainable_variables)
        initial = initial_loss_scale(config)
        loss_scale = LossScale(initial, dynamic_loss_scale(config)) if initial else None
        samples = tf.Variable(0, trainable=False, dtype=tf.int64, name="samples")
    return TrainState(model, optimizer, schedule, loss_scale, samples, config.optimizer_type)


@contextlib.contextmanager
def restored(variables: list[tf.Variable]):
    """Gives the variables their values back after its block, bit for bit.

    Meanwhile these are in the host's memory, not on the device, and of a variable that is all zero, as a new
    optimizer's are, nothing is kept.
    """
    kept = []
    for variable in variables:
        value = variable.read_value().numpy()
        kept.append(value if np.atleast_1d(value).view(np.uint8).any() else None)
    yield
    for variable, value in zip(variables, kept):
        variable.assign(tf.zeros(variable.shape, variable.dtype) if value is None else value)


def make_replica_gradients(config, task, state):
    """Returns (batch of one replica) -> (reduced gradients, the factor that unscales and clips them, sums,
    gradient norm).

    `sums` is float32 [2 x metrics]: the weighted sums of `task.metrics`, then their weights, over the whole
    step. The norm is that of the reduced gradient, unscaled, before clipping. All are the same on every
    replica.

    --loss_normalization and --clip_scope choose between two published ways:
      global, global: sum over the step / weight of the step, clipped once. Independent of replicas and
        accumulation.
      local, micro_batch: sum over micro batches of clip(gradient of the micro batch's mean loss) / number of
        micro batches, summed over replicas, each divided by their number with --scale_loss. Source: the
        MLPerf v0.7 reference.
    """
    variables = state.model.trainable_variables
    num_micro_batches = config.num_accumulation_steps
    local = config.loss_normalization == "local"

    def micro_step(index, micro_batch, factors, seed, scale):
        with tf.GradientTape() as tape:
            terms = task.loss(state.model, micro_batch, tf.concat([seed, [index]], axis=0))
            if local:
                factors = {
                    name: factors[name] / (terms[name][1] + task.local_epsilon[name]) for name in task.losses
                }
            objective = tf.add_n([terms[name][0] * factors[name] for name in task.losses]) * scale
        gradients = tape.gradient(objective, variables)
        if config.clip_scope == "micro_batch":
            norm = tf.linalg.global_norm(gradients) / scale
            gradients = gradients_lib.scaled(
                gradients, gradients_lib.clip_factor(norm, config.clip_norm) / scale
            )
        return gradients, _stack(terms, task.metrics)

    def accumulate(batch, factors, seed, scale):
        like = (variables, tf.zeros([2 * len(task.metrics)]))
        return gradients_lib.accumulate(
            batch,
            num_micro_batches,
            lambda index, micro_batch: micro_step(index, micro_batch, factors, seed, scale),
            like,
        )

    def reduce(gradients, sums):
        if config.explicit_allreduce:
            return gradients_lib.reduce_sum_in_packs(
                gradients, config.allreduce_bytes_per_pack
            ), gradients_lib.reduce_sum(sums)
        return gradients_lib.reduce_sum((gradients, sums))

    if config.enable_xla:
        accumulate = _graph(jit_compile=True)(accumulate)

    def replica_gradients(batch):
        context = tf.distribute.get_replica_context()
        seed = tf.stack(
            [
                config.seed,
                tf.cast(state.optimizer.iterations, tf.int32),
                tf.cast(context.replica_id_in_sync_group, tf.int32),
            ]
        )  # of dropout
        scale = tf.convert_to_tensor(state.loss_scale.scale if state.loss_scale else 1.0)
        if state.loss_scale and not local:
            # A micro batch's part of the step's mean loss is smaller than its own mean by these two numbers;
            # without them the scale would leave small gradients below what float16 can hold.
            scale *= num_micro_batches * context.num_replicas_in_sync
        if local:
            factors = dict.fromkeys(
                task.losses, tf.constant(1.0 / context.num_replicas_in_sync if config.scale_loss else 1.0)
            )
        else:
            factors = {
                name: tf.math.divide_no_nan(1.0, weight)
                for name, weight in gradients_lib.reduce_sum(task.weights(batch)).items()
            }
        gradients, sums = accumulate(batch, factors, seed, scale)
        gradients, sums = reduce(gradients, sums)
        left_to_undo = (1.0 if config.clip_scope == "micro_batch" else scale) * (
            num_micro_batches if local else 1.0
        )
        norm = tf.linalg.global_norm(gradients) / left_to_undo
        factor = gradients_lib.clip_factor(norm, config.clip_norm) if config.clip_scope == "global" else 1.0
        return gradients, factor / left_to_undo, sums, norm

    return replica_gradients


def _stack(terms, names):
    """Returns what `mean_metrics` takes: float32 [2 x metrics], the weighted sums of the metrics `names`,
    then their weights."""
    return tf.reshape(
        tf.convert_to_tensor([terms[name][part] for part in (0, 1) for name in names], tf.float32), [-1]
    )


def no_totals(task) -> dict[str, tf.Tensor]:
    """Returns what a training loop starts from: `sums` [2 x metrics] over all steps, `norm` the sum of
    gradient norms, `skipped` the number of updates that loss scaling skipped, `bad_step` the first step with
    a non-finite loss (or, without loss scaling, gradient), else -1."""
    return {
        "sums": tf.zeros([2 * len(task.metrics)]),
        "norm": tf.constant(0.0),
        "skipped": tf.constant(0),
        "bad_step": tf.constant(-1, tf.int64),
    }


def make_train_loop(config, task, state, strategy):
    """Returns (iterator, number of steps, totals so far) -> totals; runs that many steps on the devices.

    The totals go on from those that are given, at first `no_totals`, so that a loop in two calls is the same
    as one.
    """
    replica_gradients = make_replica_gradients(config, task, state)
    variables = state.model.trainable_variables

    def apply(gradients, factor):
        state.optimizer.update(gradients, variables, factor)

    def plain_step(batch):
        gradients, factor, sums, norm = replica_gradients(batch)
        apply(gradients, factor)
        return sums, norm

    def run_plain(batch):
        sums, norm = strategy.run(plain_step, args=(batch,))
        return _first(strategy, sums), _first(strategy, norm), tf.constant(False)

    def run_scaled(batch):
        gradients, factor, sums, norm = strategy.run(replica_gradients, args=(batch,))
        norm = _first(strategy, norm)
        finite = tf.math.is_finite(norm)

        def update():
            strategy.run(apply, args=(gradients, factor))

        def skip():  # a skipped step is a step; source: TensorFlow's LossScaleOptimizer
            state.optimizer.iterations.assign_add(1)

        tf.cond(finite, update, skip)  # outside of the replicas, which all see the same reduced gradient
        state.loss_scale.update(finite)
        return _first(strategy, sums), norm, tf.logical_not(finite)

    run_step = run_scaled if state.loss_scale else run_plain

    @_graph()
    def train_loop(iterator, num_steps, totals):
        def one_more(index, totals):
            sums, norm, skipped = run_step(strategy_lib.next_batch(iterator, strategy))
            finite = tf.reduce_all(tf.math.is_finite(sums)) & (tf.math.is_finite(norm) | skipped)
            state.samples.assign_add(config.train_batch_size)
            return index + 1, {
                "sums": totals["sums"] + sums,
                "norm": totals["norm"] + tf.where(skipped, 0.0, norm),
                "skipped": totals["skipped"] + tf.cast(skipped, tf.int32),
                "bad_step": tf.where(
                    finite | (totals["bad_step"] >= 0), totals["bad_step"], state.optimizer.iterations
                ),
            }

        return tf.while_loop(lambda index, _: index < num_steps, one_more, (tf.constant(0), totals))[1]

    return train_loop


def make_eval_step(task, state, strategy):
    """Returns (batch) -> (sums, outputs) over all replicas.

    `sums` is float32 [2 x eval metrics + 1]: weighted sums, weights and number of examples. `outputs` are the
    task's, with `rows`.
    """

    def replica_eval(batch):
        terms, outputs = task.evaluate(state.model, batch)
        sums = tf.concat(
            [_stack(terms, task.eval_metrics), [tf.reduce_sum(batch["example_weights"])]], axis=0
        )
        gathered = gradients_lib.gather({**outputs, "rows": batch["rows"]}) if outputs else {}
        return gradients_lib.reduce_sum(sums), gathered

    @_graph(reduce_retracing=True)  # batches of one length each are traced twice, not once a length
    def eval_step(batch):
        sums, outputs = strategy.run(replica_eval, args=(batch,))
        return _first(strategy, sums), {name: _first(strategy, value) for name, value in outputs.items()}

    return eval_step


def make_example_step(task, state, strategy):
    """Returns (batch with `rows`) -> (no sums, outputs of `task.example_outputs` over all replicas, with
    `rows`)."""

    def replica_outputs(batch):
        return gradients_lib.gather({**task.example_outputs(state.model, batch), "rows": batch["rows"]})

    @_graph()
    def example_step(batch):
        outputs = strategy.run(replica_outputs, args=(batch,))
        return tf.zeros([0]), {name: _first(strategy, value) for name, value in outputs.items()}

    return example_step


def make_finite_check(state):
    """Returns () -> whether every weight of the model is finite."""

    @_graph()
    def weights_are_finite():
        return tf.math.is_finite(
            tf.add_n([tf.reduce_sum(tf.abs(variable)) for variable in state.model.trainable_variables])
        )

    return weights_are_finite


def make_sum_over_replicas(strategy):
    """Returns (scalar of this process) -> its sum over all replicas of all processes."""

    @_graph()
    def sum_over_replicas(value):
        return _first(
            strategy, strategy.run(lambda own: gradients_lib.reduce_sum(tf.identity(own)), args=(value,))
        )

    return sum_over_replicas


def _first(strategy, value):
    """Returns the first replica's value of something that is the same on all."""
    return strategy.experimental_local_results(value)[0]


def mean_metrics(losses, names, sums: np.ndarray) -> dict[str, float]:
    """Divides sums by weights, the one place where that happens: {loss: the sum of the mean losses, metric:
    mean}."""
    totals, weights = np.split(np.asarray(sums, np.float64), 2)
    means = {
        name: float(total / weight) if weight else 0.0 for name, total, weight in zip(names, totals, weights)
    }
    known = [means[name] for name in losses if name in means]
    return ({"loss": sum(known)} if known else {}) | means

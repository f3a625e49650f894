"""One replica's part of an optimizer step: accumulate -> unscale -> narrow -> reduce across replicas -> clip
-> apply.

Each stage is a function here or in `gradients`. `make_replica_gradients` chains them up to the clipping; the
optimizer's `update` applies the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from official.config.backends import BACKENDS
from official.config.table import Config
from official.optimization import gradients as gradients_lib
from official.optimization.train_state import LossScale, TrainState

# -----------------------------------------------------------------------------------------------------------
# Factors of the objective and of the gradients


def scale_factor(config: Config, num_micro_batches: int, num_replicas: int) -> int:
    """Returns the factor by which the loss scale is multiplied in the objective of a micro batch.

    With --loss_normalization=global, a micro batch's part of the step's mean loss is smaller than its own
    mean loss by the number of micro batches and replicas. This factor compensates for it, so that small
    gradients stay within the range of float16.
    """
    return num_micro_batches * num_replicas if config.loss_normalization == "global" else 1


def local_factor(config: Config, num_replicas: int) -> float:
    """Returns the factor of a micro batch's mean loss with --loss_normalization=local: 1, or 1 / replicas
    with --scale_loss."""
    return 1.0 / num_replicas if config.scale_loss else 1.0


def micro_batch_divisor(config: Config, num_micro_batches: int) -> int:
    """Returns the number to divide accumulated gradients by: the number of micro batches if their mean is
    wanted, 1 if their sum is."""
    return num_micro_batches if config.loss_normalization == "local" else 1


def largest_norm(config: Config, num_replicas: int) -> float | None:
    """Returns the global norm that a step's gradient is clipped to, None for no clipping.

    Source of `replicas`: use_mpclip of Graphcore's TF1 BERT.
    """
    if config.clip_scope == "replicas":
        return config.clip_norm * num_replicas
    return config.clip_norm if config.clip_scope == "global" else None


# -----------------------------------------------------------------------------------------------------------
# Gradients of a step


Batch = dict  # {feature: tensor}
Terms = dict  # {name: (weighted sum, weight)}


class Objective(Protocol):
    """A training objective: losses of a model and a batch.

    Attributes:
      losses: {name: factor}; a step minimises the sum of the mean losses times their factors.
      metrics: names of all results of `terms`, the losses first.
      local_epsilon: per loss, added to the weight of a micro batch with --loss_normalization=local.
      compared: for a loss that compares all rows of a step with each other (in-batch negatives): names of the
        batch's features that it reads, which are gathered over replicas and micro batches. Empty if each row
        has its own loss.
    """

    losses: dict[str, float]
    metrics: tuple[str, ...]
    local_epsilon: dict[str, float]
    compared: tuple[str, ...]

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the weight of each loss in a batch, without running the model."""

    def terms(self, outputs: Any, batch: Batch) -> Terms:
        """Returns {metric: (weighted sum, weight)} of a batch, from the model's outputs; for losses the
        weight is that of `weights`. With `compared` rows, it is called with the outputs, and these features,
        of the whole step."""


class Shared(NamedTuple):
    """Values that all micro batches of a replica's step share.

    Attributes:
      factors: {loss: factor of its sum}, see `loss_factors`.
      seeds: int32 [micro batches, 4], dropout seeds, see `dropout_seeds`.
      scale: factor of the objective, see `objective_scale`.
    """

    factors: dict[str, tf.Tensor]
    seeds: tf.Tensor
    scale: tf.Tensor


class LaidOut(NamedTuple):
    """Number of replicas, and of micro batches per replica, of the layout that a step reproduces,
    independently of the number of computing replicas."""

    num_replicas: int
    num_micro_batches: int


# (batch of a replica, `Shared`) -> (gradients, terms as in `stack_terms`), summed
Accumulate = Callable


class Gradients(NamedTuple):
    """Accumulated gradients of all variables. The true gradients are `tensors` / `divisor`.

    They are not divided before the update, which multiplies them once by the product of all factors.
    """

    tensors: list[tf.Tensor]
    divisor: tf.Tensor | float


def make_replica_gradients(
    config: Config,
    objective: Objective,
    state: TrainState,
    num_micro_batches: int,
    accumulate: Accumulate | None = None,
    laid_out: LaidOut | None = None,
) -> Callable[[Batch], tuple]:
    """Returns the function (batch of one replica) -> (reduced gradients, factor that unscales and clips them,
    sums, gradient norm).

    `sums` is float32 [2 x metrics]: the weighted sums of the objective's metrics, then their weights, over
    the whole step. The norm is that of the reduced gradient, unscaled, before clipping. All are the same on
    every replica.

    `accumulate` sums over a replica's micro batches; None: one after the other on one device. `laid_out` is
    the layout that the step reproduces; None: the actual one.

    --loss_normalization and --clip_scope choose between two published methods:
      global, global: sum over the step / weight of the step, clipped once. Independent of replicas and
        accumulation.
      local, micro_batch: sum over micro batches of clip(gradient of the micro batch's mean loss) / number of
        micro batches, summed over replicas, each divided by their number with --scale_loss. Source: the
        MLPerf v0.7 reference.
    """

    compiled = (
        tf.function(autograph=False, jit_compile=True) if config.enable_xla else lambda function: function
    )
    if accumulate is None:
        accumulate = one_after_the_other(config, objective, state.model, num_micro_batches, compiled)
    else:
        accumulate = compiled(accumulate)

    def replica_gradients(batch: Batch) -> tuple:
        counted = laid_out or LaidOut(_num_replicas(), num_micro_batches)
        scale = objective_scale(config, state, counted)
        # Outside of XLA programs int32 is computed on the host, which would wait for a GPU.
        seeds = compiled(functools.partial(dropout_seeds, config, state, num_micro_batches, counted))()
        shared = Shared(loss_factors(config, objective, batch, counted), seeds, scale)
        tensors, sums = accumulate(batch, shared)
        gradients = unscale(config, tensors, scale, counted.num_micro_batches)
        gradients = narrow(config, gradients, state.loss_scale)
        gradients, sums = reduce_across_replicas(config, gradients, sums)
        norm = true_norm(config, gradients, state.optimizer.global_norm)
        factor = clip(config, gradients, norm, counted.num_replicas)
        return gradients.tensors, factor, sums, norm

    return replica_gradients


def dropout_seeds(config: Config, state: TrainState, num_micro_batches: int, laid_out: LaidOut) -> tf.Tensor:
    """Returns the dropout seeds of a replica's micro batches, int32 [num_micro_batches, 4]; called in replica
    context.

    A seed consists of the run's seed, the step, and the replica and micro batch of the layout, which may
    differ from those that compute it.
    """
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)
    numbers = replica * num_micro_batches + tf.range(num_micro_batches)  # numbers in the step
    laid_out_replicas, places = numbers // laid_out.num_micro_batches, numbers % laid_out.num_micro_batches
    step = tf.cast(state.optimizer.iterations, tf.int32)
    of_all = tf.tile(tf.stack([config.seed, step])[None], [num_micro_batches, 1])
    return tf.concat([of_all, tf.stack([laid_out_replicas, places], axis=1)], axis=1)


def objective_scale(config: Config, state: TrainState, laid_out: LaidOut) -> tf.Tensor:
    """Returns the factor of a micro batch's objective that keeps small gradients from underflowing in
    float16; 1 without loss scaling."""
    if not state.loss_scale:
        return tf.constant(1.0)
    factor = scale_factor(config, laid_out.num_micro_batches, laid_out.num_replicas)
    return tf.convert_to_tensor(state.loss_scale.scale) * factor


def loss_factors(
    config: Config, objective: Objective, batch: Batch, laid_out: LaidOut
) -> dict[str, tf.Tensor]:
    """Returns {loss: factor of its weighted sum}; called in replica context.

    The objective's factor of the loss times, with --loss_normalization=global, 1 / weight of the whole step
    over all replicas and micro batches; with local 1, or 1 / replicas with --scale_loss, since each micro
    batch divides by its own weight (see `micro_batch_gradients`).
    """
    if config.loss_normalization != "global":
        of_all = local_factor(config, laid_out.num_replicas)
        return {name: tf.constant(own * of_all) for name, own in objective.losses.items()}
    weights = gradients_lib.reduce_sum(objective.weights(batch))
    return {name: tf.math.divide_no_nan(own, weights[name]) for name, own in objective.losses.items()}


def one_after_the_other(
    config: Config,
    objective: Objective,
    model: tf.keras.Model,
    num_micro_batches: int,
    compiled: Callable[[Callable], Callable] = lambda function: function,
) -> Accumulate:
    """Returns the function that accumulates the gradients and terms of a replica's micro batches, one after
    the other on one device. `compiled` compiles the part that does not communicate with other replicas."""
    if objective.compared:
        return functools.partial(sum_through_outputs, config, objective, model, num_micro_batches, compiled)
    return compiled(functools.partial(sum_micro_batches, config, objective, model, num_micro_batches))


def sum_micro_batches(
    config: Config,
    objective: Objective,
    model: tf.keras.Model,
    num_micro_batches: int,
    batch: Batch,
    shared: Shared,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the gradients and terms of a replica's batch, summed over its micro batches."""

    def micro_step(index: tf.Tensor, micro_batch: Batch) -> tuple[list[tf.Tensor], tf.Tensor]:
        seed = shared.seeds[index]
        gradients, sums = micro_batch_gradients(config, objective, model, micro_batch, shared, seed)
        return _as_summed(config, gradients, num_micro_batches), sums

    like = (model.trainable_variables, tf.zeros([2 * len(objective.metrics)]))
    return gradients_lib.accumulate(batch, num_micro_batches, micro_step, like, _last_apart(config))


def sum_through_outputs(
    config: Config,
    objective: Objective,
    model: tf.keras.Model,
    num_micro_batches: int,
    compiled: Callable[[Callable], Callable],
    batch: Batch,
    shared: Shared,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns a replica's summed gradients and its part of the terms, for an objective that compares all rows
    of a step.

    The outputs of all replicas are gathered. Each replica computes the whole loss and its gradient with
    respect to its own outputs, and backpropagates that through the model. With several micro batches the
    outputs are computed twice, the first time without storing activations, so that memory is that of a single
    micro batch (gradient caching). Source: Gao et al. 2021, arXiv 2101.06983.
    """
    variables = model.trainable_variables

    def outputs_of(index: tf.Tensor | int, micro_batch: Batch) -> tf.Tensor:
        return model(micro_batch, dropout_seed=shared.seeds[index])

    def all_outputs(batch: Batch) -> tf.Tensor:
        slices = {name: gradients_lib.cut(value, num_micro_batches) for name, value in batch.items()}
        one = lambda index: outputs_of(index, {name: value[index] for name, value in slices.items()})
        numbers = tf.range(num_micro_batches)
        outputs = tf.map_fn(one, numbers, fn_output_signature=tf.float32, parallel_iterations=1)
        return tf.reshape(outputs, [-1, *outputs.shape[2:]])

    def compare(outputs: tf.Tensor, whole: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the gradient with respect to the outputs of all replicas, and the stacked terms."""
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            terms = objective.terms(outputs, whole)
            total = objective_of(config, objective, terms, shared)
        return tape.gradient(total, outputs), stack_terms(terms, objective.metrics)

    def backward(batch: Batch, upstream: tf.Tensor) -> list[tf.Tensor]:
        def micro_step(index: tf.Tensor, micro_batch: Batch) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(variables)
                outputs = outputs_of(index, micro_batch)
            return of_variables(tape, outputs, micro_batch[_UPSTREAM])

        rows = {**batch, _UPSTREAM: upstream}
        return gradients_lib.accumulate(rows, num_micro_batches, micro_step, variables, _last_apart(config))

    def of_variables(tape: tf.GradientTape, outputs: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
        gradients = tape.gradient(outputs, variables, output_gradients=upstream)
        return _as_summed(config, gradients, num_micro_batches)

    tape = tf.GradientTape()
    if num_micro_batches == 1:
        with tape:
            tape.watch(variables)
            own = compiled(functools.partial(outputs_of, 0))(batch)
    else:
        own = compiled(all_outputs)(batch)
    parts = {_OUTPUTS: own, **{name: batch[name] for name in objective.compared}}
    whole = {
        name: tf.ensure_shape(value, [None, *parts[name].shape[1:]])  # which collectives do not preserve
        for name, value in gradients_lib.gather(parts).items()
    }
    upstream, sums = compiled(compare)(whole.pop(_OUTPUTS), whole)
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    upstream = gradients_lib.cut(upstream, _num_replicas())[replica]
    sums /= _num_replicas()  # every replica has computed all of them
    if num_micro_batches == 1:
        return of_variables(tape, own, upstream), sums
    return compiled(backward)(batch, upstream), sums


_OUTPUTS, _UPSTREAM = "outputs", "output_gradients"  # among the features of a batch


def _as_summed(config: Config, gradients: list[tf.Tensor], num_micro_batches: int) -> list[tf.Tensor]:
    """Returns gradients in the type in which they are summed over micro batches or replicas."""
    is_sent = _num_replicas() > 1 and config.allreduce_dtype == "float32"
    return gradients_lib.as_float32(gradients) if num_micro_batches > 1 or is_sent else gradients


def _last_apart(config: Config) -> bool:
    """Returns whether the last micro batch runs outside of the loop, so that packs of its gradients can be
    sent during its backward pass. A single compiled program would return them only at its end."""
    in_packs = config.explicit_allreduce and config.allreduce_bytes_per_pack > 0 and _num_replicas() > 1
    return in_packs and not config.enable_xla


def micro_batch_gradients(
    config: Config, objective: Objective, model: tf.keras.Model, batch: Batch, shared: Shared, seed: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the gradients of a micro batch's objective, and its terms as in `stack_terms`.

    See `objective_of` for the objective. With --clip_scope=micro_batch the gradients are unscaled and clipped
    here. Otherwise they keep the type of the backward pass, which is that of a weight's low-precision copy if
    there is one. `seed` is the dropout seed of the micro batch.
    """
    with tf.GradientTape() as tape:
        tape.watch(model.trainable_variables)  # including those read by their handles
        terms = objective.terms(model(batch, dropout_seed=seed), batch)
        total = objective_of(config, objective, terms, shared)
    gradients = tape.gradient(total, model.trainable_variables)
    if config.clip_scope == "micro_batch":
        gradients = gradients_lib.as_float32(gradients)
        norm = tf.linalg.global_norm(gradients) / shared.scale
        factor = gradients_lib.clip_factor(norm, config.clip_norm) / shared.scale
        gradients = gradients_lib.scaled(gradients, factor)
    return gradients, stack_terms(terms, objective.metrics)


def objective_of(config: Config, objective: Objective, terms: Terms, shared: Shared) -> tf.Tensor:
    """Returns the scalar that the backward pass of a micro batch starts from: the sum of its summed losses
    times their factors, times the scale; with --loss_normalization=local each loss is first divided by its
    own weight."""
    factors = shared.factors
    if config.loss_normalization != "global":
        factors = {
            name: tf.math.divide_no_nan(factors[name], terms[name][1] + objective.local_epsilon[name])
            for name in objective.losses
        }
    return tf.add_n([terms[name][0] * factors[name] for name in objective.losses]) * shared.scale


def unscale(config: Config, tensors: list[tf.Tensor], scale: tf.Tensor, num_micro_batches: int) -> Gradients:
    """Returns accumulated gradients with their divisor: the product of the loss scale, unless micro batches
    were unscaled before clipping, and of the number of micro batches, if their mean is wanted."""
    left: tf.Tensor | float = 1.0 if config.clip_scope == "micro_batch" else scale
    return Gradients(tensors, left * float(micro_batch_divisor(config, num_micro_batches)))


def narrow(config: Config, gradients: Gradients, loss_scale: LossScale | None) -> Gradients:
    """Casts gradients to --allreduce_dtype before they are summed over replicas; called by every replica.

    bfloat16 has the range of float32. The maximum of float16 is 65504, so each replica sends its part of the
    true gradient times the loss scale: the sum then fits whenever the scaled true gradient does, and only the
    loss scale remains as divisor. An overflow makes the gradient and its norm infinite, and the step is
    skipped.
    """
    if config.allreduce_dtype == "float32" or _num_replicas() == 1:
        return gradients
    tensors, divisor, dtype = gradients.tensors, gradients.divisor, tf.as_dtype(config.allreduce_dtype)
    if dtype == tf.float16 and loss_scale:
        scale = tf.convert_to_tensor(loss_scale.scale)
        tensors = gradients_lib.scaled(gradients_lib.as_float32(tensors), scale / divisor)
        divisor = scale
    return Gradients([tf.cast(tensor, dtype) for tensor in tensors], divisor)


def reduce_across_replicas(
    config: Config, gradients: Gradients, sums: tf.Tensor
) -> tuple[Gradients, tf.Tensor]:
    """Sums gradients and metric sums over all replicas; returns float32. Called by every replica."""
    if _num_replicas() == 1:
        return gradients, sums
    if config.explicit_allreduce:
        sums = gradients_lib.reduce_sum(sums)  # sums of the forward pass: before all gradients
        tensors = gradients_lib.reduce_sum_in_packs(gradients.tensors, config.allreduce_bytes_per_pack)
    elif BACKENDS[config.distribution_strategy].spread_replicas:
        *tensors, sums = gradients_lib.reduce_sum_by_device([*gradients.tensors, sums])
    elif config.allreduce_dtype == "float32":
        tensors, sums = gradients_lib.reduce_sum((gradients.tensors, sums))
    else:  # TensorFlow joins the tensors of a call, which need the same type
        sums = gradients_lib.reduce_sum(sums)
        tensors = gradients_lib.reduce_sum(gradients.tensors)
    return gradients._replace(tensors=gradients_lib.as_float32(tensors)), sums


def true_norm(config: Config, gradients: Gradients, norm_of: Callable) -> tf.Tensor:
    """Returns the norm of the true gradient; `norm_of` computes the norm of tensors on one device."""
    if BACKENDS[config.distribution_strategy].spread_replicas:
        return gradients_lib.norm_by_device(gradients.tensors, norm_of) / gradients.divisor
    return norm_of(gradients.tensors) / gradients.divisor


def clip(config: Config, gradients: Gradients, norm: tf.Tensor, num_replicas: int) -> tf.Tensor | float:
    """Returns the factor that unscales the gradients and clips them to `largest_norm`; `norm` is the norm of
    the true gradient. NaN if gradients are clipped and the norm is not finite."""
    largest = largest_norm(config, num_replicas)
    factor = 1.0 if largest is None else gradients_lib.clip_factor(norm, largest)
    return factor / gradients.divisor


def _num_replicas() -> int:
    return tf.distribute.get_replica_context().num_replicas_in_sync


def stack_terms(terms: Terms, names: tuple[str, ...]) -> tf.Tensor:
    """Returns float32 [2 x names]: the weighted sums of the terms `names`, then their weights."""
    return tf.reshape(
        tf.convert_to_tensor([terms[name][part] for part in (0, 1) for name in names], tf.float32), [-1]
    )


def mean_metrics(
    losses: Mapping[str, float], names: tuple[str, ...], sums: np.ndarray | tf.Tensor
) -> dict[str, float]:
    """Divides weighted sums by weights; no other function does. Returns {loss: sum of the mean losses times
    their factors, metric: mean}."""
    totals, weights = np.split(np.asarray(sums, np.float64), 2)
    means = {
        name: float(total / weight) if weight else 0.0 for name, total, weight in zip(names, totals, weights)
    }
    known = [factor * means[name] for name, factor in losses.items() if name in means]
    return {**({"loss": sum(known)} if known else {}), **means}

"""LAMB, AdamW and Adam in one operation that reads and writes each number once, LAMB's weights and moments
twice."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from official.optimization import compiled_optimizers, device_placement
from official.optimization.plain_optimizers import write


class NativeOptimizer(compiled_optimizers.CompiledOptimizer):
    """Base of `AdamW` and `Lamb`: updates the variables of a device, and their copies in another type, by one
    call of our own operation."""

    _LAYERWISE = False

    def __init__(self, operations: Any, **arguments):
        """Makes the optimizer; `operations` as `library.operations` returns them, the rest as `Moments`."""
        super().__init__(**arguments)
        self._operations = operations
        self._copies: dict[str, tf.Variable] = {}

    def make_copies(self, variables, dtype: tf.DType) -> dict[str, tf.Variable]:
        """Makes copies of variables in a type, which `update` keeps equal to them, in the strategy's scope.
        They are no part of a checkpoint. Returns them by the variables' names; `renew_copies` gives them
        values."""
        for variable in variables:
            if variable.name in self._copies:
                continue
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                zeros = functools.partial(tf.zeros, shape=variable.shape, dtype=dtype)
                self._copies[variable.name] = tf.Variable(zeros, trainable=False, name="copy")
        return self._copies

    def renew_copies(self, variables) -> None:
        """Casts the variables that have copies; in the context of a replica."""
        for variable in variables:
            copy = self._copies.get(variable.name)
            if copy is not None:
                write(copy, tf.cast(tf.convert_to_tensor(variable), copy.dtype))

    def update(self, gradients, variables, factor) -> None:
        """Updates variables that have slots with gradients times `factor`, of float32, bfloat16 or float16;
        in the context of a replica, all with the same gradients."""
        place = device_placement.beside(variables)
        devices: dict[str, list[tuple]] = {}
        for gradient, variable in zip(gradients, variables):
            devices.setdefault(device_placement.device_of(variable), []).append((gradient, variable))
        with tf.name_scope(type(self).__name__):  # by this name profiles tell its operations from others
            step = self._numbers(factor)
            self.decay_apart(variables)
            for pairs in devices.values():
                with place(pairs[0][1]):
                    self._update_all(step, *zip(*pairs))
        self.iterations.assign_add(1)

    def global_norm(self, tensors) -> tf.Tensor:
        return self._operations.bert_global_norm(tensors=tensors)

    def _update_all(self, step, gradients, variables) -> None:
        """Updates the variables of a device."""
        moments = [self._moments[variable.name] for variable in variables]
        copied = [place for place, variable in enumerate(variables) if variable.name in self._copies]
        self._operations.bert_update(
            weights=[variable.handle for variable in variables],
            m=[each["m"].handle for each in moments],
            v=[each["v"].handle for each in moments],
            copies=[self._copies[variables[place].name].handle for place in copied],
            gradients=list(gradients),
            step=step,
            layerwise=self._LAYERWISE,
            decays=[self.decays(variable) for variable in variables],
            copy_of=copied,
            **self._constants._asdict(),
        )

    def _numbers(self, factor) -> tf.Tensor:
        """Returns float32 [7]: see `Numbers` in kernels.h."""
        shared = self._shared_by_updates(factor)
        adam = shared["excluded"]
        step_size = adam["lr"] * tf.sqrt(1 - adam["beta2_power"]) / (1 - adam["beta1_power"])
        kept = 1 - adam["lr"] * self._constants.weight_decay
        corrections = [1 / (1 - adam[name]) for name in ("beta1_power", "beta2_power")]
        return tf.stack([factor, step_size, kept, adam["epsilon"], adam["lr"], *corrections])


class AdamW(NativeOptimizer, compiled_optimizers.AdamW):
    """`compiled.AdamW` by our own operation."""


class Lamb(NativeOptimizer, compiled_optimizers.Lamb):
    """`compiled.Lamb` by our own operation."""

    _LAYERWISE = True

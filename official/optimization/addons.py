"""tensorflow-addons' LAMB and AdamW: what --fused_ops=false takes, and what our own optimizers are measured
against."""

from __future__ import annotations

import re
import warnings

import tensorflow as tf

from official.optimization.gradients import scaled
from official.optimization.schedules import Scaled

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the end-of-life notice: the version is pinned
    import tensorflow_addons as tfa


class _AdamW(tfa.optimizers.AdamW):
    """tensorflow-addons' AdamW, choosing what to decay by name.

    The parent compares variable objects, which under a mirrored strategy are never the replica's own: with an
    exclusion list it would decay nothing there.
    """

    def _do_use_weight_decay(self, var):
        return not any(re.search(pattern, var.name) for pattern in self.exclude_from_weight_decay)


class Addons:
    """An optimizer of tensorflow-addons with the methods of `kinds.Optimizer`."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.get_slot = optimizer.get_slot

    @property
    def iterations(self):
        return self._optimizer.iterations

    def create_slots(self, variables) -> None:
        # What apply_gradients calls.
        self._optimizer._create_all_weights(variables)  # pylint: disable=protected-access

    def scalars(self) -> dict:
        return {}

    def global_norm(self, tensors) -> tf.Tensor:
        return tf.linalg.global_norm(tensors)

    def update(self, gradients, variables, factor) -> None:
        self._optimizer.apply_gradients(
            zip(scaled(gradients, factor), variables), experimental_aggregate_gradients=False
        )


def make_lamb(excluded, decayed_only="", **hyper):
    """Returns LAMB; arguments as those of `compiled.Lamb`."""
    undecayed = [f"{each}(?!.*{decayed_only})" for each in excluded] if decayed_only else excluded
    return Addons(
        tfa.optimizers.LAMB(
            exclude_from_weight_decay=undecayed, exclude_from_layer_adaptation=excluded, **hyper
        )
    )


def make_adamw(learning_rate, weight_decay, excluded, **hyper):
    """Returns AdamW; arguments as those of `compiled.AdamW`."""
    return Addons(
        _AdamW(
            learning_rate=learning_rate,
            weight_decay=Scaled(learning_rate, weight_decay),
            exclude_from_weight_decay=excluded,
            **hyper,
        )
    )

"""The kinds of optimizers: their arguments, the names of their slots in checkpoints, and those in plain
TensorFlow operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from official.config import Config, initial_loss_scale
from official.optimization import descent, mixed, plain

# Neither decayed nor, by LAMB, adapted. The reference's AdamW list misses LayerNorm's TF1 spelling, so that
# the gamma of the MLM head is decayed there; one list serves both optimizers here.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")
GAMMA = "/gamma"  # of LayerNorm

# Names of the slots in checkpoints, as Google's and Graphcore's TF1 optimizers write them.
_ADAM_SLOTS = {"m": "adam_m", "v": "adam_v"}
SLOT_NAMES: dict[str, dict[str, str]] = {
    "lamb": {"m": "lamb_m", "v": "lamb_v"},
    "adam": _ADAM_SLOTS,
    "adamw": _ADAM_SLOTS,
    "mpadamw": _ADAM_SLOTS,
    "momentum": {"m": "Momentum"},
    "sgd": {},
}


class Optimizer(Protocol):
    """An optimizer of weights: our own, or tensorflow-addons' behind the same methods.

    Attributes:
      iterations: int64 variable, counts the updates and drives the schedule.
    """

    iterations: tf.Variable

    def create_slots(self, variables) -> None:
        """Creates the moments of variables, in the strategy's scope: before the first step, so that a
        checkpoint can be restored."""

    def get_slot(self, variable, slot: str) -> tf.Variable:
        """Returns a moment of a variable, "m" or "v"."""

    def scalars(self) -> dict[str, tf.Variable]:
        """Returns {checkpoint name: variable} of the state beside the step counter and the slots."""

    def global_norm(self, tensors) -> tf.Tensor:
        """Returns the norm, float32, of all numbers of tensors that are on one device."""

    def update(self, gradients, variables, factor) -> None:
        """Updates variables with gradients times `factor`, float32, which are the same on every replica; in
        the context of a replica."""


_PLAIN: dict[str, Callable[..., Optimizer]] = {
    "lamb": plain.Lamb,
    "adam": plain.AdamW,
    "adamw": plain.AdamW,
    "mpadamw": mixed.PlainAdamW,
    "momentum": descent.PlainMomentum,
    "sgd": descent.PlainSgd,
}


def build_plain(config: Config, schedule: Callable) -> Optimizer:
    """Returns our own optimizer in plain TensorFlow operations, made in the strategy's scope."""
    return _PLAIN[config.optimizer_type](learning_rate=schedule, **hyper_parameters(config))


def hyper_parameters(config: Config) -> dict[str, Any]:
    """Returns the arguments of an optimizer beside its schedule."""
    kind = config.optimizer_type
    if kind in ("sgd", "momentum"):
        return {"momentum": config.momentum} if kind == "momentum" else {}
    hyper: dict[str, Any] = dict(
        weight_decay=0.0 if kind == "adam" else config.weight_decay_rate,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        excluded=list(EXCLUDED),
        bias_correction=config.lamb_bias_correction if kind == "lamb" else config.adam_bias_correction,
    )
    if kind == "lamb" and config.lamb_decays_gamma:
        hyper["decayed_only"] = GAMMA
    if kind == "mpadamw":
        hyper["scale"] = initial_loss_scale(config) or 1.0
    return hyper


def slot_variables(optimizer: Optimizer, optimizer_type: str, variables) -> dict[str, tf.Variable]:
    """Returns {checkpoint name: slot variable}, e.g. bert/embeddings/word_embeddings/lamb_m."""
    return {
        f"{variable.name.split(':')[0]}/{saved}": optimizer.get_slot(variable, slot)
        for slot, saved in SLOT_NAMES[optimizer_type].items()
        for variable in variables
    }

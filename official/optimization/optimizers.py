"""The optimizers by name, with the exclusions of the MLPerf v0.7 recipe: our own, compiled or plain, and
tensorflow-addons'."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from official.config import Config
from official.optimization import compiled, plain

# Neither decayed nor, by LAMB, adapted. The reference's AdamW list misses LayerNorm's TF1 spelling, so that
# the gamma of the MLM head is decayed there; one list serves both optimizers here.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")

# Names of the slots in checkpoints, as Google's and Graphcore's TF1 optimizers write them.
SLOT_NAMES = {"lamb": {"m": "lamb_m", "v": "lamb_v"}, "adamw": {"m": "adam_m", "v": "adam_v"}}


class Optimizer(Protocol):
    """What updates weights: our own, or tensorflow-addons' behind the same methods.

    Attributes:
      iterations: int64 variable, counts the updates and drives the schedule.
    """

    iterations: tf.Variable

    def create_slots(self, variables) -> None:
        """Creates the moments of variables, in the strategy's scope: before the first step, so that a
        checkpoint can be restored."""

    def get_slot(self, variable, slot: str) -> tf.Variable:
        """Returns a moment of a variable, "m" or "v"."""

    def update(self, gradients, variables, factor) -> None:
        """Updates variables with gradients times `factor`, float32, which are the same on every replica; in
        the context of a replica."""


def build_optimizer(config: Config, schedule: Callable) -> Optimizer:
    """Returns the optimizer, made in the strategy's scope. Updates are float32.

    lamb (You et al. 2019): m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight_decay * w,
      w -= rate * |w| / |u| * u.
    adamw: w -= rate * weight_decay * w, then Adam (Keras form: epsilon beside the uncorrected root).
    --fused_ops=false takes tensorflow-addons' optimizers, or where it is not installed our own in plain
    TensorFlow operations: all three are the same to rounding.
    """
    hyper = dict(
        learning_rate=schedule,
        weight_decay=config.weight_decay_rate,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        excluded=list(EXCLUDED),
    )
    makers: dict[str, Callable[..., Optimizer]]
    if config.fused_ops:
        makers = {"lamb": compiled.Lamb, "adamw": compiled.AdamW}
    elif has_addons():
        from official.optimization import addons  # a second of start-up

        makers = {"lamb": addons.make_lamb, "adamw": addons.make_adamw}
    else:
        makers = {"lamb": plain.Lamb, "adamw": plain.AdamW}
    return makers[config.optimizer_type](**hyper)


def has_addons() -> bool:
    """Returns whether tensorflow-addons is installed, which came to its end with TensorFlow 2.15."""
    return importlib.util.find_spec("tensorflow_addons") is not None


def slot_variables(optimizer: Optimizer, optimizer_type: str, variables) -> dict[str, tf.Variable]:
    """Returns {checkpoint name: slot variable}, e.g. bert/embeddings/word_embeddings/lamb_m."""
    return {
        f"{variable.name.split(':')[0]}/{saved}": optimizer.get_slot(variable, slot)
        for slot, saved in SLOT_NAMES[optimizer_type].items()
        for variable in variables
    }

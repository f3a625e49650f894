"""The optimizers by name, with the exclusions of the MLPerf v0.7 recipe: our own, compiled or plain, and
tensorflow-addons'."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from official.config import Config, initial_loss_scale
from official.optimization import compiled, descent, mixed, plain

# Neither decayed nor, by LAMB, adapted. The reference's AdamW list misses LayerNorm's TF1 spelling, so that
# the gamma of the MLM head is decayed there; one list serves both optimizers here.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")

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

_Makers = dict[str, Callable[..., "Optimizer"]]
_COMPILED: _Makers = {
    "lamb": compiled.Lamb,
    "adam": compiled.AdamW,
    "adamw": compiled.AdamW,
    "mpadamw": mixed.CompiledAdamW,
    "momentum": descent.Momentum,
    "sgd": descent.Sgd,
}
_PLAIN: _Makers = {
    "lamb": plain.Lamb,
    "adam": plain.AdamW,
    "adamw": plain.AdamW,
    "mpadamw": mixed.PlainAdamW,
    "momentum": descent.PlainMomentum,
    "sgd": descent.PlainSgd,
}


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

    def scalars(self) -> dict[str, tf.Variable]:
        """Returns {checkpoint name: variable} of what is kept beside the step counter and the slots."""

    def update(self, gradients, variables, factor) -> None:
        """Updates variables with gradients times `factor`, float32, which are the same on every replica; in
        the context of a replica."""


def build_optimizer(config: Config, schedule: Callable) -> Optimizer:
    """Returns the optimizer, made in the strategy's scope. Updates are float32.

    lamb (You et al. 2019): m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight_decay * w,
      w -= rate * |w| / |u| * u.
    adamw: w -= rate * weight_decay * w, then Adam (Keras form: epsilon beside the uncorrected root).
    adam: adamw without decay. mpadamw: adamw, see `mixed`. sgd, momentum: see `descent`.
    --fused_ops=false takes tensorflow-addons' LAMB and AdamW, or where it is not installed, or they are asked
    for without bias correction, our own in plain TensorFlow operations: all are the same to rounding.
    """
    kind, hyper = config.optimizer_type, _hyper_parameters(config)
    if config.fused_ops:
        return _COMPILED[kind](learning_rate=schedule, **hyper)
    if kind in ("lamb", "adamw") and hyper["bias_correction"] and has_addons():
        from official.optimization import addons  # a second of start-up

        del hyper["bias_correction"]  # they always do
        makers: _Makers = {"lamb": addons.make_lamb, "adamw": addons.make_adamw}
        return makers[kind](learning_rate=schedule, **hyper)
    return _PLAIN[kind](learning_rate=schedule, **hyper)


def _hyper_parameters(config: Config) -> dict[str, Any]:
    """Returns what an optimizer is made with beside its learning rate."""
    kind = config.optimizer_type
    if kind in ("sgd", "momentum"):
        return {"momentum": config.momentum} if kind == "momentum" else {}
    hyper = dict(
        weight_decay=0.0 if kind == "adam" else config.weight_decay_rate,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        excluded=list(EXCLUDED),
        bias_correction=config.lamb_bias_correction if kind == "lamb" else config.adam_bias_correction,
    )
    return hyper | ({"scale": initial_loss_scale(config) or 1.0} if kind == "mpadamw" else {})


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

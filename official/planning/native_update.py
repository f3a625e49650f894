"""The native update in plans: functions that read and write what its operations do. They are counted and
never run: a plan needs no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official.config import Config
from official.config.backends import BACKENDS
from official.config.device_memory import DEVICE_BYTES
from official.io import native_library
from official.optimization import compiled
from official.optimization.native import library


def is_taken(config: Config, device: str) -> bool:
    """Tells whether a run takes the native update, as far as this machine can know.

    Args:
      config: of the run.
      device: GPU or CPU: what the run computes on. A device that --plan_device names is another one.
    """
    if config.update_kernel == "tensorflow" or config.enable_xla:
        return False
    if BACKENDS[config.distribution_strategy].spread_replicas:
        return False
    on_cpus = device == "CPU" and (config.plan_device or "").strip().lower() not in DEVICE_BYTES
    if library.what_is_against(config, on_cpus) is not None:
        return False
    if config.update_kernel == "native":
        return True
    try:
        native_library.find_compiler()
    except native_library.NotBuilt:
        return False
    return True


def device_of(config: Config) -> str:
    """Returns GPU or CPU: what a run of this process's devices computes on."""
    if config.num_virtual_devices or config.num_gpus == 0:
        return "CPU"
    return "GPU" if config.num_gpus or tf.config.list_physical_devices("GPU") else "CPU"


class StandIn:
    """What stands for the module of `library.operations` in a graph that is read and never run."""

    def __init__(self, dtype: tf.DType):
        """Makes it; `dtype` is that of the weights' copies."""
        self._dtype = dtype

    def bert_global_norm(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return native_norm(list(tensors))

    def bert_update(
        self, weights: list, m: list, v: list, gradients: list, step: tf.Tensor, **arguments: Any
    ):
        """Reads each number once and writes it, of LAMB's variables that decay weights and moments twice, as
        the operation does; `arguments` are the others of its own."""
        handles = list(zip(weights, m, v))
        places = [arguments["layerwise"] and decays for decays in arguments["decays"]]
        copies = list(zip(arguments["copies"], arguments["copy_of"]))
        for function, is_wanted in ((native_lamb, True), (native_adamw, False)):
            chosen = [place for place, is_layerwise in enumerate(places) if is_layerwise == is_wanted]
            written = [(copy, chosen.index(place)) for copy, place in copies if place in chosen]
            if chosen:
                function(
                    [handles[place] for place in chosen],
                    [copy for copy, _ in written],
                    [gradients[place] for place in chosen],
                    step,
                    (self._dtype, tuple(place for _, place in written)),
                )


@compiled.jitted
def native_norm(tensors: list) -> tf.Tensor:
    return tf.add_n([tf.cast(tf.reshape(tensor, [-1])[0], tf.float32) for tensor in tensors])


@compiled.jitted
def native_adamw(handles: list, copies: list, gradients: list, step: tf.Tensor, written: tuple) -> None:
    _read_and_write(handles, copies, gradients, written)


@compiled.jitted
def native_lamb(handles: list, copies: list, gradients: list, step: tf.Tensor, written: tuple) -> None:
    for three, gradient in zip(handles, gradients):
        compiled.read(three, gradient.shape)
    _read_and_write(handles, copies, gradients, written)


def _read_and_write(handles: list, copies: list, gradients: list, written: tuple) -> None:
    dtype, places = written
    for three, gradient in zip(handles, gradients):
        compiled.write(three, compiled.read(three, gradient.shape))
    compiled.write(copies, [tf.zeros(gradients[place].shape, dtype) for place in places])

"""`ipu.ipu_infeed_queue` and `ipu.ipu_outfeed_queue`: how data goes to the IPU and results come back."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.graphcore.ipu_fake import machine

NESTED = "Nested list/tuple input shapes are not supported"


def check_elements(spec: Any) -> None:
    """Refuses elements that are not a tensor, or a flat tuple or dictionary of tensors, of known shapes.

    Raises:
      ValueError: nested elements, shapes that are not fully defined, or strings.
    """
    parts = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, (tuple, list)) else [spec]
    for each in parts:
        if isinstance(each, (dict, tuple, list)) or not isinstance(each, tf.TensorSpec):
            raise ValueError(NESTED)
        if not each.shape.is_fully_defined():
            raise ValueError(
                f"Output shape {each.shape} is not fully defined. If using tf.Dataset.batch, set "
                "`drop_remainder=True`."
            )
        if each.dtype in (tf.string, tf.float64):
            raise ValueError(
                f"{each.dtype.name} cannot be fed to the IPU"
            )  # kind of error not in the sources read


class IPUInfeedQueue:
    """Feeds the elements of a dataset to a pipeline, each replica the next element in turn.

    Args:
      dataset: a tf.data.Dataset with elements of fully defined shapes.
      device_ordinal: the IPU device that takes from the queue, None for that of the strategy, or 0.
      prefetch_depth: elements that are fetched ahead, 1 to 255, None for 3.
      optimise_latency: bool, without effect here.

    Raises:
      ValueError: shapes, nesting or a depth that are not allowed.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
    ):
        check_elements(dataset.element_spec)
        depth = 3 if prefetch_depth is None else prefetch_depth
        if depth <= 0:
            raise ValueError(f"prefetch_depth must be greater than zero, but it is {depth}")
        if depth > 255:
            raise ValueError(f"prefetch_depth must be less than 256, but it is {depth}")
        self._dataset = dataset
        self._device_ordinal = _ordinal(device_ordinal)
        self._iterator: Any = None
        self._initialized = self._deleted = self._dequeued = False

    @property
    def dequeued(self) -> bool:
        """Whether a program takes elements from this queue."""
        return self._dequeued

    @property
    def number_of_tuple_elements(self) -> int:
        """How many arguments an element is."""
        spec = self._dataset.element_spec
        return len(spec) if isinstance(spec, (tuple, list, dict)) else 1

    @property
    def initializer(self) -> None:
        """Starts at the first element. Reading the property is enough in eager mode.

        Raises:
          ValueError: it was read before (strict: the real one checks this in graph mode only).
        """
        if self._initialized:
            raise ValueError("The IPUInfeedQueue `initializer` function can only be accessed once.")
        self._initialized = True
        with tf.device("/device:CPU:0"):
            self._iterator = iter(self._dataset)

    @property
    def deleter(self) -> None:
        """Gives the iterator back; nothing can be taken from the queue any more."""
        if not self._initialized or self._deleted:
            raise tf.errors.NotFoundError(None, None, "The infeed queue has no iterator to delete.")
        self._deleted = True
        self._iterator = None

    def get_next(self) -> Any:
        raise ValueError(
            "`get_next()` is now obsolete as the IPUInfeedQueue is now automatically dequeued by the loop."
        )

    def flat_spec(self) -> list[tf.TensorSpec]:
        """Returns the shapes and types of the tensors of an element."""
        return tf.nest.flatten(self._dataset.element_spec)

    def arguments(self, flat: list[Any]) -> Any:
        """Returns the positional and the named arguments of the first stage that an element is."""
        element = tf.nest.pack_sequence_as(self._dataset.element_spec, flat)
        if isinstance(element, dict):
            return [], element
        return (list(element) if isinstance(element, (tuple, list)) else [element]), {}

    def take(self) -> list[Any]:
        """Returns the tensors of the next element.

        Raises:
          RuntimeError: the queue was not initialized, or is deleted (kind of error: not in the sources read).
        """
        if self._iterator is None:
            raise RuntimeError(
                "The infeed queue was deleted."
                if self._deleted
                else "The infeed queue is not initialized: read its `initializer` before the program runs."
            )
        self._dequeued = True
        return tf.nest.flatten(self._iterator.get_next())


class IPUOutfeedMode(enum.Enum):
    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Keeps what a program gives until the host takes it.

    Args:
      outfeed_mode: IPUOutfeedMode, None for ALL.
      device_ordinal: the IPU device that fills the queue, None for that of the strategy, or 0.
      buffer_depth: int of at least 1, without effect here.
      optimise_latency: bool, without effect here.

    Raises:
      ValueError: wrong types or values.
    """

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
    ):
        self._outfeed_mode = outfeed_mode or IPUOutfeedMode.ALL
        if not isinstance(self._outfeed_mode, IPUOutfeedMode):
            raise ValueError(
                "Expected `outfeed_mode` value to be of `ipu_outfeed_queue.IPUOutfeedMode` type, but is "
                f"{type(outfeed_mode)}."
            )
        if not isinstance(buffer_depth, int) or buffer_depth < 1:
            raise ValueError("buffer_depth must be >= 1")
        self._device_ordinal = _ordinal(device_ordinal)
        self._graphs: list[Any] = []
        self._structure: Any = None
        self._replicas = 1
        self._elements: list[list[np.ndarray]] = []
        self._lock = threading.Lock()
        self._deleted = False

    @property
    def enqueued(self) -> bool:
        """Whether a program fills this queue."""
        return self._structure is not None

    def reserve(self, structure: Any, replicas: int, graph: Any) -> None:
        """A program will fill the queue with elements of this structure.

        Raises:
          ValueError: another enqueue in the same program, or elements that are not tensors.
        """
        if any(each is graph for each in self._graphs):
            raise ValueError("An outfeed can only be enqueued once.")
        if self._outfeed_mode == IPUOutfeedMode.LAST and "use_synthetic_data" in machine.current.flags:
            raise ValueError("Synthetic data cannot be used with an outfeed in the mode LAST.")
        _check_outputs(structure)
        self._graphs.append(graph)
        self._replicas = replicas
        self._structure = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype), structure)

    def put(self, flat: list[tf.Tensor]) -> Any:
        """Adds one element, in the graph. Each tensor: [...], or [replicas, ...] if there are several."""
        return tf.numpy_function(self._keep, flat, [])

    def _keep(self, *values: np.ndarray) -> None:
        with self._lock:
            if self._outfeed_mode == IPUOutfeedMode.LAST:
                self._elements.clear()
            self._elements.append([np.array(each) for each in values])

    def put_zeros(self, count: int) -> None:
        """Adds what a program gives that is only compiled: zeros."""
        specs = tf.nest.flatten(self._structure)
        lead = [self._replicas] if self._replicas > 1 else []
        for _ in range(count):
            self._keep(*[np.zeros(lead + list(each.shape), each.dtype.as_numpy_dtype) for each in specs])

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Takes what is in the queue.

        Args:
          wait_for_completion: whether to wait for programs that still run; here none does.

        Returns:
          As the program gave it; each tensor [elements, ...] in the mode ALL and [...] in the mode LAST, with
          a dimension of the replicas before the dots if there are several.

        Raises:
          ValueError: no program fills the queue.
        """
        if self._deleted:
            raise RuntimeError("The outfeed queue was deleted.")
        if not self.enqueued:
            raise ValueError("Trying to dequeue an outfeed which has not been enqueued.")
        with self._lock:
            taken, self._elements = self._elements, []
        return self._pack(taken)

    def _pack(self, taken: list[list[np.ndarray]]) -> Any:
        specs = tf.nest.flatten(self._structure)
        last = self._outfeed_mode == IPUOutfeedMode.LAST
        if last and not taken:
            raise tf.errors.UnavailableError(
                None, None, "The outfeed holds no element."
            )  # not in the sources read
        lead = [self._replicas] if self._replicas > 1 else []
        flat = []
        for index, each in enumerate(specs):
            values = [element[index] for element in taken]
            shape = lead + list(each.shape)
            stacked = values[-1] if last else np.stack(values) if values else np.zeros([0, *shape])
            flat.append(tf.constant(stacked, each.dtype))
        return tf.nest.pack_sequence_as(self._structure, flat)

    def __iter__(self) -> Any:
        if not tf.executing_eagerly():
            raise RuntimeError("IPUOutfeedQueue can only be iterated over in eager mode.")
        if self._outfeed_mode != IPUOutfeedMode.ALL:
            raise ValueError("IPUOutfeedQueue can only be iterated over in the mode IPUOutfeedMode.ALL.")
        flat = tf.nest.flatten(self.dequeue())
        for index in range(int(flat[0].shape[0])):
            yield tf.nest.pack_sequence_as(self._structure, [each[index] for each in flat])

    @property
    def deleter(self) -> None:
        """Gives the queue back."""
        self._deleted = True


def _check_outputs(structure: Any) -> None:
    """Refuses what is neither a tensor nor a flat list, tuple or dictionary of tensors.

    Raises:
      ValueError: anything else.
    """
    if isinstance(structure, dict):
        if not all(isinstance(key, str) for key in structure):
            raise ValueError("Expected all keys in the outfeed dictionary to be strings.")
        parts = list(structure.values())
    else:
        parts = list(structure) if isinstance(structure, (tuple, list)) else [structure]
    if not parts or not all(isinstance(each, tf.Tensor) for each in parts):
        raise ValueError(
            "IPUOutfeedQueue Enqueue input needs to be either a TensorFlow tensor, or a list, a tuple or a "
            "dictionary of TensorFlow tensors"
        )


def _ordinal(device_ordinal: int | None) -> int:
    """Returns the device that a queue is for.

    Raises:
      ValueError: no int of at least 0.
    """
    if device_ordinal is None:
        strategy = tf.distribute.get_strategy()
        return getattr(strategy, "_device_ordinal", 0)
    if not isinstance(device_ordinal, int):
        raise ValueError("Device ordinal must be an integer")
    if device_ordinal < 0:
        raise ValueError("Device ordinal must be >= 0")
    return device_ordinal


def infeed_names() -> dict[str, Callable]:
    """Returns what the module ipu.ipu_infeed_queue has."""
    return {"IPUInfeedQueue": IPUInfeedQueue}


def outfeed_names() -> dict[str, Callable]:
    """Returns what the module ipu.ipu_outfeed_queue has."""
    return {"IPUOutfeedQueue": IPUOutfeedQueue, "IPUOutfeedMode": IPUOutfeedMode}

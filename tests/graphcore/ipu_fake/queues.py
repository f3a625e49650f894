"""`ipu.ipu_infeed_queue` and `ipu.ipu_outfeed_queue`: how data goes to the IPU and results come back."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


class IPUInfeedQueue:
    """Feeds the elements of a dataset to a pipeline, each replica the next element in turn.

    Args:
      dataset: a tf.data.Dataset of flat tuples of tensors of fully defined shapes.

    Raises:
      ValueError: nested elements, shapes that are not fully defined, strings (kind not in the sources read).
    """

    def __init__(self, dataset: tf.data.Dataset):
        for each in dataset.element_spec:
            if not isinstance(each, tf.TensorSpec):
                raise ValueError("Nested list/tuple input shapes are not supported")
            if not each.shape.is_fully_defined():
                raise ValueError(f"Output shape {each.shape} is not fully defined. Set `drop_remainder`.")
            if each.dtype in (tf.string, tf.float64):
                raise ValueError(f"{each.dtype.name} cannot be fed to the IPU")
        self._dataset = dataset
        self._iterator: Any = None

    @property
    def initializer(self) -> None:
        """Starts at the first element: reading the property is enough in eager mode. Raises ValueError where
        it was read before (strict: the real one checks this in graph mode only)."""
        if self._iterator is not None:
            raise ValueError("The IPUInfeedQueue `initializer` function can only be accessed once.")
        with tf.device("/device:CPU:0"):
            self._iterator = iter(self._dataset)

    def flat_spec(self) -> list[tf.TensorSpec]:
        """Returns the shapes and types of the tensors of an element."""
        return list(self._dataset.element_spec)

    def take(self) -> list[Any]:
        """Returns the tensors of the next element. Raises RuntimeError without an `initializer` (kind of
        error not in the sources read)."""
        if self._iterator is None:
            raise RuntimeError("The infeed queue is not initialized: read its `initializer` before.")
        return list(self._iterator.get_next())


class IPUOutfeedQueue:
    """Keeps what a program gives until the host takes it."""

    def __init__(self):
        self._graphs: list[Any] = []
        self._specs: list[tf.TensorSpec] = []
        self._elements: list[list[np.ndarray]] = []

    def reserve(self, outputs: list[tf.Tensor], replicas: int, graph: Any) -> None:
        """A program will fill the queue with elements like these outputs of a replica. Raises ValueError for
        another enqueue in the same program."""
        if any(each is graph for each in self._graphs):
            raise ValueError("An outfeed can only be enqueued once.")
        self._graphs.append(graph)
        lead = [replicas] if replicas > 1 else []
        self._specs = [tf.TensorSpec([*lead, *each.shape], each.dtype) for each in outputs]

    def put(self, flat: list[tf.Tensor]) -> Any:
        """Adds one element, in the graph. Each tensor: [...], or [replicas, ...] if there are several."""
        return tf.numpy_function(lambda *values: self._elements.append(list(map(np.array, values))), flat, [])

    def put_zeros(self, count: int) -> None:
        """Adds what a program gives that is only compiled: zeros."""
        zeros = [np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in self._specs]
        self._elements += [zeros] * count

    def dequeue(self) -> list[tf.Tensor]:
        """Takes what is in the queue, each tensor [elements, ...], with a dimension of the replicas before
        the dots if there are several. Raises ValueError where no program fills it."""
        if not self._graphs:
            raise ValueError("Trying to dequeue an outfeed which has not been enqueued.")
        taken, self._elements = self._elements, []
        return [
            tf.constant(np.stack([element[index] for element in taken]), spec.dtype)
            for index, spec in enumerate(self._specs)
        ]

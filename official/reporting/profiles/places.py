"""Part of a step that an operation belongs to: a stage of the model, forward or backward, the optimizer, the
input pipeline, or none of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from official.reporting.profiles.trace import ITERATOR, Operation, Trace

FORWARD, BACKWARD = "forward", "backward"
OPTIMIZER, DATA, OTHER = "optimizer", "data", "loss and other"
_OPTIMIZERS = re.compile(r"(^|/)(\w*Adam\w*|\w*Lamb|LAMB|\w*Sgd|SGD|\w*Momentum)(/|$)")
_BACKWARD = re.compile(r"(^|/)(gradient_tape|gradients)(/|$)")
# Where TensorFlow puts a loop or a function in place of its call, it adds such names in front.
_IN_PLACE = re.compile(r"^.*/(body|cond)/_\d+/")
_TRAINING = "train_loop"


class Place(NamedTuple):
    """A part of a step: a stage of the model, or one of the names above; the pass is "" for these."""

    part: str
    passes: str = ""

    @property
    def name(self) -> str:
        return f"{self.part}, {self.passes}" if self.passes else self.part


def bare(node: str) -> str:
    """Returns the name that an operation has in its own function."""
    return _IN_PLACE.sub("", node)


def split(name: str, stages: Collection[str]) -> tuple[str, str]:
    """Returns (the stage whose name is a part of an operation's name, what is behind it); ("", name) where
    none is. TensorFlow numbers scopes of one name: layer_3_1 is another time layer_3."""
    parts = name.split("/")
    for number, part in enumerate(parts):
        for stage in (part, part.rpartition("_")[0]):
            if stage in stages:
                return stage, "/".join(parts[number + 1 :])
    return "", name


class Places:
    """Finds the places of the operations of a trace."""

    def __init__(self, trace: Trace, stages: Sequence[str], calls: Mapping[str, str]):
        """Args: trace: what ran; stages: names of the model's stages, which stand in names of operations;
        calls: {name of a call without such a name: the stage whose backward pass it is}."""
        self._trace, self._stages, self._calls = trace, frozenset(stages), calls
        self._known: dict[tuple[int | None, str], Place] = {}
        self._roots: dict[int | None, int | None] = {}

    def of(self, node: str, run: int | None) -> Place:
        """Returns the place of an operation in a call of a function."""
        key = (run, node)
        if key not in self._known:
            self._known[key] = self._found(node, run)
        return self._known[key]

    def of_operation(self, operation: Operation) -> Place:
        """Returns the place of an operation. What no call from Python leads to is of the input pipeline."""
        root = self._root(operation.run)
        is_data = operation.kind == ITERATOR or root is not None and root not in self._trace.functions
        return Place(DATA) if is_data else self.of(operation.node, operation.run)

    def counts(self, operation: Operation) -> bool:
        """Tells whether an operation is of the training or of its data: an evaluation is neither."""
        return _TRAINING in self._trace.functions.get(self._root(operation.run), _TRAINING)

    def _root(self, run: int | None) -> int | None:
        """Returns the first call of those that led to a call."""
        if run not in self._roots:
            root, seen = run, {run}
            while root in self._trace.callers and self._trace.callers[root][0] not in seen:
                root = self._trace.callers[root][0]
                seen.add(root)
            self._roots[run] = root
        return self._roots[run]

    def _found(self, node: str, run: int | None) -> Place:
        if _OPTIMIZERS.search(node):
            return Place(OPTIMIZER)
        name = bare(node)
        stage = split(name, self._stages)[0]
        if stage:
            return Place(stage, BACKWARD if _BACKWARD.search(name) else FORWARD)
        if name in self._calls:
            return Place(self._calls[name], BACKWARD)
        caller = self._trace.callers.get(run)
        if caller and caller != (run, node):
            return self.of(caller[1], caller[0])
        return Place(DATA) if node == DATA else Place(OTHER)

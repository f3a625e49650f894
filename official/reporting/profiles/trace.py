"""Operations of a profile: when they ran, called by which line, and which part of the step they belong to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# -----------------------------------------------------------------------------------------------------------
# Places


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


# -----------------------------------------------------------------------------------------------------------
# Trace
#
# Operations on the CPU, and the calls that start those of GPUs, are on lines of threads; one event within
# another ran within it. What a GPU computed is on lines of its streams, with the operation's name as a
# note.


# How the profiler names what is not an operation by itself.
_PROCESS, _ASYNCHRONOUS = "ExecutorState::Process", "ExecutorState::ProcessAsync::Start"
_RUN, _FROM_PYTHON, _ITERATOR = "FunctionRun", "EagerExecute", "Iterator::"
_ALLOCATION, _DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
_OPERATION = re.compile(r"([^:\s]+):([A-Za-z_]\w*)")
# Parts of an input pipeline that mostly wait for others.
_WAITING = re.compile(r"Iterator::(.*::)?(Root|Model|Prefetch|Parallel\w*|MaxIntraOp\w*|PrivateThreadPool)$")
ITERATOR = "Iterator"  # kind of the parts of an input pipeline


@dataclasses.dataclass
class Operation:
    """An operation that ran once.

    Attributes:
      node: its name in its graph.
      kind: its type, such as _MklMatMul.
      run: number of the call of the function that it is in; None where nothing says so.
      picoseconds: that it took, less those of operations within it.
      on_gpu: whether a GPU computed it.
      begin, end: when, in picoseconds, with the operations within it; of the CPU alone.
      thread: that ran it, a name; of the CPU alone.
    """

    node: str
    kind: str
    run: int | None
    picoseconds: int
    on_gpu: bool = False
    begin: int = 0
    end: int = 0
    thread: str = ""


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Memory that was taken, or given back.

    Attributes:
      picoseconds: when.
      allocator: whose memory it is, such as GPU_0_bfc.
      address, bytes: of the memory.
      in_use: bytes of the allocator in use after it.
      node, run: of the operation that ran then; "" and None where none did.
      is_freed: whether it was given back.
    """

    picoseconds: int
    allocator: str
    address: int
    bytes: int
    in_use: int
    node: str
    run: int | None
    is_freed: bool


@dataclasses.dataclass
class Trace:
    """Operations, and changes of memory, that the profiler recorded.

    Attributes:
      operations: in no order.
      allocations: in the order of time.
      callers: {number of a call of a function: (number of the call, node) that it was called from}.
      functions: {number of a call: name of the function}, of calls from Python.
    """

    operations: list[Operation] = dataclasses.field(default_factory=list)
    allocations: list[Allocation] = dataclasses.field(default_factory=list)
    callers: dict[int | None, tuple[int | None, str]] = dataclasses.field(default_factory=dict)
    functions: dict[int | None, str] = dataclasses.field(default_factory=dict)


def read_space(content: bytes) -> Any:
    """Returns the XSpace of a file of the profiler; None where this TensorFlow does not bring its format."""
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError:
        return None
    return xplane_pb2.XSpace.FromString(content)


def read_trace(space: Any) -> Trace:
    """Returns the trace that is in an XSpace, with the operations of the CPU and the GPUs."""
    trace = Trace()
    for plane in space.planes:
        if plane.name.startswith("/device:GPU"):
            trace.operations += _kernels(plane)
        elif not plane.name.startswith("/device"):
            for number, line in enumerate(plane.lines):
                _Thread(trace, plane, line, f"{plane.name} {number}").read()
    trace.allocations.sort(key=lambda each: each.picoseconds)
    return trace


def _notes_of(plane: Any) -> Callable[[Any], dict]:
    """Returns (event) -> its notes, {name: value}."""
    names = {number: each.name for number, each in plane.stat_metadata.items()}

    def notes(event: Any) -> dict:
        found = {}
        for stat in event.stats:
            kind = stat.WhichOneof("value")
            value = getattr(stat, kind) if kind else None
            found[names.get(stat.metadata_id, "")] = names.get(value, "") if kind == "ref_value" else value
        return found

    return notes


def _kernels(plane: Any) -> Iterator[Operation]:
    """Yields the operations of a GPU; a kernel without an operation's name goes by its own."""
    notes, names = _notes_of(plane), {number: each.name for number, each in plane.event_metadata.items()}
    for line in plane.lines:
        if line.name.startswith("Stream"):
            for event in line.events:
                found = notes(event)
                known = _OPERATION.fullmatch(str(found.get("tf_op") or found.get("name") or ""))
                node, kind = known.groups() if known else ("", names[event.metadata_id])
                yield Operation(node, kind, None, event.duration_ps, on_gpu=True)


@dataclasses.dataclass
class _Open:
    """An open event, which others may be within: its end, the values that hold for those, and its operation
    if it is one."""

    end: int
    node: str = ""
    run: int | None = None
    function: str = ""
    operation: Operation | None = None


class _Thread:
    """A thread's events, the outer ones before the inner ones."""

    def __init__(self, trace: Trace, plane: Any, line: Any, name: str):
        self.trace, self.line, self.notes, self.name = trace, line, _notes_of(plane), name
        self.names = {number: each.name for number, each in plane.event_metadata.items()}
        self.computes = line.name.startswith("tf_Compute")
        self.is_data = line.name.startswith("tf_data")
        self.stack: list[_Open] = []

    def read(self) -> None:
        for event in sorted(self.line.events, key=lambda each: (each.offset_ps, -each.duration_ps)):
            while self.stack and self.stack[-1].end <= event.offset_ps:
                self.stack.pop()
            self._read_event(event, self.names.get(event.metadata_id, ""))

    def _read_event(self, event: Any, name: str) -> None:
        if name in (_ALLOCATION, _DEALLOCATION):
            self._note_memory(event, name == _DEALLOCATION)
        elif name == _RUN:
            self._note_call(self.notes(event).get("id"))
        elif name == _PROCESS:
            self._open(event, run=self.notes(event).get("id"))
        elif name == _FROM_PYTHON:
            self._open(event, function=str(self.notes(event).get("eager_op", "")))
        elif name == _ASYNCHRONOUS and self.computes:
            found = self.notes(event)
            self._run(event, found.get("name", ""), found.get("kernel_type", ""), found.get("step_id"))
        elif self.is_data and name.startswith(_ITERATOR):
            waits = _WAITING.match(name) is not None
            self._run(event, name.split("::")[-1], ITERATOR, None, counts=not waits)
        elif self.computes and (operation := _OPERATION.fullmatch(name)):
            self._run(event, operation[1], operation[2], self._here("run"))

    def _here(self, name: str) -> Any:
        """Returns the attribute `name` of the innermost open event that has it; None without such."""
        return next((value for each in reversed(self.stack) if (value := getattr(each, name))), None)

    def _open(self, event: Any, **known: Any) -> None:
        self.stack.append(_Open(event.offset_ps + event.duration_ps, **known))

    def _run(self, event: Any, node: str, kind: str, run: int | None, counts: bool = True) -> None:
        """Notes an operation; what holds it has taken so much less itself."""
        outer = self._here("operation")
        if outer is not None:
            outer.picoseconds -= event.duration_ps
        operation = Operation(node, kind, run, event.duration_ps, thread=self.name)
        operation.begin = self.line.timestamp_ns * 1000 + event.offset_ps
        operation.end = operation.begin + event.duration_ps
        if counts:
            self.trace.operations.append(operation)
        self._open(event, node=node, run=run, operation=operation)

    def _note_call(self, run: int | None) -> None:
        if run is None:
            return
        function = self._here("function")
        if function:
            self.trace.functions[run] = function
        elif self.stack:
            self.trace.callers[run] = (self._here("run"), self._here("node") or "")

    def _note_memory(self, event: Any, is_freed: bool) -> None:
        found = self.notes(event)
        node = self._here("node") or ("data" if self.is_data else "")
        self.trace.allocations.append(
            Allocation(
                self.line.timestamp_ns * 1000 + event.offset_ps,
                str(found.get("allocator_name", "")),
                int(found.get("addr", 0)),
                int(found.get("allocation_bytes", 0)),
                int(found.get("bytes_allocated", 0)),
                node,
                self._here("run"),
                is_freed,
            )
        )

"""Profile of some steps of a run: time by operation and part of a step, and memory by part, from the trace
of TensorFlow's profiler.

xprof shows the whole trace, but not which stage of the model an operation of a CPU belongs to: these tables
do.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import functools
import glob
import io
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from official.io.files import store_of
from official.io.writing import replace_file
from official.reporting import tensorboard
from official.reporting.callback import Callback, End

if TYPE_CHECKING:
    from official.config.table import Config

# -----------------------------------------------------------------------------------------------------------
# Parts of a step


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
        self.of = functools.cache(self._of)  # (operation, number of the call of its function) -> place
        self._root = functools.cache(self._first_call)

    def of_operation(self, operation: Operation) -> Place:
        """Returns the place of an operation. What no call from Python leads to is of the input pipeline."""
        root = self._root(operation.run)
        is_data = operation.kind == ITERATOR or root is not None and root not in self._trace.functions
        return Place(DATA) if is_data else self.of(operation.node, operation.run)

    def counts(self, operation: Operation) -> bool:
        """Tells whether an operation is of the training or of its data: an evaluation is neither."""
        return _TRAINING in self._trace.functions.get(self._root(operation.run), _TRAINING)

    def _first_call(self, run: int | None) -> int | None:
        """Returns the first call of those that led to a call."""
        seen = {run}
        while run in self._trace.callers and self._trace.callers[run][0] not in seen:
            run = self._trace.callers[run][0]
            seen.add(run)
        return run

    def _of(self, node: str, run: int | None) -> Place:
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
    """

    node: str
    kind: str
    run: int | None
    picoseconds: int
    on_gpu: bool = False


class Allocation(NamedTuple):
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
            for line in plane.lines:
                _Thread(trace, plane, line).read()
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

    def __init__(self, trace: Trace, plane: Any, line: Any):
        self.trace, self.line, self.notes = trace, line, _notes_of(plane)
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
        if outer := self._here("operation"):
            outer.picoseconds -= event.duration_ps
        operation = Operation(node, kind, run, event.duration_ps)
        if counts:
            self.trace.operations.append(operation)
        self._open(event, node=node, run=run, operation=operation)

    def _note_call(self, run: int | None) -> None:
        function = self._here("function")
        if run is not None and function:
            self.trace.functions[run] = function
        elif run is not None and self.stack:
            self.trace.callers[run] = (self._here("run"), self._here("node") or "")

    def _note_memory(self, event: Any, is_freed: bool) -> None:
        found = self.notes(event)
        at = self.line.timestamp_ns * 1000 + event.offset_ps
        address, size, in_use = (
            int(found.get(name, 0)) for name in ("addr", "allocation_bytes", "bytes_allocated")
        )
        node = self._here("node") or (DATA if self.is_data else "")
        allocator = str(found.get("allocator_name", ""))
        taken = Allocation(at, allocator, address, size, in_use, node, self._here("run"), is_freed)
        self.trace.allocations.append(taken)


# -----------------------------------------------------------------------------------------------------------
# Memory


def memories(trace: Trace, places: Places, stages: Sequence[str]) -> list[dict]:
    """Returns the memory of each allocator, the largest first, as profile_memory.json has it; none where
    nothing was told.

    Returns:
      allocator; peak_bytes, the most in use at once; running_at_peak, what took memory then; resident_bytes,
      taken before the profiler looked: weights, slots, batches; parts, what each part of a step, in the order
      of `stages`, had taken: at the peak, at most, and the most bytes in use by all when it took some.
    """
    by_allocator: dict[str, list[Allocation]] = collections.defaultdict(list)
    for each in trace.allocations:
        by_allocator[each.allocator].append(each)
    found = [_memory(name, events, places, stages) for name, events in by_allocator.items()]
    return sorted((each for each in found if each["peak_bytes"]), key=lambda each: -each["peak_bytes"])


def _memory(allocator: str, events: list[Allocation], places: Places, stages: Sequence[str]) -> dict:
    """Follows what each part takes and gives back. What was taken before the profiler looked is nobody's."""
    top = max(range(len(events)), key=lambda number: events[number].in_use)
    holding: collections.Counter[Place] = collections.Counter()
    held, most, peaks = holding.copy(), holding.copy(), holding.copy()
    live: dict[int, tuple[Place, int]] = {}  # by address
    for number, event in enumerate(events):
        place = places.of(event.node, event.run)
        if not event.is_freed:
            live[event.address] = (place, event.bytes)
            holding[place] += event.bytes
            most[place] = max(most[place], holding[place])
            peaks[place] = max(peaks[place], event.in_use)
        elif event.address in live:
            owner, size = live.pop(event.address)
            holding[owner] -= size
        if number == top:
            held = holding.copy()
    peak, running = events[top].in_use, places.of(events[top].node, events[top].run)
    order = [Place(stage, passes) for stage in stages for passes in (FORWARD, BACKWARD)]
    return {
        "allocator": allocator,
        "peak_bytes": peak,
        "running_at_peak": {"part": running.part, "pass": running.passes},
        "resident_bytes": max(0, peak - sum(held.values())),
        "parts": [
            {
                "part": place.part,
                "pass": place.passes,
                "held_at_peak_bytes": held[place],
                "most_held_bytes": most[place],
                "peak_while_running_bytes": peaks[place],
            }
            for place in [*order, *sorted(most.keys() - set(order))]
            if place in most
        ],
    }


# -----------------------------------------------------------------------------------------------------------
# Times


PRODUCTS, ATTENTION, BLOCKS = "matrix products", "attention's products", "compiled blocks"
UPDATE, NORM, CASTS, INPUT = "optimizer", "gradient norm", "casts", "data"
EXCHANGE, REST = "copies between devices", "everything else"
# Pattern of a type -> kind; the first one counts.
_KINDS = {
    r"^ResourceApply": UPDATE,
    r"^Iterator": INPUT,
    r"PartitionedCall$": BLOCKS,
    r"BatchMatMul": ATTENTION,
    r"(?i)MatMul|gemm": PRODUCTS,
    r"Collective|Nccl|^_?(Host)?(Send|Recv)$|MEMCPY|Memcpy": EXCHANGE,
    r"^(L2Loss|BertGlobalNorm)$": NORM,
    r"^(_Mkl)?Cast$": CASTS,
    r"^Bert": BLOCKS,  # operations of our own
}
_LAYER = re.compile(r"layer_\d+")


def kind_of(place: Place, kind: str) -> str:
    """Returns the kind of an operation.

    Args:
      place: where it is in a step.
      kind: its type, such as _MklMatMul.
    """
    if place.part in (OPTIMIZER, DATA):
        return UPDATE if place.part == OPTIMIZER else INPUT
    return next((name for pattern, name in _KINDS.items() if re.search(pattern, kind)), REST)


_KEYS, _SUMS = ("kind", "part", "pass", "name", "type"), ("ms_per_step", "count_per_step", "share")


def add_up(trace: Trace, places: Places, steps: int) -> list[dict]:
    """Returns the operations of a step, those of one name in all layers as one row, the most time first.

    Where a GPU computed, its times are meant, and those of the CPU that the input pipeline took.

    Returns:
      kind: one of the names above; part, pass: as in `Place`, all layers are layer_{}; name: in its graph,
      less the part's; type; ms_per_step, count_per_step, and the share of the time, 0 to 1.
    """
    on_gpu = any(operation.on_gpu for operation in trace.operations)
    times: collections.Counter[tuple] = collections.Counter()
    counts: collections.Counter[tuple] = collections.Counter()
    for operation in filter(places.counts, trace.operations):
        place = places.of_operation(operation)
        if operation.on_gpu == on_gpu or place.part == DATA:
            part = "layer_{}" if _LAYER.fullmatch(place.part) else place.part
            name = split(bare(operation.node), {place.part})[1]
            key = (kind_of(place, operation.kind), part, place.passes, name, operation.kind)
            times[key] += operation.picoseconds
            counts[key] += 1
    total = sum(times.values()) or 1
    return [
        dict(zip(_KEYS + _SUMS, (*key, picoseconds / 1e9 / steps, counts[key] / steps, picoseconds / total)))
        for key, picoseconds in times.most_common()
    ]


def grouped(rows: Sequence[dict], *names: str) -> list[dict]:
    """Returns rows of `add_up` added up by some of their keys, the most time first."""
    sums: dict[tuple, dict] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        found = sums.setdefault(key, {**dict(zip(names, key)), **dict.fromkeys(_SUMS, 0.0)})
        for name in _SUMS:
            found[name] += row[name]
    return sorted(sums.values(), key=lambda each: -each["ms_per_step"])


# -----------------------------------------------------------------------------------------------------------
# Files


TIMES, OPERATIONS, MEMORY = "profile.json", "profile_operations.csv", "profile_memory.json"
_MAX_OPERATIONS = 100  # of profile.json; the other file has all


def write_times(model_dir: str, head: dict, rows: Sequence[dict]) -> None:
    """Writes the tables of times. Args: head: what stands before them in profile.json; rows: of `add_up`."""
    found = {
        **head,
        "busy_ms_per_step": sum(row["ms_per_step"] for row in rows),
        "kinds": grouped(rows, "kind"),
        "parts": grouped(rows, "part", "pass"),
        "types": grouped(rows, "type"),
        "operations": rows[:_MAX_OPERATIONS],
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, _KEYS + _SUMS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(os.path.join(model_dir, OPERATIONS), text.getvalue())
    replace_file(os.path.join(model_dir, TIMES), json.dumps(found, indent=2) + "\n")


def write_memory(
    model_dir: str, head: dict, found: Sequence[dict], variables: Mapping[str, tuple[int, int]]
) -> None:
    """Writes the table of memory.

    Args:
      model_dir: folder of the run.
      head: what stands before it.
      found: of `memories`.
      variables: {stage: (bytes of its weights, bytes of what the optimizer keeps of them)}, in order.
    """
    sizes = [
        {"part": part, "weights_bytes": weights, "slots_bytes": slots}
        for part, (weights, slots) in variables.items()
    ]
    record = {**head, "variables": sizes, "allocators": found}
    replace_file(os.path.join(model_dir, MEMORY), json.dumps(record, indent=2) + "\n")


# -----------------------------------------------------------------------------------------------------------
# Layers of backward passes
#
# The forward pass of a layer is a call with the layer's name. TensorFlow gives the call of its gradient no
# such name, but that call reads the tensors that the forward pass kept.


def stages_of(functions: set[str], stages: Sequence[str]) -> dict[str, str]:
    """Returns {name of a call without a stage in it: stage of which it reads the most tensors}.

    Args:
      functions: names of functions that Python has called; they and the functions that they call are
        searched. Functions that no longer exist are skipped.
      stages: names of stages.
    """
    known, found = frozenset(stages), {}
    for node in _nodes(functions):
        if node.op.endswith("PartitionedCall") and not split(node.name, known)[0]:
            read = collections.Counter(split(name.split(":")[0], known)[0] for name in node.input)
            del read[""]
            if read:
                found[node.name] = read.most_common(1)[0][0]
    return found


def _nodes(functions: set[str]):
    """Yields the nodes of functions, and of all functions that they call."""
    left, seen = list(functions), set()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        with contextlib.suppress(tf.errors.OpError):  # an operation by itself
            for node in context.context().get_function_def(name).node_def:
                yield node
                for attribute in node.attr.values():
                    left += [attribute.func.name] if attribute.func.name else []
                    left += [each.name for each in attribute.list.func]


# -----------------------------------------------------------------------------------------------------------
# Callback


# What TensorFlow raises where its profiler does not work, or somebody else uses it.
_ERRORS = (tf.errors.OpError, AttributeError, ImportError, OSError, RuntimeError)


class Profile(Callback):
    """Profiles the steps of a window. A window that does not come to its end leaves nothing behind."""

    def __init__(self, config: Config, state: Any, window: tuple[int, int], devices: list[str]):
        """Args: config: of the run; state: as it is trained; window: the first and the last step; devices:
        those that it computes on."""
        self._config, self._state, self._window, self._devices = config, state, window, devices
        self._folder: tempfile.TemporaryDirectory | None = None
        self._secs = 0.0

    def on_call(self, step: int) -> None:
        if step == self._window[0]:
            self._start()
        self._secs -= time.perf_counter()

    def on_first_step(self, step: int, secs: float) -> None:
        self.on_steps(step, {})

    def on_steps(self, step: int, values: dict) -> None:
        self._secs += time.perf_counter()
        if self._folder and step == self._window[1]:
            try:
                self._finish()
            except Exception as error:  # pylint: disable=broad-except
                # Whatever is odd about a trace, the training is worth more.
                logging.warning("No profile: %s: %s", type(error).__name__, _first_line(error))
                self._drop()

    def on_end(self, end: End) -> None:
        if self._folder:
            first, last = self._window
            text = "No profile: the run ended at step %d, within the profiled steps %d,%d."
            logging.warning(text, end.step, first, last)
            self._drop()

    def close(self) -> None:
        self._drop()

    def _start(self) -> None:
        self._folder, self._secs = tempfile.TemporaryDirectory(), 0.0
        try:
            # Not the calls of Python: those of the loop are of no interest, and each has a cost.
            options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
            tf.profiler.experimental.start(self._folder.name, options)
        except _ERRORS as error:
            logging.warning("No profile: %s", _first_line(error))
            self._folder.cleanup()
            self._folder = None

    def _drop(self) -> None:
        """Ends a profile that is not whole; nothing is written."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        with contextlib.suppress(*_ERRORS):  # it may have stopped already
            tf.profiler.experimental.stop(save=False)
        folder.cleanup()

    def _finish(self) -> None:
        """Writes the trace, and the tables that are made of it."""
        assert self._folder is not None
        tf.profiler.experimental.stop()
        first, last = self._window
        paths = glob.glob(os.path.join(self._folder.name, "**", "*.xplane.pb"), recursive=True)
        if not paths:
            raise OSError("TensorFlow's profiler has written nothing.")
        with open(paths[0], "rb") as file:
            content = file.read()
        self._folder.cleanup()
        self._folder = None
        where = os.path.join(tensorboard.FOLDER, "plugins", "profile", f"steps-{first}-{last}")
        name = os.path.join(where, f"{socket.gethostname()}.xplane.pb")
        if self._config.profile_steps:
            store_of(self._config.model_dir).make_folder(os.path.join(self._config.model_dir, where))
            replace_file(os.path.join(self._config.model_dir, name), content)
        space = read_space(content)
        if space is None:
            logging.warning("No tables of the profile: this TensorFlow does not bring its format.")
            return
        self._write_tables(read_trace(space), name)

    def _write_tables(self, trace: Trace, name: str) -> None:
        config, (first, last) = self._config, self._window
        stages = [stage.name for stage in self._state.model.stages()]
        places = Places(trace, stages, stages_of(set(trace.functions.values()), stages))
        head = {"steps": [first, last], "devices": self._devices}
        if config.profile_steps:
            told = {"secs_per_step": self._secs / (last - first), "trace": name}
            write_times(config.model_dir, head | told, add_up(trace, places, last - first))
            logging.info("Profile of steps %d,%d: %s", first, last, os.path.join(config.model_dir, name))
        if config.profile_memory:
            found = memories(trace, places, stages)
            if not found:
                logging.warning("No memory profile: this TensorFlow does not tell what takes memory here.")
                return
            write_memory(config.model_dir, head, found, stage_variables(self._state))
            peak, allocator, running = (
                found[0][name] for name in ("peak_bytes", "allocator", "running_at_peak")
            )
            text = "Memory: at most %.2f GB of %s, while %s ran (%s)"
            logging.info(text, peak / 1e9, allocator, ", ".join(filter(None, running.values())), MEMORY)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def stage_variables(state: Any) -> dict[str, tuple[int, int]]:
    """Returns {stage: (bytes of its weights, bytes of their optimizer slots)}. Variables that two stages
    share count for the first."""
    of_stage: dict[str, str] = {}
    for stage in state.model.stages():
        for variable in stage.variables:
            of_stage.setdefault(variable.name.split(":")[0], stage.name)
    sizes = {stage.name: (0, 0) for stage in state.model.stages()}
    for name, variable in state.variables().items():
        size = variable.shape.num_elements() * variable.dtype.size
        owner = name if name in of_stage else name.rpartition("/")[0]
        if owner in of_stage:
            weights, slots = sizes[of_stage[owner]]
            own = (weights + size, slots) if owner == name else (weights, slots + size)
            sizes[of_stage[owner]] = own
    return sizes

"""Profile of some steps of a run: time by operation and by part of a step, and memory by part, from the trace
of TensorFlow's profiler.

xprof shows the whole trace, but not the stage of the model that a CPU operation belongs to; these tables do.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import glob
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from official.io.errors import first_line
from official.io.writing import put_file, replace_file
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
# When TensorFlow inlines a loop or a function, it prepends such names.
_IN_PLACE = re.compile(r"^.*/(body|cond)/_\d+/")


class Place(NamedTuple):
    """A part of a step: a stage of the model and its pass, or one of the names above with an empty pass."""

    part: str
    passes: str = ""


def split(name: str, stages: Collection[str]) -> tuple[str, str]:
    """Returns (stage in an operation's name, rest of the name); ("", name) if there is none. TensorFlow
    numbers repeated scopes: layer_3_1 is layer_3 again."""
    parts = name.split("/")
    for number, part in enumerate(parts):
        for stage in (part, part.rpartition("_")[0]):
            if stage in stages:
                return stage, "/".join(parts[number + 1 :])
    return "", name


class Places:
    """Finds the places of the operations of a trace."""

    def __init__(self, trace: Trace, stages: Sequence[str], calls: Mapping[str, str]):
        """Args: trace: the trace; stages: names of the model's stages, as parts of operation names; calls:
        {name of a call without such a part: stage whose backward pass it is}."""
        self._trace, self._stages, self._calls = trace, frozenset(stages), calls
        self.of = functools.cache(self._of)  # (operation, number of the call of its function) -> place
        self._root = functools.cache(self._first_call)

    def of_operation(self, operation: Operation) -> Place | None:
        """Returns the place of an operation; None for one of an evaluation. Operations without a call from
        Python belong to the input pipeline."""
        root, functions = self._root(operation.run), self._trace.functions
        if "train_loop" not in functions.get(root, "train_loop"):
            return None
        is_data = operation.kind == ITERATOR or root is not None and root not in functions
        return Place(DATA) if is_data else self.of(operation.node, operation.run)

    def _first_call(self, run: int | None) -> int | None:
        """Returns the outermost call that led to a call."""
        seen = {run}
        while run in self._trace.callers and self._trace.callers[run][0] not in seen:
            run = self._trace.callers[run][0]
            seen.add(run)
        return run

    def _of(self, node: str, run: int | None) -> Place:
        if _OPTIMIZERS.search(node):
            return Place(OPTIMIZER)
        name = _IN_PLACE.sub("", node)
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
# another ran within it. GPU operations are on lines of its streams, with the operation's name as a
# note.


_OPERATION = re.compile(r"([^:\s]+):([A-Za-z_]\w*)")
# Parts of an input pipeline that mostly wait for others.
_WAITING = re.compile(r"Iterator::(.*::)?(Root|Model|Prefetch|Parallel\w*|MaxIntraOp\w*|PrivateThreadPool)$")
ITERATOR = "Iterator"  # kind of the parts of an input pipeline


@dataclasses.dataclass
class Operation:
    """One execution of an operation.

    Attributes:
      node: name of the operation in its graph.
      kind: its type, such as _MklMatMul.
      run: number of the enclosing function call; None if unknown.
      picoseconds: duration without that of nested operations.
      on_gpu: whether it ran on a GPU.
    """

    node: str
    kind: str
    run: int | None
    picoseconds: int
    on_gpu: bool = False


class Allocation(NamedTuple):
    """An allocation or release of memory.

    Attributes:
      picoseconds: time of the event.
      allocator: name of the allocator, such as GPU_0_bfc.
      address, bytes: address and size of the memory.
      in_use: bytes of the allocator in use after the event.
      node, run: name and call of the operation that ran then; "" and None if none did.
      is_freed: whether the memory was released.
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
      operations: unordered.
      allocations: in chronological order.
      callers: {number of a call of a function: (number of the calling call, calling node)}.
      functions: {number of a call: name of the function}, for calls from Python.
    """

    operations: list[Operation] = dataclasses.field(default_factory=list)
    allocations: list[Allocation] = dataclasses.field(default_factory=list)
    callers: dict[int | None, tuple[int | None, str]] = dataclasses.field(default_factory=dict)
    functions: dict[int | None, str] = dataclasses.field(default_factory=dict)


def read_space(content: bytes) -> Any:
    """Returns the XSpace of a profiler file; None if this TensorFlow lacks the format."""
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError:
        return None
    return xplane_pb2.XSpace.FromString(content)


def read_trace(space: Any) -> Trace:
    """Returns the trace of an XSpace, with the operations of the CPU and the GPUs."""
    trace = Trace()
    for plane in space.planes:
        names = {number: each.name for number, each in plane.event_metadata.items()}
        for line in plane.lines:
            if plane.name.startswith("/device:GPU") and line.name.startswith("Stream"):
                trace.operations += [_kernel(plane, event, names) for event in line.events]
            elif not plane.name.startswith("/device"):
                _read_thread(trace, plane, line, names)
    trace.allocations.sort(key=lambda each: each.picoseconds)
    return trace


def _notes(plane: Any, event: Any) -> dict:
    """Returns the notes of an event, {name: value}."""
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else None
        name = plane.stat_metadata[stat.metadata_id].name
        found[name] = plane.stat_metadata[value].name if kind == "ref_value" else value
    return found


def _kernel(plane: Any, event: Any, names: dict[int, str]) -> Operation:
    """Returns an operation of a GPU; a kernel without an operation's name keeps its own."""
    found = _notes(plane, event)
    known = _OPERATION.fullmatch(str(found.get("tf_op") or found.get("name") or ""))
    node, kind = known.groups() if known else ("", names[event.metadata_id])
    return Operation(node, kind, None, event.duration_ps, on_gpu=True)


@dataclasses.dataclass
class _Open:
    """An open event that may contain others: its end, the values that apply to the inner ones, and its
    operation, if any."""

    end: int
    node: str = ""
    run: int | None = None
    function: str = ""
    operation: Operation | None = None


def _read_thread(trace: Trace, plane: Any, line: Any, names: dict[int, str]) -> None:
    """Adds a thread's events to the trace, the outer ones before the inner ones."""
    computes, is_data = line.name.startswith("tf_Compute"), line.name.startswith("tf_data")
    stack: list[_Open] = []

    def innermost(name: str) -> Any:
        return next((value for each in reversed(stack) if (value := getattr(each, name))), None)

    def begin(node: str, kind: str, run: int | None, counts: bool = True) -> None:
        """Adds an operation and subtracts its time from the operation that contains it."""
        if outer := innermost("operation"):
            outer.picoseconds -= event.duration_ps
        operation = Operation(node, kind, run, event.duration_ps)
        trace.operations += [operation] if counts else []
        stack.append(_Open(end, node=node, run=run, operation=operation))

    for event in sorted(line.events, key=lambda each: (each.offset_ps, -each.duration_ps)):
        name, end = names.get(event.metadata_id, ""), event.offset_ps + event.duration_ps
        while stack and stack[-1].end <= event.offset_ps:
            stack.pop()
        if name in ("MemoryAllocation", "MemoryDeallocation"):
            found, at = _notes(plane, event), line.timestamp_ns * 1000 + event.offset_ps
            keys = ("addr", "allocation_bytes", "bytes_allocated")
            address, size, in_use = (int(found.get(key, 0)) for key in keys)
            node, is_freed = innermost("node") or (DATA if is_data else ""), name == "MemoryDeallocation"
            allocator, run = str(found.get("allocator_name", "")), innermost("run")
            taken = Allocation(at, allocator, address, size, in_use, node, run, is_freed)
            trace.allocations.append(taken)
        elif name == "FunctionRun":
            run, function = _notes(plane, event).get("id"), innermost("function")
            if run is not None and function:
                trace.functions[run] = function
            elif run is not None and stack:
                trace.callers[run] = (innermost("run"), innermost("node") or "")
        elif name == "ExecutorState::Process":
            stack.append(_Open(end, run=_notes(plane, event).get("id")))
        elif name == "EagerExecute":
            stack.append(_Open(end, function=str(_notes(plane, event).get("eager_op", ""))))
        elif name == "ExecutorState::ProcessAsync::Start" and computes:
            found = _notes(plane, event)
            begin(found.get("name", ""), found.get("kernel_type", ""), found.get("step_id"))
        elif is_data and name.startswith("Iterator::"):
            begin(name.split("::")[-1], ITERATOR, None, counts=not _WAITING.match(name))
        elif computes and (operation := _OPERATION.fullmatch(name)):
            begin(operation[1], operation[2], innermost("run"))


# -----------------------------------------------------------------------------------------------------------
# Memory


def memories(trace: Trace, places: Places, stages: Sequence[str]) -> list[dict]:
    """Returns the memory of each allocator, the largest first, as in profile_memory.json; empty if nothing
    was recorded.

    Returns:
      allocator; peak_bytes, maximum in use at a time; running_at_peak, the part that allocated then;
      resident_bytes, allocated before the profiler started: weights, slots, batches; parts, in the order of
      `stages`: bytes of each part at the peak and at most, and the most bytes in use by all while it
      allocated.
    """
    by_allocator: dict[str, list[Allocation]] = collections.defaultdict(list)
    for each in trace.allocations:
        by_allocator[each.allocator].append(each)
    found = [_memory(name, events, places, stages) for name, events in by_allocator.items()]
    return sorted((each for each in found if each["peak_bytes"]), key=lambda each: -each["peak_bytes"])


def _memory(allocator: str, events: list[Allocation], places: Places, stages: Sequence[str]) -> dict:
    """Tracks the allocations of each part. Memory allocated before the profiler started belongs to no
    part."""
    top = max(events, key=lambda event: event.in_use)
    # Bytes of a part now, at the peak and at most; and the maximum of all parts while it allocates.
    holding, held, most, peaks = (collections.Counter[Place]() for _ in range(4))
    live: dict[int, tuple[Place, int]] = {}  # by address
    for event in events:
        place = places.of(event.node, event.run)
        if not event.is_freed:
            live[event.address] = (place, event.bytes)
            holding[place] += event.bytes
            most[place] = max(most[place], holding[place])
            peaks[place] = max(peaks[place], event.in_use)
        elif event.address in live:
            owner, size = live.pop(event.address)
            holding[owner] -= size
        if event is top:
            held = holding.copy()
    running = places.of(top.node, top.run)
    order = [Place(stage, passes) for stage in stages for passes in (FORWARD, BACKWARD)]
    names = ("part", "pass", "held_at_peak_bytes", "most_held_bytes", "peak_while_running_bytes")
    return {
        "allocator": allocator,
        "peak_bytes": top.in_use,
        "running_at_peak": {"part": running.part, "pass": running.passes},
        "resident_bytes": max(0, top.in_use - sum(held.values())),
        "parts": [
            dict(zip(names, (*place, held[place], most[place], peaks[place])))
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
    r"^Bert": BLOCKS,  # custom operations of this project
}
_LAYER = re.compile(r"layer_\d+")


def kind_of(place: Place, kind: str) -> str:
    """Returns the kind of an operation.

    Args:
      place: its part of a step.
      kind: its type, such as _MklMatMul.
    """
    if place.part in (OPTIMIZER, DATA):
        return UPDATE if place.part == OPTIMIZER else INPUT
    return next((name for pattern, name in _KINDS.items() if re.search(pattern, kind)), REST)


_KEYS, _SUMS = ("kind", "part", "pass", "name", "type"), ("ms_per_step", "count_per_step", "share")


def add_up(trace: Trace, places: Places, steps: int) -> list[dict]:
    """Returns the operations of a step, summed over all layers by name, longest first.

    On a GPU, only its operations count, and of the CPU those of the input pipeline.

    Returns:
      kind: one of the names above; part, pass: as in `Place`, all layers are layer_{}; name: name in its
      graph without the part; type; ms_per_step, count_per_step, and share of the time, 0 to 1.
    """
    on_gpu = any(operation.on_gpu for operation in trace.operations)
    times: collections.Counter[tuple] = collections.Counter()
    counts: collections.Counter[tuple] = collections.Counter()
    for operation in trace.operations:
        place = places.of_operation(operation)
        if place and (operation.on_gpu == on_gpu or place.part == DATA):
            part = "layer_{}" if _LAYER.fullmatch(place.part) else place.part
            name = split(_IN_PLACE.sub("", operation.node), {place.part})[1]
            key = (kind_of(place, operation.kind), part, place.passes, name, operation.kind)
            times[key] += operation.picoseconds
            counts[key] += 1
    total = sum(times.values()) or 1
    return [
        dict(zip(_KEYS + _SUMS, (*key, picoseconds / 1e9 / steps, counts[key] / steps, picoseconds / total)))
        for key, picoseconds in times.most_common()
    ]


def grouped(rows: Sequence[dict], *names: str) -> list[dict]:
    """Returns rows of `add_up` summed by some of their keys, longest first."""
    sums: dict[tuple, dict] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        found = sums.setdefault(key, {**dict(zip(names, key)), **dict.fromkeys(_SUMS, 0.0)})
        for name in _SUMS:
            found[name] += row[name]
    return sorted(sums.values(), key=lambda each: -each["ms_per_step"])


# -----------------------------------------------------------------------------------------------------------
# Files


TIMES, MEMORY = "profile.json", "profile_memory.json"


def write_times(model_dir: str, head: dict, rows: Sequence[dict]) -> None:
    """Writes the tables of times. Args: head: first fields of the file; rows: rows of `add_up`."""
    tables = {"kinds": ["kind"], "parts": ["part", "pass"], "types": ["type"]}
    found = {
        **head,
        "busy_ms_per_step": sum(row["ms_per_step"] for row in rows),
        **{name: grouped(rows, *keys) for name, keys in tables.items()},
        "operations": rows,
    }
    replace_file(os.path.join(model_dir, TIMES), json.dumps(found, indent=2) + "\n")


# -----------------------------------------------------------------------------------------------------------
# Layers of backward passes
#
# The forward pass of a layer is a call with the layer's name. TensorFlow gives the call of its gradient no
# such name, but that call reads the tensors that the forward pass kept.


def stages_of(functions: set[str], stages: Sequence[str]) -> dict[str, str]:
    """Returns {name of a call without a stage in it: the stage from which it reads the most tensors}.

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
        with contextlib.suppress(tf.errors.OpError):  # a plain operation
            for node in context.context().get_function_def(name).node_def:
                yield node
                for attribute in node.attr.values():
                    left += [attribute.func.name] if attribute.func.name else []
                    left += [each.name for each in attribute.list.func]


# -----------------------------------------------------------------------------------------------------------
# Callback


# Errors of TensorFlow if its profiler does not work or is in use.
_ERRORS = (tf.errors.OpError, AttributeError, ImportError, OSError, RuntimeError)


class Profile(Callback):
    """Profiles the steps of a window. An incomplete window leaves no files."""

    def __init__(self, config: Config, state: Any, window: tuple[int, int], devices: list[str]):
        """Args: config: configuration of the run; state: its training state; window: first and last step;
        devices: devices that compute them."""
        self._config, self._state, self._window, self._devices = config, state, window, devices
        self._folder: tempfile.TemporaryDirectory | None = None
        self._secs = 0.0

    def on_call(self, step: int) -> None:
        if step == self._window[0]:
            self._folder, self._secs = tempfile.TemporaryDirectory(), 0.0
            try:
                # Python calls are not traced: those of the loop are of no interest, and each has a cost.
                options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
                tf.profiler.experimental.start(self._folder.name, options)
            except _ERRORS as error:
                logging.warning("No profile: %s", first_line(error))
                self._folder.cleanup()
                self._folder = None
        self._secs -= time.perf_counter()

    def on_first_step(self, step: int, secs: float) -> None:
        self.on_steps(step, {})

    def on_steps(self, step: int, values: dict) -> None:
        self._secs += time.perf_counter()
        if self._folder and step == self._window[1]:
            try:
                self._finish(self._folder.name)
            except Exception as error:  # pylint: disable=broad-except
                # An error in the analysis of a trace must not end the training.
                logging.warning("No profile: %s: %s", type(error).__name__, first_line(error))
            self.close()

    def on_end(self, end: End) -> None:
        if self._folder:
            text = "No profile: the run ended at step %d, within the profiled steps %d,%d."
            logging.warning(text, end.step, *self._window)
            self.close()

    def close(self) -> None:
        """Ends a profile, complete or not; nothing more is written."""
        if self._folder:
            with contextlib.suppress(*_ERRORS):  # it may have stopped already
                tf.profiler.experimental.stop(save=False)
            self._folder.cleanup()
            self._folder = None

    def _finish(self, folder: str) -> None:
        """Writes the trace, and the tables computed from it."""
        tf.profiler.experimental.stop()
        config, (first, last) = self._config, self._window
        paths = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
        if not paths:
            raise OSError("TensorFlow's profiler has written nothing.")
        with open(paths[0], "rb") as file:
            content = file.read()
        where = os.path.join(tensorboard.FOLDER, "plugins", "profile", f"steps-{first}-{last}")
        name = os.path.join(where, f"{socket.gethostname()}.xplane.pb")
        if config.profile_steps:
            put_file(os.path.join(config.model_dir, name), content)
        space = read_space(content)
        if space is None:
            logging.warning("No tables of the profile: this TensorFlow lacks the profile's format.")
            return
        trace, stages = read_trace(space), [stage.name for stage in self._state.model.stages()]
        places = Places(trace, stages, stages_of(set(trace.functions.values()), stages))
        head = {"steps": [first, last], "devices": self._devices}
        if config.profile_steps:
            fields = {"secs_per_step": self._secs / (last - first), "trace": name}
            write_times(config.model_dir, head | fields, add_up(trace, places, last - first))
            logging.info("Profile of steps %d,%d: %s", first, last, os.path.join(config.model_dir, name))
        if config.profile_memory and (found := memories(trace, places, stages)):
            record = {**head, "variables": stage_variables(self._state), "allocators": found}
            replace_file(os.path.join(config.model_dir, MEMORY), json.dumps(record, indent=2) + "\n")
            running = ", ".join(filter(None, found[0]["running_at_peak"].values()))
            text, peak = "Memory: at most %.2f GB of %s, while %s ran (%s)", found[0]["peak_bytes"] / 1e9
            logging.info(text, peak, found[0]["allocator"], running, MEMORY)
        elif config.profile_memory:
            logging.warning("No memory profile: this TensorFlow does not record memory on these devices.")


def stage_variables(state: Any) -> list[dict]:
    """Returns {part, weights_bytes, slots_bytes} of each stage: its weights and their optimizer slots.
    Variables shared by two stages count for the first."""
    sizes = {name: each.shape.num_elements() * each.dtype.size for name, each in state.variables().items()}
    slots: collections.Counter[str] = collections.Counter()
    for name, size in sizes.items():
        slots[name.rpartition("/")[0]] += size  # a slot is named after its variable
    found: list[dict] = []
    known: set[str] = set()
    for stage in state.model.stages():
        own = {variable.name.split(":")[0] for variable in stage.variables} - known
        known |= own
        weights, kept = (sum(some.get(name, 0) for name in own) for some in (sizes, slots))
        found.append({"part": stage.name, "weights_bytes": weights, "slots_bytes": kept})
    return found

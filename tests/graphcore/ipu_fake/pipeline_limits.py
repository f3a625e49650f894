"""What holds when a pipeline is compiled: micro batches per schedule, IPUs, recomputation, memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import compiler, machine, pipeline_stages
from tests.graphcore.ipu_fake.pipelining import CHECKPOINT, PipelineSchedule, RecomputationMode, Settings


def rotations(ipus: list[int]) -> int:
    """Returns how many rotations of a sequence of IPUs run side by side with no IPU used twice at a time."""
    kept: list[int] = []
    for rotation in range(len(ipus)):
        turned = ipus[rotation:] + ipus[:rotation]
        if all(a != b for each in kept for a, b in zip(turned, ipus[each:] + ipus[:each])):
            kept.append(rotation)
    return len(kept)


def unit_of(settings: Settings) -> int:
    """Returns the number that the micro batches of an update must be a multiple of."""
    stages = len(settings.computational_stages)
    if settings.pipeline_schedule == PipelineSchedule.Sequential:
        return 1
    if settings.pipeline_schedule == PipelineSchedule.Grouped:
        return 2 * stages if settings.training else stages
    ipus = [each if isinstance(each, int) else each[0] for each in settings.device_mapping]
    return rotations(ipus + ipus[::-1] if settings.training else ipus)


def overlaps_io(settings: Settings) -> bool:
    """Whether tiles of their own do input and output."""
    tiles = machine.current.config.io_tiles
    return bool(
        tiles.num_io_tiles
        and tiles.place_ops_on_io_tiles
        and settings.pipeline_schedule == PipelineSchedule.Grouped
    )


def check_count(settings: Settings) -> int | None:
    """Checks the number of micro batches; returns it, or None where only the run knows it.

    Raises:
      tf.errors.FailedPreconditionError: the schedule cannot run so many.
    """
    count, unit = settings.gradient_accumulation_count, unit_of(settings)
    static = tf.get_static_value(count) if isinstance(count, tf.Tensor) else int(count)
    if static is None:
        return None
    if overlaps_io(settings):
        if static < unit + 2:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"The pipeline depth must be at least {unit + 2} with I/O tiles, but is {static}",
            )
    elif static < unit or static % unit:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"gradient_accumulation_count is {static}, which must be a multiple of {unit}, at least {unit}: "
            f"schedule {settings.pipeline_schedule.name}, {len(settings.computational_stages)} stages",
        )
    return int(static)


def check_count_later(settings: Settings, count: tf.Tensor) -> None:
    """The same when the program runs."""
    unit = unit_of(settings) + (2 if overlaps_io(settings) else 0)
    tf.debugging.assert_greater_equal(count, unit, message="gradient_accumulation_count")
    if not overlaps_io(settings):
        tf.debugging.assert_equal(
            count % unit, 0, message=f"gradient_accumulation_count: no multiple of {unit}"
        )


def ipus_per_replica(settings: Settings) -> int:
    """Returns the IPUs of one copy of a pipeline, rounded up to a power of two."""
    needed, size = max(settings.ipus()) + 1, 1
    while size < needed:
        size *= 2
    return size


def replicas_of(settings: Settings) -> int:
    """Returns how many copies of a pipeline the configured IPUs run.

    Raises:
      tf.errors.InvalidArgumentError: fewer than one (kind of error not in the sources read).
    """
    here, strategy = machine.current, machine.current.running
    have, need = here.configured_ipus(strategy._device_ordinal), ipus_per_replica(settings)
    if have < need:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"device_mapping {settings.device_mapping} needs {need} IPUs, but {have} are configured",
        )
    for queue in (settings.infeed_queue, settings.outfeed_queue):
        if queue is not None and queue._device_ordinal != strategy._device_ordinal:
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                f"a queue for /device:IPU:{queue._device_ordinal} in a program for "
                f"/device:IPU:{strategy._device_ordinal}",
            )
    strategy.check_replicas(have // need)
    strategy.check_sharding(settings.replicated_optimizer_state_sharding)
    return have // need


def variables_of(operations: list[Any], graph: Any) -> list[Any]:
    """Returns the variables that operations use.

    Raises:
      ValueError: one was not created in the scope of the strategy.
    """
    handles: dict[int, Any] = {}
    read = getattr(graph, "variables", ())
    for operation in operations:
        for tensor in operation.inputs:
            if tensor.dtype == tf.resource:
                handles.setdefault(id(pipeline_stages.outer_tensor(tensor)), tensor)
    return pipeline_stages.variables_captured(list(handles.values()), "apply_gradients", read)


def recomputes(settings: Settings, program: Any) -> bool:
    """Whether activations are computed again.

    Raises:
      tf.errors.FailedPreconditionError: in a way that the schedule cannot (kind: not in the sources read).
    """
    schedule, mode = settings.pipeline_schedule, settings.recomputation_mode
    if not machine.current.config.allow_recompute or not settings.training:
        return False
    if mode == RecomputationMode.RecomputeThenBackpropagate and schedule == PipelineSchedule.Sequential:
        raise tf.errors.FailedPreconditionError(
            None, None, f"{mode} is not supported by the schedule Sequential"
        )
    if (
        mode == RecomputationMode.RecomputeAndBackpropagateInterleaved
        and schedule == PipelineSchedule.Interleaved
    ):
        raise tf.errors.FailedPreconditionError(
            None, None, f"{mode} is not supported by the schedule Interleaved"
        )
    graphs = [stage.function.graph for stage in program.tracer.stages]
    if schedule != PipelineSchedule.Grouped and any(
        CHECKPOINT in operation.name for graph in graphs for operation in graph.get_operations()
    ):
        raise tf.errors.FailedPreconditionError(
            None, None, "recomputation_checkpoint needs the schedule Grouped"
        )
    return True


def bytes_of_ipus(settings: Settings, program: Any, update_only: list[Any]) -> dict[int, int]:
    """Returns the bytes of variables and of gradient sums on each IPU.

    The state of an optimizer is on the IPU of the variable whose name is in its own name, else on the first.
    """
    places = program.tracer.ipu_of_variables()
    found = dict.fromkeys(range(ipus_per_replica(settings)), 0)
    by_id = {id(each): each for stage in program.tracer.stages for each in stage.variables}
    for key, ipu in places.items():
        found[ipu] += 0 if settings.offload_weights else compiler.bytes_of([by_id[key]])
    if not settings.offload_gradient_accumulation_buffers:
        for each in program.variables:
            found[places.get(id(each), 0)] += each.shape.num_elements() * program.type_of(each).size
    if not settings.offload_weight_update_variables:
        names = {by_id[key].name.split(":")[0]: ipu for key, ipu in places.items()}
        for each in update_only:
            owner = max((name for name in names if name in each.name), key=len, default=None)
            found[names[owner] if owner is not None else 0] += compiler.bytes_of([each])
    return found


def check_remote_buffers(settings: Settings) -> None:
    """Refuses to offload where there is no memory to offload to (kind of error not in the sources read)."""
    offloads = [
        name for name, value in vars(settings).items() if name.startswith("offload_") and value is True
    ]
    if offloads and not machine.current.remote_buffers():
        raise tf.errors.FailedPreconditionError(
            None, None, f"{offloads[0]} needs remote buffers: set device_connection.enable_remote_buffers"
        )


def finish(settings: Settings, program: Any, update_variables: list[Any]) -> None:
    """Does the rest of the compiler's work, and notes what was compiled.

    Args:
      settings: the arguments of the pipeline.
      program: the pipeline.
      update_variables: variables that the weight update uses.
    """
    check_remote_buffers(settings)
    recompute = recomputes(settings, program)
    used = {id(each) for stage in program.tracer.stages for each in stage.variables}
    update_only = [each for each in update_variables if id(each) not in used]
    sizes = bytes_of_ipus(settings, program, update_only)
    compiler.check_memory(sizes)
    kept = {name: value for name, value in vars(settings).items() if not callable(value)}
    kept.update(recompute=recompute, stages=len(settings.computational_stages), replicas=program.replicas)
    for name in (
        "computational_stages",
        "inputs",
        "infeed_queue",
        "outfeed_queue",
        "gradient_accumulation_count",
    ):
        kept.pop(name)
    count = settings.gradient_accumulation_count
    kept["gradient_accumulation_count"] = count if isinstance(count, int) else None
    texts = {name: str(value) for name, value in kept.items() if not name.endswith("poplar_options")}
    _, cached = compiler.executable([stage.function.graph for stage in program.tracer.stages], texts)
    machine.current.compiled.append(
        machine.Compiled(program.replicas, ipus_per_replica(settings), sizes, kept, cached)
    )

"""Plan of a run: sizes, steps, evaluations, memory and time, computed without devices, data or training."""

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator

import tensorflow as tf

from official import config as config_lib
from official import native
from official.config import Config, ConfigError, derived, kernels_of
from official.config.backends import BACKENDS
from official.config.cluster import read_cluster
from official.config.settings.run import PLAN
from official.config.values import device_bytes
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import (
    BatchPlan,
    Layout,
    evaluation_steps,
    is_kept,
    lay_out,
    make_batch_plan,
    plan_at,
    shares,
    stages_between,
)
from official.io.files import is_remote
from official.io.record_paths import find_files
from official.io.writing import naming_output, replace_file
from official.modeling.layers import computing_in
from official.optimization import schedules
from official.planning import graph_cost
from official.planning.description import describe
from official.planning.pipeline import describe_pipeline
from official.planning.scaling import scaling_of

MakeTask = Callable[[Config], graph_cost.PlannedTask]
Measure = Callable[[Config, MakeTask], list[float]]
_MANY_SAMPLES = 10**9  # assumed steps while the size of the data is unknown: any warm-up fits


def run(
    config: Config,
    make_task: MakeTask,
    draw: Callable[[str, dict], None] | None = None,
    measure: Measure | None = None,
) -> str:
    """Makes the plan, writes it to --plan_file and draws it to --plan_picture if set, and returns it as text.
    Writes nothing else.

    Args:
      config: the frozen configuration.
      make_task: function config -> task.
      draw: function (path, plan) that writes the picture.
      measure: see `make_plan`.

    Raises:
      ConfigError: for settings that a run would refuse, and if the file cannot be written.
    """
    plan = make_plan(config, make_task, measure)
    if config.plan_file:
        with naming_output(config.plan_file, "plan_file"):
            own = config_lib.replaced(config, **{field.name: field.default for field in PLAN.fields})
            text = {**plan, "configuration": config_lib.to_dict(own)}
            replace_file(config.plan_file, json.dumps(text, indent=2) + "\n")
    if config.plan_picture and draw:
        draw(config.plan_picture, plan)
    return describe(plan)


def make_plan(config: Config, make_task: MakeTask, measure: Measure | None = None) -> dict:
    """Returns the plan of a run, JSON-serializable.

    Args:
      config: the frozen configuration.
      make_task: function config -> task.
      measure: function (configuration, make_task) -> seconds of real steps, for --measure.

    Returns:
      Sizes in rows, steps and bytes; {step: value} has the step as text. A row is a sequence, except for
      packed rows; the names of numbers of sequences say so. `bytes` are per replica, and their sum is the
      maximum alive at once: parameters, copies of weights in the compute dtype, gradients and slots exactly,
      activations from the graph (see `graph_cost`). `all_reduce_bytes` is a replica's contribution to the
      all-reduce. Activations include everything else at that moment: tensors kept for the backward pass or
      the update, and the gradients of a micro batch next to the accumulated ones. `expected` is None without
      --plan_tflops, `measured` without --measure, `scaling` (see `scaling.scaling_of`) without --plan_hosts.
      `train_steps` is None if it depends on the training data, which are not read, and for a time budget,
      whose `learning_rates` are by hours. A run without training has no steps, gradients and slots; a batch
      of its evaluation or prediction stands for a step.

    Raises:
      ConfigError: if batches cannot be divided, or the settings do not determine the number of replicas.
    """
    is_known = not config.do_train or config_lib.knows_steps(config) and not config.budget_hours
    config = config_lib.with_data(config, None if is_known else _MANY_SAMPLES)
    # Batches of maximum length.
    config = config_lib.replaced(config, length_buckets="never")
    batches, layout = planned_batches(config)
    # Before all graphs: logical devices and threads are set before TensorFlow's first operation.
    secs = measure(_with_packed_rows(config), make_task) if config.measure and measure else None
    task, cost, pipeline, needed = _priced(config, make_task, batches)
    if task.sequences_per_row is not None:
        batches = batches.with_rows_of(config.average_sequences_per_pack or task.sequences_per_row)

    def bytes_with(changed: Config) -> list[int]:
        return _priced(changed, make_task, planned_batches(changed)[0])[-1]

    plan = {
        "task": config.task,
        "strategy": config.distribution_strategy,
        "dtype": config.dtype,
        "enable_xla": config.enable_xla,
        "recompute": config.recompute,
        "parameters": cost.parameters,
        "tensors": cost.tensors,
        **_batch_sizes(config, batches),
        "budget_hours": config.budget_hours,
        **_steps(config, batches, is_known),
        "flops_per_step": cost.flops * batches.num_replicas,
        **_bytes(config, cost),
        **capacity(config, batches.replica_batch_size, needed, bytes_with),
        "pipeline": pipeline,
        **_records(config, batches, is_known),
        "files": planned_files(config, layout),
    }
    tflops = config.plan_tflops
    plan["expected"] = None if tflops is None else expected_times(plan, tflops, config.plan_gbps)
    plan["measured"] = measured_times(plan, secs) if secs else None
    plan["scaling"] = scaling_of(config, plan)
    return plan


def _priced(
    config: Config, make_task: MakeTask, batches: BatchPlan
) -> tuple[graph_cost.PlannedTask, graph_cost.Cost, dict | None, list[int]]:
    """Returns the task, the cost of a step (without training, of an evaluation batch), the pipeline, and the
    peak bytes of each device of a replica, which has one device without a pipeline."""
    in_calls = _in_calls(config)
    task = make_task(_with_packed_rows(in_calls))
    with computing_in(config.dtype):
        if config.do_train:
            cost = graph_cost.step_cost(in_calls, task, batches, graph_cost.updates_natively(config))
        else:
            cost = graph_cost.evaluation_cost(task, batches.replica_eval_batch_size)
        pipeline = describe_pipeline(config, task, batches, cost.slot_bytes / max(cost.parameter_bytes, 1))
    held = [each["total"] for each in pipeline["bytes_per_device"]] if pipeline else [cost.total_bytes]
    return task, cost, pipeline, held


def _in_calls(config: Config) -> Config:
    """Returns the configuration without compilation of the whole step: its graph consists of calls and shows
    the tensors that each keeps."""
    changes = {"enable_xla": False, "kernels": "plain" if kernels_of(config) == "plain" else "fused"}
    if BACKENDS[config.distribution_strategy].whole_step:
        changes |= {"distribution_strategy": "one_device", "allreduce_dtype": "float32"}
    return config_lib.replaced(config, **changes)


def _with_packed_rows(config: Config) -> Config:
    """Returns a configuration whose task makes packed rows if the settings imply packing: more about packed
    records is unknown before they are read."""
    depth = config.max_sequences_per_pack or config.average_sequences_per_pack
    is_packed = config.task == "pretrain" and depth and not config.use_synthetic_data
    return config_lib.replaced(config, pack_on_the_fly=True) if is_packed else config


def _batch_sizes(config: Config, batches: BatchPlan) -> dict:
    average, accumulation = batches.sequences_per_row or 1.0, batches.num_accumulation_steps
    micro, replica, rows = batches.micro_batch_size, batches.replica_batch_size, batches.train_batch_size
    sequences = batches.sequences_per_step
    if not config.do_train:
        accumulation, micro, rows = 1, batches.replica_eval_batch_size, batches.eval_batch_size
        replica, sequences = micro, round(rows * average)
    return {
        "num_replicas": batches.num_replicas,
        "num_accumulation_steps": accumulation,
        "micro_batch_size": micro,
        "replica_batch_size": replica,
        "global_batch_size": rows,
        "batch_warmup": _stage_sizes(config, batches),
        "sequences_per_step": sequences,
        "sequences_per_row": average,
        # A packed row counts as rows of one sequence: the cost of a step does not change.
        "packing_speedup": average,
    }


def _stage_sizes(config: Config, batches: BatchPlan) -> dict[str, int] | None:
    """Returns {step: rows per step from then on} of --batch_warmup; None without it."""
    if not (config.batch_warmup and config.do_train):
        return None
    starts = config_lib.batch_stages(config)
    return {str(step): plan_at(config, batches, step).train_batch_size for step in starts}


def _steps(config: Config, batches: BatchPlan, is_known: bool) -> dict:
    if not (config.do_train and is_known):
        return {
            "first_step": 0,
            "train_steps": None if config.do_train else 0,
            "steps_per_loop": config.steps_per_loop,
            "warmup_steps": None,
            "learning_rates": _rates_by_hours(config) if config.budget_hours else {},
            "eval_steps": [],
            "eval_samples_seen": {},
        }
    evaluations = evaluation_steps(config)

    def sequences(last: int) -> int:
        stages = stages_between(config, batches, 0, last)
        return sum(steps * stage.sequences_per_step for steps, stage in stages)

    return {
        "first_step": config_lib.first_step(config),
        "train_steps": config_lib.train_steps(config),
        "steps_per_loop": config_lib.steps_per_loop(config),
        "warmup_steps": config.warmup_steps,
        "learning_rates": learning_rates(config),
        "eval_steps": evaluations,
        "eval_samples_seen": {str(step): sequences(step) for step in evaluations},
    }


def _bytes(config: Config, cost: graph_cost.Cost) -> dict:
    # A checkpoint in the background, or of variables on other devices, is written from a copy.
    is_beside = config.async_checkpoints and not BACKENDS[config.distribution_strategy].program
    is_copied = config.do_train and (is_beside or native.uses_gpus(config))
    state_bytes, sent = cost.parameter_bytes + cost.slot_bytes, tf.as_dtype(config.allreduce_dtype).size
    return {
        "bytes": {
            "parameters": cost.parameter_bytes,
            "weight_copies": cost.copy_bytes,
            "gradients": cost.gradient_bytes,
            "optimizer_slots": cost.slot_bytes,
            "activations": cost.peak_bytes - cost.gradient_bytes,
        },
        "all_reduce_bytes": cost.parameters * sent if config.do_train else 0,
        "total_bytes": cost.total_bytes,
        "checkpoint_bytes": state_bytes,
        "checkpoint_copy_bytes": state_bytes if is_copied else 0,  # in host memory
    }


def _records(config: Config, batches: BatchPlan, is_known: bool) -> dict:
    stages = []
    if config.do_train and is_known:
        steps = config_lib.first_step(config), config_lib.train_steps(config)
        stages = stages_between(config, batches, *steps)
    rows = sum(steps * stage.train_batch_size for steps, stage in stages)
    sequences = sum(steps * stage.sequences_per_step for steps, stage in stages)
    evaluates = config.do_eval and config.task == "pretrain"
    packs_here = config.pack_on_the_fly or config.pack  # then a record is a sequence, otherwise a row
    return {
        "checkpoint_every_steps": config_lib.checkpoint_every_steps(config),
        "train_rows": rows,
        "train_sequences": sequences,
        "train_records_read": sequences if packs_here else rows,
        "eval_records_read": config.num_eval_samples if evaluates else 0,
    }


def learning_rates(config: Config) -> dict[str, float]:
    """Returns {step: learning rate of that update} at the corners of the schedule, the middle and the
    end."""
    schedule, steps = schedules.from_config(config), config_lib.train_steps(config)
    first = config_lib.first_step(config)
    found = {first, (first + steps) // 2, steps - 1, *schedules.corners(config, points=1)}
    return {str(step): float(schedule(step)) for step in sorted(found) if first <= step < steps}


def _rates_by_hours(config: Config) -> dict[str, float]:
    """Returns {hours: learning rate} for a time budget, at the corners of the schedule, its middle and its
    end."""
    schedule, parts = schedules.from_config(config), config_lib.BUDGET_PARTS
    corners = {0, int(config.warmup_steps), parts // 2, parts}
    if config.lr_schedule.startswith("wsd"):
        corners.add(parts - config_lib.decay_length(config))
    hours = (config.budget_hours or 0) / parts
    return {f"{part * hours:.6g}": float(schedule(part)) for part in sorted(corners)}


def _num_hosts(config: Config) -> int:
    """Returns the number of processes of the run. Raises ConfigError if it is unknown."""
    is_shared = BACKENDS[config.distribution_strategy].several_processes
    return len(read_cluster(config).hosts) if is_shared else 1


def planned_batches(config: Config) -> tuple[BatchPlan, Layout | None]:
    """Returns the batch plan of a new run, and its layout, if it keeps one; ignores the folder of the run.

    Raises:
      ConfigError: if batches cannot be divided, or the settings do not determine the number of replicas.
    """
    replicas = strategy_lib.num_replicas(config)
    if not is_kept(config):
        return make_batch_plan(config, replicas), None
    return lay_out(config, _num_hosts(config), replicas, None)


_RECOMPUTE = config_lib.FIELDS["recompute"].choices  # each keeps less than the previous ones


def capacity(config: Config, rows: int, needed: list[int], bytes_with: Callable[[Config], list[int]]) -> dict:
    """Returns the plan's fields about device memory.

    Args:
      config: configuration of the run.
      rows: rows per step of a replica.
      needed: maximum bytes at once on each device of a replica.
      bytes_with: function config -> `needed` with another --recompute and --num_accumulation_steps.

    Returns:
      `bytes_per_device`; `device_bytes`, the capacity of a device, `fits`, and `fits_with`, the flags of the
      smallest change that makes it fit: None if the device is unknown, no change is needed, or none helps.
    """
    found: dict = {"bytes_per_device": needed, "device_bytes": None, "fits": None, "fits_with": None}
    if config.plan_device is None:
        return found
    limit = device_bytes(config.plan_device)
    found |= {"device_bytes": limit, "fits": max(needed) <= limit}
    for flags in () if found["fits"] or not config.do_train else _changes(config, rows):
        changed = config_lib.replaced(config, **flags)
        # The devices, or their pipeline schedule, may not allow this change.
        with contextlib.suppress(ConfigError):
            BACKENDS[config.distribution_strategy].check(changed)
            if max(bytes_with(changed)) <= limit:
                return found | {"fits_with": " ".join(f"--{name}={value}" for name, value in flags.items())}
    return found


def _changes(config: Config, rows: int) -> Iterator[dict]:
    """Yields changes that need decreasing memory: more recomputation, then smaller micro batches."""
    later = _RECOMPUTE[_RECOMPUTE.index(config.recompute) + 1 :]
    for recompute in later:
        yield {"recompute": recompute}
    for count in range(config.num_accumulation_steps + 1, rows + 1):
        if rows % count == 0:
            yield {**({"recompute": later[-1]} if later else {}), "num_accumulation_steps": count}


def planned_files(config: Config, layout: Layout | None) -> dict | None:
    """Returns {files, streams, hosts, files_per_host} of a pre-training run; None if it reads no files, or
    this machine does not have them.

    Each worker of the layout has its own files; a host reads those of all workers whose micro batches it
    computes.

    Raises:
      ConfigError: if the files cannot be divided among the hosts.
    """
    made_up = config.use_synthetic_data or config.generated_data or config.synthetic_input
    if config.task != "pretrain" or not config.do_train or made_up or not config.input_files:
        return None
    if is_remote(config.input_files) and "@" not in config.input_files:
        return None  # a plan opens no connections
    try:
        count = len(find_files(config.input_files, "input_files"))
    except ConfigError:  # files of another machine
        return None
    hosts = _num_hosts(config)
    workers = layout.workers if layout else hosts
    streams = derived.num_streams(count, config.train_batch_size, config.data_streams)
    derived.check_hosts(count, streams, workers, config.train_batch_size)
    most = 1  # maximum number of workers per host
    if layout and workers != hosts and not layout.micro_batches % hosts:
        most = max(len(shares(layout, host, hosts)) for host in range(hosts))
    per_host = count // workers * most
    return {"files": count, "streams": streams, "hosts": hosts, "files_per_host": per_host}


def expected_times(plan: dict, tflops: float, gbps: float | None) -> dict:
    """Returns the seconds of the run if only matrix products and the all-reduce take time.

    Args:
      plan: the plan of `make_plan` so far.
      tflops: TFLOP/s of one replica's matrix products.
      gbps: GB/s of one replica's all-reduce, or None to leave it out. A ring sends and receives 2 (n - 1) / n
        of the gradient.
    """
    replicas, trains = plan["num_replicas"], plan["train_steps"] != 0
    matmul_secs = plan["flops_per_step"] / replicas / (tflops * 1e12)
    sent_bytes = 2 * (replicas - 1) / replicas * plan["all_reduce_bytes"]
    all_reduce_secs = sent_bytes / (gbps * 1e9) if gbps and trains else None
    step_secs = matmul_secs + (all_reduce_secs or 0.0)
    return {
        "tflops": tflops,
        "gbps": gbps,
        "step_secs": step_secs,
        "matmul_secs": matmul_secs,
        "all_reduce_secs": all_reduce_secs,
        **_of_run(plan, step_secs, matmul_secs),
    }


def measured_times(plan: dict, secs: list[float]) -> dict:
    """Returns the duration of the run at the median of measured steps, in seconds and in hours.

    Args:
      plan: the plan of `make_plan` so far.
      secs: seconds of each measured step.
    """
    step_secs = statistics.median(secs)
    found = {"steps": len(secs), "step_secs": step_secs, **_of_run(plan, step_secs, step_secs)}
    total_secs = found["total_secs"]
    return {**found, "hours": None if total_secs is None else total_secs / 3600}


def _of_run(plan: dict, step_secs: float, compute_secs: float) -> dict:
    """Returns the seconds of a run's training (None if the number of steps depends on its data) and
    evaluations; `compute_secs` is the compute time of a step, of which an evaluation batch takes a share."""
    trains = plan["train_steps"] != 0
    # A forward pass is a third of a step: the backward pass has two matrix products for each one of the
    # forward pass, and one more for recomputed blocks.
    passes = 1 if not trains else 4 if plan["recompute"] == "block" else 3
    sequence_secs = compute_secs / plan["sequences_per_step"] / passes
    evaluations = len(plan["eval_steps"]) if trains else 1
    eval_secs = evaluations * plan["eval_records_read"] * sequence_secs
    steps = None if plan["train_steps"] is None else plan["train_rows"] / plan["global_batch_size"]
    train_secs = None if steps is None else steps * step_secs
    return {
        "train_secs": train_secs,
        "eval_secs": eval_secs,
        "total_secs": None if train_secs is None else train_secs + eval_secs,
        "sequences_per_sec": plan["sequences_per_step"] / step_secs,
    }

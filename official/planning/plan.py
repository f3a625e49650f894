"""What a run would be: sizes, steps, evaluations, memory and time, worked out without devices, data or training."""

import contextlib
import json
import math

import tensorflow as tf

from official import config as config_lib
from official.config import ConfigError
from official.config.cluster import read_cluster
from official.distribution import batch_plan
from official.distribution import strategy as strategy_lib
from official.io.writing import naming_output, replace_file
from official.optimization import schedules
from official.planning import graph_cost


def run(config, make_task) -> str:
    """Makes the plan, writes it to --plan_file where that is set, and returns it as text. Writes nothing
    else.

    Raises:
      ConfigError: for what a run would refuse, and where the file cannot be written.
    """
    plan = make_plan(config, make_task)
    if config.plan_file:
        with naming_output(config.plan_file, "plan_file"):
            replace_file(config.plan_file, json.dumps(plan, indent=2) + "\n")
    return describe(plan)


def make_plan(config, make_task) -> dict:
    """Returns the plan of a run, ready for JSON.

    Args:
      config: the frozen configuration.
      make_task: config -> Task.

    Returns:
      Sizes in sequences, steps and bytes; {step: value} has the step as text. `bytes` are of one replica, and
      their sum is
      the most that lives at once: parameters, gradients and slots exactly, activations from the graph (see
      `graph_cost`). Activations are all else at that moment: what the backward pass or the update still
      needs, and the gradients of a micro batch beside the accumulated ones. `expected` is None without
      --plan_tflops.

    Raises:
      ConfigError: where batches cannot be divided, or the number of replicas does not follow from the
        settings.
    """
    if not config.do_train:
        raise ConfigError("do_train=false: --plan plans a training. Drop --plan, or set --do_train.")
    config = config_lib.with_data(config, None)
    config = config_lib.replaced(
        config, length_buckets="never", fused_ops=False
    )  # the longest batches there can be, in operations whose cost is read
    batches = batch_plan.make_batch_plan(config, num_replicas(config))
    with _precision(config):
        cost = graph_cost.step_cost(config, make_task(config), batches.replica_batch_size)
    steps = config_lib.train_steps(config)
    plan = {
        "task": config.task,
        "strategy": config.distribution_strategy,
        "dtype": config.dtype,
        "enable_xla": config.enable_xla,
        "parameters": cost.parameters,
        "tensors": cost.tensors,
        "num_replicas": batches.num_replicas,
        "num_accumulation_steps": batches.num_accumulation_steps,
        "micro_batch_size": batches.micro_batch_size,
        "replica_batch_size": batches.replica_batch_size,
        "global_batch_size": batches.train_batch_size,
        "train_steps": steps,
        "steps_per_loop": config.steps_per_loop,
        "warmup_steps": config.warmup_steps,
        "learning_rates": learning_rates(config),
        "eval_steps": eval_steps(config),
        "eval_samples_seen": {},
        "flops_per_step": cost.flops * batches.num_replicas,
        # The gradient of a variable has its type and shape.
        "bytes": {
            "parameters": cost.parameter_bytes,
            "gradients": cost.parameter_bytes,
            "optimizer_slots": cost.slot_bytes,
            "activations": cost.peak_bytes - cost.parameter_bytes,
        },
        "total_bytes": cost.parameter_bytes + cost.slot_bytes + cost.peak_bytes,
        "checkpoint_bytes": cost.parameter_bytes + cost.slot_bytes,
        "checkpoint_every_steps": config_lib.checkpoint_every_steps(config),
        "train_records_read": steps * batches.train_batch_size,
        "eval_records_read": config.num_eval_samples if config.do_eval and config.task == "pretrain" else 0,
    }
    plan["eval_samples_seen"] = {str(step): step * batches.train_batch_size for step in plan["eval_steps"]}
    plan["expected"] = expected(plan, config.plan_tflops, config.plan_gbps) if config.plan_tflops else None
    return plan


def num_replicas(config) -> int:
    """Returns the number of replicas that the run would have, as far as this machine can know. Raises
    ConfigError."""
    strategy = config.distribution_strategy
    if strategy == "tpu" and not config.num_tpu_cores:
        raise ConfigError(
            "distribution_strategy=tpu: --plan does not connect to one. Say how many cores it has:"
            " --num_tpu_cores=N."
        )
    if strategy == "tpu" or strategy == "one_device":
        return config.num_tpu_cores or 1
    if config.num_virtual_devices:
        return config.num_virtual_devices
    gpus = len(tf.config.list_physical_devices("GPU")) if config.num_gpus is None else config.num_gpus
    return max(gpus, 1) * (len(read_cluster(config).hosts) if strategy == "multi_worker_mirrored" else 1)


@contextlib.contextmanager
def _precision(config):
    """Sets the precision of the run for the time of a block."""
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(strategy_lib.POLICIES[config.dtype])
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def eval_steps(config) -> list[int]:
    """Returns all steps after which the run would evaluate, if it does not stop at the threshold before."""
    last, step, steps = config_lib.train_steps(config), 0, []
    while step < last:
        step += batch_plan.loop_length(
            step, config.steps_per_loop, batch_plan.next_evaluation(config, step, last)
        )
        if batch_plan.eval_is_due(config, step, last):
            steps.append(step)
    return steps


def learning_rates(config) -> dict[str, float]:
    """Returns {step: learning rate of the update made there} at the corners of the schedule, the middle and
    the end."""
    schedule, steps = schedules.from_config(config), config_lib.train_steps(config)
    warmup_end = math.ceil(config.start_warmup_step + config.warmup_steps) if config.warmup_steps else 0
    corners = {0, config.start_warmup_step, warmup_end - 1, warmup_end, steps // 2, steps - 1}
    return {str(step): float(schedule(step)) for step in sorted(corners) if 0 <= step < steps}


def expected(plan: dict, tflops: float, gbps: float | None) -> dict:
    """Returns the time that the run takes if nothing but matrix products and all-reduce takes time, in
    seconds.

    Args:
      plan: what `make_plan` returns, up to here.
      tflops: TFLOP/s of one replica's matrix products.
      gbps: GB/s of one replica's all-reduce, or None to leave it out. A ring sends and receives 2 (n - 1) / n
        of the gradient.
    """
    replicas, evaluations = plan["num_replicas"], len(plan["eval_steps"])
    matmul_secs = plan["flops_per_step"] / replicas / (tflops * 1e12)
    all_reduce_secs = (
        2 * (replicas - 1) / replicas * plan["bytes"]["gradients"] / (gbps * 1e9) if gbps else None
    )
    step_secs = matmul_secs + (all_reduce_secs or 0.0)
    # A forward pass is a third of a step: the backward pass has two products for each of the forward pass.
    eval_secs = evaluations * plan["eval_records_read"] * matmul_secs / plan["global_batch_size"] / 3
    train_secs = plan["train_steps"] * step_secs
    return {
        "tflops": tflops,
        "gbps": gbps,
        "step_secs": step_secs,
        "matmul_secs": matmul_secs,
        "all_reduce_secs": all_reduce_secs,
        "train_secs": train_secs,
        "eval_secs": eval_secs,
        "total_secs": train_secs + eval_secs,
        "sequences_per_sec": plan["global_batch_size"] / step_secs,
    }


def describe(plan: dict) -> str:
    """Returns the plan as a page of text."""
    sections = {
        "Model": _model_lines(plan),
        "Batch": _batch_lines(plan),
        "Steps": _step_lines(plan),
        "Memory of a replica": _memory_lines(plan),
        "Work": _work_lines(plan),
    }
    width = max(len(name) for lines in sections.values() for name, _ in lines)
    return "\n\n".join(
        "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in lines)])
        for title, lines in sections.items()
    )


def _model_lines(plan: dict) -> list[tuple[str, str]]:
    return [
        ("task", f"{plan['task']}, {plan['dtype']}, {plan['strategy']}"),
        ("parameters", f"{plan['parameters']:,} in {plan['tensors']:,} tensors"),
        ("checkpoint", f"{_size(plan['checkpoint_bytes'])}, every {plan['checkpoint_every_steps']:,} steps"),
    ]


def _batch_lines(plan: dict) -> list[tuple[str, str]]:
    return [
        ("micro batch", f"{plan['micro_batch_size']:,} sequences"),
        (
            "of a replica",
            (
                f"{plan['replica_batch_size']:,} sequences = {plan['num_accumulation_steps']:,} x"
                f" {plan['micro_batch_size']:,}"
            ),
        ),
        (
            "global",
            (
                f"{plan['global_batch_size']:,} sequences = {plan['num_replicas']:,} replicas x"
                f" {plan['replica_batch_size']:,}"
            ),
        ),
    ]


def _step_lines(plan: dict) -> list[tuple[str, str]]:
    steps = plan["eval_steps"]
    shown = [f"{step:,}" for step in (steps if len(steps) <= 8 else steps[:6])]
    evaluations = (
        f"after {', '.join(shown)}{f' ... {steps[-1]:,}' if len(steps) > 8 else ''} ({len(steps)})"
        if steps
        else "none"
    )
    lines = [
        (
            "updates",
            (
                f"{plan['train_steps']:,} in loops of {plan['steps_per_loop']:,};"
                f" {plan['train_records_read']:,} records"
            ),
        ),
        ("evaluations", evaluations),
    ]
    if steps:
        lines.append(
            (
                "first at",
                (
                    f"{plan['eval_samples_seen'][str(steps[0])]:,} sequences; each of"
                    f" {plan['eval_records_read']:,} records"
                ),
            )
        )
    rates = [f"{rate:.4g} at {int(step):,}" for step, rate in plan["learning_rates"].items()]
    return lines + [("learning rate", ", ".join(rates))]


def _memory_lines(plan: dict) -> list[tuple[str, str]]:
    lines = [(name.replace("_", " "), _size(value)) for name, value in plan["bytes"].items()]
    return lines + [
        (
            "at once",
            _size(plan["total_bytes"])
            + (" at most: XLA fuses operations, which is not counted" if plan["enable_xla"] else ""),
        )
    ]


def _work_lines(plan: dict) -> list[tuple[str, str]]:
    lines = [("of a step", f"{plan['flops_per_step'] / 1e12:,.3f} TFLOP in matrix products, all replicas")]
    expected_ = plan["expected"]
    if not expected_:
        return lines + [("time", "not expected without --plan_tflops")]
    all_reduce = expected_["all_reduce_secs"]
    return lines + [
        (
            "step",
            f"{expected_['step_secs']:.4g} s: matrix products {expected_['matmul_secs']:.4g} s, all-reduce "
            + (f"{all_reduce:.4g} s" if all_reduce is not None else "left out (no --plan_gbps)"),
        ),
        (
            "speed",
            f"{expected_['sequences_per_sec']:,.1f} sequences/s at {expected_['tflops']:g} TFLOP/s a replica",
        ),
        (
            "run",
            (
                f"{_duration(expected_['total_secs'])}: training {_duration(expected_['train_secs'])}, "
                f"evaluations {_duration(expected_['eval_secs'])}"
            ),
        ),
    ]


def _size(count: int) -> str:
    return f"{count / 1e9:9,.3f} GB" if count >= 1e8 else f"{count / 1e6:9,.3f} MB"


def _duration(secs: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if secs >= 2 * length:
            return f"{secs / length:.1f} {unit}"
    return f"{secs:.1f} s"

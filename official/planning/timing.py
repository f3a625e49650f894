"""The time of a run, from FLOPs and bytes, or from steps that were measured."""

from __future__ import annotations

import statistics


def expected_times(plan: dict, tflops: float, gbps: float | None) -> dict:
    """Returns the time that the run takes if nothing but matrix products and all-reduce takes time, in
    seconds.

    Args:
      plan: what `make_plan` returns, up to here.
      tflops: TFLOP/s of one replica's matrix products.
      gbps: GB/s of one replica's all-reduce, or None to leave it out. A ring sends and receives 2 (n - 1) / n
        of the gradient.
    """
    replicas, trains = plan["num_replicas"], plan["train_steps"] != 0
    matmul_secs = plan["flops_per_step"] / replicas / (tflops * 1e12)
    all_reduce_secs = (
        2 * (replicas - 1) / replicas * plan["all_reduce_bytes"] / (gbps * 1e9) if gbps and trains else None
    )
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
    """Returns the time that the run takes at the median of measured steps, in seconds and in hours.

    Args:
      plan: what `make_plan` returns, up to here.
      secs: of each step that was measured.
    """
    step_secs = statistics.median(secs)
    found = {"steps": len(secs), "step_secs": step_secs, **_of_run(plan, step_secs, step_secs)}
    return {**found, "hours": found["total_secs"] / 3600}


def _of_run(plan: dict, step_secs: float, compute_secs: float) -> dict:
    """Returns the seconds of a run's training and evaluations; `compute_secs` are those of a step that
    evaluations have a share of."""
    trains = plan["train_steps"] != 0
    # A forward pass is a third of a step: the backward pass has two products for each of the forward pass,
    # and one more where blocks are computed again.
    passes = 1 if not trains else 4 if plan["recompute"] == "block" else 3
    sequence_secs = compute_secs / plan["sequences_per_step"] / passes
    evaluations = len(plan["eval_steps"]) if trains else 1
    eval_secs = evaluations * plan["eval_records_read"] * sequence_secs
    train_secs = (plan["train_steps"] or 0) * step_secs
    return {
        "train_secs": train_secs,
        "eval_secs": eval_secs,
        "total_secs": train_secs + eval_secs,
        "sequences_per_sec": plan["sequences_per_step"] / step_secs,
    }

"""A plan as a page of text."""


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

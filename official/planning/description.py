"""A plan as a page of text."""

from official.config.backends import BACKENDS


def describe(plan: dict) -> str:
    """Returns the plan as a page of text."""
    sections = {
        "Model": _model_lines(plan),
        "Batch": _batch_lines(plan),
        "Steps": _step_lines(plan),
        "Memory of a replica": _memory_lines(plan),
        "Work": _work_lines(plan),
    }
    if plan["pipeline"]:
        sections["Pipeline of a replica"] = _pipeline_lines(plan["pipeline"], plan["strategy"])
        sections["Device Allocation"] = _allocation_lines(plan["pipeline"], plan["strategy"])
    if plan["scaling"]:
        sections |= _scaling_sections(plan["scaling"])
    width = max(len(name) for lines in sections.values() for name, _ in lines)
    return "\n\n".join(
        "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in lines)])
        for title, lines in sections.items()
    )


def _model_lines(plan: dict) -> list[tuple[str, str]]:
    lines = [
        ("task", f"{plan['task']}, {plan['dtype']}, {plan['strategy']}"),
        ("parameters", f"{plan['parameters']:,} in {plan['tensors']:,} tensors"),
    ]
    if not plan["train_steps"]:
        return lines
    copy = plan["checkpoint_copy_bytes"]
    beside = ", beside the training from a copy in the host's memory" if copy else ""
    how_often = f"every {plan['checkpoint_every_steps']:,} steps{beside}"
    return [*lines, ("checkpoint", f"{_size(plan['checkpoint_bytes'])}, {how_often}")]


def _is_packed(plan: dict) -> bool:
    return plan["sequences_per_row"] != 1


def _batch_lines(plan: dict) -> list[tuple[str, str]]:
    unit = "rows" if _is_packed(plan) else "sequences"
    micro, replica = plan["micro_batch_size"], plan["replica_batch_size"]
    lines = [
        ("micro batch", f"{micro:,} {unit}"),
        ("of a replica", f"{replica:,} {unit} = {plan['num_accumulation_steps']:,} x {micro:,}"),
        ("global", f"{plan['global_batch_size']:,} {unit} = {plan['num_replicas']:,} replicas x {replica:,}"),
    ]
    return lines + (_packing_lines(plan) if _is_packed(plan) else [])


def _packing_lines(plan: dict) -> list[tuple[str, str]]:
    average, speedup = plan["sequences_per_row"], plan["packing_speedup"]
    return [
        ("packed", f"about {plan['sequences_per_step']:,} sequences a step, {average:.4g} a row"),
        ("speed-up", f"{speedup:.4g} over one sequence a row: {1 - 1 / speedup:.1%} of the rows are saved"),
    ]


def _step_lines(plan: dict) -> list[tuple[str, str]]:
    if plan["train_steps"] is None:
        return [("updates", "as many as the training data give; --num_steps_per_epoch=N says them")]
    if not plan["train_steps"]:
        return [("updates", "none: evaluation or prediction only")]
    steps = plan["eval_steps"]
    shown = [f"{step:,}" for step in (steps if len(steps) <= 8 else steps[:6])]
    evaluations = (
        f"after {', '.join(shown)}{f' ... {steps[-1]:,}' if len(steps) > 8 else ''} ({len(steps)})"
        if steps
        else "none"
    )
    updates = f"{plan['train_steps']:,} in loops of {plan['steps_per_loop']:,}"
    lines = [("updates", f"{updates}; {_trained_on(plan)}"), *_file_lines(plan), ("evaluations", evaluations)]
    if steps:
        first, read = plan["eval_samples_seen"][str(steps[0])], plan["eval_records_read"]
        unit = "sequences" if _is_packed(plan) else "records"
        lines.append(("first at", f"{first:,} sequences; each of {read:,} {unit}"))
    rates = [f"{rate:.4g} at {int(step):,}" for step, rate in plan["learning_rates"].items()]
    return lines + [("learning rate", ", ".join(rates))]


def _file_lines(plan: dict) -> list[tuple[str, str]]:
    """Returns how many files each host reads, where that is known and there are several hosts."""
    files = plan.get("files")
    if not files or files["hosts"] == 1:
        return []
    how = f"{files['files']:,} in {files['streams']:,} streams; {files['files_per_host']:,} a host"
    return [("files", f"{how}, of {files['hosts']:,}")]


def _trained_on(plan: dict) -> str:
    records = plan["train_records_read"]
    if not _is_packed(plan):
        return f"{records:,} records"
    how = "packed before" if records == plan["train_rows"] else "packed while they are read"
    return f"about {plan['train_sequences']:,} sequences in {plan['train_rows']:,} rows, {how}"


def _memory_lines(plan: dict) -> list[tuple[str, str]]:
    lines = [(name.replace("_", " "), _size(value)) for name, value in plan["bytes"].items() if value]
    about = ", about: XLA orders and fuses operations itself" if plan["enable_xla"] else ""
    return [*lines, ("at once", _size(plan["total_bytes"]) + about), *_device_lines(plan)]


def _device_lines(plan: dict) -> list[tuple[str, str]]:
    """Returns the lines on recomputation, and whether the run fits its devices."""
    again = {"attention": "softmax and dropout of attention", "block": "whole blocks"}.get(plan["recompute"])
    lines = [("computed again", f"{again}, in the backward pass")] if again else []
    if plan["fits"] is None:
        return lines
    left = plan["device_bytes"] - max(plan["bytes_per_device"])
    if plan["fits"]:
        return [*lines, ("device", f"{_size(plan['device_bytes'])}: it fits, {_size(left).strip()} are left")]
    with_what = (
        f"It fits with {plan['fits_with']}"
        if plan["fits_with"]
        else "No --recompute or smaller micro batch makes it fit"
    )
    return [
        *lines,
        ("device", _size(plan["device_bytes"])),
        ("WARNING", f"it does not fit, {_size(-left).strip()} are missing. {with_what}."),
    ]


def _work_lines(plan: dict) -> list[tuple[str, str]]:
    unit = "batch" if plan["train_steps"] == 0 else "step"
    lines = [(f"of a {unit}", f"{plan['flops_per_step'] / 1e12:,.3f} TFLOP in matrix products, all replicas")]
    lines += _measured_lines(plan)
    expected_ = plan["expected"]
    if not expected_:
        how = "--measure runs three steps here, --plan_tflops=N computes it"
        return lines if plan["measured"] else [*lines, ("time", f"not known: {how}")]
    speed = f"{expected_['sequences_per_sec']:,.1f} sequences/s at {expected_['tflops']:g} TFLOP/s a replica"
    if not plan["train_steps"]:
        return lines + [(unit, f"{expected_['step_secs']:.4g} s"), ("speed", speed)]
    all_reduce = expected_["all_reduce_secs"]
    return lines + [
        (
            "step",
            f"{expected_['step_secs']:.4g} s: matrix products {expected_['matmul_secs']:.4g} s, all-reduce "
            + (f"{all_reduce:.4g} s" if all_reduce is not None else "left out (no --plan_gbps)"),
        ),
        ("speed", speed),
        ("run", _run(expected_)),
    ]


def _measured_lines(plan: dict) -> list[tuple[str, str]]:
    """Returns the time of the run by the steps that --measure has run."""
    measured = plan["measured"]
    if not measured:
        return []
    speed = f"{measured['sequences_per_sec']:,.4g} sequences/s"
    lines = [
        ("measured step", f"{measured['step_secs']:.4g} s, the median of {measured['steps']}"),
        ("measured speed", f"{speed}, generated data in rows of full length"),
    ]
    return [*lines, ("measured run", _run(measured))] if plan["train_steps"] else lines


def _run(times: dict) -> str:
    parts = [_duration(times[name]) for name in ("total_secs", "train_secs", "eval_secs")]
    return f"{parts[0]}: training {parts[1]}, evaluations {parts[2]}"


def _duration(secs: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if secs >= 2 * length:
            return f"{secs / length:.1f} {unit}"
    return f"{secs:.1f} s"


def _scaling_sections(scaling: dict) -> dict[str, list[tuple[str, str]]]:
    """Returns {title: lines} of a plan's `scaling`, a line (hosts, step) each."""
    return {
        f"Hosts, each with its {scaling['replicas_per_host']:,} replicas and their batch": [
            ("assumed", _assumed(scaling)),
            *((_hosts(row), _step(row["same_share"])) for row in scaling["hosts"]),
        ],
        "Hosts that share the batch of the run": _shared(scaling),
    }


def _shared(scaling: dict) -> list[tuple[str, str]]:
    """Returns a line for each number of hosts that can share the batch, and one for all that cannot."""
    steps = [(row, row["same_batch"]) for row in scaling["hosts"]]
    lines = [
        (
            _hosts(row),
            f"{_step(step)}; {step['num_accumulation_steps']:,} x {step['micro_batch_size']:,} rows a"
            " replica",
        )
        for row, step in steps
        if step
    ]
    uneven = [row["hosts"] for row, step in steps if not step]
    if uneven:
        can = scaling["sharing"]
        lines.append(("not evenly", f"{_numbers(uneven)} hosts. These can share it: {_numbers(can)}"))
    return lines


def _numbers(counts: list[int]) -> str:
    """Returns rising numbers, the middle of many left out."""
    shown = [f"{count:,}" for count in counts]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:9], "...", *shown[-2:]])


def _assumed(scaling: dict) -> str:
    parts = [
        "the step as measured" if scaling["source"] == "measure" else "the step by --plan_tflops",
        f"{scaling['gbps']:g} GB/s a host",
        f"{scaling['latency_usecs']:g} us a message",
    ]
    return ", ".join(parts)


def _hosts(row: dict) -> str:
    return f"{row['hosts']:,} host{'s' * (row['hosts'] > 1)}"


def _step(step: dict) -> str:
    """Returns a step: its time, what of it is all-reduce, sequences a second, efficiency."""
    waited = step["all_reduce_secs"]
    waits = f"all-reduce {waited:.3g} s" if waited else "no all-reduce"
    rate = step["sequences_per_sec"]
    speed = f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"
    return f"{step['step_secs']:.4g} s, {waits}, {speed} sequences/s, {step['efficiency']:.1%}"


def device_label(strategy: str) -> str:
    """Returns the word for one device of a pipeline."""
    return "IPU" if BACKENDS[strategy].graphcore_rules else "device"


def _pipeline_lines(pipeline: dict, strategy: str) -> list[tuple[str, str]]:
    """Returns (name, text) of the stages, the schedule, and what each device holds.

    Args:
      pipeline: of the plan.
      strategy: the value of --distribution_strategy.
    """
    label = device_label(strategy)
    others = [
        f"{name} {bubble:.1%}" for name, bubble in pipeline["bubbles"].items() if name != pipeline["schedule"]
    ]
    devices = ",".join(map(str, pipeline["devices"]))
    lines = [
        ("stages", pipeline["notation"]),
        ("on", f"{label} {devices}"),
        (
            "schedule",
            f"{pipeline['schedule']}, {pipeline['micro_batches']:,} micro batches: devices wait"
            f" {pipeline['bubble']:.1%}" + (f" ({', '.join(others)})" if others else ""),
        ),
        ("in flight", f"{', '.join(map(str, pipeline['in_flight']))} micro batches, in the stages"),
    ]
    for device, held in enumerate(pipeline["bytes_per_device"]):
        lines.append((f"{label} {device}", _held_line(held, pipeline["offloaded_bytes"][device])))
    return lines


def _held_line(held: dict[str, int], offloaded: int) -> str:
    parts = [
        f"{name.replace('_', ' ')} {_size(count).strip()}"
        for name, count in held.items()
        if count and name != "total"
    ]
    beside = f"; optimizer slots {_size(offloaded).strip()} beside it" if offloaded else ""
    return f"{_size(held['total']).strip()} = {' + '.join(parts)}{beside}"


def _allocation_lines(pipeline: dict, strategy: str) -> list[tuple[str, str]]:
    """Returns (part of the model, device), as Graphcore's logs have it."""
    return [(part, f"--> {device_label(strategy)} {device}") for part, device in pipeline["allocation"]]


def _size(count: int) -> str:
    """Returns bytes as megabytes or gigabytes."""
    return f"{count / 1e9:9,.3f} GB" if count >= 1e8 else f"{count / 1e6:9,.3f} MB"

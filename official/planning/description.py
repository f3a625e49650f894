"""Formats a plan as text."""

from official.config.backends import BACKENDS

Lines = list[tuple[str, str]]


def describe(plan: dict) -> str:
    """Returns the plan as text."""
    sections = {
        "Model": _model_lines(plan),
        "Batch": _batch_lines(plan),
        "Steps": _step_lines(plan),
        "Memory of a replica": _memory_lines(plan),
        "Work": _work_lines(plan),
    }
    if plan["pipeline"]:
        label = device_label(plan["strategy"])
        sections["Pipeline of a replica"] = _pipeline_lines(plan["pipeline"], label)
        # The same format as in Graphcore's logs.
        devices = plan["pipeline"]["allocation"]
        sections["Device Allocation"] = [(part, f"--> {label} {device}") for part, device in devices]
    if plan["scaling"]:
        sections |= _scaling_sections(plan["scaling"])
    width = max(len(name) for lines in sections.values() for name, _ in lines)
    return "\n\n".join(
        "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in lines)])
        for title, lines in sections.items()
    )


def _model_lines(plan: dict) -> Lines:
    lines = [
        ("task", f"{plan['task']}, {plan['dtype']}, {plan['strategy']}"),
        ("parameters", f"{plan['parameters']:,} in {plan['tensors']:,} tensors"),
    ]
    if plan["train_steps"]:
        copied = ", in the background, from a copy in the host's memory"
        how_often = f"every {plan['checkpoint_every_steps']:,} steps"
        how_often += copied if plan["checkpoint_copy_bytes"] else ""
        lines.append(("checkpoint", f"{_size(plan['checkpoint_bytes'])}, {how_often}"))
    return lines


def _batch_lines(plan: dict) -> Lines:
    average, micro, replica = (
        plan[name] for name in ("sequences_per_row", "micro_batch_size", "replica_batch_size")
    )
    unit = "rows" if average != 1 else "sequences"
    lines = [
        ("micro batch", f"{micro:,} {unit}"),
        ("of a replica", f"{replica:,} {unit} = {plan['num_accumulation_steps']:,} x {micro:,}"),
        ("global", f"{plan['global_batch_size']:,} {unit} = {plan['num_replicas']:,} replicas x {replica:,}"),
    ]
    if plan["batch_warmup"]:
        stages = [f"{rows:,} from step {int(step):,}" for step, rows in plan["batch_warmup"].items()]
        lines.append(("growing", ", ".join(stages)))
    if average != 1:
        speedup = plan["packing_speedup"]
        saved = f"{speedup:.4g} over one sequence a row: {1 - 1 / speedup:.1%} of the rows are saved"
        packed = f"about {plan['sequences_per_step']:,} sequences a step, {average:.4g} a row"
        lines += [("packed", packed), ("speed-up", saved)]
    return lines


def _step_lines(plan: dict) -> Lines:
    if plan["budget_hours"]:
        rates = [f"{rate:.4g} at {hours} h" for hours, rate in plan["learning_rates"].items()]
        how = f"as many as fit into {plan['budget_hours']:g} hours, with compilation and evaluations"
        return [("updates", f"{how}: the plan cannot know them"), ("learning rate", ", ".join(rates))]
    if plan["train_steps"] is None:
        return [("updates", "as many as the training data give; --num_steps_per_epoch=N sets them")]
    if not plan["train_steps"]:
        return [("updates", "none: evaluation or prediction only")]
    records, is_packed = plan["train_records_read"], plan["sequences_per_row"] != 1
    read = f"{records:,} records"
    if is_packed:
        how = "packed before" if records == plan["train_rows"] else "packed while they are read"
        read = f"about {plan['train_sequences']:,} sequences in {plan['train_rows']:,} rows, {how}"
    first = plan["first_step"]
    after = f" after the {first:,} of the checkpoint" if first else ""
    updates = f"{plan['train_steps'] - first:,}{after} in loops of {plan['steps_per_loop']:,}; {read}"
    lines, files, steps = [("updates", updates)], plan.get("files"), plan["eval_steps"]
    if files and files["hosts"] > 1:
        streams = f"{files['files']:,} in {files['streams']:,} streams"
        lines.append(("files", f"{streams}; {files['files_per_host']:,} a host, of {files['hosts']:,}"))
    if steps:
        shown = ", ".join(f"{step:,}" for step in (steps if len(steps) <= 8 else steps[:6]))
        shown += f" ... {steps[-1]:,}" if len(steps) > 8 else ""
        first, unit = plan["eval_samples_seen"][str(steps[0])], "sequences" if is_packed else "records"
        lines.append(("evaluations", f"after {shown} ({len(steps)})"))
        lines.append(("first at", f"{first:,} sequences; each of {plan['eval_records_read']:,} {unit}"))
    else:
        lines.append(("evaluations", "none"))
    rates = [f"{rate:.4g} at {int(step):,}" for step, rate in plan["learning_rates"].items()]
    return [*lines, ("learning rate", ", ".join(rates))]


def _memory_lines(plan: dict) -> Lines:
    lines = [(name.replace("_", " "), _size(value)) for name, value in plan["bytes"].items() if value]
    about = ", about: XLA orders and fuses operations itself" if plan["enable_xla"] else ""
    lines.append(("at once", _size(plan["total_bytes"]) + about))
    again = {"attention": "softmax and dropout of attention", "block": "whole blocks"}.get(plan["recompute"])
    if again:
        lines.append(("computed again", f"{again}, in the backward pass"))
    if plan["fits"] is None:
        return lines
    device, left = _size(plan["device_bytes"]), plan["device_bytes"] - max(plan["bytes_per_device"])
    if plan["fits"]:
        return [*lines, ("device", f"{device}: it fits, {_size(left).strip()} are left")]
    change = plan["fits_with"]
    helps = f"It fits with {change}" if change else "No --recompute or smaller micro batch makes it fit"
    missing = f"it does not fit, {_size(-left).strip()} are missing. {helps}."
    return [*lines, ("device", device), ("WARNING", missing)]


def _work_lines(plan: dict) -> Lines:
    expected, measured = plan["expected"], plan["measured"]
    budget_secs = (plan["budget_hours"] or 0) * 3600
    unit = "batch" if plan["train_steps"] == 0 else "step"
    lines = [(f"of a {unit}", f"{plan['flops_per_step'] / 1e12:,.3f} TFLOP in matrix products, all replicas")]
    if measured:
        speed = f"{measured['sequences_per_sec']:,.4g} sequences/s"
        lines += [
            ("measured step", f"{measured['step_secs']:.4g} s, the median of {measured['steps']}"),
            ("measured speed", f"{speed}, generated data in rows of full length"),
            *([("measured run", _run(measured))] if plan["train_steps"] else []),
            *([("measured updates", _in_budget(budget_secs, measured))] if budget_secs else []),
        ]
    if not expected:
        how = "not known: --measure runs three steps here, --plan_tflops=N computes it"
        return lines if measured else [*lines, ("time", how)]
    step = f"{expected['step_secs']:.4g} s"
    if plan["train_steps"]:
        waited = expected["all_reduce_secs"]
        waits = f"{waited:.4g} s" if waited is not None else "left out (no --plan_gbps)"
        step += f": matrix products {expected['matmul_secs']:.4g} s, all-reduce {waits}"
    speed = f"{expected['sequences_per_sec']:,.1f} sequences/s at {expected['tflops']:g} TFLOP/s a replica"
    lines += [(unit, step), ("speed", speed)]
    if budget_secs:
        return [*lines, ("updates", _in_budget(budget_secs, expected))]
    return [*lines, ("run", _run(expected))] if plan["train_steps"] else lines


def _in_budget(secs: float, times: dict) -> str:
    """Returns the maximum number of steps within a time budget."""
    return f"{secs / times['step_secs']:,.0f} at most, {secs * times['sequences_per_sec']:,.0f} sequences"


def _run(times: dict) -> str:
    total, training, evaluations = (
        _duration(times[name]) for name in ("total_secs", "train_secs", "eval_secs")
    )
    return f"{total}: training {training}, evaluations {evaluations}"


def _duration(secs: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if secs >= 2 * length:
            return f"{secs / length:.1f} {unit}"
    return f"{secs:.1f} s"


def _scaling_sections(scaling: dict) -> dict[str, Lines]:
    """Returns {title: lines} of a plan's `scaling`: a line (hosts, step) for each number of hosts that can
    share the batch of the run, and one line for all others."""
    source = "the step as measured" if scaling["source"] == "measure" else "the step by --plan_tflops"
    latency = f"{scaling['latency_usecs']:g} us a message"
    own, shared, uneven = [("assumed", f"{source}, {scaling['gbps']:g} GB/s a host, {latency}")], [], []
    for row in scaling["hosts"]:
        name, batch = f"{row['hosts']:,} host{'s' * (row['hosts'] > 1)}", row["same_batch"]
        own.append((name, _step(row["same_share"])))
        if batch:
            rows = f"{batch['num_accumulation_steps']:,} x {batch['micro_batch_size']:,} rows a replica"
            shared.append((name, f"{_step(batch)}; {rows}"))
        else:
            uneven.append(row["hosts"])
    if uneven:
        can = f"{_numbers(uneven)} hosts. These can share it: {_numbers(scaling['sharing'])}"
        shared.append(("not evenly", can))
    title = f"Hosts, each with its {scaling['replicas_per_host']:,} replicas and their batch"
    return {title: own, "Hosts that share the batch of the run": shared}


def _numbers(counts: list[int]) -> str:
    """Formats sorted numbers; of many, the middle is left out."""
    shown = [f"{count:,}" for count in counts]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:9], "...", *shown[-2:]])


def _step(step: dict) -> str:
    """Formats a step: its time, the all-reduce's part of it, sequences per second, efficiency."""
    waited = step["all_reduce_secs"]
    waits = f"all-reduce {waited:.3g} s" if waited else "no all-reduce"
    rate = step["sequences_per_sec"]
    speed = f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"
    return f"{step['step_secs']:.4g} s, {waits}, {speed} sequences/s, {step['efficiency']:.1%}"


def device_label(strategy: str) -> str:
    """Returns the word for one device of a pipeline."""
    return "IPU" if BACKENDS[strategy].graphcore_rules else "device"


def _pipeline_lines(pipeline: dict, label: str) -> Lines:
    """Returns (name, text) of the stages, the schedule, and the memory of each device."""
    schedule = pipeline["schedule"]
    others = [f"{name} {bubble:.1%}" for name, bubble in pipeline["bubbles"].items() if name != schedule]
    waits = f"{pipeline['micro_batches']:,} micro batches: devices wait {pipeline['bubble']:.1%}"
    waits += f" ({', '.join(others)})" if others else ""
    lines = [
        ("stages", pipeline["notation"]),
        ("on", f"{label} {','.join(map(str, pipeline['devices']))}"),
        ("schedule", f"{schedule}, {waits}"),
        ("in flight", f"{', '.join(map(str, pipeline['in_flight']))} micro batches, in the stages"),
    ]
    for device, held in enumerate(pipeline["bytes_per_device"]):
        sizes = {name: _size(count).strip() for name, count in held.items() if count or name == "total"}
        total, offloaded = sizes.pop("total"), pipeline["offloaded_bytes"][device]
        parts = " + ".join(f"{name.replace('_', ' ')} {size}" for name, size in sizes.items())
        beside = f"; optimizer slots {_size(offloaded).strip()} beside it" if offloaded else ""
        lines.append((f"{label} {device}", f"{total} = {parts}{beside}"))
    return lines


def _size(count: int) -> str:
    """Formats bytes as megabytes or gigabytes."""
    return f"{count / 1e9:9,.3f} GB" if count >= 1e8 else f"{count / 1e6:9,.3f} MB"

"""The model of scaling fitted to one published run, and what it then predicts of the others."""

from __future__ import annotations

from official.cli import flags
from official.cli.benchmark.published_runs import IPU, RUNS, PublishedRun
from official.planning import plan as plan_lib
from official.planning import scaling_fit, scaling_plan
from official.planning.scaling import Batch
from official.planning.scaling_fit import Run
from official.reporting import palette, plots
from official.reporting.scaling_picture import Curve, Panel, plot_scaling
from official.tasks import TASKS

PODS = tuple(run.name for run in RUNS if "packed" in run.name)
_TWO = PODS[:2]  # that the cost of a step beside its micro batches is fitted to, too


def read_run(published: PublishedRun) -> tuple[Run, dict]:
    """Returns (a published run as the model sees it, its plan): each replica at its peak."""
    device, count = published.device, published.devices_per_replica
    config = flags.parse(
        [
            f"--config={published.config}",
            "--model_dir=unused",
            "--plan",
            "--plan_hosts=1",
            f"--plan_tflops={device.peak_tflops * count}",
            f"--plan_gbps={device.gb_per_sec * count}",
            *(["--distribution_strategy=ipu"] if device is IPU else []),
        ]
    )
    plan = plan_lib.make_plan(config, TASKS[config.task])
    work, network = scaling_plan.work_of(config, plan), scaling_plan.network_of(config, plan)
    batch = Batch(published.accumulation, plan["micro_batch_size"])
    step_secs = _sequences(plan, batch) / published.sequences_per_sec
    return Run(published.name, work, network, 1, batch, step_secs), plan


def _sequences(plan: dict, batch: Batch) -> float:
    """Returns the sequences of a step of all replicas."""
    return plan["num_replicas"] * batch.accumulation * batch.rows * plan["sequences_per_row"]


def compare() -> dict:
    """Returns, ready for JSON, the published runs, and for each of them what a model that is fitted to it
    alone predicts of all; and what one predicts that is fitted to two of the pods."""
    runs, rows = [], []
    for published in RUNS:
        run, plan = read_run(published)
        runs.append(run)
        rows.append(_row(published, run, plan))
    share, update_secs = scaling_fit.share_and_update([run for run in runs if run.name in _TWO])
    return {
        "runs": rows,
        "fits": [
            {"fitted_to": [run.name], "share_of_peak": scaling_fit.share_of_peak(run), "update_secs": 0.0}
            | {"predictions": _predictions(runs, rows, scaling_fit.share_of_peak(run), 0.0)}
            for run in runs
        ]
        + [
            {"fitted_to": list(_TWO), "share_of_peak": share, "update_secs": update_secs}
            | {"predictions": _predictions(runs, rows, share, update_secs)}
        ],
    }


def _row(published: PublishedRun, run: Run, plan: dict) -> dict:
    """Returns a published run, with what its plan says of it."""
    return {
        "name": published.name,
        "config": published.config,
        "device": published.device._asdict(),
        "devices": plan["num_replicas"] * published.devices_per_replica,
        "replicas": plan["num_replicas"],
        "num_accumulation_steps": run.batch.accumulation,
        "sequences_per_step": _sequences(plan, run.batch),
        "flops_per_sequence": plan["flops_per_step"] / plan["sequences_per_step"],
        "gradient_bytes": run.work.gradient_bytes,
        "fill": run.work.fill,
        "sequences_per_sec": published.sequences_per_sec,
        "samples": published.samples,
        "minutes": published.minutes,
        "source": published.source,
    }


def _predictions(runs: list[Run], rows: list[dict], share: float, update_secs: float) -> dict[str, dict]:
    """Returns {run: its predicted speed, by how much that is off, and its minutes of training}."""
    found = {}
    for run, row in zip(runs, rows):
        rate = row["sequences_per_step"] / scaling_fit.predicted_secs(run, share, update_secs)
        found[run.name] = {
            "sequences_per_sec": rate,
            "off": rate / row["sequences_per_sec"] - 1,
            "minutes": row["samples"] / rate / 60 if row["samples"] else None,
        }
    return found


def table(record: dict) -> str:
    """Returns the runs with their numbers, then how far off each fit is of each of them."""
    runs = record["runs"]
    width = max(len(row["name"]) for row in runs) + 6
    lines = [f"{'run':<{width}}{'devices':>8}{'sequences/s':>13}{'minutes':>9}"]
    for number, row in enumerate(runs, 1):
        minutes = f"{row['minutes']:.2f}" if row["minutes"] else "-"
        name = f"{number}. {row['name']}"
        lines.append(f"{name:<{width}}{row['devices']:>8,}{row['sequences_per_sec']:>13,.1f}{minutes:>9}")
    numbers = "".join(f"{number:>8}" for number in range(1, len(runs) + 1))
    lines += ["", f"{'fitted to: predicted sequences/s are off by':<{width + 22}}{numbers}"]
    for fit in record["fits"]:
        offs = "".join(f"{fit['predictions'][row['name']]['off']:>+8.0%}" for row in runs)
        name = f"{' and '.join(fit['fitted_to'])}: {fit['share_of_peak']:.1%} of the peak"
        if fit["update_secs"]:
            name = (
                f"16 and 64 packed: {fit['share_of_peak']:.1%} of the peak, {fit['update_secs']:.3g} s a step"
            )
        lines.append(f"{name:<{width + 22}}{offs}")
    return "\n".join(lines)


def draw(record: dict) -> bytes:
    """Returns the picture (PNG): the pods, measured and predicted, and all runs by the fit to the first."""
    return plots.render(plot_scaling([_pods(record)]), "png")


def _pods(record: dict) -> Panel:
    rows = {row["name"]: row for row in record["runs"] if row["name"] in PODS}
    first = rows[PODS[0]]

    def share(name: str, rate: float) -> tuple[int, float]:
        devices = rows[name]["devices"]
        return devices, rate / devices / (first["sequences_per_sec"] / first["devices"])

    def curve(label: str, fit: dict, color: str) -> Curve:
        rates = ((name, fit["predictions"][name]["sequences_per_sec"]) for name in PODS)
        return Curve(label, tuple(share(name, rate) for name, rate in rates), False, color)

    fits = {tuple(fit["fitted_to"]): fit for fit in record["fits"]}
    measured = tuple(share(name, row["sequences_per_sec"]) for name, row in rows.items())
    curves = (
        Curve("published", measured, True, palette.INK),
        curve("fitted to 16 IPUs", fits[(PODS[0],)], palette.BLUE),
        curve("fitted to 16 and 64 IPUs", fits[_TWO], palette.VERMILION),
    )
    unit = "sequences a second and IPU, share of those of 16"
    return Panel("BERT-large, packed, 512 tokens (MLPerf 2.0)", unit, "IPUs", curves)

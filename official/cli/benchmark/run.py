"""Runs the benchmarks of a YAML file, takes their numbers from what they print, and writes JSON, CSV, XML,
markdown and a chart.

  bert benchmark --spec=benchmarks.yml --benchmark=pretrain_base_128_gen_cpu
  python scripts/benchmark.py --spec benchmarks.yml --log-dir logs

The format is that of Graphcore's `examples_utils benchmark`; so are the names of the options. A benchmark
that fails is reported, and the others run. Exit code 1 where one has failed.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import itertools
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from official.cli import command_line, outputs
from official.cli.benchmark import runs, spec
from official.cli.benchmark.runs import COMPILING, number_of
from official.io.errors import ConfigError, suggest
from official.io.writing import check_output_file
from official.reporting import palette, plots

# -----------------------------------------------------------------------------------------------------------
# Results as files and as text


Result = dict[str, Any]  # of a variant
Variants = Mapping[str, runs.Variant]  # by their names
ADDITIONAL = ("test_duration", "loss", "result", "cmd", "env", "git_commit_hash")
_CSV_METRICS = ("throughput", "latency", COMPILING)
_LOSSES = ("loss", "total_loss", "mlm_loss")
_OF_THE_MACHINE = ("benchmark_path", "log_paths", "latest_checkpoint_path", "sdk_path")
_DASH = "\u2013"


def verdict(result: Result) -> str:
    """Returns PASSED or FAILED."""
    return "FAILED" if result["exitcode"] else "PASSED"


def count_failed(results: list[Result]) -> int:
    return sum(result["exitcode"] != 0 for result in results)


def summary(results: list[Result]) -> str:
    """Returns a line for each run, and the number of failed ones."""
    lines = [f"{verdict(each)} {each['benchmark_name']}::{each['benchmark_name']}" for each in results]
    failed = count_failed(results)
    title = " short test summary info ".center(62, "=")
    counts = f" {failed} failed, {len(results) - failed} passed "
    return "\n".join([title, "", *lines, "", counts.center(62, "=")])


def to_json(results: list[Result]) -> str:
    """Returns {benchmark: [result of a variant, ...]}, as published."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result["benchmark_name"], []).append(result)
    return json.dumps(found, sort_keys=True, indent=2) + "\n"


def to_csv(results: list[Result], more: Iterable[str], variants: Variants | None) -> str:
    """Returns a line for each variant: the published metrics, `more` metrics, and with `variants` the columns
    of `ADDITIONAL`."""
    names = list(dict.fromkeys([*_CSV_METRICS, *more]))
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["benchmark name", "Variant name", *names, *(ADDITIONAL if variants else ())])
    commit = _commit() if variants else None
    for result in results:
        found = result["results"]
        row = [result["benchmark_name"], result["variant_name"], *(number_of(found, name) for name in names)]
        if variants:
            loss = next((number_of(found, name) for name in _LOSSES if name in found), None)
            env = json.dumps(variants[result["variant_name"]].added_env)
            row += [result["test_duration"], loss, verdict(result), result["command"], env, commit]
        writer.writerow(row)
    return text.getvalue()


def _commit() -> str | None:
    """Returns the commit of the working folder."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def to_xml(results: list[Result]) -> str:
    """Returns the runs as a suite of tests in JUnit's XML, which systems that run tests show."""
    counts = {"tests": str(len(results)), "failures": str(count_failed(results))}
    root = xml.Element("testsuites")
    suite = xml.SubElement(root, "testsuite", {"name": "benchmarks", **counts})
    for each in results:
        names = {"classname": each["benchmark_name"], "name": each["variant_name"]}
        case = xml.SubElement(suite, "testcase", {**names, "time": each["test_duration"]})
        if each["exitcode"]:
            message = "; ".join(each["problems"])
            printable = "".join(letter if letter.isprintable() else " " for letter in message)
            xml.SubElement(case, "failure", {"message": printable})
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def to_columns(results: list[Result], variants: Variants) -> list[tuple[str, list[str]]]:
    """Returns (title, a cell for each run): name, how it went, seconds, and what `output` of the entries
    lists."""
    found = {
        "benchmark": [each["variant_name"] for each in results],
        "result": [verdict(each) for each in results],
        "seconds": [f"{float(each['test_duration']):,.0f}" for each in results],
    }
    for row, each in enumerate(results):
        for label, name in variants[each["variant_name"]].benchmark.columns:
            number = _shown(each, name)
            cell = each["params"].get(name, _DASH) if number is None else format_number(number)
            found.setdefault(label, [_DASH] * len(results))[row] = cell
    return list(found.items())


def _shown(result: Result, name: str) -> float | None:
    """Returns the number of a metric as tables and charts show it: the speed with all its digits."""
    return result["sequences_per_sec"] if name == "throughput" else number_of(result["results"], name)


def format_number(value: float) -> str:
    """Returns a number with three digits that count, at least, and commas between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def to_markdown(columns: list[tuple[str, list[str]]]) -> str:
    """Returns a table in markdown."""
    head = [title for title, _ in columns]
    lines = [head, ["---"] * len(head), *zip(*(cells for _, cells in columns))]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def draw(results: list[Result], variants: Variants) -> bytes | None:
    """Draws a bar for each run, the first column of its `output`, in a panel for each unit. Returns a PNG,
    None without numbers."""
    found: dict[str, dict[str, float]] = {}
    for each in results:
        for unit, name in variants[each["variant_name"]].benchmark.columns[:1]:
            number = _shown(each, name)
            if number is not None:
                found.setdefault(unit, {})[each["variant_name"]] = number
    if not found:
        return None
    counts = [len(values) for values in found.values()]
    with plots.style():
        figure = plots.new_figure(9.0, sum(0.62 + 0.32 * count for count in counts))
        panels = figure.subplots(len(found), squeeze=False, height_ratios=counts)[:, 0]
        for axes, (unit, values), color in zip(panels, found.items(), itertools.cycle(palette.COLORS)):
            bars = axes.barh(list(values), list(values.values()), height=0.62, color=color)
            axes.bar_label(bars, [format_number(value) for value in values.values()], padding=5, fontsize=9)
            axes.invert_yaxis()
            axes.margins(x=0.12)
            axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=palette.INK)
            axes.grid(visible=False)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            axes.set_title(unit, loc="left", fontsize=11, fontweight="bold", color=palette.INK)
        figure.tight_layout()
        return plots.render(figure, "png")


# -----------------------------------------------------------------------------------------------------------
# bert benchmark run


_FILES = ("benchmark_results.json", "benchmark_results.csv", "benchmark_results.xml", "benchmark_results.md")
_PICTURE = "benchmark_results.png"
# Options of the published runner that are refused -> why.
_REFUSED = {
    "gc_monitor": "it shows IPUs, every 5 seconds: run gc-monitor beside the benchmark",
    "no_code_sync": "nothing is copied to other machines: they share the folder, or have a copy",
    "remove_dirs_after": "nothing is copied to other machines, so that nothing is there to remove",
    "upload_checkpoints": "checkpoints stay where the command writes them; see latest_checkpoint_path",
    "submit_on_slurm": "submit this command itself, with sbatch",
    "slurm_machine_type": "submit this command itself, with sbatch",
    "slurm_resource_reservation": "submit this command itself, with sbatch",
    "ignore_errors": "a benchmark that fails stops nothing, unless --stop_on_error is given",
    "examples_location": "entries run in the folder of their file; see location and reference_directory",
    "sdk_path": "activate the SDK before; POPLAR_SDK_ENABLED tells where it is",
    "venv_path": "activate the environment before",
}


class Main(command_line.Flags):
    """Runs the benchmarks of a YAML file, takes their numbers from what they print, and writes JSON, CSV,
    XML, markdown and a chart.

    Attributes:
      spec: Files of benchmarks, separated by commas or blanks.
      benchmark: Which to run, in this order, separated by commas or blanks. Unset: all.
      log_dir: Folder for logs and results. Unset: log_<time> in the working folder.
      output: Also write OUTPUT.json with machine and versions, OUTPUT.md and a chart, OUTPUT.png.
      overwrite: Replace results in --log_dir and of --output.
      csv_metrics: More metrics that the CSV has columns for, separated by commas or blanks.
      additional_metrics: More columns: test_duration, loss, result, cmd, env, git_commit_hash.
      custom_metrics_files: Python files that call register_custom_metric(name, function).
      logging: Which messages are shown, and Poplar's level in runs on IPUs.
      timeout: Seconds of a run at most; then all its processes are ended.
      stop_on_error: Stop after the first benchmark that fails.
      compile_only: Give --compile-only to the programs; look for no numbers.
      allow_wandb: Keep arguments for W&B; else they are taken out.
      ignore_wandb: Take them out where an entry allows them, too.
      include_convergence: Without --benchmark: entries with _conv, too.
      profile: Runs on IPUs write Poplar's reports to <variant>_profile.
      requirements_file: File that pip installs before the first run.
      progress_trace_period: Seconds between two lines of time, on a terminal.
    """

    ALIASES = {"logdir": "log_dir"}
    LISTS = ("spec", "benchmark", "csv_metrics", "custom_metrics_files")
    spec: str = "benchmarks.yml"
    benchmark: str | None = None
    log_dir: str | None = None
    output: str | None = None
    overwrite: bool = False
    csv_metrics: str | None = None
    additional_metrics: bool = False
    custom_metrics_files: str | None = None
    logging: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    timeout: float | None = None
    stop_on_error: bool = False
    compile_only: bool = False
    allow_wandb: bool = False
    ignore_wandb: bool = False
    include_convergence: bool = False
    profile: bool = False
    requirements_file: str | None = None
    progress_trace_period: float = 1.0


def parse_flags() -> argparse.Namespace:
    for word in sys.argv[1:]:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in _REFUSED:
            raise ConfigError(f"--{name} is not an option here: {_REFUSED[name]}.")
    flags: argparse.Namespace = Main.parse()
    for name in Main.LISTS:
        text = getattr(flags, name)
        setattr(flags, name, [part for part in (text or "").split(",") if part])
    if not flags.spec:
        raise ConfigError("--spec is empty, expected files of benchmarks.")
    for name in ("timeout", "progress_trace_period"):
        value = getattr(flags, name)
        if value is not None and not 0 < value < spec.LONGEST_SECS:
            raise ConfigError(f"--{name}={value:g}, expected seconds above 0, below {spec.LONGEST_SECS:,}.")
    if flags.allow_wandb and flags.ignore_wandb:
        raise ConfigError("--allow_wandb and --ignore_wandb exclude each other. Drop one of them.")
    return flags


def chosen(benchmarks: Collection[str], names: list[str], with_convergence: bool) -> list[str]:
    """Returns the benchmarks to run: those that are named; else all, those with _conv where they are wanted.
    Raises ConfigError for a name that there is not."""
    for name in names:
        if name not in benchmarks:
            known = ", ".join(benchmarks) or "none"
            raise ConfigError(f"--benchmark={name}{suggest(name, benchmarks)} is not one of {known}.")
    return names or [name for name in benchmarks if with_convergence or "_conv" not in name]


def plan(flags: argparse.Namespace) -> list[runs.Variant]:
    """Returns all runs, in order: what cannot run is known before the first one. Raises ConfigError."""
    benchmarks = spec.read(
        flags.spec, lambda names: chosen(names, flags.benchmark, flags.include_convergence)
    )
    allow_wandb = True if flags.allow_wandb else False if flags.ignore_wandb else None
    options = runs.Options(flags.logging, flags.compile_only, allow_wandb, flags.profile)
    found = [
        variant for benchmark in benchmarks.values() for variant in runs.make_variants(benchmark, options)
    ]
    if not found:
        raise ConfigError(f"--spec={','.join(flags.spec)} has no benchmark to run.")
    return found


def prepare(flags: argparse.Namespace) -> runs.Session:
    """Checks where the results go. Raises ConfigError where there are some."""
    functions = runs.load_functions(flags.custom_metrics_files)
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H.%M.%S.%f")
    log_dir = os.path.abspath(flags.log_dir or f"log_{now}")
    for name in (*_FILES, _PICTURE):
        check_output_file(os.path.join(log_dir, name), "log_dir", flags.overwrite)
    for ending in (".json", ".md", ".png") if flags.output else ():
        check_output_file(flags.output + ending, "output", flags.overwrite)
    return runs.Session(flags, log_dir, functions)


def run_all(found: list[runs.Variant], session: runs.Session) -> list[Result]:
    """Runs the variants one after the other, and writes all results but the chart after each. A signal ends
    the one that runs; what was measured before is kept."""
    flags, results = session.flags, []
    variants = {variant.name: variant for variant in found}
    for variant in found:
        try:
            results.append(runs.run_variant(variant, session))
        except KeyboardInterrupt:
            session.tell(f"\n{variant.name} was interrupted. Results: {session.log_dir}", "CRITICAL")
            session.tell(summary(results), "CRITICAL")
            raise
        metrics = [*flags.csv_metrics, *session.functions]
        texts = (
            to_json(results),
            to_csv(results, metrics, variants if flags.additional_metrics else None),
            to_xml(results),
            to_markdown(to_columns(results, variants)),
        )
        for name, text in zip(_FILES, texts):
            outputs.write_file(os.path.join(session.log_dir, name), text)
        if flags.stop_on_error and results[-1]["exitcode"]:
            session.tell("Stopped: --stop_on_error.", "ERROR")
            break
    return results


def finish(variants: Variants, session: runs.Session, results: list[Result]) -> None:
    """Draws the chart, writes --output, and shows the table and the summary."""
    from official.reporting.comparison import format_table

    table, drawn = to_columns(results, variants), draw(results, variants)
    if drawn:
        outputs.write_file(os.path.join(session.log_dir, _PICTURE), drawn)
    output = session.flags.output
    if output:
        rows = [portable(each, variants[each["variant_name"]].benchmark.folder) for each in results]
        outputs.write_json(output + ".json", outputs.with_machine({"results": rows}))
        outputs.write_file(output + ".md", to_markdown(table))
        if drawn:
            outputs.write_file(output + ".png", drawn)
    session.tell(f"\n{format_table(table)}\n")
    session.tell(summary(results), "CRITICAL")
    session.tell(f"Results: {session.log_dir}")


def portable(result: Result, folder: str) -> Result:
    """Returns a result without the paths of this machine; the command is as it is typed in its folder."""
    kept = {key: value for key, value in result.items() if key not in _OF_THE_MACHINE}
    return {**kept, "command": result["command"].replace(os.path.join(folder, ""), "")}


def main() -> int:
    flags = parse_flags()
    variants = plan(flags)
    session = prepare(flags)
    benchmarks = [variant.benchmark for variant in variants]
    files = [os.path.join(each.folder, each.requirements) for each in benchmarks if each.requirements]
    for path in dict.fromkeys([flags.requirements_file] * bool(flags.requirements_file) + files):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-r", path], check=False)
        if done.returncode:
            raise ConfigError(f"requirements_file {path}: pip ended with exit code {done.returncode}.")
    results = run_all(variants, session)
    finish({variant.name: variant for variant in variants}, session, results)
    return int(count_failed(results) > 0)

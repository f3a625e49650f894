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
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from official.cli import command_line, outputs
from official.cli.benchmark import runs, spec
from official.cli.benchmark.runs import COMPILING, number_of
from official.cli.benchmark.spec import Benchmark
from official.io.errors import ConfigError, suggest
from official.io.writing import check_output_file
from official.reporting import palette, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# -----------------------------------------------------------------------------------------------------------
# Results as files and as text


Result = dict[str, Any]  # of a variant
ADDITIONAL = ("test_duration", "loss", "result", "cmd", "env", "git_commit_hash")
_CSV_METRICS = ("throughput", "latency", COMPILING)
_LOSSES = ("loss", "total_loss", "mlm_loss")
_OF_THE_MACHINE = ("benchmark_path", "log_paths", "latest_checkpoint_path", "sdk_path")
_DASH = "\u2013"


def by_benchmark(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns {benchmark: results of its variants}, as the published JSON has them."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result["benchmark_name"], []).append(result)
    return found


def verdict(result: Result) -> str:
    """Returns PASSED or FAILED."""
    return "FAILED" if result["exitcode"] else "PASSED"


def summary(results: list[Result]) -> str:
    """Returns a line for each run, and the number of failed ones."""
    lines = [f"{verdict(each)} {each['benchmark_name']}::{each['benchmark_name']}" for each in results]
    failed = sum(verdict(each) == "FAILED" for each in results)
    title = " short test summary info ".center(62, "=")
    counts = f" {failed} failed, {len(results) - failed} passed "
    return "\n".join([title, "", *lines, "", counts.center(62, "=")])


# ------------------------------------------------------------------------------------------------------------
# For programs


def to_json(results: list[Result]) -> str:
    """Returns {benchmark: [result of a variant, ...]}."""
    return json.dumps(by_benchmark(results), sort_keys=True, indent=2) + "\n"


def portable(result: Result, folder: str) -> Result:
    """Returns a result without the paths of this machine; the command is as it is typed in its folder."""
    kept = {key: value for key, value in result.items() if key not in _OF_THE_MACHINE}
    return {**kept, "command": result["command"].replace(os.path.join(folder, ""), "")}


def to_csv(results: list[Result], more: Iterable[str], additional: dict[str, dict[str, Any]]) -> str:
    """Returns a line for each variant: the published metrics, `more` metrics, and {variant: additional
    columns}."""
    names = list(dict.fromkeys([*_CSV_METRICS, *more]))
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["benchmark name", "Variant name", *names, *(ADDITIONAL if additional else ())])
    for result in results:
        numbers = [number_of(result["results"], name) for name in names]
        others = additional.get(result["variant_name"], {})
        writer.writerow([result["benchmark_name"], result["variant_name"], *numbers, *others.values()])
    return text.getvalue()


def additional_columns(result: Result, env: dict[str, str], commit: str | None) -> dict[str, Any]:
    """Returns the columns of `ADDITIONAL` of a variant."""
    losses = [number_of(result["results"], name) for name in _LOSSES if name in result["results"]]
    values = (
        result["test_duration"],
        losses[0] if losses else None,
        verdict(result),
        result["command"],
        json.dumps(env),
        commit,
    )
    return dict(zip(ADDITIONAL, values))


def to_xml(results: list[Result]) -> str:
    """Returns the runs as a suite of tests in JUnit's XML, which systems that run tests show."""
    failed = sum(verdict(each) == "FAILED" for each in results)
    counts = {"name": "benchmarks", "tests": str(len(results)), "failures": str(failed)}
    root = xml.Element("testsuites")
    suite = xml.SubElement(root, "testsuite", counts)
    for each in results:
        names = {"classname": each["benchmark_name"], "name": each["variant_name"]}
        case = xml.SubElement(suite, "testcase", {**names, "time": each["test_duration"]})
        if each["exitcode"]:
            message = "; ".join(each["problems"])
            xml.SubElement(case, "failure", {"message": _printable(message)})
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


# ------------------------------------------------------------------------------------------------------------
# For people


def columns(results: list[Result], benchmarks: dict[str, Benchmark]) -> list[tuple[str, list[str]]]:
    """Returns (title, a cell for each run): name, how it went, seconds, and what `output` of the entries
    lists."""
    found = {
        "benchmark": [each["variant_name"] for each in results],
        "result": [verdict(each) for each in results],
        "seconds": [f"{float(each['test_duration']):,.0f}" for each in results],
    }
    for number, each in enumerate(results):
        for label, name in benchmarks[each["benchmark_name"]].columns:
            cells = found.setdefault(label, [_DASH] * len(results))
            cells[number] = _cell(each, name)
    return list(found.items())


def shown(result: Result, name: str) -> float | None:
    """Returns the number of a metric as tables and charts show it: the speed with all its digits."""
    return result["sequences_per_sec"] if name == "throughput" else number_of(result["results"], name)


def _cell(result: Result, name: str) -> str:
    number = shown(result, name)
    return result["params"].get(name, _DASH) if number is None else format_number(number)


def format_number(value: float) -> str:
    """Returns a number with three digits that count, at least, and commas between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def to_markdown(table: list[tuple[str, list[str]]]) -> str:
    """Returns a table in markdown."""
    head = [title for title, _ in table]
    rows = zip(*(cells for _, cells in table))
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# -----------------------------------------------------------------------------------------------------------
# A chart: a bar for each run, a panel for each unit


_BAR, _HEAD, _FOOT = 0.32, 0.5, 0.12  # inches
_WIDTH = 9.0
Panels = dict[str, list[tuple[str, float]]]


def panels(results: list[dict[str, Any]], benchmarks: dict[str, Benchmark]) -> Panels:
    """Returns {unit: (variant, number)} of the first column of every benchmark's `output`; runs without a
    number are left out."""
    found: Panels = {}
    for each in results:
        for label, name in benchmarks[each["benchmark_name"]].columns[:1]:
            number = shown(each, name)
            if number is not None:
                found.setdefault(label, []).append((each["variant_name"], number))
    return found


def draw(found: Panels) -> bytes:
    """Draws the panels below each other, and returns a PNG."""
    height = sum(_HEAD + _FOOT + _BAR * len(rows) for rows in found.values()) or 1.0
    longest = max((len(name) for rows in found.values() for name, _ in rows), default=0)
    left = min(0.55, 0.03 + 0.0082 * longest)  # room for the names
    with plots.style():
        figure = plots.new_figure(_WIDTH, height)
        top = height
        for (unit, rows), color in zip(found.items(), palette.COLORS * len(found)):
            place = top - _HEAD - _BAR * len(rows)
            box = (left, place / height, 0.9 - left, _BAR * len(rows) / height)
            _draw_panel(figure.add_axes(box), unit, rows, color)
            top = place - _FOOT
        return plots.render(figure, "png")


def _draw_panel(axes: Axes, unit: str, rows: list[tuple[str, float]], color: str) -> None:
    """Draws bars of one unit."""
    places = range(len(rows))[::-1]
    axes.barh(places, [value for _, value in rows], height=0.62, color=color)
    for at, (_, value) in zip(places, rows):
        offset: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(format_number(value), (value, at), fontsize=9, color=palette.INK, **offset)
    axes.set_yticks(list(places), [name for name, _ in rows], fontsize=9)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0, labelcolor=palette.INK)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(unit, loc="left", fontsize=11, fontweight="bold", color=palette.INK)


# -----------------------------------------------------------------------------------------------------------
# bert benchmark run


_LISTS = ("spec", "benchmark", "csv_metrics", "custom_metrics_files")
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


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.lists |= set(_LISTS)
    parser.also({"logdir": "log_dir"})
    add = parser.add_argument
    add("--spec", default="benchmarks.yml", help="Files of benchmarks, separated by commas or blanks.")
    add("--benchmark", help="Which to run, in this order, separated by commas or blanks. Unset: all.")
    add("--log_dir", help="Folder for logs and results. Unset: log_<time> in the working folder.")
    _add_outputs(parser)
    _add_ways(parser)
    return parser


def _add_outputs(parser: command_line.Parser) -> None:
    add = parser.add_argument
    add(
        "--output",
        help="Also write OUTPUT.json with machine and versions, OUTPUT.md and a chart, OUTPUT.png.",
    )
    add("--overwrite", action="store_true", help="Replace results in --log_dir and of --output.")
    add("--csv_metrics", help="More metrics that the CSV has columns for, separated by commas or blanks.")
    add("--additional_metrics", action="store_true", help=f"More columns: {', '.join(ADDITIONAL)}.")
    add("--custom_metrics_files", help="Python files that call register_custom_metric(name, function).")


def _add_ways(parser: command_line.Parser) -> None:
    """Adds the flags that change how benchmarks are run."""
    add = parser.add_argument
    levels = "Which messages are shown, and Poplar's level in runs on IPUs."
    add("--logging", choices=runs.LEVELS, default="INFO", help=levels)
    add("--timeout", type=float, help="Seconds of a run at most; then all its processes are ended.")
    add("--stop_on_error", action="store_true", help="Stop after the first benchmark that fails.")
    add(
        "--compile_only",
        action="store_true",
        help="Give --compile-only to the programs; look for no numbers.",
    )
    add("--allow_wandb", action="store_true", help="Keep arguments for W&B; else they are taken out.")
    add("--ignore_wandb", action="store_true", help="Take them out where an entry allows them, too.")
    add("--include_convergence", action="store_true", help="Without --benchmark: entries with _conv, too.")
    add("--profile", action="store_true", help="Runs on IPUs write Poplar's reports to <variant>_profile.")
    add("--requirements_file", help="File that pip installs before the first run.")
    period = "Seconds between two lines of time, on a terminal."
    add("--progress_trace_period", type=float, default=1.0, help=period)


def parse_flags() -> argparse.Namespace:
    for word in sys.argv[1:]:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in _REFUSED:
            raise ConfigError(f"--{name} is not an option here: {_REFUSED[name]}.")
    flags = make_parser().parse()
    for name in _LISTS:
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
    """Makes the folder of the logs. Raises ConfigError where it holds results."""
    functions = runs.load_functions(flags.custom_metrics_files)
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H.%M.%S.%f")
    log_dir = os.path.abspath(flags.log_dir or f"log_{now}")
    for name in (*_FILES, _PICTURE):
        check_output_file(os.path.join(log_dir, name), "log_dir", flags.overwrite)
    for ending in (".json", ".md", ".png") if flags.output else ():
        check_output_file(flags.output + ending, "output", flags.overwrite)
    return runs.Session(
        log_dir=log_dir,
        level=flags.logging,
        timeout=flags.timeout,
        trace_secs=flags.progress_trace_period,
        keeps_metrics=not flags.compile_only,
        functions=functions,
    )


def install(requirements: Iterable[str]) -> None:
    """Installs what files of requirements list into the environment of this process. Raises ConfigError."""
    for path in dict.fromkeys(requirements):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-r", path], check=False)
        if done.returncode:
            raise ConfigError(f"requirements_file {path}: pip ended with exit code {done.returncode}.")


def run_all(flags: argparse.Namespace, variants: list[runs.Variant], session: runs.Session) -> list[Result]:
    """Runs the variants one after the other, and writes all results after each. A signal ends the one that
    runs; what was measured before is kept."""
    results: list[Result] = []
    for variant in variants:
        try:
            results.append(runs.run_variant(variant, session))
        except KeyboardInterrupt:
            session.tell(f"\n{variant.name} was interrupted. Results: {session.log_dir}", "CRITICAL")
            session.tell(summary(results), "CRITICAL")
            raise
        write(flags, session, variants, results)
        if flags.stop_on_error and results[-1]["exitcode"]:
            session.tell("Stopped: --stop_on_error.", "ERROR")
            break
    return results


def write(
    flags: argparse.Namespace,
    session: runs.Session,
    variants: list[runs.Variant],
    results: list[Result],
) -> None:
    """Writes the results so far: all files but the chart."""
    by_name = {variant.name: variant for variant in variants}
    additional: dict[str, dict[str, Any]] = {}
    if flags.additional_metrics:
        commit = _commit()
        for each in results:
            env = by_name[each["variant_name"]].added_env
            additional[each["variant_name"]] = additional_columns(each, env, commit)
    metrics = [*flags.csv_metrics, *session.functions]
    texts = (
        to_json(results),
        to_csv(results, metrics, additional),
        to_xml(results),
        to_markdown(columns(results, _benchmarks_of(variants))),
    )
    for name, text in zip(_FILES, texts):
        outputs.write_file(os.path.join(session.log_dir, name), text)


def _benchmarks_of(variants: list[runs.Variant]) -> dict[str, spec.Benchmark]:
    return {variant.benchmark.name: variant.benchmark for variant in variants}


def _commit() -> str | None:
    """Returns the commit of the working folder."""
    words = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def finish(
    flags: argparse.Namespace,
    session: runs.Session,
    variants: list[runs.Variant],
    results: list[Result],
) -> None:
    """Draws the chart, writes --output, and shows the table and the summary."""
    pass
    from official.reporting.comparison import format_table

    benchmarks = _benchmarks_of(variants)
    table = columns(results, benchmarks)
    found = panels(results, benchmarks)
    drawn = draw(found) if found else None
    if drawn:
        outputs.write_file(os.path.join(session.log_dir, _PICTURE), drawn)
    if flags.output:
        from official.reporting import environment

        rows = [portable(each, benchmarks[each["benchmark_name"]].folder) for each in results]
        record = {"command": command_line.as_typed(), "results": rows}
        outputs.write_json(flags.output + ".json", {**record, "environment": environment.environment()})
        outputs.write_file(flags.output + ".md", to_markdown(table))
        if drawn:
            outputs.write_file(flags.output + ".png", drawn)
    session.tell(f"\n{format_table(table)}\n")
    session.tell(summary(results), "CRITICAL")
    session.tell(f"Results: {session.log_dir}")


def main() -> int:
    flags = parse_flags()
    variants = plan(flags)
    session = prepare(flags)
    own = [
        os.path.join(each.folder, each.requirements)
        for each in _benchmarks_of(variants).values()
        if each.requirements
    ]
    install(([flags.requirements_file] if flags.requirements_file else []) + own)
    results = run_all(flags, variants, session)
    finish(flags, session, variants, results)
    return int(any(result["exitcode"] for result in results))

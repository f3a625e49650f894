"""Runs the benchmarks of a YAML file, takes their numbers from what they print, and writes JSON, CSV, XML,
markdown and a chart.

  bert benchmark --spec=benchmarks.yml --benchmark=pretrain_base_128_gen_cpu
  python scripts/benchmark.py --spec benchmarks.yml --log-dir logs

The format is that of Graphcore's `examples_utils benchmark`; so are the names of the options. A benchmark
that fails is reported, and the others run. Exit code 1 where one has failed.
"""

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from typing import Any

from official.cli import command_line, outputs
from official.cli.benchmark.specs import commands, custom, outcome, spec, tables
from official.io.errors import ConfigError, suggest
from official.io.writing import check_output_file

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
    add("--additional_metrics", action="store_true", help=f"More columns: {', '.join(tables.ADDITIONAL)}.")
    add("--custom_metrics_files", help="Python files that call register_custom_metric(name, function).")


def _add_ways(parser: command_line.Parser) -> None:
    """Adds the flags that change how benchmarks are run."""
    add = parser.add_argument
    levels = "Which messages are shown, and Poplar's level in runs on IPUs."
    add("--logging", choices=outcome.LEVELS, default="INFO", help=levels)
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


def plan(flags: argparse.Namespace) -> list[commands.Variant]:
    """Returns all runs, in order: what cannot run is known before the first one. Raises ConfigError."""
    benchmarks = spec.read(
        flags.spec, lambda names: chosen(names, flags.benchmark, flags.include_convergence)
    )
    allow_wandb = True if flags.allow_wandb else False if flags.ignore_wandb else None
    options = commands.Options(flags.logging, flags.compile_only, allow_wandb, flags.profile)
    found = [
        variant for benchmark in benchmarks.values() for variant in commands.make_variants(benchmark, options)
    ]
    if not found:
        raise ConfigError(f"--spec={','.join(flags.spec)} has no benchmark to run.")
    return found


def prepare(flags: argparse.Namespace) -> outcome.Session:
    """Makes the folder of the logs. Raises ConfigError where it holds results."""
    functions = custom.load(flags.custom_metrics_files)
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H.%M.%S.%f")
    log_dir = os.path.abspath(flags.log_dir or f"log_{now}")
    for name in (*_FILES, _PICTURE):
        check_output_file(os.path.join(log_dir, name), "log_dir", flags.overwrite)
    for ending in (".json", ".md", ".png") if flags.output else ():
        check_output_file(flags.output + ending, "output", flags.overwrite)
    return outcome.Session(
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


def run_all(
    flags: argparse.Namespace, variants: list[commands.Variant], session: outcome.Session
) -> list[tables.Result]:
    """Runs the variants one after the other, and writes all results after each. A signal ends the one that
    runs; what was measured before is kept."""
    results: list[tables.Result] = []
    for variant in variants:
        try:
            results.append(outcome.run_variant(variant, session))
        except KeyboardInterrupt:
            session.tell(f"\n{variant.name} was interrupted. Results: {session.log_dir}", "CRITICAL")
            session.tell(tables.summary(results), "CRITICAL")
            raise
        write(flags, session, variants, results)
        if flags.stop_on_error and results[-1]["exitcode"]:
            session.tell("Stopped: --stop_on_error.", "ERROR")
            break
    return results


def write(
    flags: argparse.Namespace,
    session: outcome.Session,
    variants: list[commands.Variant],
    results: list[tables.Result],
) -> None:
    """Writes the results so far: all files but the chart."""
    by_name = {variant.name: variant for variant in variants}
    additional: dict[str, dict[str, Any]] = {}
    if flags.additional_metrics:
        commit = _commit()
        for each in results:
            env = by_name[each["variant_name"]].added_env
            additional[each["variant_name"]] = tables.additional_columns(each, env, commit)
    metrics = [*flags.csv_metrics, *session.functions]
    texts = (
        tables.to_json(results),
        tables.to_csv(results, metrics, additional),
        tables.to_xml(results),
        tables.to_markdown(tables.columns(results, _benchmarks(variants))),
    )
    for name, text in zip(_FILES, texts):
        outputs.write_file(os.path.join(session.log_dir, name), text)


def _benchmarks(variants: list[commands.Variant]) -> dict[str, spec.Benchmark]:
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
    session: outcome.Session,
    variants: list[commands.Variant],
    results: list[tables.Result],
) -> None:
    """Draws the chart, writes --output, and shows the table and the summary."""
    from official.cli.benchmark.specs import picture
    from official.reporting.comparison import format_table

    benchmarks = _benchmarks(variants)
    table = tables.columns(results, benchmarks)
    found = picture.panels(results, benchmarks)
    drawn = picture.draw(found) if found else None
    if drawn:
        outputs.write_file(os.path.join(session.log_dir, _PICTURE), drawn)
    if flags.output:
        from official.reporting import environment

        rows = [tables.portable(each, benchmarks[each["benchmark_name"]].folder) for each in results]
        record = {"command": command_line.as_typed(), "results": rows}
        outputs.write_json(flags.output + ".json", {**record, "environment": environment.environment()})
        outputs.write_file(flags.output + ".md", tables.to_markdown(table))
        if drawn:
            outputs.write_file(flags.output + ".png", drawn)
    session.tell(f"\n{format_table(table)}\n")
    session.tell(tables.summary(results), "CRITICAL")
    session.tell(f"Results: {session.log_dir}")


def main() -> int:
    flags = parse_flags()
    variants = plan(flags)
    session = prepare(flags)
    own = [
        os.path.join(each.folder, each.requirements)
        for each in _benchmarks(variants).values()
        if each.requirements
    ]
    install(([flags.requirements_file] if flags.requirements_file else []) + own)
    results = run_all(flags, variants, session)
    finish(flags, session, variants, results)
    return int(any(result["exitcode"] for result in results))

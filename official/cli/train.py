"""Trains BERT: flags -> configuration -> task -> run.

    bert train --config=quickstart [--name=value ...]
    python train.py --flagfile=configs/quickstart.flags [--name=value ...]
    python train.py --flagfile=configs/mlperf_v100.flags --plan
    python train.py --help

Exit codes: 0 finished or target reached, 1 target not reached, 2 bad input, 3 non-finite loss, 4 a peer
process was lost or did not come (start all again), 129 / 130 / 143 saved on a signal.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from absl import logging

import official
from official.cli import command_line, flags
from official.config import follows_graphcore_log, process_rank
from official.config.backends import BACKENDS
from official.config.table import Config
from official.io import quiet, signals
from official.io.errors import ConfigError, PeerError, report_error
from official.io.json_files import read_json_or_empty

if TYPE_CHECKING:
    from official.reporting.result import TrainResult


def start() -> NoReturn:
    """Runs this process's command line and exits the process.

    After a signal, or the loss of another process, it exits at once, without waiting for TensorFlow's
    threads: these may take longer than the sender of the signal waits, or wait for the lost process.
    """
    code = main(sys.argv[1:])
    if code > 128 or code == 4:
        sys.stdout.flush()
        os._exit(code)  # pylint: disable=protected-access
    sys.exit(code)


def main(arguments: list[str]) -> int:
    """Runs the flags of a command line and returns the exit code."""
    try:
        return _run(arguments)
    except flags.HelpRequested as text:
        print(text)
        return 0
    except (ConfigError, PeerError) as error:
        for title, names in getattr(error, "details", {}).items():
            logging.debug("%s: %s", title, ", ".join(names))
        is_shortened = isinstance(error, ConfigError) and error.is_shortened
        hint = " --verbosity=1 lists all names." if is_shortened else ""
        report_error(command_line.program(), f"{error}{hint}")
        return 4 if isinstance(error, PeerError) else 2
    except KeyboardInterrupt as error:
        return signals.report(error)


def _run(arguments: list[str]) -> int:
    config, told = flags.read(arguments, os.environ)
    if told and config.verbosity >= 0 and _is_first(config):
        print("\n".join(told))
    return run(config, arguments)


def run(config: Config, arguments: list[str]) -> int:
    """Runs a configuration and returns the exit code.

    Args:
      config: the frozen configuration.
      arguments: the command-line arguments, for the message with the command that resumes the run.

    Raises:
      ConfigError, PeerError, KeyboardInterrupt: see `main`.
    """
    _check_export(config)
    _say_what_starts(config)
    program = BACKENDS[config.distribution_strategy].program
    command = command_line.words(arguments)
    if program and not config.plan:
        with signals.raising():  # while starting; later, the run saves first
            return importlib.import_module(program).run(config, command)
    official.choose_kernels(config.dtype)
    if config.profile_memory:
        official.tell_allocations()
    if not config.plan:
        from official.distribution import machine_checks

        machine_checks.begin(config)
    # Imported after the command line has been checked: TensorFlow takes seconds to load.
    with quiet.uncollected():
        from official.reporting.progress import configure_logging
        from official.tasks import TASKS

        make_task = TASKS[config.task]
        if config.teacher:
            make_task = importlib.import_module("official.inference.teacher").make_task
        todo = importlib.import_module(  # the other one is not loaded
            "official.planning.plan" if config.plan else "official.training.run"
        )
    configure_logging(config.verbosity)
    _say_config(arguments, config)
    if config.plan:
        print(_planned(config, todo, make_task))
        return 0
    if config.compile_only:
        with signals.raising():
            print(todo.compile_only(config, make_task))
        return 0
    with signals.raising():  # while starting and reporting; between the two, the run saves first
        result = todo.run_seeds(config, make_task, command=command, started=official.STARTED)
        _export(result, config)
    _tell(result, config, command)
    if result.status != "interrupted":  # a signal after the last step, which the run did not notice
        signals.check()
    return result.exit_code


def _planned(config: Config, plan: Any, make_task: Callable) -> str:
    """Writes --plan_file and --plan_picture if they are set. Returns the text of the plan."""
    from official.cli import outputs, plan_pictures

    if config.plan_picture:
        outputs.check_picture_file(config.plan_picture, "plan_picture", overwrite=True)
    measure = None
    if config.measure:
        measure = importlib.import_module("official.training.step_benchmark").measure_steps
    return plan.run(config, make_task, plan_pictures.write_picture, measure)


def _check_export(config: Config) -> None:
    """Raises ConfigError before the run if --export_dir could not be written at its end."""
    if config.export_dir and not (config.plan or config.compile_only or _is_exported(config)):
        importlib.import_module("official.serving.export").check(config.export_dir)


def _is_exported(config: Config) -> bool:
    """Tells whether an earlier call of the same command has already exported the run to --export_dir."""
    folder = os.path.abspath(config.export_dir or "")
    noted = read_json_or_empty(os.path.join(config.model_dir, "result.json")).get("export")
    return not config.overwrite and noted == folder and os.path.isdir(folder)


def _export(result: TrainResult, config: Config) -> None:
    """Exports the weights of a run that ended normally to --export_dir, if set; records it in result.json."""
    if not config.export_dir or not _is_first(config) or result.status in ("interrupted", "failed"):
        return
    if _is_exported(config):
        return
    from official.cli.checkpoints import describe_export
    from official.inference import source
    from official.reporting.result import note
    from official.serving import export

    written = export.export(source.find(config.model_dir, flag="model_dir"), config.export_dir)
    logging.info(describe_export(written, "fp32"))
    note(config.model_dir, export=written.folder)


def _say_config(arguments: list[str], config: Config) -> None:
    """With --log_style=graphcore, prints the name of the configuration as Graphcore's programs do."""
    if not follows_graphcore_log(config) or config.verbosity < 0 or not _is_first(config):
        return
    for name, value in command_line.given_values(arguments):
        if name in ("config", "flagfile"):
            print(f"Using config: {value}", file=sys.stderr, flush=True)


def _tell(result: TrainResult, config: Config, command: list[str]) -> None:
    """Prints the scores, status and reason of a run and, after an interruption, the command that resumes
    it."""
    for name, value in result.scores.items():
        print(f"{name} = {value:.4f}" if isinstance(value, float) else f"{name} = {value}")
    page = result.report or f"{config.model_dir}/report.html"
    where = f"Report: {page}" if config.num_runs == 1 else f"Result: {config.model_dir}/result.json"
    print(f"{result.status}: {result.reason}. {where}")
    if result.status == "interrupted":
        interpreter = [sys.executable] if command[0].endswith(".py") else []
        print(f"Resume with: {shlex.join([*interpreter, *command])}")


def _is_first(config: Config) -> bool:
    """Whether this process is the first of its run; only that one prints messages for the user."""
    return process_rank.rank(config) == 0


def _say_what_starts(config: Config) -> None:
    """Prints on a terminal what the command is about to do, since loading TensorFlow takes seconds. Prints
    nothing elsewhere, so that the output of a refused run is a single line."""
    if sys.stderr.isatty() and config.verbosity >= 0 and not config.plan and _is_first(config):
        where = f", in {config.model_dir}" if config.model_dir else ""
        what = f"BERT, task {config.task}{where}: loading TensorFlow"
        print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


# -----------------------------------------------------------------------------------------------------------
# bert plan: `bert train --plan`


def start_plan() -> NoReturn:
    """Runs the command line of this process, and ends it."""
    sys.argv.append("--plan")
    start()

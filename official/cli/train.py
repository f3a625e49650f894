"""Trains BERT: flags -> configuration -> task -> run.

    python train.py --flagfile=configs/quickstart.flags [--name=value ...]
    python train.py --flagfile=configs/mlperf_v100.flags --plan
    python train.py --help

Exit codes: 0 finished or target reached, 1 target not reached, 2 bad input, 3 non-finite loss, 4 a peer process was lost
or did not come (start all again), 130 / 143 saved on a signal.
"""

import official  # first: sets what TensorFlow reads when it is imported
from official.io import signals

if __name__ == "__main__":
    signals.watch()  # before anything that takes time to import

import contextlib
import os
import shlex
import sys
import time

from absl import logging

from official.cli import flags
from official.config import ConfigError
from official.io import quiet
from official.io.errors import PeerError, report_error


def main(argv: list[str]) -> int:
    """Runs one command line and returns the exit code."""
    try:
        config = flags.parse(argv[1:])
        _say_what_starts(config)
        official.choose_kernels(config.dtype)
        # Imported after the command line is known to be good: TensorFlow takes seconds to load.
        from official.reporting.progress import configure_logging
        from official.tasks import TASKS
        from official.planning import plan
        from official.training import repeats

        configure_logging(config.verbosity)
        if config.plan:
            text = plan.run(config, TASKS[config.task])
            with quiet.telling():
                print(text)
            return 0
        with signals.raising():  # while starting and reporting; between the two, the run saves first
            result = repeats.run(config, TASKS[config.task], command=argv, started=official.STARTED)
    except flags.HelpRequested as text:
        with quiet.telling():
            print(text)
        return 0
    except ConfigError as error:
        for title, names in error.details.items():
            logging.debug("%s: %s", title, ", ".join(names))
        report_error("train.py", f"{error}{' --verbosity=1 lists all names.' if error.is_shortened else ''}")
        return 2
    except PeerError as error:
        report_error("train.py", str(error))
        return 4
    except KeyboardInterrupt as error:
        return signals.report(error)
    with quiet.telling():
        _tell(result, config, argv)
    return result.exit_code


def _tell(result, config, argv: list[str]) -> None:
    """Prints how a run ended."""
    for name, value in result.scores.items():
        print(f"{name} = {value:.4f}" if isinstance(value, float) else f"{name} = {value}")
    what = "Report: {}/report.html" if config.num_runs == 1 else "Result: {}/result.json"
    print(f"{result.status}: {result.reason}. {what.format(config.model_dir)}")
    if result.status == "interrupted":
        print(f"Go on with: {shlex.join([sys.executable, *argv])}")


def _say_what_starts(config) -> None:
    """Says on a terminal that something happens, and what: loading TensorFlow takes seconds. Elsewhere a
    refused run stays one line."""
    if sys.stderr.isatty() and config.verbosity >= 0 and not config.plan and not config.task_index:
        print(
            f"{time.strftime('%H:%M:%S')} BERT, task {config.task}, in {config.model_dir}: loading"
            " TensorFlow",
            file=sys.stderr,
            flush=True,
        )


def _end(code: int) -> None:
    """Ends the process. After a signal at once: TensorFlow's threads may take longer to end than whoever sent
    it waits."""
    if code > 128:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)  # pylint: disable=protected-access
    sys.exit(code)


if __name__ == "__main__":
    _end(main(sys.argv))

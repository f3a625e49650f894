"""Trains BERT: flags -> configuration -> task -> run.

    python train.py --flagfile=configs/quickstart.flags [--name=value ...]
    python train.py --flagfile=configs/mlperf_v100.flags --plan
    python train.py --help

Exit codes: 0 finished or target reached, 1 target not reached, 2 bad input, 3 non-finite loss, 4 a peer process was lost
or did not come (start all again), 130 / 143 saved on a signal.
"""

import shlex
import sys

from absl import logging

import official  # first: sets what TensorFlow reads when it is imported
from official import flags
from official.config import ConfigError
from official.io.errors import PeerError, report_error


def main(argv: list[str]) -> int:
    """Runs one command line and returns the exit code."""
    try:
        config = flags.parse(argv[1:])
        official.choose_kernels(config.dtype)
        # Imported after the command line is known to be good: TensorFlow takes seconds to load.
        from official.reporting.progress import configure_logging
        from official.tasks import TASKS
        from official.training import plan, repeats

        configure_logging(config.verbosity)
        if config.plan:
            print(plan.run(config, TASKS[config.task]))
            return 0
        result = repeats.run(config, TASKS[config.task], command=argv, started=official.STARTED)
    except flags.HelpRequested as text:
        print(text)
        return 0
    except ConfigError as error:
        for title, names in error.details.items():
            logging.debug("%s: %s", title, ", ".join(names))
        report_error("train.py", f"{error}{' --verbosity=1 lists all names.' if error.is_shortened else ''}")
        return 2
    except PeerError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 4
    except KeyboardInterrupt:  # while starting; later, the run saves first
        report_error("train.py", "interrupted.")
        return 130
    for name, value in result.scores.items():
        print(f"{name} = {value:.4f}" if isinstance(value, float) else f"{name} = {value}")
    print(f"{result.status}: {result.reason}. {f'Report: {config.model_dir}/report.html' if config.num_runs == 1 else f'Result: {config.model_dir}/result.json'}")
    if result.status == "interrupted":
        print(f"Go on with: {shlex.join([sys.executable, *argv])}")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv))

"""The command of an IPU run on the SDK's own Python 3.8, where the project's command line does not run.

    python -m official.training.ipu CONFIG.json [--export FILE.poplar_exec]

CONFIG.json is the whole configuration, as config.json of a run is, or as train.py --plan writes it with
--config_file. Exit codes as of train.py.
"""

from __future__ import annotations

import argparse
import sys

from official import config as config_lib
from official.config import Config, ConfigError
from official.io import signals
from official.io.errors import report_error

_PROGRAM = "official.training.ipu"


def main(arguments: list[str]) -> int:
    """Runs a command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_PROGRAM}", description=__doc__.splitlines()[0])
    parser.add_argument("config", help="the whole configuration, JSON")
    told = parser.parse_args(arguments)
    try:
        config = config_lib.build_config([(told.config, config_lib.read_json(told.config, "config"))])
        return run(config, ["python", "-m", _PROGRAM, *arguments])
    except ConfigError as error:
        report_error(_PROGRAM, str(error))
        return 2
    except KeyboardInterrupt as error:
        return signals.report(error)


def run(config: Config, command: list[str]) -> int:
    """Runs a configuration: first the environment, which Poplar reads when TensorFlow is loaded. Returns the
    exit code."""
    from official.distribution.ipu import environment

    environment.prepare(config)
    from official.training.ipu import run as run_lib

    return run_lib.run(config, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

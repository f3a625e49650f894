"""The command of an IPU run on the SDK's Python 3.8, which the project's command line does not support.

    python -m official.graphcore CONFIG.json
    python -m official.graphcore CONFIG.json --export NAME.poplar_exec
    python -m official.graphcore CONFIG.json --run NAME.poplar_exec [--num-iter 1000]

CONFIG.json is the whole configuration: config.json of a run, or the --plan_file of train.py --plan. Exit
codes are those of train.py.
"""

from __future__ import annotations

import argparse
import sys

from official import config as config_lib
from official.config.table import Config
from official.graphcore import devices
from official.io import signals
from official.io.errors import ConfigError, report_error

_PROGRAM = "official.graphcore"


def main(arguments: list[str]) -> int:
    """Runs a command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_PROGRAM}", description=__doc__.splitlines()[0])
    parser.add_argument("config", help="the whole configuration, JSON")
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--export", help="compile the newest checkpoint into this file, NAME.poplar_exec")
    work.add_argument("--run", help="measure the speed of this file")
    parser.add_argument("--num-iter", type=int, default=1000, help="number of batches")
    parser.add_argument("--num-inference-thread", type=int, default=2, help="number of client threads")
    parser.add_argument(
        "--dump-raw-timings", action="store_true", help="also write the seconds of each batch"
    )
    flags = parser.parse_args(arguments)
    try:
        config = config_lib.build_config([(flags.config, config_lib.read_settings(flags.config))])
        with signals.watching(), signals.raising():
            return _work(config, flags, arguments)
    except ConfigError as error:
        report_error(_PROGRAM, str(error))
        return 2
    except KeyboardInterrupt as error:
        return signals.report(error)


def _work(config: Config, flags: argparse.Namespace, arguments: list[str]) -> int:
    if not (flags.export or flags.run):
        return run(config, ["python", "-m", _PROGRAM, *arguments])
    devices.prepare_environment(config)
    from official.graphcore import export

    if flags.export:
        export.export(config, flags.export)
    else:
        for name in ("num_iter", "num_inference_thread"):
            if getattr(flags, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')}={getattr(flags, name)}, expected 1 or more.")
        export.measure(config, flags.run, flags.num_iter, flags.num_inference_thread, flags.dump_raw_timings)
    return 0


def run(config: Config, command: list[str]) -> int:
    """Runs a configuration: first sets the environment, which Poplar reads when TensorFlow is loaded. Returns
    the exit code."""
    devices.prepare_environment(config)
    from official.graphcore import run as run_lib

    return run_lib.run(config, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

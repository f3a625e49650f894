"""PerfZero benchmarks: a method runs one flagfile and reports speed, accuracy, start-up time and memory.

    pip install '.[perfzero]' -c constraints/tf215.txt
    python3 perfzero/lib/benchmark.py --gcloud_key_file_url="" --workspace=/tmp/perfzero \
        --python_path=$PWD --root_data_dir=/data \
        --benchmark_methods=tf2_bert.bert_benchmark.BertClassifyBenchmarkReal.benchmark_8_gpu

The driver takes the name of a report from the outermost frame that has a benchmark as `self`. Methods are
therefore neither decorated nor wrapped.
"""

import gc
import itertools
import logging as standard_logging
import math
import os
import pathlib
import shlex
import sys
import time

import tensorflow as tf

import official  # first: sets what TensorFlow reads when it is imported
from official import config as config_lib
from official.cli import flags
from official.config import Config, ConfigError
from official.io.errors import PeerError
from official.reporting.progress import configure_logging
from official.tasks import TASKS
from official.training import run as runner

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FLAGFILES = {
    "benchmark_8_gpu": "configs/mlperf_v100.flags",
    "benchmark_short_8_gpu": "configs/benchmark_short_8_gpu.flags",
    "benchmark_1_gpu": "configs/benchmark_1_gpu.flags",
    "benchmark_short_1_gpu": "configs/benchmark_short_1_gpu.flags",
    "benchmark_4x4_tpu": "configs/mlperf_tpu_v3_32.flags",
    "benchmark_short_4x4_tpu": "configs/benchmark_short_4x4_tpu.flags",
    "benchmark_cpu": "configs/benchmark_cpu.flags",
}
_DATA_FLAGS = ("input_files", "eval_files", "init_checkpoint", "vocab_file")
_process = os.getpid()
_runs_of_this_process = itertools.count()


class BertPretrainingBenchmark(tf.test.Benchmark):
    """BERT pre-training with the flagfiles of `FLAGFILES`.

    A report has the metrics exp_per_second (sequences, without those up to the first line of the metrics),
    eval_accuracy, eval_loss, startup_secs (imports, model, data and compilation: until the first step is
    done, less one step), peak_memory_bytes, steps and success. eval_accuracy must reach the run's
    --stop_threshold, where it has one. success is 1, or 0 where the run could not be made, was cut short,
    diverged or missed its threshold; extras["error"] then says why in one line.
    """

    def __init__(
        self,
        output_dir: str | None = None,
        default_flags: dict | None = None,
        root_data_dir: str | None = None,
        flag_methods: object = None,
        tpu: str | None = None,
        **kwargs: object,
    ) -> None:
        """Notes the driver's arguments; touches neither files nor devices, since drivers also construct it
        only to list methods.

        Args:
          output_dir: each run gets a folder of its own in it; BENCHMARK_OUTPUT_DIR in the environment wins.
            Unset: runs.
          default_flags: {name: value} over every flagfile.
          root_data_dir: relative data files of the flagfiles are in it. Unset: in the working directory.
          flag_methods: accepted for drivers that pass it, and not needed: this project's flags are a set of
            their own, which no benchmark changes.
          tpu: name or address of the TPU, for the methods that use one; BENCHMARK_TPU in the environment
            wins.
          **kwargs: whatever else a driver passes.
        """
        super().__init__()
        self._output_dir = os.environ.get("BENCHMARK_OUTPUT_DIR") or output_dir or "runs"
        self._default_flags = default_flags or {}
        self._root_data_dir = root_data_dir
        self._tpu = os.environ.get("BENCHMARK_TPU") or tpu

    def benchmark_8_gpu(self) -> None:
        """The MLPerf v0.7 run on 8 GPUs."""
        self._run_and_report("benchmark_8_gpu")

    def benchmark_short_8_gpu(self) -> None:
        """The first steps of it."""
        self._run_and_report("benchmark_short_8_gpu")

    def benchmark_1_gpu(self) -> None:
        """The same recipe on one GPU."""
        self._run_and_report("benchmark_1_gpu")

    def benchmark_short_1_gpu(self) -> None:
        """The first steps of it."""
        self._run_and_report("benchmark_short_1_gpu")

    def benchmark_4x4_tpu(self) -> None:
        """The MLPerf v0.7 run on a TPU v3-32."""
        self._run_and_report("benchmark_4x4_tpu")

    def benchmark_short_4x4_tpu(self) -> None:
        """The first steps of it."""
        self._run_and_report("benchmark_short_4x4_tpu")

    def benchmark_cpu(self) -> None:
        """A small model on synthetic data: needs neither files nor an accelerator."""
        self._run_and_report("benchmark_cpu")

    def _run_and_report(self, method: str) -> None:
        """Runs the flagfile of a method and reports it once, also where the run fails."""
        started = time.time()
        gc.collect()  # an earlier method's model is part of cycles, and would still hold device memory
        metrics: list[dict] = []
        extras: dict[str, str] = {}
        try:
            config = self._config(method)
            extras |= {"flags": shlex.join(_non_default_flags(config)), "model_dir": config.model_dir}
            metrics, error = _train(config, started)
        except (ConfigError, PeerError) as problem:
            error = " ".join(str(problem).split())  # one line, whatever was received
        if error:
            extras["error"] = error
            print(f"{type(self).__name__}.{method}: {error}", file=sys.stderr)
        metrics.append({"name": "success", "value": 0 if error else 1, "min_value": 1})
        self.report_benchmark(iters=-1, wall_time=time.time() - started, metrics=metrics, extras=extras)

    def _config(self, method: str) -> Config:
        """Returns the configuration of a method. Raises ConfigError."""
        # Without its ending the path cannot be taken for a file of settings in JSON.
        settings = flags.read_config(pathlib.PurePath(FLAGFILES[method]).stem)
        if "model_dir" in self._default_flags:
            raise ConfigError(
                f"default_flags: model_dir={self._default_flags['model_dir']}, but a benchmark makes a folder"
                " of its own in output_dir. Use output_dir."
            )
        own = {"model_dir": _free_folder(os.path.join(self._output_dir, method))}
        backend = {**settings, **self._default_flags}.get("distribution_strategy")
        if self._tpu and backend in config_lib.FIELDS["tpu"].backends:
            own["tpu"] = self._tpu
        return config_lib.build_config(
            [
                (FLAGFILES[method], self._with_whole_paths(settings)),
                ("default_flags", self._with_whole_paths(self._default_flags)),
                ("benchmark", own),
            ]
        )

    def _with_whole_paths(self, settings: dict) -> dict:
        """Returns settings with data files under root_data_dir and model files under the repository."""
        folders = {"bert_config_file": REPOSITORY}
        if self._root_data_dir:
            folders |= dict.fromkeys(_DATA_FLAGS, self._root_data_dir)
        return {
            name: _under(folders[name], value) if name in folders and isinstance(value, str) else value
            for name, value in settings.items()
        }


class BertClassifyBenchmarkReal(BertPretrainingBenchmark):
    """The same under its published name. It says "classify" and means pre-training; drivers' configurations
    depend on it."""


def _under(folder: str, paths: str) -> str:
    """Returns comma-separated paths with the relative ones among them in `folder`."""
    return ",".join(
        path if "://" in path else os.path.join(folder, path)
        for path in map(str.strip, paths.split(","))
        if path
    )


def _free_folder(path: str) -> str:
    """Returns `path`, or the first of `path`_2, `path`_3, ... that holds no earlier run: a benchmark neither
    resumes nor overwrites."""
    names = itertools.chain([path], (f"{path}_{number}" for number in itertools.count(2)))
    return next(name for name in names if not (tf.io.gfile.exists(name) and tf.io.gfile.listdir(name)))


def _non_default_flags(config: Config) -> list[str]:
    """Returns ['--name=value', ...] of the settings that are not at their defaults, by name."""
    changed = {
        name: config[name]
        for name, field in sorted(config_lib.FIELDS.items())
        if config[name] != field.default
    }
    return [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in changed.items()
    ]


def _configure_logging(verbosity: int) -> None:
    """Logs as train.py does; handlers of the driver's own get every line, and where one of them writes to the
    screen, nothing else does."""
    root = standard_logging.getLogger()
    level, before = root.level, list(root.handlers)
    configure_logging(verbosity)  # takes absl's handler away
    kept = [handler for handler in before if handler in root.handlers]
    if any(getattr(handler, "stream", None) in (sys.stdout, sys.stderr) for handler in kept):
        root.handlers[:] = kept
    if kept:
        root.setLevel(level)


def _train(config: Config, started: float) -> tuple[list[dict], str | None]:
    """Runs a configuration. Returns the metrics to report, and a line that says why the run is no success, or
    None.

    Args:
      config: the frozen configuration.
      started: when the benchmark began, seconds since 1970.

    Raises:
      ConfigError: where the run cannot be made.
    """
    _configure_logging(config.verbosity)
    # The first run's start-up is that of the process, too; a driver may import this module and then fork for
    # every method.
    first = os.getpid() == _process and next(_runs_of_this_process) == 0
    result = runner.run(
        config,
        TASKS[config.task],
        command=["train.py", *_non_default_flags(config)],
        started=official.STARTED if first else started,
    )
    values = {
        "exp_per_second": result.sequences_per_sec,
        "eval_accuracy": result.eval_accuracy,
        "eval_loss": result.eval_loss,
        "startup_secs": result.startup_secs,
        "peak_memory_bytes": result.peak_memory_bytes,
        "steps": result.step,
    }
    metrics = [
        {"name": name, "value": value}
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    ]
    for metric in metrics:
        if metric["name"] == "eval_accuracy" and config.stop_threshold is not None:
            metric["min_value"] = config.stop_threshold
    return metrics, f"{result.status}: {result.reason}" if result.exit_code else None

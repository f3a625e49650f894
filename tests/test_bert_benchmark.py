"""The PerfZero contract: what the driver does with the benchmark class, and what it reads back."""

import json
import shlex
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.core.util import test_log_pb2

import official
from official import config as config_lib
from official.cli import flags
from official.reporting.result import TrainResult, read_result
from tests import programs
from tests.fixtures import ROOT, TINY
from tf2_bert import bert_benchmark
from tf2_bert.bert_benchmark import BertClassifyBenchmarkReal, BertPretrainingBenchmark

METHOD = "tf2_bert.bert_benchmark.BertClassifyBenchmarkReal.benchmark_cpu"
# benchmark_cpu in seconds: the smallest model and a few steps.
QUICK = dict(model={**TINY, "num_hidden_layers": 1}, max_seq_length=16, max_predictions_per_seq=3)
QUICK |= dict(train_batch_size=8, eval_batch_size=8, num_eval_samples=40, stop_steps=20)
METRICS = set("exp_per_second eval_accuracy eval_loss startup_secs peak_memory_bytes steps success".split())

# What the driver does: a parent without TensorFlow forks a child, which finds class and method by name, sets
# where the report goes, calls the method and reads the report back.
DRIVER = """
import importlib, json, logging, multiprocessing, os, sys

def child(queue, name, output_dir, arguments):
    handler = logging.FileHandler(os.path.join(output_dir, "perfzero.log"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().warning("DRIVER before")
    class_name, method = name.rsplit(".", 1)
    module, class_name = class_name.rsplit(".", 1)
    maker = getattr(importlib.import_module(module), class_name)
    benchmark = maker(output_dir=output_dir, root_data_dir=output_dir, tpu=None, **json.loads(arguments))
    os.environ["TEST_REPORT_FILE_PREFIX"] = prefix = os.path.join(output_dir, "proto_")
    getattr(benchmark, method)()
    logging.getLogger().warning("DRIVER after")
    from tensorflow.core.util import test_log_pb2
    with open(f"{prefix}{class_name}.{method}", "rb") as file:
        entries = test_log_pb2.BenchmarkEntries.FromString(file.read())
    importlib.import_module("official.cli.train")
    # A run on other devices loads nothing of Graphcore's.
    assert not [name for name in sys.modules if name.startswith("official.graphcore")]
    queue.put((len(entries.entry), entries.entry[0].SerializeToString()))

if __name__ == "__main__":
    repository, *arguments = sys.argv[1:]
    sys.path.append(repository)
    logging.basicConfig(format="%(asctime)s %(levelname)s: %(message)s", level=logging.DEBUG)
    from absl import logging as absl_logging
    absl_logging.use_absl_handler()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    assert "tensorflow" not in sys.modules
    process = context.Process(target=child, args=(queue, *arguments))
    process.start()
    process.join()
    assert process.exitcode == 0
    count, entry = queue.get()
    print(f"REPORT {count} {entry.hex()}")
"""


def drive(output_dir, **default_flags):
    """Runs benchmark_cpu as the driver does, from a working directory elsewhere, without GPUs. Returns (entry
    of the report, stderr)."""
    arguments = json.dumps({"default_flags": default_flags})
    words = ("-c", DRIVER, ROOT, METHOD, output_dir, arguments)
    done = programs.run(*words, cwd=output_dir, timeout=590, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    count, entry = done.stdout.split("REPORT ")[1].split()
    assert count == "1"
    return test_log_pb2.BenchmarkEntry.FromString(bytes.fromhex(entry)), done.stderr


@pytest.fixture(autouse=True)
def _prefix(tmp_path, monkeypatch):
    """Reports of this process go to tmp_path, nothing in the environment overrides arguments, and the working
    directory is elsewhere."""
    monkeypatch.setenv("TEST_REPORT_FILE_PREFIX", f"{tmp_path}/proto_")
    monkeypatch.delenv("BENCHMARK_OUTPUT_DIR", raising=False)
    monkeypatch.delenv("BENCHMARK_TPU", raising=False)
    monkeypatch.chdir(tmp_path)


def report(tmp_path, name: str) -> test_log_pb2.BenchmarkEntry:
    """Returns the one entry of the report of 'Class.method', and removes it: another would not be written."""
    path = tmp_path / f"proto_{name}"
    entries = test_log_pb2.BenchmarkEntries.FromString(path.read_bytes())
    path.unlink()
    (entry,) = entries.entry
    assert entry.name == name and entry.iters == -1 and entry.wall_time >= 0
    return entry


def metrics_of(entry) -> dict:
    metrics = {metric.name: metric for metric in entry.metrics}
    assert len(metrics) == len(entry.metrics)
    assert all(metric.value == metric.value for metric in metrics.values())  # no NaN
    return metrics


def failing(entry) -> set[str]:
    """Returns the metrics that the driver counts as failures."""
    limited = [metric for metric in entry.metrics if metric.HasField("min_value")]
    return {metric.name for metric in limited if metric.value < metric.min_value.value}


def assert_failed(entry, *phrases: str) -> None:
    assert metrics_of(entry)["success"].value == 0 and "success" in failing(entry)
    error = entry.extras["error"].string_value
    assert all(phrase in error for phrase in phrases), error
    assert "\n" not in error


def test_as_the_driver_runs_it(tmp_path):
    entry, errors = drive(tmp_path, **QUICK, stop_threshold=0.01)
    assert entry.name == "BertClassifyBenchmarkReal.benchmark_cpu" and entry.iters == -1
    metrics = metrics_of(entry)
    assert set(metrics) == METRICS and not failing(entry)
    assert metrics["eval_accuracy"].min_value.value == 0.01 and metrics["success"].min_value.value == 1
    assert metrics["steps"].value == 20 and metrics["exp_per_second"].value > 0
    assert metrics["peak_memory_bytes"].value > 1e8
    assert entry.wall_time + 60 > metrics["startup_secs"].value > 1  # with the imports
    given = shlex.split(entry.extras["flags"].string_value)
    expected = "--train_batch_size=8 --use_synthetic_data=true --optimizer_type=lamb --learning_rate=0.005"
    assert set(expected.split()) <= set(given)
    assert read_result(str(tmp_path / "benchmark_cpu"))["status"] == "success"
    assert "Traceback" not in errors and "error" not in entry.extras
    logged = (tmp_path / "perfzero.log").read_text()
    lines = "First step done|Resuming from|Fresh weights from seed|DRIVER before|DRIVER after"
    for line in lines.split("|"):  # by the driver's own handlers
        count = int(line != "Resuming from")
        assert (logged.count(line), errors.count(line)) == (count, count), line


@pytest.mark.slow
def test_whole_benchmark_reaches_its_accuracy(tmp_path):
    entry, _ = drive(tmp_path)
    metrics = metrics_of(entry)
    assert not failing(entry) and metrics["eval_accuracy"].value > 0.08
    assert metrics["eval_accuracy"].min_value.value == 0.075


@pytest.mark.slow
def test_methods_one_after_the_other_under_both_names(tmp_path, capsys, monkeypatch):
    (tmp_path / "benchmark_cpu").mkdir()
    (tmp_path / "benchmark_cpu" / "result.json").write_text("{}")  # of an earlier run
    quick = {**QUICK, "stop_threshold": 0.0}
    # As in a child that a driver forks from one import for every method: the process began long ago.
    monkeypatch.setattr(bert_benchmark, "_process", -1)
    monkeypatch.setattr(official, "STARTED", 0.0)
    BertPretrainingBenchmark(str(tmp_path), quick, flag_methods=[print], other="x").benchmark_cpu()
    first = report(tmp_path, "BertPretrainingBenchmark.benchmark_cpu")
    assert not failing(first), first.extras["error"].string_value
    # Neither resumed nor overwritten.
    assert first.extras["model_dir"].string_value == str(tmp_path / "benchmark_cpu_2")
    assert read_result(str(tmp_path / "benchmark_cpu_2"))["step"] == 20
    on_cpu = dict(num_gpus=0, dtype="bf16", enable_xla=False, device_warmup=False, use_synthetic_data=True)
    on_cpu |= dict(input_files="", init_checkpoint="", num_accumulation_steps=2, stop_threshold=0.99)
    BertClassifyBenchmarkReal(str(tmp_path), {**QUICK, **on_cpu}).benchmark_short_1_gpu()
    second = report(tmp_path, "BertClassifyBenchmarkReal.benchmark_short_1_gpu")
    assert_failed(second, "aborted", "0.99")
    assert failing(second) == {"success", "eval_accuracy"} and set(metrics_of(second)) == METRICS
    told = f"BertClassifyBenchmarkReal.benchmark_short_1_gpu: {second.extras['error'].string_value}\n"
    assert told in capsys.readouterr().err
    for entry in (first, second):  # of this method, not of the process
        assert 0 < metrics_of(entry)["startup_secs"].value < entry.wall_time


def test_a_failed_run_is_a_failed_result_and_a_bug_still_raises(tmp_path, monkeypatch):
    numbers = dict(step=3, samples=24, eval_accuracy=float("nan"), sequences_per_sec=5.0)
    result = TrainResult("failed", "mlm_loss not finite at step 3", **numbers)
    monkeypatch.setattr(bert_benchmark.runner, "run", lambda *_, **__: result)
    BertPretrainingBenchmark(str(tmp_path), QUICK).benchmark_cpu()
    entry = report(tmp_path, "BertPretrainingBenchmark.benchmark_cpu")
    assert_failed(entry, "failed: mlm_loss not finite at step 3")
    assert set(metrics_of(entry)) == {"exp_per_second", "steps", "success"}
    monkeypatch.setattr(bert_benchmark.runner, "run", mock.Mock(side_effect=AssertionError("a bug")))
    with pytest.raises(AssertionError, match="a bug"):
        BertPretrainingBenchmark(str(tmp_path), QUICK).benchmark_cpu()
    assert not (tmp_path / "proto_BertPretrainingBenchmark.benchmark_cpu").exists()


@pytest.mark.slow
def test_missing_devices_or_data_are_a_failed_result(tmp_path, capsys):
    for method in sorted(set(bert_benchmark.FLAGFILES) - {"benchmark_cpu"}):
        getattr(BertClassifyBenchmarkReal(str(tmp_path / "out"), root_data_dir=str(tmp_path)), method)()
        entry = report(tmp_path, f"BertClassifyBenchmarkReal.{method}")
        missing = f"num_gpus={method.split('_')[-2]} but this machine has 0"
        if not tf.config.list_physical_devices("GPU"):
            assert_failed(entry, "distribution_strategy=tpu" if "tpu" in method else missing)
        errors = capsys.readouterr().err
        assert errors == f"BertClassifyBenchmarkReal.{method}: {entry.extras['error'].string_value}\n"
    assert not (tmp_path / "out").exists()


def test_flagfile_of_every_method(monkeypatch):
    methods = {name for name in dir(BertPretrainingBenchmark) if name.startswith("benchmark_")}
    assert methods == set(bert_benchmark.FLAGFILES)
    monkeypatch.chdir(ROOT)
    for method, path in bert_benchmark.FLAGFILES.items():
        config = flags.parse([f"--flagfile={path}"])
        is_short = config_lib.train_steps(config) <= 5 * config.steps_per_loop
        assert (config.stop_threshold is None) == ("short" in method)
        assert is_short == ("short" in method or method == "benchmark_cpu")


def test_short_benchmarks_are_the_start_of_long_ones_and_one_gpu_has_the_recipe_of_eight(monkeypatch):
    monkeypatch.chdir(ROOT)
    short = "stop_steps steps_per_loop checkpoint_every_steps steps_between_eval steps_before_eval_start"
    short += " stop_threshold"
    one_gpu = "distribution_strategy num_gpus all_reduce_alg num_accumulation_steps clip_norm eval_batch_size"
    for first, second, expected in (
        ("benchmark_short_8_gpu", "mlperf_v100", short),
        ("benchmark_short_1_gpu", "benchmark_1_gpu", short),
        ("benchmark_short_4x4_tpu", "mlperf_tpu_v3_32", short),
        ("benchmark_1_gpu", "mlperf_v100", one_gpu),
    ):
        one, other = (flags.parse([f"--flagfile=configs/{name}.flags"]) for name in (first, second))
        found = {name for name in config_lib.FIELDS if one[name] != other[name]}
        assert found == {"model_dir", *expected.split()}, first
    assert one.num_accumulation_steps == 8 * other.num_accumulation_steps
    assert one.clip_norm == 8 * other.clip_norm


@pytest.mark.slow
def test_bad_default_flags_are_a_failed_result(tmp_path, capsys):
    for given, message in (
        ({"lerning_rate": 1}, "default_flags: unknown setting 'lerning_rate' (did you mean learning_rate?)"),
        ({"stop_steps": "many"}, "default_flags: stop_steps='many'"),
        ({"model_dir": "x"}, "default_flags: model_dir=x"),
        ({"use_synthetic_data": False, "input_files": "a/*,/b/*"}, "data/a/* matches no file"),
        ({"vocab_file": "vocab.txt"}, "data/vocab.txt: No such file"),
        ({"bert_config_file": "configs/x.json"}, f"{ROOT}/configs/x.json"),
    ):
        BertPretrainingBenchmark(str(tmp_path), given, root_data_dir=str(tmp_path / "data")).benchmark_cpu()
        assert_failed(report(tmp_path, "BertPretrainingBenchmark.benchmark_cpu"), message)
    assert "Traceback" not in capsys.readouterr().err


def test_data_files_are_under_the_data_folder(tmp_path):
    given = {"input_files": "a/part-*, /b/part-*,gs://c/part-*", "train_batch_size": 16}
    benchmark = BertPretrainingBenchmark(str(tmp_path), given, root_data_dir="/data")
    config = benchmark._config("benchmark_8_gpu")  # pylint: disable=protected-access
    assert config.input_files == "/data/a/part-*,/b/part-*,gs://c/part-*"
    assert config.init_checkpoint == "/data/bert_mlperf_data/model.ckpt-28252"
    assert config.bert_config_file == f"{ROOT}/configs/models/bert_large.json"
    assert config.train_batch_size == 16
    config = BertPretrainingBenchmark(str(tmp_path), root_data_dir="")._config("benchmark_8_gpu")  # pylint: disable=protected-access
    assert config.init_checkpoint == "bert_mlperf_data/model.ckpt-28252"


@pytest.mark.slow
def test_environment_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARK_OUTPUT_DIR", str(tmp_path / "env"))
    monkeypatch.setenv("BENCHMARK_TPU", "grpc://localhost:1")
    benchmark = BertClassifyBenchmarkReal(str(tmp_path / "own"), root_data_dir="gs://bucket", tpu="other")
    config = benchmark._config("benchmark_4x4_tpu")  # pylint: disable=protected-access
    assert config.model_dir == str(tmp_path / "env" / "benchmark_4x4_tpu")
    assert config.tpu == "grpc://localhost:1"
    assert benchmark._config("benchmark_8_gpu").tpu is None  # pylint: disable=protected-access
    benchmark.benchmark_4x4_tpu()
    name = "BertClassifyBenchmarkReal.benchmark_4x4_tpu"
    assert_failed(report(tmp_path, name), "tpu=grpc://localhost:1")
    BertClassifyBenchmarkReal(str(tmp_path / "own"), root_data_dir="/data").benchmark_4x4_tpu()
    assert_failed(report(tmp_path, name), "input_files=/data/", "gs://BUCKET")  # remote, as the TPU is

"""bert benchmark machine: its file, and the predictions of other benchmarks from it; never a time."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official.cli.benchmark import inputs, machine, predictions
from official.planning import kernels, machine_kernels
from official.planning import machine as machine_lib
from official.planning.kernels import Product
from tests import programs
from tests.conftest import TINY


def test_a_case_runs_and_is_what_a_plan_takes_it_for():
    x = tf.ones([64, 32])
    case = machine_kernels.make_case(lambda x, y: x + y, [x, x])
    assert case.work == kernels.Work("elementwise", "fp32", 3 * 4 * 64 * 32) and case.sets > 1
    case.run()
    for transposed in ("none", "left", "right"):
        product = Product(1, 8, 16, 32, transposed)
        case = machine_kernels.product_case(kernels.PRODUCT, product, "bf16")
        assert (case.work.product, case.work.dtype) == (product, "bf16")
        case.run()
    batched = Product(3, 8, 16, 32, "right")
    case = machine_kernels.product_case(kernels.BATCHED, batched, "fp32")
    assert (case.work.kernel, case.work.product) == (kernels.BATCHED, batched)


def test_the_fastest_run_counts():
    calls = []
    secs, busy = machine.fastest(lambda: calls.append(np.ones(10)))
    assert len(calls) > 3 and secs >= 0 and busy >= 0


@pytest.mark.slow
def test_the_whole_way(tmp_path, monkeypatch):
    path, model = tmp_path / "m.json", tmp_path / "model.json"
    model.write_text(json.dumps(TINY))
    done = programs.run("scripts/measure_machine.py", "--dtypes=fp32", f"--output={path}", "--num_gpus=0")
    assert done.returncode == 0, done.stderr
    found = machine_lib.find(str(path))
    assert found is not None and str(found.processor.cores) in done.stdout
    measured = {rate.work.kernel for rate in found.rates}
    assert {"product", "batched product", "elementwise", "compiled lamb direction", "softmax"} <= measured
    again = programs.run("scripts/measure_machine.py", f"--output={path}")
    assert again.returncode == 2 and "exists" in again.stderr
    arguments = [
        f"--bert_config_file={model}",
        "--shapes=16x4",
        "--dtypes=fp32",
        "--rounds=2",
        "--num_gpus=0",
    ]
    monkeypatch.setattr("sys.argv", ["bert", *arguments, f"--machine_file={path}", f"--output={tmp_path}/p"])
    predictions.main()
    cases = json.loads((tmp_path / "p.json").read_text())["cases"]
    assert [row["packed"] for row in cases] == [False, False, True]
    for row in cases:
        assert row["off"] == pytest.approx(row["predicted_step_secs"] / row["step_secs"] - 1)


@pytest.mark.parametrize(
    "arguments,message",
    [(["--dtypes=fp8"], "fp32, bf16, fp16"), (["--output=/proc/x"], "--output=/proc/x: No such file")],
)
def test_wrong_flags(arguments, message):
    done = programs.run("scripts/measure_machine.py", *arguments)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_row_without_and_with_a_prediction():
    assert inputs.predicted(None) == {"predicted_step_secs": None, "predicted_sequences_per_sec": None}
    without = inputs.predicted(None) | {"sequences_per_sec": 2.0}
    assert inputs.over_measured(without).split() == ["-"]
    row = inputs.predicted({"step_secs": 1.0, "sequences_per_sec": 3.0}) | {"sequences_per_sec": 2.0}
    assert inputs.over_measured(row).split() == ["3.000", "+50%"]

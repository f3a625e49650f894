"""`bert benchmark bounds`: the whole way on a small model, and what is no earlier result; never a time."""

import json
import subprocess
import sys

import pytest

from official.cli.benchmark import bounds, inputs
from official.io.errors import ConfigError
from official.planning import plan
from official.reporting.profiles import groups, times
from official.tasks import TASKS
from official.training import step_benchmark
from tests.conftest import ROOT, TINY

CASE = {
    "case": "fp32, 16 x 4",
    "step_secs": 2.0,
    "profiled_secs": 2.5,
    "bound_secs": 1.0,
    "memory_gb_per_sec": 10.0,
    "groups": [
        {
            "name": groups.DENSE,
            "section": groups.PRODUCTS,
            "secs": 1.5,
            "bound_secs": 1.0,
            "count": 12,
            "unknown_secs": 0.0,
        },
        {
            "name": groups.IDLE,
            "section": groups.WAITING,
            "secs": 1.0,
            "bound_secs": 0.0,
            "count": 0,
            "unknown_secs": 0.0,
        },
    ],
}


def test_a_case_is_told_beside_the_same_one_before():
    before = {**CASE, "groups": [{**CASE["groups"][0], "secs": 1.75}]}
    lines = bounds.text(CASE, before).splitlines()
    assert "2.000 s a step, bound 1.000 s (2.00x)" in lines[0] and "before 2.000 s" in lines[0]
    assert lines[2].split()[-5:] == ["1500.0", "1000.0", "1.50", "12", "1750.0"]
    assert lines[3].split()[-5:] == ["1000.0", "0.0", "-", "0", "0.0"]
    assert "before" not in bounds.text(CASE, None) and "no bound" not in bounds.text(CASE, None)
    rows = [{**CASE["groups"][0], "unknown_secs": 0.5}]
    assert "Of 500.0 ms no bound is known" in bounds.text({**CASE, "groups": rows}, None)


@pytest.mark.parametrize(
    "content, message",
    [
        ({}, 'has no "cases"'),
        ({"cases": [{"case": "fp32, 128 x 8", "step_secs": 2.4, "groups": {"casts": 1.0}}]}, "profiled_secs"),
        ({"cases": [{**CASE, "groups": {"casts": 1.0}}]}, '"groups" is an object, expected a list'),
        ({"cases": [{**CASE, "groups": [{"name": "casts"}]}]}, 'case 1 has no "section"'),
        ([], "expected an object, got a list"),
    ],
)
def test_what_is_no_earlier_result(tmp_path, content, message):
    path = tmp_path / "before.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message) as error:
        bounds.read_before(str(path))
    assert str(error.value).startswith(f"--before={path}")


def test_an_earlier_result_of_other_cases_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    (tmp_path / "before.json").write_text(json.dumps({"cases": [CASE]}))
    words = ["bounds", "--shapes=128x8", "--dtypes=bf16", f"--before={tmp_path}/before.json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(ConfigError, match="fp32, 16 x 4, and none of those asked for: bf16, 128 x 8"):
        bounds.main()


def run(tmp_path, *arguments) -> dict:
    """Runs the command and returns what it has written."""
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    words = [f"--bert_config_file={tmp_path}/bert.json", "--shapes=16x4", "--steps=2", *arguments]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "official.cli",
            "benchmark",
            "bounds",
            *words,
            f"--output={tmp_path}/out",
            "--overwrite",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.png").stat().st_size > 10_000
    return json.loads((tmp_path / "out.json").read_text())


def flops_of(tmp_path, dtype: str, fused: bool) -> float:
    """Returns the FLOPs of the same step, as its plan has them."""
    model = inputs.read_model(f"{tmp_path}/bert.json")
    settings = {"optimizer_type": "adamw", "num_gpus": 0, "fused_ops": fused}
    return plan.make_plan(step_benchmark.step_config(model, 16, 4, dtype, settings), TASKS["pretrain"])[
        "flops_per_step"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype, blocks", [("fp32", "fused"), ("bf16", "plain")])
def test_the_whole_way(tmp_path, dtype, blocks):
    (case,) = run(tmp_path, f"--dtypes={dtype}", f"--blocks={blocks}")["cases"]
    rows = {row["name"]: row for row in case["groups"]}
    blocks_of_both = {f"{name}, {way}" for name in (groups.ACTIVATION, groups.NORM, groups.SOFTMAX)
                      for way in ("forward", "backward")}  # fmt: skip
    products = {groups.DENSE, groups.OF_INPUTS, groups.OF_WEIGHTS, groups.OTHER_PRODUCTS, groups.ATTENTION}
    assert set(rows) >= {*blocks_of_both, *products, times.UPDATE, times.NORM, groups.HEADS, groups.IDLE}
    assert sum(row["secs"] for row in rows.values()) == pytest.approx(case["profiled_secs"], rel=1e-6)
    # The profiler leaves out an operation that takes next to no time, such as a product of 4 x 2 numbers.
    flops = sum(row["flops"] for row in rows.values())
    assert flops == pytest.approx(flops_of(tmp_path, dtype, blocks == "fused"), rel=1e-3)
    assert all(rows[name]["bound_secs"] > 0 for name in {*blocks_of_both, *products, times.UPDATE})
    assert sum(row["unknown_secs"] for row in rows.values()) < 0.25 * case["profiled_secs"]
    assert bounds.read_before(f"{tmp_path}/out.json") == {case["case"]: case}

"""Comparing types and operations over seeds: the verdict, and the whole way on a small model."""

import json

import pytest

from official.cli.benchmark import numerics as compare_numerics
from tests import programs
from tests.conftest import TINY


def curves(*losses):
    return [compare_numerics.Curve((5, 10), (loss + 1, loss)) for loss in losses]


def test_verdict():
    first, near, far = compare_numerics.summarize(
        {"fp32": curves(2.0, 2.1, 2.2), "bf16": curves(2.15, 2.2, 2.1), "fp32_plain": curves(2.4, 2.3, 2.35)}
    )
    assert (
        first["agrees"]
        and first["distance"] == first["largest_of_one_seed"] == 0
        and first["spread"] == pytest.approx(0.2)
    )
    assert (
        near["agrees"]
        and near["distance"] == pytest.approx(0.05)
        and near["largest_of_one_seed"] == pytest.approx(0.15)
    )
    assert not far["agrees"] and far["mean"] == pytest.approx(2.35)  # 0.25 away, seeds are 0.2 and 0.1 apart
    assert "NO" in compare_numerics.table([first, near, far])


def compare(*arguments):
    return programs.run("scripts/compare_numerics.py", *arguments)


@pytest.mark.slow
def test_the_whole_way(tmp_path):
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    arguments = [
        f"--model_dir={tmp_path}/runs",
        "--variants=fp32,fp32_plain",
        "--num_runs=2",
        f"--output={tmp_path}/out",
        "--",
        f"--bert_config_file={tmp_path}/bert.json",
        "--use_synthetic_data",
        "--max_seq_length=16",
        "--max_predictions_per_seq=3",
        "--num_steps_per_epoch=4",
        "--num_train_epochs=1",
        "--steps_per_loop=2",
        "--steps_between_eval=2",
        "--num_eval_samples=8",
        "--train_batch_size=4",
        "--warmup_steps=0",
        "--num_gpus=0",
    ]
    done = compare(*arguments)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    fused, plain = record["variants"]
    assert fused["curves"][0]["steps"] == [2, 4] and fused["final_losses"][0] != fused["final_losses"][1]
    assert plain["largest_of_one_seed"] < 1e-3 and plain["agrees"]  # dropout's masks are the same
    assert (tmp_path / "out.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--num_runs=1"], "expected 2 or more"),
        (["--variants=fp8"], "is not one of fp32"),
        (["--", "--lerning_rate=1"], "exit code 2 in the variant fp32"),
    ],
)
def test_wrong_flags(tmp_path, arguments, message):
    done = compare(f"--model_dir={tmp_path}", *arguments)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]

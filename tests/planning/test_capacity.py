"""--plan_device: whether a run fits, and the smallest change with which it does."""

import json

import pytest

from official.cli import flags
from official.config.values import DEVICE_BYTES, device_bytes
from official.io.errors import ConfigError
from official.planning import plan as plan_lib
from official.tasks import TASKS
from tests.conftest import ROOT


def test_bytes_of_a_device():
    cases = {"v100-16gb": 16 * 10**9, "TPU-v3-core": 16 * 2**30, "ipu-mk2": 900 * 10**6, "16e9": 16 * 10**9}
    cases |= {"16000000000": 16 * 10**9, "16GB": 16 * 10**9, "1.5 GiB": 3 * 2**29}
    assert {text: device_bytes(text) for text in cases} == cases
    for text in ("v100", "16 gigs", "-3", "0", "nan", "inf", "1e99", "", "GB"):
        with pytest.raises(ConfigError) as caught:
            device_bytes(text)
        assert "--plan_device" in str(caught.value) and "\n" not in str(caught.value)
        assert all(name in str(caught.value) for name in DEVICE_BYTES)


def test_a_device_is_for_a_plan(make_config):
    with pytest.raises(ConfigError, match="needs --plan"):
        make_config(plan_device="h100")
    with pytest.raises(ConfigError, match="did you mean"):
        make_config(plan=True, plan_device="v100-16bg")


# Bytes of a made-up run: of each --recompute, for a micro batch of 12 rows; they shrink with it.
_BYTES = {"none": 1200, "attention": 600, "block": 120}


def change_of(make_config, limit, **settings):
    config = make_config(plan=True, plan_device=str(limit), train_batch_size=12, **settings)
    asked = []

    def bytes_with(changed):
        asked.append((changed.recompute, changed.num_accumulation_steps))
        return [_BYTES[changed.recompute] // changed.num_accumulation_steps]

    return plan_lib.capacity(config, 12, bytes_with(config), bytes_with), asked


def test_the_smallest_change_that_fits(make_config):
    for limit, fits, fits_with in (
        (1200, True, None),
        (1199, False, "--recompute=attention"),
        (600, False, "--recompute=attention"),
        (599, False, "--recompute=block"),
        (119, False, "--recompute=block --num_accumulation_steps=2"),
        (25, False, "--recompute=block --num_accumulation_steps=6"),
        (9, False, None),
    ):
        found, asked = change_of(make_config, limit)
        assert (found["fits"], found["fits_with"]) == (fits, fits_with)
        assert found["bytes_per_device"] == [1200] and found["device_bytes"] == limit
        assert len(asked) == 1 if fits else asked[-1] != ("none", 1)
    found, _ = change_of(make_config, 40, recompute="block")  # it can only accumulate
    assert found["fits_with"] == "--num_accumulation_steps=3"


def test_without_a_device_nothing_is_said(make_config):
    plan = plan_lib.make_plan(make_config(), TASKS["pretrain"])
    assert plan["fits"] is None and plan["bytes_per_device"] == [plan["total_bytes"]]
    text = plan_lib.describe(plan)
    assert " fit" not in text and plan["pipeline"] is None and "Pipeline" not in text


def test_the_page_says_whether_it_fits(make_config, tmp_path):
    path = tmp_path / "plan.json"
    settings = {"plan": True, "plan_file": str(path)}
    text = plan_lib.run(make_config(plan_device="1GB", **settings), TASKS["pretrain"])
    assert "it fits" in text and json.loads(path.read_text())["fits"] is True
    text = plan_lib.run(make_config(plan_device="1000", **settings), TASKS["pretrain"])
    assert "WARNING" in text and "does not fit" in text and json.loads(path.read_text())["fits"] is False


def test_an_evaluation_has_nothing_to_compute_again(make_config):
    config = make_config(plan=True, plan_device="1000", do_train=False, do_eval=True)
    plan = plan_lib.make_plan(config, TASKS["pretrain"])
    assert plan["fits"] is False and plan["fits_with"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v100", "v100_logs", "tpu_v3_32", "tpu_v3_32_logs"])
def test_the_mlperf_recipes_fit_their_devices(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    device = "v100-16gb" if "v100" in name else "tpu-v3-core"
    words = [f"--flagfile=configs/mlperf_{name}.flags", "--plan", f"--plan_device={device}"]
    config = flags.parse(words)
    plan = plan_lib.make_plan(config, TASKS[config.task])
    assert plan["fits"] and plan["fits_with"] is None
    if config.recompute != "none":  # no more than it needs
        less = flags.parse([*words, "--recompute=none"])
        plan = plan_lib.make_plan(less, TASKS[less.task])
        assert not plan["fits"] and plan["fits_with"] == f"--recompute={config.recompute}"


def test_ipus_are_told_no_change_that_they_do_not_take(make_config):
    pipeline = dict(distribution_strategy="ipu", pipeline_stages="emb / hid*2 / mlm+nsp", loss_scale="1")
    batch = dict(train_batch_size=36, num_accumulation_steps=6, max_predictions_per_seq=2)
    config = make_config({"num_hidden_layers": 2}, **pipeline, **batch, plan=True, plan_device="1000")
    asked = []

    def bytes_with(changed):
        asked.append((changed.recompute, changed.num_accumulation_steps))
        if changed.num_accumulation_steps % 6:
            raise ConfigError("a grouped pipeline takes multiples of 6")
        return [500 if changed.num_accumulation_steps == 36 else 2000]

    found = plan_lib.capacity(config, 36, [2000], bytes_with)
    assert found["fits_with"] == "--recompute=block --num_accumulation_steps=36"
    assert "attention" not in [recompute for recompute, _ in asked]

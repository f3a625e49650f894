"""Pipelines of Graphcore's configurations: each shipped one is a plan, elsewhere they are notes."""

import json

import pytest

from official.cli import configs, flags
from official.distribution.pipeline_plan import allocation, make_plan, make_timeline
from official.graphcore import configuration_terms
from official.io.errors import ConfigError
from tests.conftest import ROOT

SHIPPED = [name for name in sorted(configs.theirs()) if not name.endswith("popart/demo")]  # it places nothing
HEADS = {
    "pretrain": ["pooler", "masked_lm", "next_sentence"],
    "squad": ["span"],
    "glue": ["pooler", "classifier"],
}
LARGE = "emb+hid*3 / hid*7 / hid*7 / hid*7 / pool+mlm+nsp"
BASE = "emb / hid*4 / hid*4 / hid*4 / pool+mlm+nsp"
# Name -> stages, devices and micro batches of the published files and programs.
PUBLISHED = {
    "tf1/pretrain_large_128_phase1": (LARGE, "0,1,2,3,0", 2050),
    "tf1/pretrain_base_128_phase1": (BASE, "0,1,2,3,0", 510),
    "tf1/groupbert/pretrain_base_groupbert_128_adam": (
        "emb / hid*4 / hid*4 / hid*3 / hid+pool+mlm+nsp",
        "0,1,2,3,0",
        40,
    ),
    "tf1/groupbert/pretrain_mini_groupbert_128_adam": ("emb / hid*2 / hid*2 / pool+mlm+nsp", "0,1,2,0", 512),
    "tf1/groupbert/glue_large_8IPU": (
        "emb / hid*3 / hid*3 / hid*4 / hid*4 / hid*4 / hid*3 / hid*3 / pool+glu",
        "0,1,2,3,4,5,6,7,0",
        36,
    ),
    "tf1/squad_large_inference_2ipu": ("emb+hid*12 / hid*12+loc", "0,1", 4),
    "tf2/pretrain_large_512_phase2": ("emb+hid*2 / hid*7 / hid*7 / hid*8 / pool+mlm+nsp", "0,1,2,3,0", 2040),
    "tf2/squad_large": ("emb+hid*3 / hid*7 / hid*7 / hid*7 / loc", "0,1,2,3,0", 40),
    "pytorch/pretrain_base_128": (BASE, "0,1,2,3,0", 520),  # 512 there
    "pytorch/pretrain_large_128": (LARGE, "0,1,2,3,0", 2050),  # 2048 there
    "pytorch/squad_large_384": (
        "emb+hid*2 / hid*3 / hid*3 / hid*3 / hid*3 / hid*3 / hid*3 / hid*4+loc",
        "0,1,2,3,4,5,6,7",
        32,
    ),
    "popart/pretrain_base_128": (BASE, "0,1,2,3,0", 520),
    "popart/squad_base_384": ("emb+hid*6 / hid*6+loc", "0,1", 16),
    "popart/squad_large_128_inf": ("emb+hid*24+loc", "0", 1),
    "packed/pod16-closed": (
        "emb / hid*3 / hid*4 / hid*3 / hid*3 / hid*4 / hid*3 / hid*4 / pool+mlm+nsp",
        "0,1,2,3,4,5,6,7,0",
        270,  # 256 there
    ),
    "packed/pod256-closed": (
        "emb / hid*3 / hid*3 / hid*3 / hid*4 / hid*3 / hid*4 / hid*3 / hid+pool+mlm+nsp",
        "0,1,2,3,4,5,6,7,0",
        36,
    ),
}


def read(name, *arguments):
    task = ["--task-name=mrpc"] if "glue" in name and "regression" not in name else []
    return flags.read([f"--config={name}", "--plan", *task, *arguments])


def planned(config):
    """Returns the plan of a configuration; the names of the model's stages follow from its task."""
    model = config.model
    layers = [f"layer_{number}" for number in range(model.num_hidden_layers)]
    final = ["final_norm"] * (model.block_type == "groupbert")
    return make_plan(config, ["embeddings", *layers, *final, *HEADS[config.task]])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_stage_plan_is_one_here(name):
    config, told = read(name, "--distribution_strategy=ipu")
    plan = planned(config)
    assert sum(map(len, plan.stages)) == config.model.num_hidden_layers + len(HEADS[config.task]) + 1 + (
        config.model.block_type == "groupbert"
    )
    assert plan.schedule == "grouped" and plan.num_devices in (1, 2, 3, 4, 8)
    assert plan.device_of("embeddings") == 0 and len(allocation(plan)) > config.model.num_hidden_layers
    assert any("pipeline_stages" in line and "->" in line for line in told)
    known = name.removeprefix("graphcore/")
    if known in PUBLISHED:
        said = (plan.notation, ",".join(map(str, plan.devices)), plan.micro_batches)
        assert said == PUBLISHED[known]


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_published_plan_also_runs_elsewhere(name):
    config, told = read(f"graphcore/{name}", "--distribution_strategy=pipeline", "--pipeline_schedule=1f1b")
    plan = planned(config)
    assert plan.notation == PUBLISHED[name][0] and plan.schedule == "1f1b"
    assert 0 <= make_timeline(plan).bubble < 0.9
    assert not any("a grouped pipeline" in line for line in told)


def test_elsewhere_pipelines_are_notes():
    config, told = read("graphcore/tf2/pretrain_base_128_phase1")
    assert (config.pipeline_stages, config.device_mapping) == (None, None)
    note = next(line for line in told if "only on an IPU" in line)
    assert "ipu_config.pipeline_stages, ipu_config.pipeline_device_mapping" in note
    _, told = read("graphcore/tf1/pretrain_tiny_128_lamb", "--device-mapping=0,1,0")
    assert "--device_mapping" in next(line for line in told if "only on an IPU" in line)
    with pytest.raises(ConfigError, match="device_mapping=0,1 needs --distribution_strategy=pipeline or"):
        flags.read(["--config=quickstart", "--plan", "--device_mapping=0,1"])


def test_the_command_line_goes_over_the_stages_of_a_file():
    config, _ = read(
        "graphcore/tf2/pretrain_base_128_phase1", "--distribution_strategy=ipu", "--pipeline-stages=3"
    )
    assert (config.pipeline_stages, config.device_mapping) == ("3", None)
    assert config.num_accumulation_steps == 510 and planned(config).devices == (0, 1, 0)


@pytest.mark.parametrize("backend,expected", [("ipu", "interleaved"), ("pipeline", "1f1b")])
def test_schedules_of_theirs_are_for_ipus(backend, expected, tmp_path):
    values = json.loads((ROOT / "configs/graphcore/tf1/squad_large_inference_2ipu.json").read_text())
    values |= {"pipeline_schedule": "Interleaved", "device_mapping": [0, 1]}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values))
    config, told = read(str(path), f"--distribution_strategy={backend}")
    assert config.pipeline_schedule == expected == planned(config).schedule
    assert any("Interleaved" in line and f"pipeline_schedule={expected}" in line for line in told)


def test_what_is_rounded_and_what_is_whole_is_said():
    _, told = read("graphcore/packed/pod16-closed", "--distribution_strategy=ipu")
    assert any("num_accumulation_steps=270, not 256" in line for line in told)
    assert any("a block is whole, and where its attention is" in line for line in told)
    five = {"pipeline_stages": "5", "device_mapping": "0,1,2,3,0"}
    assert (
        configuration_terms.rounded_up(2048, five, True) == 2050
        and configuration_terms.rounded_up(2050, five, True) == 2050
    )
    assert configuration_terms.rounded_up(4, five, False) == 5
    assert configuration_terms.rounded_up(7, {"pipeline_stages": "1"}, True) == 7
    assert configuration_terms.rounded_up(7, five | {"pipeline_schedule": "sequential"}, True) == 7


BAD = {
    "pipeline_stages": ([["emb"], "hid"], "expected a list of lists of names"),
    "device_mapping": ([0, 1.5], "expected a whole number"),
    "pipeline_schedule": ("Random", "expected one of Grouped, Interleaved, Sequential"),
}


@pytest.mark.parametrize("key", BAD)
def test_values_of_another_kind_are_named(key, tmp_path):
    values = json.loads((ROOT / "configs/graphcore/tf1/squad_large_inference_2ipu.json").read_text())
    value, message = BAD[key]
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values | {key: value}))
    with pytest.raises(ConfigError) as error:
        read(str(path), "--distribution_strategy=ipu")
    assert message in str(error.value) and key in str(error.value)

"""Graphcore's keys about IPUs: settings on IPUs, and notes elsewhere."""

import json

import pytest

from official.cli import flags

TF1 = "graphcore/tf1/pretrain_large_128_phase1"


def read(name, *arguments, strategy="ipu"):
    found = flags.read(
        [f"--config={name}", f"--distribution_strategy={strategy}", "--model_dir=run", *arguments]
    )
    return found.config, "\n".join(found.told)


def test_a_tf1_configuration_says_how_its_ipus_compute():
    config, _ = read(TF1, "--generated_data")
    assert (config.ipu_replicas, config.num_accumulation_steps) == (4, 2050)
    assert config.train_batch_size == 8 * 2050 * 4
    assert (config.dtype, config.partials_type, config.recompute) == ("fp16", "half", "block")
    assert config.scheduler == "clustering"
    assert config.loss_scale == "32768" and config.pipeline_stages.startswith("emb+pos+hid")


def test_a_tf2_configuration_has_shares_of_memory_for_each_ipu():
    config, _ = read("graphcore/tf2/pretrain_base_128_phase1", "--generated_data")
    assert config.available_memory_proportion == "0.28,0.26,0.28,0.28"
    assert (config.min_remote_tensor_size, config.optimizer_state_offchip) == (50000, True)


def test_a_popart_configuration_shares_its_optimizer_state_out():
    config, _ = read("graphcore/popart/pretrain_large_128", "--generated_data")
    assert config.replicated_tensor_sharding and config.ipu_replicas == 4
    assert (config.partials_type, config.stochastic_rounding) == ("half", True)
    assert config.available_memory_proportion == "0.15,0.25,0.25,0.25"


def test_what_the_command_line_says_wins():
    config, _ = read(TF1, "--generated_data", "--ipu_replicas=2", "--partials_type=float", "--recompute=none")
    assert (config.ipu_replicas, config.partials_type, config.recompute) == (2, "float", "none")
    assert config.train_batch_size == 8 * 2050 * 4  # of theirs; twice the micro batches make it
    assert config.num_accumulation_steps == 4100


def test_elsewhere_they_are_notes(tmp_path):
    path = tmp_path / "theirs.json"
    values = dict(partials_type="half", scheduler="CLUSTERING", replicated_tensor_sharding=True)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, micro_batch_size=2, warmup=0)
    path.write_text(json.dumps({"task": "pretraining", **sizes, **values}), encoding="utf-8")
    config, told = read(path, "--use_synthetic_data", strategy="one_device")
    assert config.partials_type == "float" and not config.replicated_tensor_sharding
    assert all(name in told for name in values)


@pytest.mark.parametrize("value", ["0.1 0.2", [0.1, 0.2], "0.1,0.2"])
def test_shares_come_as_a_list_or_a_text(tmp_path, value):
    path = tmp_path / "theirs.json"
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, micro_batch_size=2, warmup=0)
    values = dict(available_memory_proportion=value, loss_scaling=1)
    stages = [["emb", "pos"], ["hid", "hid"], ["mlm", "nsp"]]
    values["pipeline_stages"] = stages
    values["gradient_accumulation_count"] = 6
    path.write_text(json.dumps({"task": "pretraining", **sizes, **values}), encoding="utf-8")
    config, _ = read(path, "--use_synthetic_data")
    assert config.available_memory_proportion == "0.1,0.2"

"""Graphcore's configurations run: one of each graph at a reduced size; all of them have plans."""

import pytest

from official import config as config_lib
from official.cli import configs, flags
from official.tasks import TASKS
from official.training import run as runner

# Of a graph that is small: what every configuration is reduced to.
SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128)
SIZES |= dict(max_position_embeddings=16)
SETTINGS = dict(max_seq_length=16, train_batch_size=4, num_accumulation_steps=2, num_steps_per_epoch=2)
SETTINGS |= dict(num_train_epochs=1, stop_steps=1, steps_per_loop=1, warmup_steps=1.0, warmup_proportion=None)
SETTINGS |= dict(use_synthetic_data=True, do_train=True, distribution_strategy="one_device")
SETTINGS |= dict(deterministic=False)
NO_FILES = (
    "input_files eval_files train_file predict_file data_dir vocab_file do_lower_case fit_vocabulary"
    " init_checkpoint do_eval do_predict predict_epochs checkpoint_every_steps"
).split()


def graph_of(name: str) -> tuple:
    """Returns what decides the graph of a model and its update."""
    values = flags.read_config(name)
    model = values["model"]
    kinds = [model.get(key, "-") for key in ("block_type", "use_qkv_bias", "use_cls_layer")]
    return (values["task"], bool(values.get("max_sequences_per_pack")), *kinds)


# The first configuration of each graph.
GRAPHS = {graph_of(name): name for name in sorted(configs.theirs(), reverse=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS.values())
def test_one_of_each_graph_runs_a_step(name, tmp_path):
    values = {key: value for key, value in flags.read_config(name).items() if key not in NO_FILES}
    model = {**values["model"], **SIZES}
    values |= SETTINGS | {"model": model, "model_dir": str(tmp_path), "dtype": "fp32"}
    if values["task"] == "pretrain":
        values["max_predictions_per_seq"] = 3
    if values["task"] == "glue":
        values.setdefault("glue_task", "mrpc")
    if values.get("max_sequences_per_pack"):
        values["pack_on_the_fly"] = True
    result = runner.run(config_lib.build_config([(name, values)]), TASKS[values["task"]])
    assert (result.status, result.step) == ("finished", 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(configs.theirs()))
def test_every_shipped_configuration_has_a_plan(name):
    from official.planning import plan

    task = ["--task-name=mrpc"] if "glue" in name and "regression" not in name else []
    config = flags.parse([f"--config={name}", "--plan", *task])
    assert "parameters" in plan.run(config, TASKS[config.task])

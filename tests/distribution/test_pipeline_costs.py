"""Costs from the configuration alone, against the graphs of the models themselves."""

import dataclasses

import pytest
import tensorflow as tf

from official.distribution import pipeline_plan as formulas
from official.distribution.pipeline_plan import make_plan
from official.planning.graph_cost import stage_costs
from official.tasks import TASKS
from tests.conftest import TINY

GROUPS = {"block_type": "groupbert", "groupbert_conv_group_size": 8}
MODELS = {
    "bert": {},
    "bare": {"use_qkv_bias": False, "use_attention_projection_bias": False, "use_cls_layer": False,
             "use_prediction_bias": False},
    "groupbert": GROUPS,
}  # fmt: skip


@pytest.fixture
def read(make_config):
    """Returns a function that returns a configuration and the costs read from its graph."""

    def costs(model=None, rows=4, **settings):
        config = make_config(model=model, use_synthetic_data=True, kernels="plain", **settings)
        with tf.device("CPU:0"):
            return config, stage_costs(TASKS[config.task](config), rows)

    return costs


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_of_the_graph(read, name):
    config, found = read({"hidden_dropout_prob": 0.1, **MODELS[name]})
    sizes = [f"layer_{number}" for number in range(TINY["num_hidden_layers"])]
    heads = ["pooler", "masked_lm", "next_sentence"]
    assert list(found) == ["embeddings", *sizes, *["final_norm"] * ("groupbert" in name), *heads]
    for stage, cost in found.items():
        if stage == "embeddings":  # one-hot products of the segments, which nothing else needs
            continue
        # A convolution is computed in blocks of tokens, of which it needs a part.
        near = 0.1 if "groupbert" in name else 0
        assert 4 * formulas.flops_of_row(stage, config) == pytest.approx(cost.flops, rel=near), stage
        assert cost.backward_flops == 2 * cost.flops


def test_a_stage_keeps_its_activations_for_each_row(read):
    _, four = read({"hidden_dropout_prob": 0.1}, rows=4)
    _, eight = read({"hidden_dropout_prob": 0.1}, rows=8)
    for stage in ("layer_0", "masked_lm"):
        assert eight[stage].kept_bytes == pytest.approx(2 * four[stage].kept_bytes, rel=0.05)
    # At least the argument of each matrix product: x of query, key and value, what attention gives, both
    # sides of the feed-forward layer, the shares of attention.
    length, hidden, inner, heads = 16, 32, 64, 4
    least = 4 * 4 * (length * (3 * hidden + inner) + heads * length * length)
    assert least < four["layer_0"].kept_bytes < 6 * least


def test_weights_are_kept_once_and_not_for_each_micro_batch(read):
    """In a 16-bit type weights are cast; that is no activation."""
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    _, one = read(rows=1, dtype="bf16")
    assert one["pooler"].kept_bytes < 2 * 32 * 32  # its kernel alone would be as much


def test_a_pipeline_is_balanced_by_its_costs(make_config):
    # The products of the vocabulary are as many as those of four blocks: the last stage has fewer blocks.
    config = dataclasses.replace(
        make_config(model={"num_hidden_layers": 8, "vocab_size": 20000}, max_predictions_per_seq=16),
        distribution_strategy="pipeline",
        pipeline_stages="3",
    )
    names = [
        "embeddings",
        *(f"layer_{number}" for number in range(8)),
        "pooler",
        "masked_lm",
        "next_sentence",
    ]
    costs = formulas.stage_costs(config, names)
    plan = make_plan(config, names)
    assert plan.stages[2] == ("pooler", "masked_lm", "next_sentence")
    assert len(plan.stages[0]) - 1 == len(plan.stages[1]) == 4
    assert costs["masked_lm"].flops > 4 * costs["layer_0"].flops

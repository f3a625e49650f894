"""A last block of only the vectors that heads read has the outputs and gradients of a whole one."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from official.config import encoder_options
from official.config.model import BertConfig
from official.modeling import stages
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from official.planning import graph_cost
from tests.conftest import TINY
from tests.modeling import models

GROUPS = dict(groupbert_ffn_output_groups=2, groupbert_conv_group_size=8)
MODELS = {
    "pretrainer": BertPretrainer,
    "sequence": lambda config, **options: SequenceModel(config, 3, **options),
}
GROUPBERT = pytest.param("groupbert", marks=pytest.mark.slow)
BLOCKS = pytest.mark.parametrize("block_type", ["bert", GROUPBERT])


def check_equal(make, batch: dict, config: BertConfig, **options) -> None:
    whole = models.randomised(make(config, **options))
    narrow = models.copy_weights(whole, make(config, narrow=True, **options))
    models.assert_same(
        models.outputs_and_gradients(narrow, batch), models.outputs_and_gradients(whole, batch), 1e-5
    )


@pytest.mark.parametrize("block_type", ["bert", "groupbert"])
@pytest.mark.parametrize("kernels", ["plain", "fused"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_one_sequence(name, kernels, block_type):
    check_equal(
        MODELS[name], models.features(), BertConfig(**TINY, **GROUPS, block_type=block_type), kernels=kernels
    )


@BLOCKS
@pytest.mark.parametrize("options", [{}, {"by_sequence": True}], ids=["scores", "places"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_several_sequences(name, options, block_type, monkeypatch):
    monkeypatch.setattr("official.modeling.varlen.MIN_ROW_LENGTH", 8)
    config = BertConfig(**TINY, **GROUPS, block_type=block_type)
    check_equal(MODELS[name], models.packed(), config, kernels="fused", shared=True, **options)


@BLOCKS
@pytest.mark.parametrize("name", MODELS)
def test_rows_without_padding(name, block_type):
    make, config = MODELS[name], BertConfig(**TINY, **GROUPS, block_type=block_type)
    check_equal(make, models.features(), config, kernels="fused", unpad=True)
    batch = {name: value for name, value in models.features().items() if value.dtype == np.int32}
    padded = models.randomised(make(config, kernels="fused"))
    laid = models.copy_weights(padded, make(config, kernels="fused", unpad=True))
    found, expected = (models.outputs_and_gradients(model, batch) for model in (laid, padded))
    models.assert_same(found, expected, 1e-5)


def test_other_models_and_what_is_computed_again():
    config = BertConfig(**TINY)
    first = {name: value for name, value in models.features().items() if name != "masked_lm_positions"}
    check_equal(BertPretrainer, first, config)  # predicted tokens that come first
    check_equal(SpanModel, models.features(), config)
    for recompute, shared in (("attention", True), ("block", False)):
        options = dict(kernels="fused", shared=shared, recompute=recompute)
        check_equal(BertPretrainer, models.features(), config, **options)


def test_dropout_keeps_its_share_and_a_seed_its_numbers():
    model, batch = (
        models.randomised(BertPretrainer(BertConfig(**{**TINY, **models.RATES}), narrow=True)),
        models.features(),
    )
    first, again, other = (model(batch, tf.constant([1, seed]))[0] for seed in (2, 2, 3))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_the_last_block_gives_what_is_read():
    model, batch = BertPretrainer(BertConfig(**TINY), narrow=True), models.features()
    carried: dict = {}
    shapes = {}
    for stage in model.stages():
        stages.run_one(stage, carried, batch, None)
        shapes[stage.name] = carried["sequence"].shape
    rows, length = batch["input_ids"].shape
    assert shapes["layer_0"] == (rows, length, TINY["hidden_size"])
    assert shapes["layer_1"] == (rows, 1 + batch["masked_lm_positions"].shape[1], TINY["hidden_size"])


def test_a_run_is_narrow_unless_it_is_on_ipus(make_config):
    assert encoder_options(make_config())["narrow"]
    assert not encoder_options(make_config(distribution_strategy="ipu"))["narrow"]


def test_the_products_that_are_left_out():
    batch, rows = models.features(), 3
    spec = {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for name, value in batch.items()}

    def flops(narrow: bool) -> int:
        make = functools.partial(BertPretrainer, BertConfig(**TINY), narrow=narrow)
        return graph_cost.forward_cost(make, lambda model: model(graph_cost.symbolic_batch(spec, rows))).flops

    length, reads = batch["input_ids"].shape[1], 1 + batch["masked_lm_positions"].shape[1]
    hidden, inner = TINY["hidden_size"], TINY["intermediate_size"]
    of_a_vector = 2 * (2 * hidden * hidden + 2 * hidden * inner + 2 * length * hidden)
    assert flops(False) - flops(True) == rows * (length - reads) * of_a_vector

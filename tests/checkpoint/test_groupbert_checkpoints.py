"""Checkpoints of this project's GroupBERT, and of BERT without some biases: told apart, read, converted."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official.checkpoint import initialize, registry, sidecar_files
from official.checkpoint.convert import convert
from official.checkpoint.formats import Options
from official.checkpoint.manager import CheckpointManager
from official.config import BertConfig, ConfigError
from official.inference import verification
from official.modeling.models import BertPretrainer
from tests.checkpoint.test_convert import arrays_of, assert_same, write
from tests.conftest import TINY
from tests.modeling.models import randomised
from tests.modeling.test_groupbert import config

WITHOUT = {"use_qkv_bias": False, "use_attention_projection_bias": False, "use_cls_layer": False}
EXACT = Options.of(precision=32, use_cls_layer=True, with_optimizer=True)


@pytest.fixture(scope="module")
def model():
    return randomised(BertPretrainer(config()))


@pytest.fixture(scope="module")
def without():
    return randomised(BertPretrainer(BertConfig(**TINY, **WITHOUT)))


def named(model) -> dict:
    return {variable.name.split(":")[0]: variable for variable in model.variables}


def saved(model, folder, sizes=None) -> str:
    """Saves a model as the trainer does, with slots and its counters; returns the folder."""
    state = {name: variable.numpy() for name, variable in named(model).items()}
    trained = [variable.name.split(":")[0] for variable in model.trainable_variables]
    state |= {f"{name}/{slot}": state[name] * 2 for name in trained for slot in ("lamb_m", "lamb_v")}
    state |= {"global_step": np.int64(7), "samples": np.int64(56)}
    variables = {name: tf.Variable(value, name=name.replace("/", "_")) for name, value in state.items()}
    CheckpointManager(str(folder), variables, 1).save(7)
    if sizes is not None:
        (folder / "bert_config.json").write_text(json.dumps(sizes))
    return str(folder)


def values(model) -> dict:
    return {name: variable.numpy() for name, variable in named(model).items()}


def test_a_run_of_groupbert_is_told_from_graphcores_and_initialises_a_model(model, tmp_path):
    path = saved(model, tmp_path)
    opened = registry.open_checkpoint(path, "PATH")
    assert opened.format.name == "native"
    sizes = sidecar_files.sizes_of(opened.to_canonical().tensors)
    assert sizes == {key: getattr(config(), key) for key in sizes}
    assert {"block_type", "intermediate_size", "groupbert_conv_group_size"} <= sizes.keys()
    fresh = BertPretrainer(config())
    report = initialize.initialize(named(fresh), path)
    assert not report.fresh and len(report.read) == len(named(model))
    assert_same(values(fresh), values(model))


def test_to_graphcore_to_research_and_back_is_exact(model, tmp_path):
    start = saved(model, tmp_path / "a")
    apps = convert(start, "graphcore", str(tmp_path / "b"), EXACT)["target"]["path"]
    there = convert(apps, "research", str(tmp_path / "c"), Options.of(precision=32, use_cls_layer=True))[
        "target"
    ]["path"]
    back = convert(there, "graphcore", str(tmp_path / "d"), Options.of(precision=32, use_cls_layer=True))[
        "target"
    ]["path"]
    names = set(values(model))
    written = arrays_of(apps)
    assert_same({name: written[name] for name in names}, values(model))
    assert_same(arrays_of(back), values(model))
    for path in (apps, there, back):
        fresh = BertPretrainer(config())
        initialize.initialize(named(fresh), path)
        assert_same(values(fresh), values(model))
    home = convert(apps, "native", str(tmp_path / "e"), EXACT)["target"]["path"]
    before = arrays_of(start)
    assert_same(arrays_of(home), {name: before[name] for name in before if name != "samples"})


def test_outputs_are_the_same_after_a_conversion(model, tmp_path):
    start = saved(model, tmp_path / "a", sizes={**TINY, "layer_norm_eps": 1e-3, "block_type": "groupbert"})
    report = convert(start, "graphcore", str(tmp_path / "b"), EXACT, verify=verification.verify)
    assert report["verification"]["passed"]
    beside = json.loads((tmp_path / "b" / "bert_config.json").read_text())
    assert beside["block_type"] == "groupbert" and beside["groupbert_conv_group_size"] == 8


@pytest.mark.parametrize("target", ["google", "huggingface", "popart"])
def test_what_has_no_name_for_groupberts_layers_says_so(model, target, tmp_path):
    start = saved(model, tmp_path / "a")
    with pytest.raises(ConfigError, match="has no place for"):
        convert(start, target, str(tmp_path / "b"), Options.of(num_attention_heads=4))


def test_a_convolution_that_is_missing_is_named(model, tmp_path):
    folder = tmp_path / "a"
    start = registry.open_checkpoint(saved(model, folder), "PATH")
    gone = "bert/encoder/layer_1/convolution/dwconv/weight"
    tensors = {name: tensor for name, tensor in start.to_canonical().tensors.items() if name != gone}
    path = write(tensors, "native", tmp_path / "b")
    with pytest.raises(ConfigError, match=f"Missing: {gone}|missing: {gone}"):
        registry.open_checkpoint(path, "PATH").to_canonical()
    with pytest.raises(ConfigError, match=gone):
        initialize.initialize(named(BertPretrainer(config())), path)


def test_bert_and_groupbert_do_not_initialise_each_other(model, tmp_path):
    with pytest.raises(ConfigError, match="does not fit the model"):
        initialize.initialize(named(BertPretrainer(BertConfig(**TINY))), saved(model, tmp_path))


@pytest.mark.parametrize("target", ["google", "huggingface", "popart", "garden"])
def test_absent_biases_become_zeros_where_a_format_has_them(without, target, tmp_path):
    start = saved(without, tmp_path / "a")
    report = convert(start, target, str(tmp_path / "b"), Options.of(num_attention_heads=4))
    assert any("no such bias" in reason for reason in report["added"].values())
    fresh = BertPretrainer(BertConfig(**TINY, **WITHOUT))
    initialize.initialize(named(fresh), report["target"]["path"])
    encoder = [name for name in named(fresh) if name.startswith("bert/") and "pooler" not in name]
    assert_same({name: values(fresh)[name] for name in encoder}, {n: values(without)[n] for n in encoder})


def test_absent_biases_stay_absent_where_a_format_may_lack_them(without, tmp_path):
    start = saved(without, tmp_path / "a")
    report = convert(start, "graphcore", str(tmp_path / "b"), Options.of(num_attention_heads=4))
    written = arrays_of(report["target"]["path"])
    assert not any("/attention/" in name and "bias" in name for name in written)
    beside = json.loads((tmp_path / "b" / "bert_config.json").read_text())
    assert {key: beside[key] for key in WITHOUT} == WITHOUT


def test_a_bias_that_is_not_zero_needs_its_variable(tmp_path):
    whole = randomised(BertPretrainer(BertConfig(**TINY)))
    path = saved(whole, tmp_path)
    lean = BertPretrainer(BertConfig(**TINY, use_qkv_bias=False))
    with pytest.raises(ConfigError, match="unexpected.*query/bias"):
        initialize.initialize(named(lean), path)
    for name, variable in named(whole).items():
        if "/attention/self/" in name and name.endswith("bias"):
            variable.assign(variable * 0)
    initialize.initialize(named(lean), saved(whole, tmp_path / "zero"))
    assert all(np.array_equal(value, values(whole)[name]) for name, value in values(lean).items())


@pytest.mark.parametrize("transform", [True, False])
def test_a_head_without_its_bias_converts_to_zeros_and_back_to_itself(transform, tmp_path):
    sizes = {**TINY, "use_prediction_bias": False, "use_cls_layer": transform}
    lean = randomised(BertPretrainer(BertConfig(**sizes)))
    start = saved(lean, tmp_path / "a", sizes)
    for target in ("google", "graphcore"):
        there = convert(start, target, str(tmp_path / target), EXACT)["target"]["path"]
        written = arrays_of(there)
        bias = written.get("cls/predictions/output_bias", np.ones(0) if not transform else None)
        assert bias.shape == (transform * TINY["vocab_size"],) and not bias.any()
        fresh = BertPretrainer(BertConfig(**sizes))
        assert not initialize.initialize(named(fresh), there).fresh
        assert_same(values(fresh), values(lean))
    again = BertPretrainer(BertConfig(**sizes))
    assert not initialize.initialize(named(again), start).fresh
    assert_same(values(again), values(lean))


def epsilon_of(report: dict) -> float:
    """Returns the epsilon that a conversion to Hugging Face's format wrote."""
    with open(f"{report['target']['path']}/config.json", encoding="utf-8") as file:
        return json.load(file)["layer_norm_eps"]


def test_without_a_configuration_the_epsilon_is_that_of_graphcores_code(tmp_path):
    model = BertPretrainer(BertConfig(**TINY))
    start = saved(model, tmp_path / "a")
    bare = convert(start, "graphcore", str(tmp_path / "bare"), EXACT)
    assert "nothing beside the result says layer_norm_eps=1e-12" in "".join(bare["notes"])
    back = convert(
        bare["target"]["path"], "huggingface", str(tmp_path / "hf"), Options(num_attention_heads=4)
    )
    assert epsilon_of(back) == 1e-3
    assert "layer_norm_eps=0.001 is taken for granted, as usual for Graphcore TF1" in "".join(back["notes"])
    own = initialize.initialize(named(model), bare["target"]["path"], BertConfig(**TINY))
    assert "layer_norm_eps=1e-12 is the model's own, Graphcore TF1's is 0.001" in own.describe()
    same = BertConfig(**{**TINY, "layer_norm_eps": 1e-3})
    assert (
        "layer_norm_eps" not in initialize.initialize(named(model), bare["target"]["path"], same).describe()
    )


def test_the_configuration_beside_a_graphcore_checkpoint_says_the_epsilon(tmp_path):
    start = saved(BertPretrainer(BertConfig(**TINY)), tmp_path / "a")
    options = Options.of(num_attention_heads=4, precision=32, use_cls_layer=True)
    told = convert(start, "graphcore", str(tmp_path / "told"), options)
    assert json.loads((tmp_path / "told" / "bert_config.json").read_text())["layer_norm_eps"] == 1e-12
    assert "other readers of the format compute as Graphcore TF1 does" in "".join(told["notes"])
    back = convert(told["target"]["path"], "huggingface", str(tmp_path / "hf"), options)
    assert epsilon_of(back) == 1e-12 and not any("epsilon" in note for note in back["notes"])

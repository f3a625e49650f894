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
from tests.checkpoint.tensors import assert_same, named
from tests.checkpoint.test_convert import arrays_of, to, write
from tests.fixtures import TINY
from tests.modeling.models import randomised, weights_of
from tests.modeling.test_groupbert import config

WITHOUT = {"use_qkv_bias": False, "use_attention_projection_bias": False, "use_cls_layer": False}
ONE = {**TINY, "num_hidden_layers": 1}
EXACT = Options.of(precision=32, use_cls_layer=True, with_optimizer=True)


@pytest.fixture(scope="module")
def model():
    return randomised(BertPretrainer(config()))


@pytest.fixture(scope="module")
def without():
    return randomised(BertPretrainer(BertConfig(**TINY, **WITHOUT)))


def saved(model, folder, sizes=None) -> str:
    """Saves a model as the trainer does, with slots and its counters; returns the folder."""
    state = weights_of(model)
    trained = [variable.name.split(":")[0] for variable in model.trainable_variables]
    state |= {f"{name}/{slot}": state[name] * 2 for name in trained for slot in ("lamb_m", "lamb_v")}
    state |= {"global_step": np.int64(7), "samples": np.int64(56)}
    variables = {name: tf.Variable(value, name=name.replace("/", "_")) for name, value in state.items()}
    CheckpointManager(str(folder), variables, 1).save(7)
    if sizes is not None:
        (folder / "bert_config.json").write_text(json.dumps(sizes))
    return str(folder)


def assert_initialises(model, path, of: str = "") -> initialize.InitReport:
    """Checks that a checkpoint gives a model, whose weights are zeros, those that it had, or the ones whose
    names begin with `of`. Leaves the model as it was."""
    expected = weights_of(model)
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable))
    report = initialize.initialize(named(model), path)
    found = weights_of(model)
    for name, variable in named(model).items():
        variable.assign(expected[name])
    assert_same(*({name: each[name] for name in each if name.startswith(of)} for each in (found, expected)))
    return report


def test_a_run_of_groupbert_is_told_from_graphcores_and_initialises_a_model(model, tmp_path):
    path = saved(model, tmp_path)
    opened = registry.open_checkpoint(path, "PATH")
    assert opened.format.name == "native"
    sizes = sidecar_files.sizes_of(opened.to_canonical().tensors)
    assert sizes == {key: getattr(config(), key) for key in sizes}
    assert {"block_type", "intermediate_size", "groupbert_conv_group_size"} <= sizes.keys()
    report = assert_initialises(model, path)
    assert not report.fresh and len(report.read) == len(named(model))


def test_to_graphcore_to_research_and_back_is_exact(model, tmp_path):
    start, weights = saved(model, tmp_path / "a"), dict(precision=32, use_cls_layer=True)
    apps = convert(start, "graphcore", str(tmp_path / "b"), EXACT)["target"]["path"]
    there = to(apps, "research", tmp_path / "c", **weights)["target"]["path"]
    back = to(there, "graphcore", tmp_path / "d", **weights)["target"]["path"]
    written = arrays_of(apps)
    assert_same({name: written[name] for name in weights_of(model)}, weights_of(model))
    assert_same(arrays_of(back), weights_of(model))
    for path in (apps, there, back):
        assert_initialises(model, path)
    home = convert(apps, "native", str(tmp_path / "e"), EXACT)["target"]["path"]
    before = arrays_of(start)
    assert_same(arrays_of(home), {name: before[name] for name in before if name != "samples"})


def test_outputs_are_the_same_after_a_conversion(tmp_path):
    model = randomised(BertPretrainer(config(num_hidden_layers=1)))
    start = saved(model, tmp_path / "a", sizes={**ONE, "layer_norm_eps": 1e-3, "block_type": "groupbert"})
    report = convert(start, "graphcore", str(tmp_path / "b"), EXACT, verify=verification.verify)
    assert report["verification"]["passed"]
    beside = json.loads((tmp_path / "b" / "bert_config.json").read_text())
    assert beside["block_type"] == "groupbert" and beside["groupbert_conv_group_size"] == 8


def test_checkpoints_that_are_refused(model, without, tmp_path):
    path = saved(model, tmp_path / "a")
    for target in ("google", "huggingface", "popart"):
        with pytest.raises(ConfigError, match="has no place for"):
            to(path, target, tmp_path / "b", num_attention_heads=4)
    with pytest.raises(ConfigError, match="does not fit the model"):
        initialize.initialize(named(without), path)
    gone = "bert/encoder/layer_1/convolution/dwconv/weight"
    tensors = registry.open_checkpoint(path, "PATH").to_canonical().tensors
    path = write({name: tensors[name] for name in tensors if name != gone}, "native", tmp_path / "c")
    with pytest.raises(ConfigError, match=f"[Mm]issing: {gone}"):
        registry.open_checkpoint(path, "PATH").to_canonical()
    with pytest.raises(ConfigError, match=gone):
        initialize.initialize(named(model), path)


def test_absent_biases_become_zeros_where_a_format_has_them(without, tmp_path):
    start = saved(without, tmp_path / "a")
    for target in ("google", "huggingface", "popart", "garden"):
        report = to(start, target, tmp_path / target, num_attention_heads=4)
        assert any("no such bias" in reason for reason in report["added"].values())
        assert_initialises(without, report["target"]["path"], of="bert/e")
    report = to(start, "graphcore", tmp_path / "b", num_attention_heads=4)  # which may lack them
    written = arrays_of(report["target"]["path"])
    assert not any("/attention/" in name and "bias" in name for name in written)
    beside = json.loads((tmp_path / "b" / "bert_config.json").read_text())
    assert {key: beside[key] for key in WITHOUT} == WITHOUT


def test_a_bias_that_is_not_zero_needs_its_variable(tmp_path):
    whole = randomised(BertPretrainer(BertConfig(**ONE)))
    path = saved(whole, tmp_path)
    lean = BertPretrainer(BertConfig(**ONE, use_qkv_bias=False))
    with pytest.raises(ConfigError, match="unexpected.*query/bias"):
        initialize.initialize(named(lean), path)
    for name, variable in named(whole).items():
        if "/attention/self/" in name and name.endswith("bias"):
            variable.assign(variable * 0)
    initialize.initialize(named(lean), saved(whole, tmp_path / "zero"))
    assert all(np.array_equal(value, weights_of(whole)[name]) for name, value in weights_of(lean).items())


@pytest.mark.parametrize("transform", [True, False])
def test_a_head_without_its_bias_converts_to_zeros_and_back_to_itself(transform, tmp_path):
    sizes = {**ONE, "use_prediction_bias": False, "use_cls_layer": transform}
    lean = randomised(BertPretrainer(BertConfig(**sizes)))
    start = saved(lean, tmp_path / "a", sizes)
    for target in ("google", "graphcore"):
        there = convert(start, target, str(tmp_path / target), EXACT)["target"]["path"]
        written = arrays_of(there)
        bias = written.get("cls/predictions/output_bias", np.ones(0) if not transform else None)
        assert bias.shape == (transform * TINY["vocab_size"],) and not bias.any()
        assert not assert_initialises(lean, there).fresh
    assert not assert_initialises(lean, start).fresh


def test_the_epsilon_is_that_of_graphcores_code_unless_the_configuration_says_it(tmp_path):
    def epsilon_in(folder, name="config.json") -> float:
        return json.loads((tmp_path / folder / name).read_text())["layer_norm_eps"]

    model = BertPretrainer(BertConfig(**ONE))
    start = saved(model, tmp_path / "a")
    bare = convert(start, "graphcore", str(tmp_path / "bare"), EXACT)
    path = bare["target"]["path"]
    assert "no file next to the result stores layer_norm_eps=1e-12" in "".join(bare["notes"])
    back = to(path, "huggingface", tmp_path / "hf", num_attention_heads=4)
    assert epsilon_in("hf") == 1e-3
    assert "layer_norm_eps=0.001 is assumed, the default of Graphcore TF1" in "".join(back["notes"])
    own = initialize.initialize(named(model), path, BertConfig(**ONE)).describe()
    assert "layer_norm_eps=1e-12 is the model's, Graphcore TF1's is 0.001" in own
    same = BertConfig(**{**ONE, "layer_norm_eps": 1e-3})
    assert "layer_norm_eps" not in initialize.initialize(named(model), path, same).describe()
    options = dict(num_attention_heads=4, precision=32, use_cls_layer=True)
    told = to(start, "graphcore", tmp_path / "told", **options)
    assert epsilon_in("told", "bert_config.json") == 1e-12
    assert "other readers of the format compute as Graphcore TF1 does" in "".join(told["notes"])
    back = to(told["target"]["path"], "huggingface", tmp_path / "hf2", **options)
    assert epsilon_in("hf2") == 1e-12 and not any("epsilon" in note for note in back["notes"])

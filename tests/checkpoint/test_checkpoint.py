"""Checkpoints: whole or not at all, the last N kept, damaged ones skipped, names compared strictly."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from official.checkpoint import DamagedError, initialize
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle, object_bundle, onnx_file
from official.checkpoint.formats import Options, garden, popart, research
from official.checkpoint.manager import CheckpointManager
from official.config import BertConfig, ConfigError
from official.data.glue.tasks import TASKS, find_task
from official.io import model_folder
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from tests.checkpoint.tensors import assert_same, named, of_arrays, with_slots, zeros
from tests.fixtures import TINY
from tests.modeling.models import weights_of
from tests.refusals import assert_refused

POOLER = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
RELATION = ["cls/seq_relationship/output_bias", "cls/seq_relationship/output_weights"]
HEAD = ["output_bias", "output_weights"]


def variables(value=1.0) -> dict:
    return {"bert/a": tf.Variable([value] * 1000), "global_step": tf.Variable(int(value), dtype=tf.int64)}


def manager_of(folder, state=None, keep=3) -> CheckpointManager:
    return CheckpointManager(str(folder), variables() if state is None else state, keep)


def test_save_and_restore(tmp_path):
    for folder in (str(tmp_path / "plain"), "ram://checkpoints"):
        manager = manager_of(folder, variables(3.0), keep=2)
        tf.io.gfile.makedirs(folder)
        assert manager.restore_newest() is None
        prefix, state = manager.save(7), variables()
        assert manager_of(folder, state).restore_newest() == prefix == os.path.join(folder, "ckpt-7")
        assert (state["bert/a"].numpy() == 3.0).all() and state["global_step"] == 3
        for step in (5, 10, 100, 20):
            manager.save(step)
        assert manager.steps() == [20, 100]
    os.makedirs(tmp_path / "lr[1]")  # characters of globs
    manager = manager_of(tmp_path / "lr[1]", keep=1)
    for step in (1, 2, 3):
        manager.save(step)
    assert manager.steps() == [3]
    # TensorFlow's reader would look for other files, and say that this one is not there.
    with pytest.raises(ConfigError, match=r"lr\[1\]/ckpt-3: TensorFlow's checkpoint reader treats"):
        manager.restore_newest()
    names = {name.split(".")[0] for name in os.listdir(tmp_path / "plain")}
    assert names == {"checkpoint", "ckpt-20", "ckpt-100"}
    prefix = tf.train.latest_checkpoint(str(tmp_path / "plain"))
    assert dict(tf.train.list_variables(prefix)) == {"bert/a": [1000], "global_step": []}


def test_tensorflow_finds_the_newest_one(tmp_path, monkeypatch):
    places = ("runs/mine", "./runs/mine/", "runs/../runs/mine", "{}/runs/mine", "ram://state/mine")
    for number, folder in enumerate(places):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        folder = folder.format(os.getcwd())
        tf.io.gfile.makedirs("runs")
        tf.io.gfile.makedirs(folder)
        manager = manager_of(folder, keep=2)
        for step in (10, 20, 40):
            prefix = manager.save(step)
        assert os.path.normpath(tf.train.latest_checkpoint(folder)) == os.path.normpath(prefix)
        known = tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths
        assert [os.path.basename(path) for path in known] == ["ckpt-20", "ckpt-40"], folder
        if number < 3:  # names are relative: the folder may be moved
            os.rename("runs", "moved")
            assert tf.train.latest_checkpoint("moved/mine") == "moved/mine/ckpt-40"


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path):
    def flip(data) -> None:
        content = bytearray(data.read_bytes())
        content[1000] ^= 1
        data.write_bytes(content)

    for name, damage in {
        "flipped": lambda data, index: flip(data),
        "short": lambda data, index: os.truncate(data, 100),
        "short index": lambda data, index: os.truncate(index, 40),
        "gone": lambda data, index: data.unlink(),
    }.items():
        folder, state = tmp_path / name, variables()
        folder.mkdir()
        manager_of(folder, state).save(1)
        state["bert/a"].assign([2.0] * 1000)
        manager_of(folder, state).save(2)
        damage(folder / "ckpt-2.data-00000-of-00001", folder / "ckpt-2.index")
        assert manager_of(folder, state).restore_newest().endswith("ckpt-1"), name
        assert (state["bert/a"].numpy() == 1.0).all(), name


def test_a_damaged_checkpoint_does_not_push_out_a_good_one(tmp_path):
    manager = CheckpointManager(str(tmp_path), variables(), keep=1)
    manager.save(100)
    (tmp_path / "ckpt-200.index").write_bytes(b"damaged")
    assert manager.restore_newest().endswith("ckpt-100")
    manager.save(150)
    assert manager.steps() == [150] and manager.restore_newest().endswith("ckpt-150")
    assert (tmp_path / "damaged-ckpt-200.index").exists()


def test_the_newest_of_a_folder_is_the_one_that_it_names(tmp_path):
    manager = CheckpointManager(str(tmp_path), variables(), keep=2)
    manager.save(4)
    manager.save(8)
    state, index = tmp_path / "checkpoint", tmp_path / "ckpt-8.index"
    for name in ("ckpt-4", "/of/another/machine/ckpt-4"):
        state.write_text(f'model_checkpoint_path: "{name}"\n')
        assert bundle.locate(str(tmp_path)) == str(tmp_path / "ckpt-4")
    for content in ("", "\x00", 'model_checkpoint_path: "ckpt-'):  # it says nothing
        state.write_text(content)
        assert bundle.locate(str(tmp_path)) == str(tmp_path / "ckpt-8")
    state.write_text('model_checkpoint_path: "ckpt-8"\n')
    content = index.read_bytes()
    index.unlink()
    with pytest.raises(DamagedError, match="`checkpoint` names ckpt-8 as the newest, but ckpt-8.index"):
        bundle.locate(str(tmp_path))
    assert bundle.locate(str(tmp_path / "ckpt-4")) == str(tmp_path / "ckpt-4")
    index.write_bytes(content[:40])
    assert manager.restore_newest() == bundle.locate(str(tmp_path)) == str(tmp_path / "ckpt-4")


def test_checkpoints_that_are_not_resumed(tmp_path):
    manager = manager_of(tmp_path)
    manager.save(1)
    (tmp_path / "ckpt-2.data-00000-of-00001.tempstate123").write_bytes(b"half")
    assert manager.restore_newest().endswith("ckpt-1")
    other = {"bert/a": tf.Variable([1.0]), "bert/b": tf.Variable(1.0)}
    with pytest.raises(ConfigError) as error:
        manager_of(tmp_path, other).restore_newest()
    for part in ("missing: bert/b", "unexpected: global_step", "bert/a [1000] for [1]"):
        assert part in str(error.value)
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(ConfigError, match="all 1 checkpoints are damaged"):
        manager.restore_newest()
    state = {"weight": tf.Variable([1.0, np.inf]), "weight/adam_v": tf.Variable([np.inf])}
    manager = manager_of(tmp_path / "infinite", state)
    os.makedirs(tmp_path / "infinite")
    manager.save(3)
    with pytest.raises(ConfigError, match="ckpt-3 holds NaN or infinite numbers in weight. Remove"):
        manager.restore_newest()


# ---- initial weights


def google_values(model, drop=()) -> dict[str, np.ndarray]:
    """Returns weights, Adam slots and global_step, as Google's code saves them."""
    weights = {name: values for name, values in weights_of(model).items() if name not in drop}
    return with_slots(weights, "adam_m", "adam_v") | {"global_step": np.array(1000, np.int64)}


def google_checkpoint(folder, model, drop=(), extra=None) -> str:
    """Writes a name-based checkpoint in Google's form."""
    prefix = str(folder / "bert_model.ckpt")
    bundle.write(of_arrays(google_values(model, drop) | (extra or {})), prefix)
    return prefix


@pytest.fixture(scope="module")
def model():
    """Tests share it, whatever its weights: to make one takes longer than a test."""
    return BertPretrainer(BertConfig(**TINY))


def test_googles_checkpoint_is_read_by_name(model, tmp_path):
    """One that a TF1 Saver wrote."""
    values, expected = google_values(model), weights_of(model)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [tf.compat.v1.get_variable(name, initializer=value) for name, value in values.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver(made).save(session, str(tmp_path / "bert_model.ckpt"))
    for path in (prefix, str(tmp_path), f"{prefix}.index"):
        for variable in model.variables:
            variable.assign(tf.zeros_like(variable))
        report = initialize.initialize(named(model), path)
        assert not report.fresh and len(report.read) == len(expected)
        assert report.location == prefix and report.title == "Google TF1"
        assert len(report.dropped) == 2 * len(report.read) + 1
        assert_same(weights_of(model), expected)


def test_the_encoder_is_strict(tmp_path, model):
    strange = ["bert/encoder/layer_2/output/dense/bias", "bert/pooler/dense/weights"]
    extra = dict.fromkeys(strange, np.zeros(32, np.float32))
    with pytest.raises(ConfigError, match="missing: bert/pooler.*unexpected: bert/encoder/layer_2") as error:
        initialize.initialize(named(model), google_checkpoint(tmp_path, model, POOLER, extra))
    assert error.value.details == {"missing": POOLER, "unexpected": strange}
    other = BertPretrainer(BertConfig(**{**TINY, "intermediate_size": 32, "vocab_size": 60}))
    with pytest.raises(ConfigError) as error:
        initialize.initialize(named(model), google_checkpoint(tmp_path, other))
    assert {
        "bert/encoder/layer_1/intermediate/dense/kernel [32, 32] for [32, 64]",
        "bert/embeddings/word_embeddings [60, 32] for [50, 32]",
        "cls/predictions/output_bias [60] for [50]",
    } <= set(error.value.details["of another shape"])


def test_answers_need_no_pooler(tmp_path):
    """Hugging Face's models of answers have none; one that has only a part of it is damaged."""
    model, other = SpanModel(BertConfig(**TINY)), SpanModel(BertConfig(**TINY))
    report = initialize.initialize(named(other), google_checkpoint(tmp_path, model, drop=POOLER))
    assert not report.fresh and report.unneeded == POOLER
    assert "neither there nor needed: bert/pooler/dense/bias" in report.describe()
    found, expected = weights_of(other), weights_of(model)
    for name in expected.keys() - POOLER:
        np.testing.assert_array_equal(found[name], expected[name])
    with pytest.raises(ConfigError, match="missing: bert/pooler/dense/bias"):
        initialize.initialize(named(other), google_checkpoint(tmp_path, model, drop=POOLER[:1]))


def test_a_pooler_that_is_not_there_starts_with_the_head_over_it(tmp_path):
    """As in Hugging Face's BertForMaskedLM. Where the checkpoint has a head over it, it is damaged."""
    whole = BertPretrainer(BertConfig(**TINY))
    prefix = google_checkpoint(tmp_path / "a", whole, drop=POOLER + RELATION)
    for model, fresh in (
        (SequenceModel(BertConfig(**TINY), 2), [*POOLER, *HEAD]),
        (BertPretrainer(BertConfig(**TINY)), [*POOLER, *RELATION]),
    ):
        report = initialize.initialize(named(model), prefix)
        assert report.fresh == fresh and "started fresh: bert/pooler/dense/bias" in report.describe()
    with pytest.raises(ConfigError, match="missing: bert/pooler/dense/bias"):
        initialize.initialize(named(whole), google_checkpoint(tmp_path / "b", whole, drop=POOLER))
    # A classifier of words is no head over it, whatever the number of its classes.
    tagger, other = SequenceModel(BertConfig(**TINY), 5), SequenceModel(BertConfig(**TINY), 2)
    prefix = google_checkpoint(tmp_path / "c", tagger, drop=POOLER)
    labels = tmp_path / "c" / "labels.json"
    labels.write_text(json.dumps({"labels": list("OABCD"), "problem_type": "token_classification"}))
    assert initialize.initialize(named(other), prefix).fresh == [*POOLER, *HEAD]
    labels.write_text(json.dumps({"labels": None, "problem_type": None}))
    with pytest.raises(ConfigError, match="missing: bert/pooler/dense/bias"):
        initialize.initialize(named(other), prefix)


def classifier(classes: int, value: float | None = None) -> dict[str, tf.Variable]:
    """Returns a head of a value; None: whose class n has n in all its weights."""
    values_C = tf.range(classes, dtype=tf.float32) if value is None else tf.fill([classes], value)
    weights_CD = tf.repeat(values_C[:, None], 32, axis=1)
    return {"output_weights": tf.Variable(weights_CD), "output_bias": tf.Variable(values_C)}


def test_outputs_of_a_classifier_are_put_into_the_order_of_the_task(tmp_path, model, caplog):
    """By the names beside the checkpoint, whatever their case, hyphens and blanks; without names a warning
    tells the order."""
    names = find_task("mnli").class_names
    count = tf.Variable(3, dtype=tf.int64)
    CheckpointManager(str(tmp_path), {**named(model), **classifier(3), "global_step": count}, keep=1).save(3)
    for labels, order in (
        (("Neutral", "ENTAILMENT", "contra-diction"), [2, 1, 0]),
        (("contradiction", "entailment", "neutral"), [0, 1, 2]),
        (("LABEL_2", "LABEL_0", "LABEL_1"), [1, 2, 0]),
        (None, [0, 1, 2]),
    ):
        (tmp_path / "labels.json").write_text(model_folder.labels_json(labels, "single_label_classification"))
        head = classifier(3)
        report = initialize.initialize({**named(model), **head}, str(tmp_path), None, names)
        assert not report.fresh and head["output_bias"].numpy().tolist() == order, labels
        assert head["output_weights"].numpy()[:, 0].tolist() == order, labels
        told = "does not name its classes: the order of the task is assumed, contradiction entailment"
        assert (told in caplog.text) == (labels is None), labels

    def start(labels, kind) -> None:
        (tmp_path / "labels.json").write_text(model_folder.labels_json(labels, kind))
        initialize.initialize({**named(model), **classifier(3)}, str(tmp_path), None, names)

    cases = [
        (("good", "bad", "neutral"), None, "the labels good bad neutral, but the task has: contradiction"),
        (None, "multi_label_classification", "problem_type=multi_label_classification, but the task has one"),
        (("yes", "no"), None, "2 labels (yes, no), the classifier has 3 outputs"),
    ]
    assert_refused(start, cases)
    # Of another number of classes, whatever they are: as with MNLI before RTE, in RoBERTa's recipe.
    own = classifier(2, 0.0)
    sst2 = find_task("sst2").class_names
    assert initialize.initialize(named(model) | own, str(tmp_path), None, sst2).fresh == HEAD
    assert not own["output_weights"].numpy().any()


def test_numbered_classes_have_words():
    """Source: the data set "glue" of Hugging Face."""
    words = {name: [names[-1] for names in task.class_names or ()] for name, task in TASKS.items()}
    assert words["sst2"] == ["negative", "positive"] and words["cola"] == ["unacceptable", "acceptable"]
    assert words["mrpc"] == ["not_equivalent", "equivalent"] and not words["stsb"]
    assert words["qqp"] == ["not_duplicate", "duplicate"]
    assert words["wnli"] == words["rte"][::-1] == ["not_entailment", "entailment"]


def test_bad_paths(tmp_path, model):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.index").write_bytes(b"nothing")
    object_based = tf.train.Checkpoint(model=model).write(str(tmp_path / "object"))
    cases = [
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "empty", "no checkpoint in this folder"),
        (tmp_path / "bad", "unreadable checkpoint"),
        (object_based, "does not fit the model"),
    ]
    assert_refused(lambda path: initialize.initialize(named(model), str(path)), cases)


def test_a_garden_file_of_another_number_of_heads_is_refused(tmp_path, model):
    location = object_bundle.target(str(tmp_path), "model")
    mapped = garden.from_canonical(of_arrays(weights_of(model)), Options(num_attention_heads=4))
    garden.write(mapped.tensors, location, Options(num_attention_heads=4), lambda size: None)
    for sizes in (None, BertConfig(**TINY)):
        assert not initialize.initialize(named(model), location, sizes).fresh
    said = "has num_attention_heads=4, the model has num_attention_heads=2. Change --init_checkpoint"
    with pytest.raises(ConfigError, match=said):
        initialize.initialize(named(model), location, BertConfig(**{**TINY, "num_attention_heads": 2}))


def test_a_model_that_computes_something_else_is_not_initialised(tmp_path, model):
    """Where the shapes fit, only the configuration beside the checkpoint tells."""
    prefix = google_checkpoint(tmp_path, model)
    for beside, own in (
        ({"hidden_act": "gelu"}, {"hidden_act": "gelu_erf"}),
        ({"hidden_act": "gelu", "model_type": "bert"}, {"hidden_act": "gelu_tanh"}),
        ({"num_attention_heads": 2}, {}),
        ({"layer_norm_eps": 1e-5}, {}),
    ):
        (tmp_path / "bert_config.json").write_text(json.dumps(beside))
        key = next(iter(beside))
        with pytest.raises(ConfigError, match=f"has {key}=.*, the model has {key}=.*--bert_config_file"):
            initialize.initialize(named(model), prefix, BertConfig(**TINY, **own))
    (tmp_path / "bert_config.json").write_text(json.dumps({"hidden_act": "gelu", "num_attention_heads": 4}))
    assert "hidden_act" not in initialize.initialize(named(model), prefix, BertConfig(**TINY)).describe()
    os.remove(tmp_path / "bert_config.json")  # now nothing tells
    report = initialize.initialize(named(model), prefix, BertConfig(**TINY, hidden_act="gelu_erf"))
    assert "hidden_act=gelu_erf is the model's" in report.describe()


def test_weights_that_are_no_finite_numbers_are_refused(tmp_path, model):
    """Those that are infinite only in float32, too; test_convert.py has all formats and the other kinds."""
    name = "bert/embeddings/word_embeddings"
    other = of_arrays(weights_of(model)) | {name: tensors_lib.of_array(np.full([50, 32], 1e300), name)}
    bundle.write(other, str(tmp_path / "model"))
    spoilt = BertPretrainer(BertConfig(**TINY))  # it has these numbers afterwards
    with pytest.raises(ConfigError, match=f"holds NaN or infinite numbers in {name}"):
        initialize.initialize(named(spoilt), str(tmp_path / "model"))


def test_weights_of_other_formats_are_taken(tmp_path, model):
    ours, path = of_arrays(weights_of(model)), str(tmp_path / "model")
    bundle.write({name: tensors_lib.cast(ours[name], ml_dtypes.bfloat16) for name in ours}, path)
    assert not initialize.initialize(named(model), path).fresh
    bundle.write(research.from_canonical(ours, Options.of(baseline=True)).tensors, path)  # needs no flag
    report = initialize.initialize(named(model), path)
    assert not report.fresh and report.title == "Graphcore's GroupBERT research"
    strange = zeros("Layer1/FF/3/W", "Embedding/Other")
    onnx_file.write(popart.from_canonical(ours, Options()).tensors | strange, f"{path}.onnx")
    with pytest.raises(ConfigError, match="unexpected: Embedding/Other, Layer1/FF/3/W"):
        initialize.initialize(named(model), f"{path}.onnx")


def test_a_step_that_cannot_be_read_is_said(tmp_path, model, monkeypatch):
    def fail():
        raise DamagedError("global_step: checksum")

    damaged = zeros("bert/encoder/layer_0/attention/self/qkv_bias", shape=(96,))
    damaged["global_step"] = tensors_lib.Tensor((), np.dtype(np.float16), fail)
    monkeypatch.setattr(bundle, "read", lambda prefix: damaged)
    with pytest.raises(ConfigError, match=r"unreadable checkpoint \(global_step: checksum\)"):
        initialize.initialize(named(model), google_checkpoint(tmp_path, model))

"""Checkpoints: whole or not at all, the last N kept, damaged ones skipped, names compared strictly."""

import json
import os
import re

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from official.checkpoint import DamagedError, initialize
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle, object_bundle, onnx_file
from official.checkpoint.formats import Options, garden, google, popart, research
from official.checkpoint.manager import CheckpointManager
from official.config import BertConfig, ConfigError
from official.data.glue.tasks import TASKS, find_task
from official.io import model_folder
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from tests.conftest import TINY


def variables(value=1.0) -> dict:
    return {"bert/a": tf.Variable([value] * 1000), "global_step": tf.Variable(int(value), dtype=tf.int64)}


def test_save_and_restore(tmp_path):
    manager = CheckpointManager(str(tmp_path), variables(3.0), keep=2)
    assert manager.restore_newest() is None
    prefix = manager.save(7)
    state = variables()
    assert (
        CheckpointManager(str(tmp_path), state, keep=2).restore_newest() == prefix == str(tmp_path / "ckpt-7")
    )
    assert (state["bert/a"].numpy() == 3.0).all() and state["global_step"] == 3
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    assert dict(tf.train.list_variables(prefix)) == {"bert/a": [1000], "global_step": []}


def test_the_newest_are_kept(tmp_path):
    manager = CheckpointManager(str(tmp_path), variables(), keep=2)
    for step in (5, 10, 100, 20):
        manager.save(step)
    assert manager.steps() == [20, 100]
    assert {name.split(".")[0] for name in os.listdir(tmp_path)} == {"checkpoint", "ckpt-20", "ckpt-100"}


@pytest.mark.parametrize(
    "folder", ["runs/mine", "./runs/mine/", "runs/../runs/mine", "{absolute}", "ram://state/mine"]
)
def test_tensorflow_finds_the_newest_one(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = folder.format(absolute=tmp_path / "runs" / "mine")
    tf.io.gfile.makedirs(folder)
    manager = CheckpointManager(folder, variables(), keep=2)
    manager.save(20)
    prefix = manager.save(40)
    assert os.path.normpath(tf.train.latest_checkpoint(folder)) == os.path.normpath(prefix)
    known = tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths
    assert [os.path.basename(path) for path in known] == ["ckpt-20", "ckpt-40"]
    if "://" not in folder:
        os.rename("runs", "moved")
        assert tf.train.latest_checkpoint("moved/mine") == "moved/mine/ckpt-40"


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path):
    def damaged(folder, damage) -> None:
        state = variables()
        manager = CheckpointManager(str(folder), state, keep=3)
        manager.save(1)
        state["bert/a"].assign([2.0] * 1000)
        manager.save(2)
        data, index = folder / "ckpt-2.data-00000-of-00001", folder / "ckpt-2.index"
        content = bytearray(data.read_bytes())
        content[1000] ^= 1
        damage(data, index, bytes(content))

    for number, damage in enumerate(
        (
            lambda data, index, flipped: data.write_bytes(flipped[:100]),
            lambda data, index, flipped: data.write_bytes(flipped),
            lambda data, index, flipped: index.write_bytes(index.read_bytes()[:40]),
            lambda data, index, flipped: data.unlink(),
        )
    ):
        folder, restored = tmp_path / str(number), variables()
        folder.mkdir()
        damaged(folder, damage)
        assert CheckpointManager(str(folder), restored, keep=3).restore_newest().endswith("ckpt-1"), number
        assert (restored["bert/a"].numpy() == 1.0).all(), number


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
    with pytest.raises(DamagedError, match="`checkpoint` names ckpt-8 as the newest, and ckpt-8.index"):
        bundle.locate(str(tmp_path))
    assert bundle.locate(str(tmp_path / "ckpt-4")) == str(tmp_path / "ckpt-4")
    index.write_bytes(content[:40])
    assert manager.restore_newest() == bundle.locate(str(tmp_path)) == str(tmp_path / "ckpt-4")


def test_a_folder_with_glob_characters_is_pruned(tmp_path):
    manager = CheckpointManager(str(tmp_path / "lr[1]"), variables(), keep=1)
    os.makedirs(tmp_path / "lr[1]")
    for step in (1, 2, 3):
        manager.save(step)
    assert manager.steps() == [3]


def test_a_half_written_checkpoint_is_none(tmp_path):
    CheckpointManager(str(tmp_path), variables(), keep=3).save(1)
    (tmp_path / "ckpt-2.data-00000-of-00001.tempstate123").write_bytes(b"half")
    assert CheckpointManager(str(tmp_path), variables(), keep=3).restore_newest().endswith("ckpt-1")


def test_all_damaged_is_an_error(tmp_path):
    manager = CheckpointManager(str(tmp_path), variables(), keep=3)
    manager.save(1)
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(ConfigError, match="all 1 checkpoints are damaged"):
        manager.restore_newest()


def test_another_model_is_an_error_that_lists_names(tmp_path):
    CheckpointManager(str(tmp_path), variables(), keep=3).save(1)
    other = {"bert/a": tf.Variable([1.0]), "bert/b": tf.Variable(1.0)}
    with pytest.raises(ConfigError) as error:
        CheckpointManager(str(tmp_path), other, keep=3).restore_newest()
    for part in ("missing: bert/b", "unexpected: global_step", r"bert/a \[1000\] for \[1\]"):
        assert re.search(part, str(error.value))


def test_remote_folder():
    manager = CheckpointManager("ram://checkpoints", variables(4.0), keep=1)
    manager.save(1)
    manager.save(2)
    state = variables()
    assert manager.steps() == [2]
    assert (
        CheckpointManager("ram://checkpoints", state, keep=1).restore_newest() and state["global_step"] == 4
    )


# ---- initial weights


def named(model) -> dict:
    return {variable.name.split(":")[0]: variable for variable in model.trainable_variables}


def google_values(model, drop=()) -> dict[str, np.ndarray]:
    """Returns weights, Adam slots and global_step, as Google's code saves them."""
    values = {name: variable.numpy() for name, variable in named(model).items() if name not in drop}
    values |= {
        f"{name}/{slot}": np.zeros_like(value)
        for name, value in list(values.items())
        for slot in ("adam_m", "adam_v")
    }
    return values | {"global_step": np.array(1000, np.int64)}


def google_checkpoint(folder, model, drop=(), extra=None, rename=None) -> str:
    """Writes a name-based checkpoint in Google's form."""
    values = google_values(model, drop) | (extra or {})
    renamed = {(rename or {}).get(name, name): value for name, value in values.items()}
    prefix = str(folder / "bert_model.ckpt")
    bundle.write({name: tensors_lib.of_array(value, name) for name, value in renamed.items()}, prefix)
    return prefix


@pytest.fixture(scope="module")
def models():
    """Two models and their first weights. Tests share them: to make one takes longer than a test."""
    made = [BertPretrainer(BertConfig(**TINY)) for _ in range(2)]
    return [(one, [variable.numpy() for variable in one.variables]) for one in made]


def as_made(one, weights):
    for variable, value in zip(one.variables, weights):
        variable.assign(value)
    return one


@pytest.fixture
def model(models):
    return as_made(*models[0])


@pytest.fixture
def fresh(models):
    return as_made(*models[1])


@pytest.fixture(scope="module")
def saved_by_tf1(models, tmp_path_factory) -> str:
    """Returns the prefix of a checkpoint that a TF1 Saver wrote."""
    values = google_values(as_made(*models[0]))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [tf.compat.v1.get_variable(name, initializer=value) for name, value in values.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        folder = tmp_path_factory.mktemp("tf1")
        return tf.compat.v1.train.Saver(made).save(session, str(folder / "bert_model.ckpt"))


@pytest.mark.parametrize("form", ["prefix", "folder", "index file"])
def test_googles_checkpoint_is_read_by_name(saved_by_tf1, model, fresh, form):
    prefix = saved_by_tf1
    path = {"prefix": prefix, "folder": os.path.dirname(prefix), "index file": prefix + ".index"}[form]
    assert not all(np.array_equal(one, named(model)[name]) for name, one in named(fresh).items())
    report = initialize.initialize(named(fresh), path)
    assert (
        not report.fresh
        and len(report.read) == len(named(model))
        and report.location == prefix
        and report.title == "Google TF1"
    )
    assert len(report.dropped) == 2 * len(report.read) + 1
    for name, variable in named(fresh).items():
        np.testing.assert_array_equal(variable, named(model)[name])


def test_a_missing_head_starts_fresh_and_is_named(tmp_path, model):
    heads = [name for name in named(model) if name.startswith("cls/seq_relationship")]
    report = initialize.initialize(named(model), google_checkpoint(tmp_path, model, drop=heads))
    assert report.fresh == sorted(heads)
    assert (
        "started fresh: cls/seq_relationship/output_bias, cls/seq_relationship/output_weights"
        in report.describe()
    )


@pytest.mark.parametrize("classes", [1, 3])
def test_a_classifier_of_other_classes_starts_fresh(tmp_path, model, fresh, classes):
    """As with MNLI before RTE, which RoBERTa's authors published."""
    head = {
        "output_weights": tf.Variable(tf.ones([classes, 32])),
        "output_bias": tf.Variable(tf.ones([classes])),
    }
    CheckpointManager(
        str(tmp_path), {**named(model), **head, "global_step": tf.Variable(3, dtype=tf.int64)}, keep=1
    ).save(3)
    own = {"output_weights": tf.Variable(tf.zeros([2, 32])), "output_bias": tf.Variable(tf.zeros([2]))}
    report = initialize.initialize({**named(fresh), **own}, str(tmp_path))
    assert report.fresh == ["output_bias", "output_weights"] and not own["output_weights"].numpy().any()
    same = {name: tf.Variable(tf.zeros_like(value)) for name, value in head.items()}
    assert (
        not initialize.initialize({**named(model), **same}, str(tmp_path)).fresh
        and same["output_bias"].numpy().all()
    )


def test_the_encoder_is_strict(tmp_path, model):
    prefix = google_checkpoint(
        tmp_path,
        model,
        drop=["bert/pooler/dense/bias"],
        extra={"bert/encoder/layer_2/output/dense/bias": np.zeros(32, np.float32)},
        rename={"bert/pooler/dense/kernel": "bert/pooler/dense/weights"},
    )
    with pytest.raises(ConfigError) as error:
        initialize.initialize(named(model), prefix)
    assert error.value.details == {
        "missing": ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"],
        "unexpected": ["bert/encoder/layer_2/output/dense/bias", "bert/pooler/dense/weights"],
    }
    assert "missing: bert/pooler/dense/bias" in str(
        error.value
    ) and "unexpected: bert/encoder/layer_2" in str(error.value)


def test_answers_need_no_pooler(tmp_path):
    """Hugging Face's models of answers have none; one that has only a part of it is damaged."""
    model, other = SpanModel(BertConfig(**TINY)), SpanModel(BertConfig(**TINY))
    variables = {variable.name.split(":")[0]: variable for variable in other.variables}
    report = initialize.initialize(variables, google_checkpoint(tmp_path, model))  # of what is trained
    assert not report.fresh and report.unneeded == ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    assert "neither there nor needed: bert/pooler/dense/bias" in report.describe()
    for name, value in named(model).items():
        np.testing.assert_array_equal(variables[name], value)
    half = {"bert/pooler/dense/kernel": np.zeros([32, 32], np.float32)}
    with pytest.raises(ConfigError, match="missing: bert/pooler/dense/bias"):
        initialize.initialize(variables, google_checkpoint(tmp_path, model, extra=half))


def test_a_pooler_that_is_not_there_starts_with_the_head_over_it(tmp_path):
    """As in Hugging Face's BertForMaskedLM. Where the checkpoint has a head over it, it is damaged."""
    pooler = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    whole = BertPretrainer(BertConfig(**TINY))
    relation = ["cls/seq_relationship/output_bias", "cls/seq_relationship/output_weights"]
    prefix = google_checkpoint(tmp_path / "a", whole, drop=pooler + relation)
    for model, fresh in (
        (SequenceModel(BertConfig(**TINY), 2), [*pooler, "output_bias", "output_weights"]),
        (BertPretrainer(BertConfig(**TINY)), [*pooler, *relation]),
    ):
        report = initialize.initialize(named(model), prefix)
        assert report.fresh == fresh and "started fresh: bert/pooler/dense/bias" in report.describe()
    with pytest.raises(ConfigError, match="missing: bert/pooler/dense/bias"):
        initialize.initialize(named(whole), google_checkpoint(tmp_path / "b", whole, drop=pooler))


def classifier(classes: int) -> dict[str, tf.Variable]:
    """Returns a head whose class n has n in all its weights."""
    numbers_C = tf.range(classes, dtype=tf.float32)
    return {
        "output_weights": tf.Variable(tf.repeat(numbers_C[:, None], 32, axis=1)),
        "output_bias": tf.Variable(numbers_C),
    }


def test_outputs_of_a_classifier_are_put_into_the_order_of_the_task(tmp_path, model):
    """By the names beside the checkpoint, whatever their case, hyphens and blanks; names that only count say
    nothing."""
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
    for labels, kind, message in (
        (("good", "bad", "neutral"), None, "has the labels: good bad neutral; the task has: contradiction"),
        (None, "multi_label_classification", "problem_type=multi_label_classification, the task one label"),
        (("yes", "no"), None, "2 labels .yes, no., the classifier has 3 outputs"),
    ):
        (tmp_path / "labels.json").write_text(model_folder.labels_json(labels, kind))
        with pytest.raises(ConfigError, match=message):
            initialize.initialize({**named(model), **classifier(3)}, str(tmp_path), None, names)
    own = classifier(2)  # of another number of classes, whatever they are
    report = initialize.initialize(
        {**named(model), **own}, str(tmp_path), None, find_task("sst2").class_names
    )
    assert report.fresh == ["output_bias", "output_weights"]


def test_numbered_classes_have_words():
    """Source: the data set "glue" of Hugging Face."""
    words = {name: [names[-1] for names in task.class_names or ()] for name, task in TASKS.items()}
    assert words["sst2"] == ["negative", "positive"] and words["cola"] == ["unacceptable", "acceptable"]
    assert words["mrpc"] == ["not_equivalent", "equivalent"] and words["qqp"] == [
        "not_duplicate",
        "duplicate",
    ]
    assert words["wnli"] == words["rte"][::-1] == ["not_entailment", "entailment"] and not words["stsb"]


def test_another_size_lists_shapes(tmp_path, model):
    other = BertPretrainer(BertConfig(**{**TINY, "intermediate_size": 32, "vocab_size": 60}))
    with pytest.raises(ConfigError) as error:
        initialize.initialize(named(model), google_checkpoint(tmp_path, other))
    for name in (
        "bert/encoder/layer_1/intermediate/dense/kernel [32, 32] for [32, 64]",
        "bert/embeddings/word_embeddings [60, 32] for [50, 32]",
        "cls/predictions/output_bias [60] for [50]",
    ):
        assert name in error.value.details["of another shape"]


def test_bad_paths(tmp_path, model):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.index").write_bytes(b"nothing")
    object_based = tf.train.Checkpoint(model=model).write(str(tmp_path / "object"))
    for path, message in (
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "empty", "no checkpoint in this folder"),
        (tmp_path / "bad", "unreadable checkpoint"),
        (object_based, "does not fit the model"),
    ):
        with pytest.raises(ConfigError, match=message):
            initialize.initialize(named(model), str(path))


def test_optimizer_slots_are_recognised():
    def is_known(name):
        return not google.to_canonical({name: tensors_lib.zeros((2,), np.float32)}, Options()).unmatched

    weight = "bert/pooler/dense/kernel"
    for slot in ("adam_m", "lamb_v", "LAMB", "LAMB_1", "lamb_step_counter", "Momentum", "AdamW_1"):
        assert is_known(f"{weight}/{slot}"), slot
    assert is_known(weight) and not is_known("bert/adam/kernel") and not is_known(f"{weight}/other")


def canonical_tensors(model) -> dict:
    return {name: tensors_lib.of_array(variable.numpy(), name) for name, variable in named(model).items()}


def test_a_garden_file_of_another_number_of_heads_is_refused(tmp_path, model, fresh):
    location = object_bundle.target(str(tmp_path), "model")
    mapped = garden.from_canonical(canonical_tensors(model), Options(num_attention_heads=4))
    garden.write(mapped.tensors, location, Options(num_attention_heads=4), lambda size: None)
    for sizes in (None, BertConfig(**TINY)):
        assert not initialize.initialize(named(fresh), location, sizes).fresh
    with pytest.raises(
        ConfigError,
        match="has num_attention_heads=4, the model has num_attention_heads=2. Change --init_checkpoint",
    ):
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


def test_an_activation_that_nothing_tells_is_said(tmp_path, model):
    prefix = google_checkpoint(tmp_path, model)
    assert (
        "hidden_act=gelu_erf is the model's own"
        in initialize.initialize(named(model), prefix, BertConfig(**TINY, hidden_act="gelu_erf")).describe()
    )


def test_weights_that_are_no_finite_numbers_are_refused(tmp_path, model):
    name = "bert/embeddings/word_embeddings"
    for values, message in (
        (np.full([50, 32], 3, np.int32), rf"must be floating-point numbers; these are not: {name} \(int32\)"),
        (np.full([50, 32], np.nan, np.float32), f"holds NaN or infinite numbers in {name}"),
        (np.full([50, 32], 1e300), f"holds NaN or infinite numbers in {name}"),
    ):
        other = canonical_tensors(model) | {name: tensors_lib.of_array(values, name)}
        bundle.write(other, str(tmp_path / "model"))
        with pytest.raises(ConfigError, match=message) as error:
            initialize.initialize(named(model), str(tmp_path / "model"))
        assert "\n" not in str(error.value)


def test_half_precision_weights_are_taken(tmp_path, model):
    bundle.write(
        {
            name: tensors_lib.cast(tensor, ml_dtypes.bfloat16)
            for name, tensor in canonical_tensors(model).items()
        },
        str(tmp_path / "model"),
    )
    assert not initialize.initialize(named(model), str(tmp_path / "model")).fresh


def test_a_checkpoint_of_weights_that_are_not_finite_is_not_resumed(tmp_path):
    state = {
        "weight": tf.Variable([1.0, np.inf]),
        "weight/adam_v": tf.Variable([np.inf]),
        "global_step": tf.Variable(3, dtype=tf.int64),
    }
    CheckpointManager(str(tmp_path), state, keep=1).save(3)
    with pytest.raises(ConfigError, match="ckpt-3 holds NaN or infinite numbers in weight. Remove"):
        CheckpointManager(str(tmp_path), state, keep=1).restore_newest()


def test_popart_names_are_strict_too(tmp_path, model):
    mapped = popart.from_canonical(canonical_tensors(model), Options())
    strange = {name: tensors_lib.zeros((2,), np.float32) for name in ("Layer1/FF/3/W", "Embedding/Other")}
    onnx_file.write(mapped.tensors | strange, str(tmp_path / "model.onnx"))
    with pytest.raises(ConfigError, match="unexpected: Embedding/Other, Layer1/FF/3/W"):
        initialize.initialize(named(model), str(tmp_path / "model.onnx"))


def test_a_baseline_of_the_research_code_needs_no_flag(tmp_path, model, fresh):
    bundle.write(
        research.from_canonical(canonical_tensors(model), Options.of(baseline=True)).tensors,
        str(tmp_path / "model"),
    )
    report = initialize.initialize(named(fresh), str(tmp_path))
    assert not report.fresh and report.title == "Graphcore's GroupBERT research"


def test_a_step_that_cannot_be_read_is_said(tmp_path, model, monkeypatch):
    def fail():
        raise initialize.DamagedError("global_step: checksum")

    monkeypatch.setattr(
        bundle,
        "read",
        lambda prefix: {
            "bert/encoder/layer_0/attention/self/qkv_bias": tensors_lib.zeros((96,), np.float32),
            "global_step": tensors_lib.Tensor((), np.dtype(np.float16), fail),
        },
    )
    with pytest.raises(ConfigError, match=r"unreadable checkpoint \(global_step: checksum\)"):
        initialize.initialize(named(model), google_checkpoint(tmp_path, model))

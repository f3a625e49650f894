"""The Keras door: what tf.keras does with a model is right, and it gives what a loaded model gives."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from official import inference
from official.checkpoint import canonical
from official.checkpoint.formats import Options, huggingface
from official.checkpoint.tensors import changed
from official.inference.rows import join
from official.io.errors import ConfigError
from official.models import TASKS, from_pretrained
from tests.checkpoint.tensors import random_tensors, shapes_of
from tests.fixtures import slow
from tests.inference.test_foreign_folders import HIDDEN, POSITIONS, WORDS, write, write_pooling

TEXTS = ["the dog is good .", "a cat", "the cat is bad . the dog runs"]
HEADS = {  # {task: (tensors of its head, class of transformers)}
    "classify": (canonical.CLASSIFIER_HEAD, "BertForSequenceClassification"),
    "choice": (canonical.CLASSIFIER_HEAD, "BertForMultipleChoice"),
    "tag": (canonical.CLASSIFIER_HEAD, "BertForTokenClassification"),
    "answer": (canonical.SQUAD_HEAD, "BertForQuestionAnswering"),
    "fill_mask": (canonical.PRETRAINING_HEADS, "BertForPreTraining"),
    "embed": ((), "BertModel"),
}
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}}


def folder_of(task: str, path, **config) -> str:
    """Writes a folder of transformers with random weights of a task's head: of a classifier, with two layers,
    else with one."""
    head, architecture = HEADS[task]
    sizes = canonical.Sizes(len(WORDS), HIDDEN, 32, POSITIONS, 2, 1 if task == "choice" else 3)
    tensors = random_tensors(shapes_of((*canonical.ENCODER, *head), sizes), scale=0.2)
    layers = 2 if task == "classify" else 1
    tensors = {name: each for name, each in tensors.items() if layers == 2 or "/layer_1/" not in name}
    for name in [name for name in tensors if name.endswith("gamma")]:
        tensors[name] = changed(tensors[name], lambda values: 1 + values)
    mapped = huggingface.from_canonical(tensors, Options.of(hf_prefix=True)).tensors
    arrays = {name: np.ascontiguousarray(tensor.read()) for name, tensor in mapped.items()}
    return write(path, arrays, num_hidden_layers=layers, architectures=[architecture], **config)


@pytest.fixture(name="folders")
def fixture_folders(tmp_path):
    """{task: folder of its model}"""
    labelled = ("classify", "tag")
    return {task: folder_of(task, tmp_path / task, **LABELS if task in labelled else {}) for task in HEADS}


def batch_of(model) -> dict[str, np.ndarray]:
    """Returns what the tokenizer makes of the texts: of a choice, of two texts with two to choose from."""
    if model.spec.kind == "choice":
        return model.tokenizer(TEXTS[:2], [TEXTS[1:], TEXTS[:2]])
    return model.tokenizer(TEXTS)


def outputs_of(model) -> dict[str, np.ndarray]:
    """Returns the outputs of a model, by their names."""
    found = tf.nest.map_structure(lambda values: values.numpy(), model(batch_of(model)))
    return found if isinstance(found, dict) else {"logits": found}


def loaded_outputs(task: str, folder: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs that a loaded model gives for the tokens of a batch, without those of padding."""
    loaded, is_token = inference.load(folder), batch["attention_mask"] > 0
    if task == "embed":
        return {"logits": loaded.embed(TEXTS)}

    def rows_of(name: str) -> list[np.ndarray]:
        lengths = is_token.sum(-1).reshape(-1)
        return np.split(batch[name][is_token], np.cumsum(lengths)[:-1])

    joined = join(rows_of("input_ids"), rows_of("token_type_ids"))
    if task == "fill_mask":
        joined = joined._replace(masked_M=np.arange(len(joined.ids_T), dtype=np.int32))
    found = loaded.outputs("classify" if task == "choice" else task, joined)
    if task == "choice":
        return {"logits": found["logits"].reshape(2, 2)}
    return found


def assert_same(one: dict, other: dict, **tolerance) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], err_msg=name, **tolerance or {"rtol": 0})


def compiled(folder: str, **options):
    """Returns a classifier that is ready for `fit`."""
    model = from_pretrained(folder, **{"task": "classify", **options})
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(3e-3), loss)
    return model


def fit(model, epochs: int = 3) -> list[float]:
    """Returns the losses of epochs of 8 rows."""
    labels = np.arange(8) % 3
    texts = [f"{TEXTS[label]} {WORDS[5 + row]}" for row, label in enumerate(labels)]
    batch = model.tokenizer(texts, padding="max_length")
    return model.fit(batch, labels, batch_size=4, epochs=epochs, verbose=0, shuffle=False).history["loss"]


def weights_of(model) -> dict[str, np.ndarray]:
    return {variable.name: variable.numpy() for variable in model.variables}


@pytest.mark.parametrize("copied", [("classify", "answer"), slow(tuple(HEADS))], ids=len)
def test_outputs_are_those_of_a_loaded_model_and_live_on(copied, folders, tmp_path):
    """They are read again from a file of Keras, to the bit, from a folder for others, and from an export."""
    for task, folder in folders.items():
        model = from_pretrained(folder, task=task)
        found, batch = outputs_of(model), batch_of(model)
        tokens = slice(None) if task in ("classify", "choice", "embed") else batch["attention_mask"] > 0
        ours = {name: values[tokens] for name, values in found.items()}
        assert_same(ours, loaded_outputs(task, folder, batch), rtol=0, atol=2e-5)
        assert model.labels == (("bad", "fair", "good") if task in ("classify", "tag") else ())
        if task not in copied:
            continue

        model.save(str(tmp_path / "model.keras"))
        again = tf.keras.models.load_model(str(tmp_path / "model.keras"))
        assert_same(found, outputs_of(again))
        assert again.spec == model.spec

        model.save_pretrained(tmp_path / "published")
        published = from_pretrained(tmp_path / "published", task=task)
        assert_same(found, outputs_of(published))
        assert (published.labels, published.spec.kind) == (model.labels, model.spec.kind)

        if task in ("tag", "embed", "fill_mask"):  # an export of one output, as a classifier's
            continue
        model.export(str(tmp_path / "saved"))
        inputs = {name: tf.constant(values) for name, values in batch.items()}
        saved = tf.saved_model.load(str(tmp_path / "saved"))
        exported = saved.serve(inputs)
        assert_same(found, exported if isinstance(exported, dict) else {"logits": exported}, atol=1e-5)


@pytest.mark.slow
def test_hidden_states_and_their_inputs(folders):
    """Without a pooler in the folder there is none; missing masks and segments are ones and zeros."""
    model = from_pretrained(folders["classify"])
    batch = model.tokenizer(TEXTS[:1])
    whole = model.predict(batch, verbose=0)
    assert whole["last_hidden_state"].shape == (1, 7, HIDDEN) and whole["pooler_output"].shape == (1, HIDDEN)
    ours = {"input_mask": batch["attention_mask"], "segment_ids": batch["token_type_ids"]}
    for inputs in (batch["input_ids"], {"input_ids": batch["input_ids"], **ours}):
        assert_same(whole, model.predict(inputs, verbose=0))
    inputs = {name: tf.keras.Input([None], dtype=tf.int32, name=name) for name in batch}
    head = tf.keras.layers.Dense(2)(model(inputs)["pooler_output"])
    head = tf.keras.Model(inputs, head)
    assert head.predict(batch, verbose=0).shape == (1, 2) and len(head.trainable_variables) > 30


@pytest.mark.slow
def test_fit_learns_with_dropout_and_follows_its_seed(folders, tmp_path):
    ends = []
    for _ in range(2):
        tf.keras.utils.set_random_seed(7)
        model = compiled(folders["classify"])
        losses = fit(model, epochs=20)
        ends.append(weights_of(model))
    assert losses[-1] < 0.5 * losses[0]
    assert_same(*ends)
    batch = batch_of(model)
    assert_same(*({"logits": model.predict(batch, verbose=0)} for _ in range(2)))
    one, other = (model(batch, training=True).numpy() for _ in range(2))
    assert np.abs(one - other).max() > 0.01

    # What is frozen stays, also in a model that goes on from a file, with its optimizer.
    model.encoder.embeddings.trainable = model.encoder.blocks[0].trainable = False
    model.compile(tf.keras.optimizers.Adam(3e-3), model.loss)
    before = weights_of(model)
    fit(model)
    model.save(str(tmp_path / "model.keras"))
    import keras  # noqa: F401  # which takes the names of tf.keras's optimizers

    again = tf.keras.models.load_model(str(tmp_path / "model.keras"))
    for each in (model, again):
        fit(each)
        after = weights_of(each)
        same = {name for name in before if (before[name] == after[name]).all()}
        assert same == {name for name in before if "embeddings" in name or "layer_0" in name}
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations)


@pytest.mark.slow
def test_all_heads_are_trained_whole(tmp_path):
    """Without dropout, the gradients of training are those of TensorFlow's own operations."""

    def gradients_of(model, training: bool) -> dict:
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(batch_of(model), training=training))
            loss = tf.add_n([tf.reduce_mean(tf.sin(each)) for each in outputs])
        found = tape.gradient(loss, model.trainable_variables)
        return {each.name: gradient.numpy() for each, gradient in zip(model.trainable_variables, found)}

    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for task in [*HEADS, None]:
        model = from_pretrained(folder_of(task or "embed", tmp_path / str(task), **rates), task=task)
        assert_same(*(gradients_of(model, training) for training in (True, False)), rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_replicas_train_together(folders, policy, tmp_path):
    tf.keras.mixed_precision.set_global_policy(policy)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = compiled(folders["classify"])
    losses = fit(model, epochs=15)
    assert losses[-1] < losses[0]
    tf.keras.mixed_precision.set_global_policy("float32")
    model.save(str(tmp_path / "model.keras"))
    assert_same(outputs_of(model), outputs_of(tf.keras.models.load_model(str(tmp_path / "model.keras"))))


def test_labels_say_which_head_is_kept(folders, caplog):
    def head(task: str, labels=None):
        caplog.clear()
        model = from_pretrained(folders["classify"], task, labels)
        return model, model.network.head.output_weights.numpy(), "fresh weights" in caplog.text

    model, kept, is_fresh = head("classify")
    assert not is_fresh
    for labels, order in ((3, [0, 1, 2]), (["good", "bad", "fair"], [2, 0, 1])):
        other, found, is_fresh = head("classify", labels)
        assert not is_fresh and (found == kept[order]).all()
        assert other.labels == tuple(np.array(model.labels)[order])
    for task, labels, kind, count in (
        ("classify", 5, "one", 5),
        ("classify", ["a", "b", "c"], "one", 3),
        ("classify", 1, "number", 1),
        ("several", 3, "several", 3),
        ("number", None, "number", 1),
        ("tag", 3, "tag", 3),
    ):
        other, found, is_fresh = head(task, labels)
        assert is_fresh and other.spec.kind == kind and len(found) == len(other.labels) == count


def test_the_tokenizer_makes_what_models_take(folders):
    model = from_pretrained(folders["fill_mask"], task="fill_mask")
    batch = model.tokenizer(["the [MASK] [MASK] .", "[MASK]"], max_length=8, padding="max_length")
    cls, sep, mask, the, dot = map(WORDS.index, ("[CLS]", "[SEP]", "[MASK]", "the", "."))
    assert batch["input_ids"].tolist() == [[cls, the, mask, mask, dot, sep, 0, 0], [cls, mask, sep, *[0] * 5]]
    model = from_pretrained(folders["classify"], task="classify")
    pairs = model.tokenizer(TEXTS, TEXTS[::-1], max_length=9)
    data = tf.data.Dataset.from_tensor_slices((TEXTS, TEXTS[::-1])).batch(3)
    (mapped,) = data.map(lambda one, other: model.tokenizer(one, other, max_length=9))
    assert_same(pairs, mapped)
    assert pairs["input_ids"].shape == (3, 9) and pairs["token_type_ids"][0].sum() == 4
    assert_same(model.tokenizer(TEXTS[0]), model.tokenizer(np.array(TEXTS[:1])))


def test_texts_are_cut_where_sentence_transformers_says_before_the_tokenizer(folders):
    folder, text = folders["embed"], "the dog is good . a cat is bad . the dog runs"
    write_pooling(folder, max_seq_length=9)
    pathlib.Path(folder, "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 6}')
    model = from_pretrained(folder, task="embed")
    batch = model.tokenizer(text)
    assert model.tokenizer.max_length == batch["input_ids"].shape[1] == 9
    np.testing.assert_allclose(model(batch)[0], inference.load(folder).embed(text), atol=2e-5)


def test_the_vector_of_the_first_token_is_not_that_of_padding_before_it(folders):
    write_pooling(folders["embed"], pooling="cls", normalize=False)
    model, hidden = from_pretrained(folders["embed"], task="embed"), from_pretrained(folders["embed"])
    for before in (0, 3):
        batch = {name: np.pad(ids, [[0, 0], [before, 0]]) for name, ids in model.tokenizer(TEXTS[:1]).items()}
        first = hidden(batch)["last_hidden_state"][:, before]
        np.testing.assert_allclose(model(batch), first, atol=2e-5, err_msg=str(before))


def test_what_cannot_be_is_refused(folders):
    folder, ones = folders["embed"], np.ones((1, 4))
    model, tagger = compiled(folders["classify"]), compiled(folders["tag"], task="tag")
    model.compile(loss="mse", jit_compile=True)
    three = {name: [[1]] for name in ("input_ids", "input_mask", "attention_mask")}
    deep = {"input_ids": [[1]], "attention_mask": [[[1]]]}
    cases = (
        (lambda: from_pretrained(folder, task="classfy"), "(did you mean classify?). Allowed: None"),
        (lambda: from_pretrained(folder, task="x"), f"Allowed: None, {', '.join(TASKS)}"),
        (lambda: from_pretrained(folder, task="tag"), "has no head of that kind. Give labels=N"),
        (lambda: from_pretrained(folder, task="tag", labels="ab"), "labels='ab', expected a number"),
        (lambda: from_pretrained(folder, task="fill_mask", labels=3), "labels=3: task=fill_mask has none"),
        (lambda: model.tokenizer(["a", np.nan]), "'nan' among the texts is a float"),
        (lambda: model.tokenizer("a", max_length=17), "max_length=17 is out of range"),
        (lambda: model.tokenizer(TEXTS, max_length=4, truncation=False), "longer than max_length=4 tokens"),
        (lambda: model({"input_ids": [[1]], "labels": [1]}), "the inputs are input_ids, labels"),
        (lambda: model(three), "under two names"),
        (lambda: model(deep), "the input input_mask is of shape (1, 1, 1), expected [B, L]"),
        (lambda: model.tokenizer("a", truncation="only_second"), "truncation='only_second', expected True"),
        (lambda: fit(model), "jit_compile=True: training already uses compiled operations"),
        (
            lambda: tagger.fit(ones, ones, class_weight={0: 1, 1: 2}),
            "class_weight needs one label per text, unlike task=tag",
        ),
    )
    for call, message in cases:
        with pytest.raises(ConfigError, match=re.escape(message)):  # Keras writes lines around it
            call()
    name, losses = "sparse_categorical_crossentropy", tf.keras.losses
    for loss in (name, losses.sparse_categorical_crossentropy, losses.SparseCategoricalCrossentropy()):
        model.compile(loss=loss)
        for call in (fit, lambda each: each.evaluate(batch_of(each), np.arange(3), verbose=0)):
            with pytest.raises(ConfigError, match=f"loss={name}: it takes probabilities"):
                call(model)


@pytest.mark.slow
def test_metrics_that_take_logits_for_probabilities_are_refused(folders):
    model, metrics = from_pretrained(folders["embed"], "several", 3), tf.keras.metrics
    loss, batch, labels = tf.keras.losses.BinaryCrossentropy(from_logits=True), batch_of(model), np.eye(3)
    for metric, told in (
        ("accuracy", "accuracy: Keras compares only the largest output"),
        ("ce", "ce: it takes probabilities"),
        ("binary_accuracy", "binary_accuracy: it takes probabilities"),
        (metrics.BinaryAccuracy(name="m"), "m: it takes probabilities"),
        (metrics.Precision(name="m"), "m: it takes probabilities"),
        (metrics.Recall(thresholds=[0, 0.9], name="m"), "m: it takes probabilities"),
        (metrics.AUC(multi_label=True, name="m"), "m: it takes probabilities"),
    ):
        model.compile(loss=loss, metrics=[metric])
        with pytest.raises(ConfigError, match=f"^metrics={told}"):
            model.evaluate(batch, labels, verbose=0)
    model.compile(loss=loss, metrics=["mse", metrics.BinaryAccuracy(threshold=0.0, name="right")])
    found = model.evaluate(batch, labels, verbose=0, return_dict=True)
    assert found["right"] == pytest.approx(np.mean((np.asarray(model(batch)) > 0) == labels))


def test_what_a_folder_says_beside_its_weights_lives_on(tmp_path):
    """Thresholds, in the order of the labels, and rates of dropout; in a mask 2 is a token, too."""
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.05}
    kind = "multi_label_classification"
    folder = folder_of("classify", tmp_path / "several", **LABELS, **rates)
    said = {"labels": ["bad", "fair", "good"], "problem_type": kind, "thresholds": [0.1, 0.2, 0.3]}
    (tmp_path / "several" / "labels.json").write_text(json.dumps(said))
    model = from_pretrained(folder, "several", ["good", "bad", "fair"])
    model.save(str(tmp_path / "model.keras"))
    model.save_pretrained(tmp_path / "published")
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    assert {name: config[name] for name in rates} == rates
    for again in (
        model,
        tf.keras.models.load_model(str(tmp_path / "model.keras")),
        from_pretrained(tmp_path / "published", "several"),
    ):
        assert (again.labels, again.spec.thresholds) == (("good", "bad", "fair"), (0.3, 0.1, 0.2))
        assert again.spec.bert == model.spec.bert
    batch = batch_of(model)
    np.testing.assert_array_equal(
        model(batch), model({**batch, "attention_mask": 2.0 * batch["attention_mask"]})
    )

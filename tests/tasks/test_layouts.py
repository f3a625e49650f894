"""--pack and --unpad: losses, gradients, outputs and predictions as of a sequence a row; exact where it goes
on."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.distribution.strategy import with_choices_of_devices
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import evaluate
from official.training.strategy_loop import Loop
from tests.fine_tuning_files import COLOURS, squad_json, squad_settings, synthetic_tasks
from tests.fixtures import slow
from tests.modeling.models import copy_weights, randomised
from tests.run_folders import assert_same_state, run, state_of
from tests.tasks.test_fine_tuning import MIRRORED, found_task

TRAIN, DEV, TEST = 50, 20, 17  # questions, and rows of GLUE's files
# Variables whose true gradient is zero, so that rounding is all that is there: what adds the same to all
# scores of a softmax. Of GLUE, of SQuAD.
ZERO = (("key/bias",), ("key/bias", "layer_0/output/LayerNorm/beta", "squad/output_bias"))
ONE_GRAPH = dict(learning_rate=1e-3, train_batch_size=4, length_buckets="never")  # of plain runs
PACK, UNPAD, PLAIN = dict(pack=True), dict(unpad=True), dict(kernels="plain")


def questions(count, seed) -> dict:
    """Returns questions whose contexts have one to three sentences, as a SQuAD file has them; some have no
    answer."""
    data = squad_json(count, seed, impossible=True)
    for number, paragraph in enumerate(data["data"][0]["paragraphs"]):
        sentences = paragraph["context"].split(" . ")
        paragraph["context"] = " . ".join(sentences[: 1 + number % 3])
    return data


@pytest.fixture(name="files")
def fixture_files(tmp_path, make, glue):
    """Returns a function that builds a configuration with small files: of SQuAD, or of RTE or STS-B, of texts
    of one to eight words."""

    def files(name, **settings):
        if name == "squad":
            own = squad_settings(tmp_path, questions(TRAIN, 1), questions(DEV, 2))
            return make("squad", **{**own, "num_train_epochs": 1, **settings})
        config = glue(name, dict(train=TRAIN, dev=DEV, test=TEST), **settings)
        words, generator = ["ball", "box", "sky", "sea", *COLOURS], np.random.default_rng(0)
        text = lambda cell: " ".join(generator.choice(words, generator.integers(1, 9)))  # noqa: E731
        for path in sorted((tmp_path / "glue").rglob("*.tsv")):
            path.write_text(re.sub(r"cell \d+ \d+", text, path.read_text()))
        return config

    return files


# ------------------------------------------------------------------------------------------------------------
# The same as of a sequence a row


def whole_set(config):
    """Returns (task, its training set as one batch)."""
    task = found_task(config)
    batch = next(iter(task.train_dataset(TRAIN, TRAIN, TrainingOrder(0))))
    assert sorted(number for number in batch["rows"].numpy().flat if number >= 0) == list(range(TRAIN))
    return task, batch


def loss_and_gradients(task, model, batch):
    """Returns them eagerly: one batch is computed sooner than a graph is traced."""
    with tf.GradientTape() as tape:
        terms = task.terms(model(batch), batch)
        name = next(iter(task.losses))
        loss = terms[name][0] / terms[name][1]
    means = {key: float(value / weight) for key, (value, weight) in terms.items()}
    return means, tape.gradient(loss, model.trainable_variables)


def assert_same_as_plain(make_config, make_task, layouts, zero: tuple[str, ...]) -> None:
    """Checks losses and gradients of the first batch, of 40 rows, with the settings of each layout beside
    those without."""
    models, results = [], []
    for settings in ({}, *layouts):
        task = make_task(make_config(count=40, do_eval=False, length_buckets="never", **settings))
        task.find_data()
        batch = next(iter(task.train_dataset(40, 40, TrainingOrder(0))))
        model = task.build_model()
        models.append(copy_weights(models[0], model) if models else randomised(model))
        results.append(loss_and_gradients(task, model, batch))
    (expected, gradients), *others = results
    for settings, (found, own) in zip(layouts, others):
        assert found == pytest.approx(expected, rel=2e-5), settings
        assert_same_gradients(models[0], own, gradients, zero)


def assert_same_gradients(model, ours, theirs, zero: tuple[str, ...]) -> None:
    for variable, gradient, other in zip(model.trainable_variables, ours, theirs):
        other = tf.convert_to_tensor(other).numpy()
        atol = 1e-6 if any(part in variable.name for part in zero) else 1e-4 * np.abs(other).max()
        np.testing.assert_allclose(gradient, other, atol=atol, rtol=0, err_msg=variable.name)


def outputs_of(task, model, batch) -> list[np.ndarray]:
    """Returns the outputs of each sequence; those of tokens that it does not have are 0."""
    outputs = {name: value.numpy() for name, value in task.evaluate(model, batch)[1].items()}
    if batch["rows"].ndim == 1 and "start_logits" in outputs:
        is_token = batch["input_mask"].numpy() > 0
        outputs = {name: np.where(is_token, value, 0) for name, value in outputs.items()}
    ordered = evaluate.in_order([{**outputs, "rows": batch["rows"].numpy()}])
    return [ordered[name] for name in sorted(ordered)]


LAYOUTS = [("squad", PACK), ("stsb", PACK | PLAIN), ("rte", dict(UNPAD, length_buckets="always"))]
LAYOUTS += [slow("rte", PACK), slow("squad", UNPAD), slow("squad", PACK | PLAIN), slow("stsb", UNPAD | PLAIN)]


@pytest.mark.parametrize("name,settings", LAYOUTS)
def test_losses_gradients_and_outputs_are_those_of_a_sequence_a_row(files, name, settings):
    """Losses and outputs to 1e-5, gradients to 1e-4."""
    settings = {"length_buckets": "never", **settings}
    task, batch = whole_set(files(name, **settings))
    alone, batch_alone = whole_set(files(name, **{**settings, "pack": False, "unpad": False}))
    if "pack" in settings:
        assert int((batch["rows"].numpy() >= 0).any(axis=1).sum()) < TRAIN / 2
    model = randomised(alone.build_model())
    expected, gradients_alone = loss_and_gradients(alone, model, batch_alone)
    outputs = outputs_of(alone, model, batch_alone)
    model.encoder.unpad = "unpad" in settings
    found, gradients = loss_and_gradients(task, model, batch)
    assert found == pytest.approx(expected, rel=1e-5)
    assert_same_gradients(model, gradients, gradients_alone, ZERO[name == "squad"])
    for output, other in zip(outputs_of(task, model, batch), outputs, strict=True):
        assert len(output) == len(other) == TRAIN
        np.testing.assert_allclose(output, other, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name,file", [("squad", "predictions.json"), ("rte", "RTE.tsv")])
def test_predictions_are_those_of_a_sequence_a_row(files, tmp_path, name, file):
    """The last batch is filled up."""
    expected = pytest.approx(run(files(name, do_predict=True, **ONE_GRAPH)).scores, abs=1e-5)
    without = shutil.ignore_patterns(file, "nbest_*")
    for folder, settings in {"packed": PACK, "unpadded": UNPAD}.items():
        shutil.copytree(tmp_path / "run", tmp_path / folder, ignore=without)
        asked = dict(ONE_GRAPH, do_train=False, do_predict=True, **settings)
        result = run(files(name, model_dir=folder, **asked))
        assert expected == result.scores, folder
        assert (tmp_path / folder / file).read_bytes() == (tmp_path / "run" / file).read_bytes(), folder
        assert not list((tmp_path / folder).glob("predictions-*"))  # nothing other was there before
        if name == "squad":
            alone, nbest = (
                json.loads((tmp_path / each / "nbest_predictions.json").read_text())
                for each in ("run", folder)
            )
            for number, entries in alone.items():
                assert [entry["text"] for entry in entries] == [entry["text"] for entry in nbest[number]]
                for entry, other in zip(entries, nbest[number]):
                    assert entry == pytest.approx(other, abs=1e-4)


# ------------------------------------------------------------------------------------------------------------
# Whole runs


def first_losses(result_folder) -> list[float]:
    return [line["loss"] for line in read_metrics(str(result_folder)) if line["split"] == "train"]


@pytest.mark.slow
def test_packed_runs_count_sequences_and_resume_exactly(files, tmp_path, monkeypatch):
    settings = dict(pack=True, num_train_epochs=3, train_batch_size=4, steps_per_loop=2)
    settings |= dict(checkpoint_every_steps=2)
    whole = run(files("squad", **settings))
    assert whole.status == "finished" and whole.samples == 3 * TRAIN
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    rows = -(-whole.step // 3) * 4  # of an epoch, filling among them
    assert whole.step % 3 == 0 and written["sequences_per_row"] == pytest.approx(TRAIN / rows)
    assert written["sequences_per_row"] > 2 and 0.6 < written["packing_efficiency"] < 1
    ends = [line["samples"] for line in read_metrics(str(tmp_path / "run")) if line["split"] == "eval"]
    assert ends == [TRAIN, 2 * TRAIN, 3 * TRAIN]

    original, loops = Loop._train, iter(range(100))

    def train_and_signal(self, *arguments):
        if next(loops) in (1, 4):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_train", train_and_signal)
        for _ in range(2):
            assert run(files("squad", model_dir="parts", **settings)).status == "interrupted"
    parts = run(files("squad", model_dir="parts", **settings))
    assert (parts.scores, parts.step, parts.samples) == (whole.scores, whole.step, whole.samples)
    assert_same_state(state_of(tmp_path / "run", whole.step), state_of(tmp_path / "parts", whole.step))


LAYOUTS_OF_RUNS = [(name, layout) for name in ("squad", "rte") for layout in ({}, PACK, UNPAD)]


@pytest.mark.slow
@pytest.mark.parametrize("name,settings", LAYOUTS_OF_RUNS, ids=str)
def test_runs_do_not_depend_on_padding_replicas_and_accumulation(files, tmp_path, name, settings):
    """Rows are drawn in another order where several share one."""
    shared = dict(ONE_GRAPH, steps_per_loop=1, stop_steps=3)
    one = run(files(name, model_dir="one", **shared, pack=settings == PACK))
    more = dict(num_accumulation_steps=2, **MIRRORED, **settings)
    two = run(files(name, model_dir="two", **shared, **more))
    expected = first_losses(tmp_path / "one")
    assert len(expected) == 3 and one.samples == two.samples
    assert first_losses(tmp_path / "two") == pytest.approx(expected, rel=1e-5)
    buckets = dict(ONE_GRAPH, length_buckets="always", do_train=False)
    for result in (two, run(files(name, model_dir="one", **buckets))):
        assert result.scores == pytest.approx(one.scores, abs=1e-5)
        assert result.eval_loss == pytest.approx(one.eval_loss, abs=1e-5)


@pytest.mark.slow
def test_synthetic_rows_have_the_form_of_those_that_are_read(files):
    for name, pack in (("squad", True), ("squad", False), ("rte", True), ("rte", False)):
        task = found_task(files(name, pack=pack))
        trained = task.train_dataset(8, 8, TrainingOrder(seed=1))
        assert task.synthetic_dataset(8).element_spec == trained.element_spec
        evaluated = task.synthetic_dataset(8, for_evaluation=True)
        assert evaluated.element_spec == task.eval_dataset(8).element_spec


@pytest.mark.slow
def test_synthetic_rows_are_packed(make):
    for average, expected in ((None, 2), (12.0, 12), (3.0, 3)):
        own = dict(num_steps_per_epoch=2, average_sequences_per_pack=average, pack=True)
        for config in synthetic_tasks(make, **own):
            task = TASKS[config.task](config)
            assert task.sequences_per_row == expected
            batch = next(iter(task.synthetic_dataset(4)))
            assert batch["rows"].shape == (4, 12)
            assert float(tf.reduce_sum(batch["example_weights"])) == 4 * expected
            if average == 3.0:
                result = run(config)
                assert result.step == 2 and result.samples == 16 * expected


# ------------------------------------------------------------------------------------------------------------
# Rows without padding


def test_rows_that_fill_up_a_batch_are_one_token(files):
    task = found_task(files("squad", unpad=True))
    batch = next(iter(task.train_dataset(64, 64, TrainingOrder(0))))
    outputs = task.build_model()(batch)[0].numpy()
    is_filling = batch["rows"].numpy() < 0
    assert is_filling.sum() == 64 - TRAIN and not outputs[is_filling, 1:].any()
    assert (outputs[~is_filling] != 0).sum() == batch["input_mask"].numpy()[~is_filling].sum()


def test_batches_are_of_all_lengths_unless_others_are_asked_for(files):
    cases = [(dict(unpad=True), "never"), (dict(unpad=True, length_buckets="always"), "always")]
    cases += [({}, "always"), (dict(span_places="row"), "never")]  # the loss includes padding
    for settings, expected in cases:
        config = files("squad", **settings)
        chosen = with_choices_of_devices(config, tf.distribute.OneDeviceStrategy("/cpu:0"))
        assert chosen.length_buckets == expected, settings

"""--pack: losses, gradients, outputs and predictions as of a sequence a row; exact where it goes on."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from official.data.glue import tasks as glue_tasks
from official.data.pipeline import TrainingOrder
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import evaluate
from official.training.strategy_loop import Loop
from tests.data.glue.test_glue_data import write
from tests.fine_tuning_files import COLOURS, squad_json, squad_settings, synthetic_tasks
from tests.modeling.models import randomised
from tests.run_folders import assert_same_state, run, state_of
from tests.tasks.test_fine_tuning import MIRRORED

TRAIN, DEV, TEST = 50, 20, 17  # questions, and rows of GLUE's files
# Variables whose true gradient is zero, so that rounding is all that is there: what adds the same to all
# scores of a softmax. Of GLUE, of SQuAD.
ZERO = (("key/bias",), ("key/bias", "layer_0/output/LayerNorm/beta", "squad/output_bias"))


def questions(count, seed, impossible=False) -> dict:
    """Returns questions whose contexts have one to three sentences, as a SQuAD file has them."""
    data = squad_json(count, seed, impossible)
    for number, paragraph in enumerate(data["data"][0]["paragraphs"]):
        sentences = paragraph["context"].split(" . ")
        paragraph["context"] = " . ".join(sentences[: 1 + number % 3])
    return data


@pytest.fixture(name="squad")
def fixture_squad(tmp_path, make):
    def squad(impossible=False, **settings):
        files = squad_settings(tmp_path, questions(TRAIN, 1, impossible), questions(DEV, 2, impossible))
        return make("squad", **{**files, "num_train_epochs": 1, **settings})

    return squad


@pytest.fixture(name="glue")
def fixture_glue(tmp_path, make):
    """Returns a function that builds a configuration with small files of RTE or STS-B, of texts of one to
    eight words."""

    def glue(name="rte", **settings):
        generator = np.random.default_rng(0)

        def text() -> str:
            words = ["ball", "box", "sky", "sea", *COLOURS]
            return " ".join(generator.choice(words, generator.integers(1, 9)))

        task = glue_tasks.find_task(name)
        for split, count in (("train", TRAIN), ("dev", DEV), ("test", TEST)):
            write(tmp_path / "glue" / task.splits[split].files[0], glue_file(name, split, count, text))
        defaults = dict(glue_task=name, data_dir=str(tmp_path / "glue"), num_train_epochs=1)
        return make("glue", **{**defaults, **settings})

    return glue


def glue_file(name, split, count, text) -> str:
    columns = {"rte": 3, "stsb": 9}[name]  # of what stands before the label
    lines = [[""] * (columns - 2) + [text(), text()] for _ in range(count)]
    for number, line in enumerate(lines):
        line[0] = str(number)
        if split != "test":
            line.append(["entailment", "not_entailment"][number % 2] if name == "rte" else str(number % 6))
    head = ["index", *["x"] * (columns - 3), "sentence1", "sentence2", "label" if name == "rte" else "score"]
    return "\n".join("\t".join(line) for line in [head[: len(lines[0])], *lines]) + "\n"


# ------------------------------------------------------------------------------------------------------------
# Packed equals unpacked


def whole_set(config, count):
    """Returns (task, its training set as one batch)."""
    task = TASKS[config.task](config)
    task.find_data()
    batch = next(iter(task.train_dataset(count, count, TrainingOrder(0))))
    assert sorted(number for number in batch["rows"].numpy().flat if number >= 0) == list(range(TRAIN))
    return task, batch


def loss_and_gradients(task, model, batch):
    @tf.function(autograph=False, reduce_retracing=True)
    def step(batch):
        with tf.GradientTape() as tape:
            terms = task.terms(model(batch), batch)
            name = task.losses[0]
            loss = terms[name][0] / terms[name][1]
        gradients = tape.gradient(loss, model.trainable_variables)
        return {key: value / weight for key, (value, weight) in terms.items()}, gradients

    means, gradients = step(batch)
    return {name: float(value) for name, value in means.items()}, gradients


def assert_same_gradients(model, ours, theirs, zero: tuple[str, ...]) -> None:
    for variable, gradient, other in zip(model.trainable_variables, ours, theirs):
        other = tf.convert_to_tensor(other).numpy()
        atol = 1e-6 if any(part in variable.name for part in zero) else 1e-4 * np.abs(other).max()
        np.testing.assert_allclose(gradient, other, atol=atol, rtol=0, err_msg=variable.name)


def assert_same_outputs(ours, theirs) -> None:
    for output, other in zip(ours, theirs):
        assert len(output) == len(other) == TRAIN
        np.testing.assert_allclose(output, other, atol=1e-5)


@pytest.mark.parametrize("kernels", ["plain", "fused"])
@pytest.mark.parametrize("name", ["squad", "rte", "stsb"])
def test_packed_is_unpacked(squad, glue, name, kernels):
    """The same sequences, in a row each and packed: losses and outputs to 1e-5, gradients to 1e-4."""
    make = squad if name == "squad" else lambda **settings: glue(name, **settings)
    settings = dict(kernels=kernels, length_buckets="never")
    alone, batch_alone = whole_set(make(**settings), TRAIN)
    packed, batch = whole_set(make(pack=True, **settings), TRAIN)
    assert int((batch["rows"].numpy() >= 0).any(axis=1).sum()) < TRAIN / 2
    model = randomised(alone.build_model())
    expected, gradients_alone = loss_and_gradients(alone, model, batch_alone)
    found, gradients = loss_and_gradients(packed, model, batch)
    assert found == pytest.approx(expected, rel=1e-5)
    assert_same_gradients(model, gradients, gradients_alone, ZERO[name == "squad"])
    assert_same_outputs(outputs_of(packed, model, batch), outputs_of(alone, model, batch_alone))


def outputs_of(task, model, batch) -> list[np.ndarray]:
    """Returns the outputs of each sequence; those of tokens that it does not have are 0."""
    outputs = {name: value.numpy() for name, value in task.evaluate(model, batch)[1].items()}
    if batch["rows"].ndim == 1 and "start_logits" in outputs:
        is_token = batch["input_mask"].numpy() > 0
        outputs = {name: np.where(is_token, value, 0) for name, value in outputs.items()}
    ordered = evaluate.in_order([{**outputs, "rows": batch["rows"].numpy()}])
    return [ordered[name] for name in sorted(ordered)]


@pytest.mark.parametrize("impossible", [False, True])
def test_squad_predicts_the_same_packed(squad, tmp_path, impossible):
    run(squad(impossible))
    settings = dict(do_train=False, do_predict=True)
    alone = run(squad(impossible, **settings))
    shutil.copytree(tmp_path / "run", tmp_path / "packed")
    packed = run(squad(impossible, model_dir="packed", pack=True, **settings))
    assert packed.scores == pytest.approx(alone.scores, abs=1e-5)
    folders = [tmp_path / "run", tmp_path / "packed"]
    predictions = [(folder / "predictions.json").read_bytes() for folder in folders]
    assert predictions[0] == predictions[1]
    nbest = [json.loads((folder / "nbest_predictions.json").read_text()) for folder in folders]
    for name, entries in nbest[0].items():
        assert [entry["text"] for entry in entries] == [entry["text"] for entry in nbest[1][name]]
        for entry, other in zip(entries, nbest[1][name]):
            assert entry == pytest.approx(other, abs=1e-4)
    assert not list((tmp_path / "packed").glob("predictions-*"))  # nothing other was there before


# ------------------------------------------------------------------------------------------------------------
# Whole runs


@pytest.mark.parametrize("name", ["squad", "rte"])
def test_a_packed_run_counts_sequences(squad, glue, tmp_path, name):
    make = squad if name == "squad" else glue
    result = run(make(pack=True, num_train_epochs=3, do_predict=True, train_batch_size=4))
    assert result.status == "finished" and result.samples == 3 * TRAIN
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    rows = -(-result.step // 3) * 4  # of an epoch, filling among them
    assert result.step % 3 == 0 and written["sequences_per_row"] == pytest.approx(TRAIN / rows)
    assert written["sequences_per_row"] > 2 and 0.6 < written["packing_efficiency"] < 1
    lines = read_metrics(str(tmp_path / "run"))
    ends = [line for line in lines if line["split"] == "eval"]
    assert [line["samples"] for line in ends] == [TRAIN, 2 * TRAIN, 3 * TRAIN]


def test_packed_runs_resume_exactly(squad, tmp_path, monkeypatch):
    settings = dict(pack=True, num_train_epochs=3, train_batch_size=4, steps_per_loop=2)
    settings |= dict(checkpoint_every_steps=2)
    whole = run(squad(**settings))
    original, loops = Loop._train, iter(range(100))

    def train_and_signal(self, *arguments):
        if next(loops) in (1, 4):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_train", train_and_signal)
        for _ in range(2):
            assert run(squad(model_dir="parts", **settings)).status == "interrupted"
    parts = run(squad(model_dir="parts", **settings))
    assert (parts.scores, parts.step, parts.samples) == (whole.scores, whole.step, whole.samples)
    assert_same_state(state_of(tmp_path / "run", whole.step), state_of(tmp_path / "parts", whole.step))


def first_losses(result_folder) -> list[float]:
    return [line["loss"] for line in read_metrics(str(result_folder)) if line["split"] == "train"]


@pytest.mark.parametrize("name", ["squad", "rte"])
def test_packed_training_does_not_depend_on_replicas_and_accumulation(squad, glue, tmp_path, name):
    make = squad if name == "squad" else glue
    settings = dict(pack=True, learning_rate=1e-4, steps_per_loop=1, stop_steps=3, train_batch_size=4)
    one = run(make(model_dir="one", **settings))
    two = run(make(model_dir="two", num_accumulation_steps=2, **MIRRORED, **settings))
    four = run(make(model_dir="four", num_accumulation_steps=4, **settings))
    expected = first_losses(tmp_path / "one")
    assert len(expected) == 3 and one.samples == two.samples == four.samples
    assert first_losses(tmp_path / "two") == pytest.approx(expected, rel=1e-5)
    assert first_losses(tmp_path / "four") == pytest.approx(expected, rel=1e-5)
    assert two.scores == pytest.approx(one.scores, abs=1e-3)


@pytest.mark.parametrize(
    "settings", [dict(enable_xla=True), dict(dtype="bf16"), dict(kernels="plain")], ids=str
)
def test_packed_runs_in_other_ways(squad, settings, tmp_path):
    common = dict(pack=True, do_predict=True, stop_steps=2, steps_per_loop=2, num_steps_per_epoch=2)
    usual = run(squad(model_dir="usual", learning_rate=1e-4, **common))
    other = run(squad(model_dir="other", learning_rate=1e-4, **common, **settings))
    assert usual.status == other.status == "finished" and usual.samples == other.samples
    assert first_losses(tmp_path / "other") == pytest.approx(first_losses(tmp_path / "usual"), rel=2e-2)


@pytest.mark.parametrize("name", ["squad", "glue"])
@pytest.mark.parametrize("pack", [True, False])
def test_synthetic_rows_have_the_form_of_those_that_are_read(squad, glue, name, pack):
    task = TASKS[name](squad(pack=pack) if name == "squad" else glue(pack=pack))
    task.find_data()
    trained = task.train_dataset(8, 8, TrainingOrder(seed=1))
    assert task.synthetic_dataset(8).element_spec == trained.element_spec
    evaluated = task.synthetic_dataset(8, for_evaluation=True)
    assert evaluated.element_spec == task.eval_dataset(8).element_spec


@pytest.mark.parametrize("average,expected", [(None, 2), (3.0, 3), (12.0, 12)])
def test_synthetic_rows_are_packed(make, average, expected):
    settings = dict(num_steps_per_epoch=2, pack=True, average_sequences_per_pack=average)
    for config in synthetic_tasks(make, **settings):
        made = TASKS[config.task](config)
        assert made.sequences_per_row == expected
        batch = next(iter(made.synthetic_dataset(4)))
        assert (
            batch["rows"].shape == (4, 12) and float(tf.reduce_sum(batch["example_weights"])) == 4 * expected
        )
        result = run(config)
        assert result.step == 2 and result.samples == 16 * expected


# ------------------------------------------------------------------------------------------------------------
# Settings

"""--teacher: the loss by its formula, logits of another model in the order of the task's classes, kept, and
what is refused."""

import functools
import itertools
import json
import os
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf

from official.data.tables.labels import Labels
from official.inference import load, teacher
from official.io.errors import ConfigError
from official.modeling import objectives
from tests.fine_tuning_files import COLOURS, VOCABULARY
from tests.refusals import assert_refused
from tests.run_folders import assert_resumes, run, state_of
from tests.tasks.test_fine_tuning import MIRRORED
from tests.tasks.test_layouts import assert_same_as_plain
from tests.tasks.test_own_data import fixture_table  # noqa: F401

TEACHERS = []  # the folder of one, for all tests


@pytest.fixture(name="folder")
def fixture_folder(table, tmp_path):
    """Returns the folder of a teacher with another vocabulary and another width."""
    if not TEACHERS:
        (tmp_path / "other.txt").write_text("\n".join(VOCABULARY.split()[::-1]) + "\n")
        model = {**table().model.__dict__, "hidden_size": 64}
        own = dict(model=model, vocab_file=f"{tmp_path}/other.txt", model_dir="teacher")
        config = table(**own, num_train_epochs=8, steps_per_loop=48, steps_between_eval=144)
        assert run(config).scores["accuracy"] > 0.9
        TEACHERS.append(config.model_dir)
    return TEACHERS[0]


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def log_of_several(logits):
    """Returns float [..., C, 2]: of each label the logarithms of its chance and of that of being without."""
    return -np.log1p(np.exp(np.stack([-logits, logits], axis=-1)))


def test_the_loss_equals_numpy():
    """Of labels, smoothed or not, with weights of classes, and of a teacher."""
    generator = np.random.default_rng(4)
    logits, theirs = generator.normal(size=(2, 5, 3), scale=2)
    ones, of_classes = generator.integers(0, 3, 5), generator.uniform(0.5, 2.0, 5)
    labels = {"one": ones, "several": np.eye(3)[ones], "number": generator.normal(size=5)}
    temperature, share, weights = 3.0, 0.7, np.array([1, 0, 1, 1, 1.0])
    distillations = None, objectives.Distillation(temperature, share)
    for kind, smoothing, distillation in itertools.product(labels, (0.0, 0.1), distillations):
        own, other = (logits[:, :1], theirs[:, :1]) if kind == "number" else (logits, theirs)
        batch = {"labels": labels[kind], "example_weights": weights, "class_weights": of_classes}
        batch = {name: value if value is ones else np.float32(value) for name, value in batch.items()}
        batch["teacher_logits"] = np.float32(other)
        if kind == "number":
            hard, soft = (own[:, 0] - labels[kind]) ** 2, (own[:, 0] - other[:, 0]) ** 2
        elif kind == "one":
            hard = -((np.eye(3)[ones] * (1 - smoothing) + smoothing / 3) * log_softmax(own)).sum(axis=-1)
            log_p, log_q = log_softmax(other / temperature), log_softmax(own / temperature)
            soft = temperature**2 * (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
        else:
            smoothed = labels[kind] * (1 - smoothing) + smoothing / 2
            wanted = np.stack([smoothed, 1 - smoothed], axis=-1)
            hard = -(wanted * log_of_several(own)).sum(axis=-1).mean(axis=-1)
            log_p, log_q = log_of_several(other / temperature), log_of_several(own / temperature)
            soft = temperature**2 * (np.exp(log_p) * (log_p - log_q)).sum(axis=-1).mean(axis=-1)
        losses, counted = (1 - share) * hard + share * soft if distillation else hard, weights * of_classes
        terms = objectives.label_terms(tf.constant(np.float32(own)), batch, kind, smoothing, distillation)
        found = [float(each) for each in terms["label_loss"]]
        expected = [counted @ losses, counted.sum()]
        assert found == pytest.approx(expected, rel=1e-5), (kind, smoothing, distillation)


def test_logits_are_the_teachers_in_the_order_of_the_classes_and_kept(table, folder, monkeypatch, caplog):
    config = table(teacher=folder)
    texts = [[text] for text in ("red ball", "sky blue", "green", "hat")]
    logits = np.log(
        [list(label.scores.values()) for label in load(folder).classify([text for (text,) in texts])]
    )
    names = tuple(sorted(COLOURS))
    for order in (names, names[::-1]):
        found = teacher.ask(config, texts, Labels("one", order), None)
        expected = logits if order == names else logits[:, ::-1]
        np.testing.assert_allclose(log_softmax(found), expected, atol=1e-5)
        monkeypatch.setattr(teacher.Classifier, "logits", None)  # from now on they are read
    with pytest.raises(TypeError):
        teacher.ask(config, texts[:3], Labels("one", names), None)
    assert "have changed" not in caplog.text
    for path in pathlib.Path(folder).iterdir():  # as if it had been trained again
        os.utime(path, (1, 1))
    with pytest.raises(TypeError):
        teacher.ask(config, texts, Labels("one", names), None)
    assert f"The files of --teacher={folder} have changed since its logits were saved" in caplog.text


def test_losses_and_gradients_do_not_depend_on_packing(table, folder):
    of_teacher = functools.partial(table, teacher=folder)
    assert_same_as_plain(of_teacher, teacher.make_task, [dict(pack=True)], ("key/bias",))


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bits_and_learns_from_the_teacher(table, folder, tmp_path):
    """Its labels say nothing here: all that is learned is the teacher's."""
    lines = [json.loads(line) for line in pathlib.Path(table().train_file).read_text().splitlines()]
    for number, line in enumerate(lines):
        line["label"] = COLOURS[number % 3]
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = dict(num_train_epochs=4, num_steps_per_epoch=20, deterministic=True)
    settings |= dict(eval_file=table().train_file, train_file=str(wrong), teacher=folder, distill_share=1.0)
    whole, *_ = assert_resumes(table, 40, 80, **settings)
    assert whole.scores["accuracy"] > 0.5


@pytest.mark.slow
def test_micro_batches_replicas_and_half_precision(table, folder):
    common = dict(stop_steps=3, do_eval=False, teacher=folder, length_buckets="never")
    model = {**table().model.__dict__, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    states = {}
    for name, settings in {
        "whole": {},
        "accumulated": dict(num_accumulation_steps=2),
        "replicas": MIRRORED,
        "half": dict(dtype="fp16"),
    }.items():
        config = table(model=model, model_dir=name, **common, **settings)
        assert run(config).status == "finished"
        states[name] = state_of(config.model_dir, 3)
    for name, state in states.items():
        for key, value in states["whole"].items():
            if key.startswith(("bert/", "output_")) and "/adam" not in key and "key/bias" not in key:
                atol = 5e-2 if name == "half" else 1e-4
                np.testing.assert_allclose(state[key], value, atol=atol, err_msg=f"{name}: {key}")


def test_what_a_teacher_cannot_be_is_refused(table, folder, tmp_path):
    other = json.loads((pathlib.Path(folder) / "labels.json").read_text())
    piped = dict(distribution_strategy="pipeline", pipeline_stages=1)
    assert_refused(
        lambda settings: table(**settings),
        [
            (dict(teacher=folder, do_train=False), "needs --do_train"),
            (dict(distill_share=0.1), "needs --teacher"),
            (dict(piped, teacher=folder), "distribution_strategy"),
        ],
    )
    config = table(teacher=folder)
    cases = [
        (Labels("one", ("red", "blue")), "has the labels: blue green red; the task has: red blue"),
        (Labels("several", tuple(other["labels"])), "label_kind=one, the task has several"),
    ]
    for labels, expected in cases:
        with pytest.raises(ConfigError, match=expected):
            teacher.ask(config, [["red"]], labels, None)
    several = types.SimpleNamespace(kind="number", labels=Labels("number", ("a", "b")))
    with pytest.raises(ConfigError, match="--teacher=t gives 2 numbers, the task has one"):
        teacher._order("t", several, Labels("number"), None, None)
    with pytest.raises(ConfigError, match="--teacher"):
        teacher.ask(table(teacher=str(tmp_path / "nothing")), [["red"]], Labels("one", COLOURS), None)

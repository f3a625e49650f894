"""The models as SavedModels: another process, without this project's code, gets the same outputs."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling.models import BertPretrainer
from tests.conftest import TINY
from tests.modeling.models import features, randomised

LOADER = """
import sys
import numpy as np, tensorflow as tf
batch, loaded = np.load(sys.argv[2]), tf.saved_model.load(sys.argv[1])
outputs = loaded.logits({name: tf.constant(batch[name]) for name in batch.files})
assert "official" not in sys.modules
np.savez(sys.argv[3], masked=outputs[0], relation=outputs[1])
"""


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_saved_model_gives_the_same_outputs_elsewhere(shared, tmp_path):
    model = randomised(BertPretrainer(BertConfig(**TINY), kernels="fused", shared=shared))
    batch = {name: value for name, value in features().items() if value.dtype == np.int32}
    model.logits = tf.function(
        lambda batch: model(batch),
        input_signature=[{name: tf.TensorSpec([None, None], tf.int32, name) for name in batch}],
    )
    expected = model(batch)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    np.savez(tmp_path / "batch.npz", **batch)
    command = [sys.executable, "-c", LOADER, tmp_path / "saved", tmp_path / "batch.npz", tmp_path / "out.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(found["masked"], expected[0], atol=1e-6)
    np.testing.assert_allclose(found["relation"], expected[1], atol=1e-6)

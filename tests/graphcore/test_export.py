"""A run's checkpoint as a program of the embedded runtime, on a fake of it."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.data.pipeline import TrainingOrder
from official.graphcore import __main__ as command
from official.graphcore import export, run
from official.modeling.models import BertPretrainer
from official.optimization import plain_optimizers
from official.optimization.train_state import build_state
from tests.graphcore import ipu_fake
from tests.graphcore.test_run import FEWER_STAGES

pytestmark = pytest.mark.nightly


@pytest.fixture(name="saved")
def fixture_saved(make_config, tmp_path):
    """Returns a configuration, its file, and a model whose weights its folder has a checkpoint of."""
    config = make_config(**{**FEWER_STAGES, "replicas": 2, "train_batch_size": 24})
    tf.random.set_seed(7)
    state = build_state(config, lambda: BertPretrainer(config.model), plain_optimizers.build_plain)
    state.optimizer.iterations.assign(5)
    CheckpointManager(config.model_dir, state.variables(), 1).save(5)
    path = tmp_path / "config.json"
    path.write_text(config_lib.to_json(config), encoding="utf-8")
    return config, path, state.model


def test_the_program_answers_as_the_model_does(saved, tmp_path, capsys):
    config, path, model = saved
    program = str(tmp_path / "bert.poplar_exec")
    with ipu_fake.installed(ipus=4):
        from tensorflow.python import ipu

        assert command.main([str(path), f"--export={program}"]) == 0
        assert "exported step 5" in capsys.readouterr().out
        about = json.loads((tmp_path / "bert.poplar_exec.json").read_text(encoding="utf-8"))
        task = run.RecordsTask(config)
        task.find_data()
        batch = next(iter(task.train_dataset(2, 2, TrainingOrder(3))))
        given = [batch[name] for name in about["inputs"]]
        signature = [tf.TensorSpec(shape, dtype) for shape, dtype in about["inputs"].values()]
        ids, relation = export.make_caller(ipu, program, signature)(*given)
        expected_ids, expected_relation = model(batch)
        np.testing.assert_array_equal(ids, np.argmax(expected_ids, axis=-1))
        np.testing.assert_allclose(relation, expected_relation, atol=1e-5)
        assert about["outputs"] == ["predicted_ids", "next_sentence_logits"]
        assert "masked_lm_ids" not in about["inputs"] and "dropout_seed" not in about["inputs"]

        measured = [f"--run={program}", "--num-iter=20", "--num-inference-thread=3", "--dump-raw-timings"]
        assert command.main([str(path), *measured]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch size"] == 2
    assert 0 < found["latency"] <= found["latency_99"] <= found["latency_99_9"]
    timings = json.loads((tmp_path / "bert.poplar_exec.timings.json").read_text(encoding="utf-8"))
    assert len(timings) == 20 and np.mean(timings) == pytest.approx(found["latency"])


def test_a_wrong_command_is_one_line(saved, tmp_path, capsys):
    config, path, _ = saved
    program = f"--export={tmp_path}/bert.poplar_exec"
    for arguments, settings, message in (
        (["--export=bert.onnx"], {}, "NAME.poplar_exec"),
        (["--run=missing.poplar_exec"], {}, "missing.poplar_exec.json"),
        (["--run=missing.poplar_exec", "--num-iter=0"], {}, "--num-iter=0, expected 1 or more"),
        ([program], dict(compile_only=True), "Drop one"),
        ([program], dict(model_dir=str(tmp_path / "empty")), "there is no"),
    ):
        path.write_text(config_lib.to_json(config_lib.replaced(config, **settings)), encoding="utf-8")
        with ipu_fake.installed(ipus=4):
            assert command.main([str(path), *arguments]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]

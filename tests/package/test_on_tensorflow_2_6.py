"""What an IPU run does with the plain model gives the same numbers on Python 3.8 with TensorFlow 2.6.

The environment variable BERT_PYTHON38 names the interpreter.
"""

import json
import os
import subprocess

import numpy as np
import pytest

from official.checkpoint.manager import CheckpointManager
from official.config import build_config, read_json, to_json
from official.data import synthetic
from official.data.records.formats import packed
from tests.conftest import ROOT, make_records, write_records
from tests.package import old_stack_program
from tests.records import short_examples

PYTHON = os.environ.get("BERT_PYTHON38")
TOLERANCE = 1e-5
OF_FLOAT16 = 2e-4  # of weights whose first moment is float16: on an edge it is rounded either way

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="BERT_PYTHON38 names no interpreter of Python 3.8 with TensorFlow 2.6"
    ),
]


@pytest.fixture(
    params=[
        *(("bert", kind) for kind in ("lamb", "adamw", "mpadamw", "momentum", "sgd")),
        ("groupbert", "lamb"),
    ],
    ids="-".join,
)
def folder(request, tmp_path, make_config, schema):
    """Returns a folder for the program: configuration, weights, batches and records."""
    block_type, kind = request.param
    model = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, block_type=block_type)
    config = make_config(model=model, optimizer_type=kind, fused_ops=False)
    (tmp_path / "config.json").write_text(to_json(config))
    state = old_stack_program.make_state(config)
    CheckpointManager(str(tmp_path), state.variables(), keep=5).save(0)
    batches = synthetic.synthetic_dataset(schema, config.model.vocab_size, 8, seed=1).batch(
        old_stack_program.STEPS
    )
    np.savez(tmp_path / "batches.npz", **next(batches.as_numpy_iterator()))
    for name in ("plain", "packed"):
        (tmp_path / name).mkdir()
    write_records(tmp_path / "plain" / "part-0", make_records(old_stack_program.RECORDS, 1, schema))
    examples = short_examples(2 * old_stack_program.RECORDS, longest=8)
    rows = np.arange(len(examples)).reshape(-1, 2)
    write_records(tmp_path / "packed" / "part-0", packed.encode_rows(examples, rows))
    return tmp_path


def run_there(folder) -> dict:
    """Runs the program on the older stack; what it prints last is the result."""
    # `official` chooses this one by the Python.
    environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    done = subprocess.run(
        [PYTHON, "-m", "tests.package.old_stack_program", str(folder)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def saved(folder, config) -> dict[str, np.ndarray]:
    """Returns the state that the program has saved, read on this stack."""
    variables = old_stack_program.make_state(config).variables()
    assert CheckpointManager(str(folder), variables, keep=5).restore(old_stack_program.STEPS)
    return {name: variable.numpy() for name, variable in variables.items()}


def test_steps_records_and_checkpoints_are_the_same(folder):
    config = build_config([("config.json", read_json(str(folder / "config.json")))])
    there = run_there(folder)
    theirs = saved(folder, config)
    here = old_stack_program.main(str(folder))
    ours = saved(folder, config)
    assert there["tensorflow"].startswith("2.6.")
    np.testing.assert_allclose(there["losses"], here["losses"], rtol=TOLERANCE)
    assert there["losses"][-1] < there["losses"][0] * 1.2
    tolerance = OF_FLOAT16 if config.optimizer_type == "mpadamw" else TOLERANCE
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-3, atol=tolerance, err_msg=name)
    for name in ("plain", "packed"):
        for part in ("rows", "rest"):
            assert len(there[name][part]) == len(here[name][part])
        assert sorted(there[name]["rows"]) == sorted(here[name]["rows"])  # orders differ
        assert there[name]["rest"] == there[name]["rows"][8:]
        assert here[name]["rest"] == here[name]["rows"][8:]
    assert "official.modeling.operations.fused" not in there["modules"]

"""An export of one stack of TensorFlow in the other, both ways: BERT_TEST_OTHER_PYTHON is the Python of the
other one, which has what this project needs."""

import json
import os
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from official.inference import Model
from official.serving import export
from tests.conftest import ROOT
from tests.serving.test_export import IN_ANOTHER_PROCESS, INPUTS, assert_same, call, expected, made_up

OTHER = os.environ.get("BERT_TEST_OTHER_PYTHON", "")
HEADS = ("answer", "classify", "fill_mask")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not OTHER, reason="BERT_TEST_OTHER_PYTHON names no Python of another stack"),
]
EXPORTING = """
import sys
from official.serving import export
from tests.serving.test_export import made_up
for head in sys.argv[2:]:
    for dtype in ("fp32", "bf16", "int8"):
        export.export(made_up(head), f"{sys.argv[1]}/{head}_{dtype}", export.Request(dtype=dtype))
"""


def run_other(tmp_path, program: str, *arguments) -> None:
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [OTHER, str(tmp_path / "program.py"), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def folders_in(tmp_path) -> list:
    return [tmp_path / f"{head}_{dtype}" for head in HEADS for dtype in ("fp32", "bf16", "int8")]


def assert_is_model(outputs: dict, head: str, dtype: str) -> None:
    for key, wanted in expected(Model(made_up(head)), head).items():
        if dtype == "fp32":
            assert_same(outputs[key], wanted)
        else:  # what is rounded may choose another text
            assert np.shape(outputs[key]) == np.shape(wanted)


def test_what_is_exported_here_loads_there(tmp_path):
    (tmp_path / "inputs.json").write_text(json.dumps(INPUTS))
    folders = folders_in(tmp_path)
    for folder in folders:
        head, _, dtype = folder.name.rpartition("_")
        export.export(made_up(head), str(folder), export.Request(dtype=dtype))
    run_other(tmp_path, IN_ANOTHER_PROCESS, tmp_path / "inputs.json", tmp_path / "out", *folders)
    for folder in folders:
        head, _, dtype = folder.name.rpartition("_")
        made = np.load(str(tmp_path / "out") + str(folder).replace("/", "_") + ".npz", allow_pickle=True)
        outputs = {key.partition("/")[2]: made[key] for key in made if key.startswith(f"{head}/")}
        assert_is_model(outputs, head, dtype)


def test_what_is_exported_there_loads_here(tmp_path):
    run_other(tmp_path, EXPORTING, tmp_path, *HEADS)
    for folder in folders_in(tmp_path):
        head, _, dtype = folder.name.rpartition("_")
        assert_is_model(call(tf.saved_model.load(str(folder)), head), head, dtype)

"""What an IPU run does with the plain model gives the same numbers on Python 3.8 with TensorFlow 2.6.

The environment variable BERT_PYTHON38 names the interpreter.
"""

import functools
import json
import os
import pathlib
from collections.abc import Callable

import numpy as np
import pytest

from official.checkpoint import bundle_reader
from official.checkpoint.manager import CheckpointManager
from official.config import to_json
from official.data.glue import tasks as glue_tasks
from official.data.records.formats import packed
from official.modeling.models import BertPretrainer
from official.optimization.plain_optimizers import build_plain
from official.optimization.train_state import build_state
from official.reporting.metrics import read_metrics
from tests import programs
from tests.data.glue.test_glue_data import write_split
from tests.fine_tuning_files import fixture_make, fixture_squad, fixture_vocab_file, squad_json  # noqa: F401
from tests.fixtures import ROOT, make_records, write_records
from tests.graphcore import old_stack_ipu_run
from tests.graphcore.test_fine_tuning import SEQUENTIAL
from tests.graphcore.test_run import STAGES
from tests.records import short_examples

PYTHON = os.environ.get("BERT_PYTHON38")
TOLERANCE = 1e-5
OF_FLOAT16 = 2e-4  # of weights whose first moment is float16: on an edge it is rounded either way

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not PYTHON, reason="BERT_PYTHON38 names no interpreter of Python 3.8 with TensorFlow 2.6"
    ),
]


def run_there(path: str) -> None:
    """Runs `python -m official.graphcore` with a configuration on the older stack."""
    done = programs.call(
        *(PYTHON, "-m", "tests.graphcore.old_stack_ipu_run", path),
        without=("TF_ENABLE_ONEDNN_OPTS",),  # `official` chooses it by the Python
        PYTHONPATH=str(ROOT),
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert done.returncode == 0, done.stderr[-3000:]


def run_here(path: str) -> None:
    assert old_stack_ipu_run.main([path]) == 0


KINDS = ("lamb", "adamw", "mpadamw", "momentum", "sgd", "groupbert", "rows", "packed")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_ipus_is_the_same(tmp_path, make_config, schema, kind):
    """It goes on from its own checkpoint. A batch is all records, which with dropout are the same ones: in
    which order they are read does not count."""
    rate = 0.0 if kind in ("rows", "packed") else 0.1
    model = dict(hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    model |= dict(block_type="groupbert") if kind == "groupbert" else {}
    state = build_state(make_config(model), lambda: BertPretrainer(make_config(model).model), build_plain)
    start = CheckpointManager(str(tmp_path / "start"), state.model_variables(), keep=1).save(0)
    if kind == "packed":
        examples = short_examples(32, longest=8)
        records = packed.encode_rows(examples, np.arange(32).reshape(-1, 2))
    else:
        records = make_records(1, 1, schema) * 16 if rate else make_records(16, 1, schema)
    optimizer = kind if kind in KINDS[:5] else "lamb"
    settings = dict(steps_per_loop=1, optimizer_type=optimizer, learning_rate=1e-3, **STAGES)
    settings |= dict(input_files=write_records(tmp_path / "records", records), init_checkpoint=start)
    for name, run in (("there", run_there), ("here", run_here)):
        for steps in (1, 2):
            config = make_config(model, model_dir=str(tmp_path / name), stop_steps=steps, **settings)
            (tmp_path / f"{name}.json").write_text(to_json(config))
            run(str(tmp_path / f"{name}.json"))
    tolerance = OF_FLOAT16 if kind == "mpadamw" else TOLERANCE
    folders = [str(tmp_path / name) for name in ("there", "here")]
    assert_same_runs(*folders, names=("loss", "mlm_loss", "nsp_loss"), tolerance=tolerance)


def assert_same_runs(there: str, here: str, names: tuple[str, ...], tolerance: float = TOLERANCE) -> None:
    """Compares lines of the metrics of two steps, and the last checkpoints."""
    metrics = list(map(read_metrics, (there, here)))
    assert [[line["step"] for line in lines if line["split"] == "train"] for lines in metrics] == [[1, 2]] * 2
    for one, other in zip(*metrics, strict=True):
        for name in set(names) & set(other):
            np.testing.assert_allclose(one[name], other[name], rtol=TOLERANCE)
    readers = [bundle_reader.new_reader(os.path.join(folder, "ckpt-2")) for folder in (there, here)]
    assert len({frozenset(reader.get_variable_to_shape_map()) for reader in readers}) == 1
    for name in readers[0].get_variable_to_shape_map():
        values = [reader.get_tensor(name) for reader in readers]
        np.testing.assert_allclose(*values, rtol=1e-3, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("task", ["squad", "mrpc"])
def test_fine_tuning_on_ipus_is_the_same(tmp_path, make, squad, task):
    """A batch is all rows: what order they are read in does not count."""
    stages = f"emb+pos+hid / {'loc' if task == 'squad' else 'glu'}"
    settings = {**SEQUENTIAL, "pipeline_stages": stages, "loss_normalization": "global"}
    settings |= dict(distribution_strategy="ipu", steps_per_loop=1, num_train_epochs=2, learning_rate=1e-4)
    settings |= dict(do_predict=True, length_buckets="never")
    if task == "squad":
        (tmp_path / "small.json").write_text(json.dumps(squad_json(16, 1)))
        settings["train_file"], build = str(tmp_path / "small.json"), squad
    else:
        for split, rows in (("train", 16), ("dev", 9), ("test", 7)):
            write_split(tmp_path / "glue", glue_tasks.find_task(task), split, rows=rows)
        build = functools.partial(make, "glue", glue_task=task, data_dir=str(tmp_path / "glue"))

    def run(name: str, run_program: Callable, **more):
        config = build(model_dir=name, **settings, **more)
        (tmp_path / f"{name}.json").write_text(to_json(config))
        run_program(str(tmp_path / f"{name}.json"))
        return config.model_dir

    start = os.path.join(run("first", run_here, stop_steps=1), "ckpt-1")
    there, here = (run(each.__name__, each, init_checkpoint=start) for each in (run_there, run_here))
    assert_same_runs(there, here, names=("loss", "span_loss", "label_loss", "f1", "accuracy"))
    name = "predictions.json" if task == "squad" else "MRPC.tsv"
    assert len({(pathlib.Path(folder) / name).read_text() for folder in (there, here)}) == 1

"""What an IPU run does with the plain model gives the same numbers on Python 3.8 with TensorFlow 2.6.

The environment variable BERT_PYTHON38 names the interpreter.
"""

import json
import os
import pathlib
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from official.checkpoint import bundle_reader
from official.checkpoint.manager import CheckpointManager
from official.config import build_config, read_json, to_json
from official.data import synthetic
from official.data.glue import tasks as glue_tasks
from official.data.records.formats import packed
from official.reporting.metrics import read_metrics
from tests.conftest import ROOT, make_records, write_records
from tests.data.glue.test_glue_data import write_split
from tests.fine_tuning_files import fixture_make, fixture_squad, fixture_vocab_file, squad_json  # noqa: F401
from tests.graphcore import old_stack_ipu_run, old_stack_program
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
    config = make_config(model=model, optimizer_type=kind, kernels="plain")
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


def run_there(program: str, *arguments: str) -> str:
    """Runs a program of this folder on the older stack. Returns what it prints."""
    # `official` chooses this one by the Python.
    environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    done = subprocess.run(
        [PYTHON, "-m", f"tests.graphcore.{program}", *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def saved(folder, config) -> dict[str, np.ndarray]:
    """Returns the state that the program has saved, read on this stack."""
    variables = old_stack_program.make_state(config).variables()
    assert CheckpointManager(str(folder), variables, keep=5).restore(old_stack_program.STEPS)
    return {name: variable.numpy() for name, variable in variables.items()}


def test_steps_records_and_checkpoints_are_the_same(folder):
    config = build_config([("config.json", read_json(str(folder / "config.json")))])
    there = json.loads(run_there("old_stack_program", str(folder)).splitlines()[-1])
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


STAGES = dict(
    distribution_strategy="ipu",
    pipeline_stages="emb+pos / hid / hid / mlm+nsp",
    device_mapping="0,1,2,0",
    num_accumulation_steps=8,
    train_batch_size=16,
)


def test_a_run_on_ipus_is_the_same(tmp_path, make_config, schema):
    """A batch is all records: what order they are read in does not count."""
    weights = old_stack_program.make_state(make_config()).model_variables()
    start = CheckpointManager(str(tmp_path / "start"), weights, keep=1).save(0)
    files = write_records(tmp_path / "records", make_records(16, 1, schema))
    settings = dict(stop_steps=2, steps_per_loop=1, optimizer_type="adamw", **STAGES)
    folders = []
    for name, run in (
        ("there", lambda path: run_there("old_stack_ipu_run", path)),
        ("here", lambda path: old_stack_ipu_run.main([path])),
    ):
        folders.append(str(tmp_path / name))
        config = make_config(model_dir=folders[-1], input_files=files, init_checkpoint=start, **settings)
        (tmp_path / f"{name}.json").write_text(to_json(config))
        run(str(tmp_path / f"{name}.json"))
    assert_same_runs(*folders, steps=[1, 2], names=("loss", "mlm_loss", "nsp_loss"))


def assert_same_runs(there: str, here: str, steps: list[int], names: tuple[str, ...]) -> None:
    """Compares lines of the metrics, and the last checkpoints."""
    metrics = list(map(read_metrics, (there, here)))
    assert [[line["step"] for line in lines if line["split"] == "train"] for lines in metrics] == [steps] * 2
    for one, other in zip(*metrics, strict=True):
        for name in set(names) & set(other):
            np.testing.assert_allclose(one[name], other[name], rtol=TOLERANCE)
    readers = [
        bundle_reader.new_reader(os.path.join(folder, f"ckpt-{steps[-1]}")) for folder in (there, here)
    ]
    assert len({frozenset(reader.get_variable_to_shape_map()) for reader in readers}) == 1
    for name in readers[0].get_variable_to_shape_map():
        values = [reader.get_tensor(name) for reader in readers]
        np.testing.assert_allclose(*values, rtol=1e-3, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("task", ["squad", "mrpc"])
def test_fine_tuning_on_ipus_is_the_same(tmp_path, make, squad, task):
    """A batch is all rows: what order they are read in does not count."""
    settings = dict(
        distribution_strategy="ipu",
        pipeline_stages=f"emb+pos+hid / {'loc' if task == 'squad' else 'glu'}",
        pipeline_schedule="sequential",
        device_mapping="0,1",
        num_accumulation_steps=4,
        train_batch_size=16,
        steps_per_loop=1,
        num_train_epochs=2,
        learning_rate=1e-4,
        do_predict=True,
        length_buckets="never",
    )

    def configured(name: str, **more):
        settings_of_run = {**settings, "model_dir": name, **more}
        if task == "squad":
            data = dict(train_file=str(tmp_path / "small.json"))
            (tmp_path / "small.json").write_text(json.dumps(squad_json(16, 1)))
            return squad(**{**settings_of_run, **data})
        for split, rows in (("train", 16), ("dev", 9), ("test", 7)):
            if not (tmp_path / "glue" / "MRPC" / f"{split}.tsv").exists():
                write_split(tmp_path / "glue", glue_tasks.find_task(task), split, rows=rows)
        return make("glue", glue_task=task, data_dir=str(tmp_path / "glue"), **settings_of_run)

    def run(name: str, run_program: Callable, **more):
        config = configured(name, **more)
        (tmp_path / f"{name}.json").write_text(to_json(config))
        run_program(str(tmp_path / f"{name}.json"))
        return config.model_dir

    first = run("first", lambda path: old_stack_ipu_run.main([path]), stop_steps=1)
    start = os.path.join(first, "ckpt-1")
    there = run("there", lambda path: run_there("old_stack_ipu_run", path), init_checkpoint=start)
    here = run("here", lambda path: old_stack_ipu_run.main([path]), init_checkpoint=start)
    assert_same_runs(there, here, steps=[1, 2], names=("loss", "span_loss", "label_loss", "f1", "accuracy"))
    names = ("predictions.json",) if task == "squad" else ("MRPC.tsv",)
    for name in names:
        found = [(pathlib.Path(folder) / name).read_text() for folder in (there, here)]
        assert found[0] == found[1]

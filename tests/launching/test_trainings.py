"""Runs of several processes under the launcher end with the weights of one with the same global batch."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from official.data.records import record_formats
from official.data.records import schema as schema_lib
from tests.conftest import ROOT, TINY, make_records, write_records
from tests.fine_tuning_files import WORDS, squad_json
from tests.records import short_examples
from tests.run_folders import state_of, untimed_metrics

MODEL = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 48}
STEPS = 8


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a model, files of records, of short ones, and of questions."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "bert.json").write_text(json.dumps(MODEL))
    schema = schema_lib.pretraining_schema(16, 3)
    for index in range(4):
        write_records(folder / f"part-{index}", make_records(30, index, schema))
        short = record_formats.encode(short_examples(60, index), "compact")
        write_records(folder / f"short-{index}", short)
    words = [*WORDS, *(f"word{number}" for number in range(MODEL["vocab_size"] - len(WORDS)))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "train.json").write_text(json.dumps(squad_json(40, 1)))
    (folder / "dev.json").write_text(json.dumps(squad_json(8, 2)))
    return folder


def settings_of(kind: str, folder) -> list[str]:
    """Returns the flags of a kind of run on the files of a workspace; 8 rows a step."""
    shared = dict(
        bert_config_file=folder / "bert.json",
        train_batch_size=8,
        eval_batch_size=8,
        num_train_epochs=1,
        steps_per_loop=4,
        num_gpus=0,
        learning_rate=1e-3,
        num_steps_per_epoch=STEPS,
        checkpoint_every_steps=4,
    )
    if kind == "squad":
        shared |= dict(
            task="squad",
            train_file=folder / "train.json",
            predict_file=folder / "dev.json",
            vocab_file=folder / "vocab.txt",
            max_seq_length=48,
            max_query_length=16,
            doc_stride=16,
        )
    else:
        files = "part" if kind == "plain" else "short"
        shared |= dict(input_files=f"{folder}/{files}-*", max_seq_length=16, max_predictions_per_seq=3)
        shared |= dict(optimizer_type="lamb", warmup_steps=5)
    packs = ["--pack_on_the_fly"] if kind == "packed" else []
    return [*packs, "--do_train", "--do_eval", *(f"--{name}={value}" for name, value in shared.items())]


def train(folder, kind, model_dir, *flags, workers=None, launch=()) -> subprocess.CompletedProcess:
    command = [sys.executable, "train.py", *settings_of(kind, folder), f"--model_dir={model_dir}", *flags]
    if workers:
        command += ["--distribution_strategy=multi_worker_mirrored"]
        command = [
            sys.executable,
            "scripts/launch.py",
            f"--instances_per_host={workers}",
            *launch,
            "--",
            *command,
        ]
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "packed", "squad"])
def test_two_and_four_workers_end_with_the_weights_of_one_process(workspace, tmp_path, kind):
    done = train(workspace, kind, tmp_path / "1")
    assert done.returncode == 0, done.stderr
    theirs = state_of(tmp_path / "1", STEPS)
    for workers in (2, 4):
        done = train(workspace, kind, tmp_path / str(workers), workers=workers)
        assert done.returncode == 0, done.stderr
        assert f"{workers} replicas" in done.stderr and all(
            line.startswith("[1,") for line in (done.stdout + done.stderr).splitlines()
        )
        ours = state_of(tmp_path / str(workers), STEPS)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            # The gradient of a key's bias is rounding alone.
            most = 0.2 if "key/bias" in name else 2e-5
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=most, err_msg=name)
        lines = zip(untimed_metrics(tmp_path / str(workers)), untimed_metrics(tmp_path / "1"), strict=True)
        for line, other in lines:
            assert (line["split"], line["step"]) == (other["split"], other["step"])
            for name in {"loss", "exact_match", "f1"} & other.keys():
                assert line[name] == pytest.approx(other[name], rel=1e-4)

"""Data that are other ones when a run goes on: refused with --deterministic, else said and recorded."""

import dataclasses
import functools
import json
import os
import pathlib

import pytest
from tensorflow.python.framework import config as tf_config

from official.data.glue import tasks as glue_tasks
from official.io.errors import ConfigError
from official.training import resume
from tests.conftest import make_records, write_records
from tests.data.glue.test_glue_data import write_split
from tests.run_folders import run


def result_of(config) -> dict:
    return json.loads((pathlib.Path(config.model_dir) / "result.json").read_text())


def swap(one: pathlib.Path, other: pathlib.Path) -> None:
    one.rename(one.with_name("~"))
    other.rename(one)
    one.with_name("~").rename(other)


def test_records_that_are_others_are_refused_or_said(make_config, record_files, schema, tmp_path, caplog):
    glob = record_files(files=3)
    files = [pathlib.Path(os.path.dirname(glob)) / f"part-{number:05d}" for number in range(3)]
    content = files[1].read_bytes()
    shared = dict(input_files=glob, num_eval_samples=8, do_eval=True)
    config = make_config(**shared, stop_steps=5)
    assert not run(config).data_changed and result_of(config)["data_changed"] is False
    assert not run(make_config(**shared, stop_steps=10)).data_changed  # nothing is another
    noted = (pathlib.Path(config.model_dir) / resume.DATA_FILE).read_text()
    turned, added, wrong = make_records(20, seed=1, schema=schema)[::-1], files[1].with_name("part-9"), []
    restore = functools.partial(files[1].write_bytes, content)
    exchange = functools.partial(swap, *files[:2])
    for change, undo, expected in (
        (exchange, exchange, "part-00000 (.* in place of part-00000 ("),
        (files[1].unlink, restore, "2 files, there were 3 (part-00001 is missing"),
        (functools.partial(write_records, files[1], turned), restore, "in place of part-00001 ("),
        (functools.partial(added.write_bytes, content), added.unlink, "part-9 is new"),
    ):
        change()
        try:
            run(make_config(**shared, deterministic=True, stop_steps=15))
            wrong.append((expected, "goes on"))
        except ConfigError as error:
            if any(part not in str(error) for part in ("train: ", *expected.split(".*"))):
                wrong.append((expected, str(error)))
        undo()
    assert not wrong
    assert (pathlib.Path(config.model_dir) / resume.DATA_FILE).read_text() == noted
    swap(*files[:2])
    caplog.clear()
    assert run(make_config(**shared, stop_steps=15)).data_changed
    assert "The data are not those that this run began with; train: part-00000" in caplog.text
    swap(*files[:2])  # whatever comes later: it was trained on others for a while
    assert run(make_config(**shared, stop_steps=20)).data_changed
    tf_config.disable_op_determinism()


def test_files_of_fine_tuning_are_compared_too(squad, make, tmp_path):
    config = squad(stop_steps=5)
    assert not run(config).data_changed
    path = pathlib.Path(config.train_file)
    path.write_text(path.read_text().replace("ball", "bell"))
    assert run(dataclasses.replace(config, stop_steps=10)).data_changed
    task = glue_tasks.find_task("rte")
    for split in ("train", "dev"):
        write_split(tmp_path / "glue", task, split, rows=64)
    shared = dict(glue_task="rte", data_dir=str(tmp_path / "glue"), num_train_epochs=2, model_dir="glue")
    assert not run(make("glue", **shared, stop_steps=5)).data_changed
    path = next((tmp_path / "glue").rglob("dev.tsv"))
    header, *rows = path.read_text().rstrip("\n").split("\n")
    path.write_text("\n".join([header, *rows[::-1]]) + "\n")
    with pytest.raises(ConfigError, match=r"begun with other data; dev: dev.tsv \("):
        run(make("glue", **shared, stop_steps=10, deterministic=True))
    tf_config.disable_op_determinism()


def test_the_middle_and_the_ends_of_a_large_file_are_looked_at(tmp_path):
    path, size = tmp_path / "large", 3 << 20
    content = bytes(size)
    path.write_bytes(content)
    before = resume._describe_files([str(path)])  # pylint: disable=protected-access
    for place in (0, size // 2 + 5, size - 1):
        path.write_bytes(content[:place] + b"x" + content[place + 1 :])
        assert resume._describe_files([str(path)]) != before  # pylint: disable=protected-access
    path.write_bytes(content)
    assert resume._describe_files([str(path)]) == before  # pylint: disable=protected-access


def test_a_damaged_note_is_one_line(make_config, record_files):
    config = make_config(input_files=record_files(), stop_steps=5)
    run(config)
    (pathlib.Path(config.model_dir) / resume.DATA_FILE).write_text('{"files": 3}')
    with pytest.raises(ConfigError, match="data_files.json is damaged"):
        run(make_config(input_files=config.input_files, stop_steps=10))

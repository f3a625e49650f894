"""Which files of training records each of many hosts reads, and how they are named without being listed."""

import json

import pytest

from official.config import derived
from official.data.pipeline import TrainingOrder
from official.data.records import streams as streams_lib
from official.data.records.files import find_files
from official.io.errors import ConfigError
from official.io.files import find_files as find_any
from tests.fixtures import write_records


def test_files_are_named_by_their_number_without_a_look(tmp_path):
    names = [f"{tmp_path}/part-{number:05d}-of-00003.tfrecord" for number in range(3)]
    assert find_files(f"{tmp_path}/part@3.tfrecord", "input_files") == names
    assert find_any("ram://host_files/x@2", "input_files") == [
        f"ram://host_files/x-0000{n}-of-00002" for n in (0, 1)
    ]
    (tmp_path / "odd@2").write_text("a file of that name")
    assert find_any(f"{tmp_path}/odd@2", "") == [f"{tmp_path}/odd@2"]
    for pattern in (f"{tmp_path}/part@0.tfrecord", f"{tmp_path}/odd@2,missing/*.rec"):
        with pytest.raises(ConfigError, match="--input_files=.* matches no file"):
            find_files(pattern, "input_files")


def test_a_manifest_names_its_files(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {"b.tfrecord": 3, "a.tfrecord": 2}}))
    manifest = f"{tmp_path}/manifest.json"
    assert find_files(manifest, "input_files") == [f"{tmp_path}/a.tfrecord", f"{tmp_path}/b.tfrecord"]
    (tmp_path / "c.tfrecord").write_text("")
    assert len(find_files(f"{manifest},{tmp_path}/c.tfrecord", "input_files")) == 3
    for content, message in (
        ('{"files": {"../a.rec": 2}}', "manifest.json lists '../a.rec', which is not in its folder"),
        ('{"files": [1]}', '"files" is a list'),
        ("{}", "holds no records, only manifest.json"),
    ):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(ConfigError, match=message):
            find_files(manifest, "input_files")


def test_sets_of_files_that_are_not_whole_are_told(tmp_path, caplog):
    def add(*numbers, of=3):
        for number in numbers:
            (tmp_path / f"part-{number:05d}-of-{of:05d}.tfrecord").write_text("x")

    add(0, 2)
    assert len(find_files(str(tmp_path), "input_files")) == 2
    assert "part-00001-of-00003.tfrecord does not exist: only 2 of 3 files of this set" in caplog.text
    add(1)
    caplog.clear()
    assert len(find_files(f"{tmp_path}/part-*[02]-of-*", "input_files")) == 2  # chosen
    assert len(find_files(str(tmp_path), "input_files")) == 3 and not caplog.text
    add(0, of=1)
    assert len(find_files(str(tmp_path), "input_files")) == 4
    assert "part-*.tfrecord match sets of 1 and of 3 files" in caplog.text


def test_a_file_among_those_of_a_job_is_told(tmp_path, caplog):
    names = [f"part-{number:05d}-of-00002.tfrecord" for number in range(2)]
    for name in (*names, "picked.tfrecord"):
        (tmp_path / name).write_text("x")
    (tmp_path / "manifest.json").write_text(json.dumps({"files": dict.fromkeys(names, 1)}))
    for pattern in ("part-*", "picked.tfrecord"):
        find_files(f"{tmp_path}/{pattern}", "input_files")
    assert not caplog.text
    assert len(find_files(str(tmp_path), "input_files")) == 3
    assert "picked.tfrecord is read, although " in caplog.text


def test_a_host_looks_at_its_own_files_only(tmp_path):
    files = [str(tmp_path / f"part-{number}") for number in range(8)]
    for path in files[1::4]:
        write_records(path, [b"a record"])
    assert list(streams_lib.own_streams(files, 8, TrainingOrder(1, host=1, num_hosts=4), 2)) == [1, 5]
    with pytest.raises(ConfigError, match="part-2 cannot be read"):
        streams_lib.own_streams(files, 8, TrainingOrder(1, host=2, num_hosts=4), 2)


def test_hosts_share_streams_or_are_told_what_to_do():
    assert derived.num_streams(8192, 65536) == 32
    assert derived.num_streams(8192, 65536, asked=4096) == 4096
    for hosts in (1024, 4096):
        derived.check_hosts(8192, 4096, hosts, 65536)
    for files, hosts, batch, message in (
        (3, 4, 8, "3 files for 4 hosts: host 3 and the following ones would have none"),
        (128, 64, 640, "64 hosts cannot share evenly. Give --data_streams=64"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            derived.check_hosts(files, derived.num_streams(files, batch), hosts, batch)
        assert len(str(error.value)) < 300
    for files, batch, message in ((10, 32, "the 10 files"), (16, 20, "the 20 rows of a step")):
        with pytest.raises(ConfigError, match=f"data_streams=16 does not divide {message}"):
            derived.num_streams(files, batch, asked=16)
    sizes = [(8, 64, 8), (500, 760, 20), (500, 448, 4), (1, 64, 1), (3, 64, 1), (7, 35, 7), (64, 64, 32)]
    assert [derived.num_streams(files, batch) for files, batch, _ in sizes] == [each[2] for each in sizes]

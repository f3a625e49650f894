"""What a plan says of the files of each host."""

import pytest

from official.io.errors import ConfigError
from official.planning.plan import planned_batches, planned_files

HOSTS = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1,c:1,d:1", task_index=0)


@pytest.fixture
def read(make_config):
    def make(files: str, batch: int = 64, **settings):
        shared = dict(use_synthetic_data=False, input_files=files, train_batch_size=batch)
        config = make_config(**{**shared, **settings})
        return planned_files(config, planned_batches(config)[1])

    return make


def test_files_of_each_host(read):
    assert read("part@64.tfrecord", **HOSTS) == {"files": 64, "streams": 32, "hosts": 4, "files_per_host": 16}
    asked = read("part@64.tfrecord", data_streams=64, **HOSTS)
    assert asked["streams"] == 64 and asked["files_per_host"] == 16
    assert read("part@64.tfrecord")["files_per_host"] == 64


def test_files_of_hosts_that_share_the_micro_batches_of_a_layout(read):
    """Eight workers of the layout have eight files each, and four hosts compute those of two workers each."""
    assert read("part@64.tfrecord", logical_workers=8, **HOSTS)["files_per_host"] == 16
    shared = dict(logical_workers=2, num_accumulation_steps=2, **HOSTS)
    assert read("part@64.tfrecord", **shared)["files_per_host"] == 32
    with pytest.raises(ConfigError, match="32 files for 64"):
        read("part@32.tfrecord", logical_workers=64, **HOSTS)


def test_fewer_files_than_hosts_are_refused(read):
    with pytest.raises(ConfigError, match="3 files for 4 hosts"):
        read("part@3.tfrecord", **HOSTS)


def test_files_that_are_not_here_or_are_none_say_nothing(read):
    assert read("nowhere/*") is None and read("gs://bucket/part-*") is None
    assert read(None, use_synthetic_data=True) is None

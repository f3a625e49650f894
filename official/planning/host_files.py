"""What a plan says of the training files of each host."""

from __future__ import annotations

from official.config import Config, data_streams
from official.config.backends import BACKENDS
from official.config.cluster import read_cluster
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.io.record_paths import find_files


def planned_files(config: Config) -> dict | None:
    """Returns {files, streams, hosts, files_per_host} of a pre-training run; None where it reads no files, or
    they are not here.

    Raises:
      ConfigError: where hosts cannot share the files.
    """
    made_up = config.use_synthetic_data or config.generated_data or config.synthetic_input
    if config.task != "pretrain" or not config.do_train or made_up or not config.input_files:
        return None
    if is_remote(config.input_files) and "@" not in config.input_files:
        return None  # a plan connects to nothing
    try:
        count = len(find_files(config.input_files, "input_files"))
    except ConfigError:  # of another machine
        return None
    is_shared = BACKENDS[config.distribution_strategy].several_processes
    hosts = len(read_cluster(config).hosts) if is_shared else 1
    streams = data_streams.num_streams(count, config.train_batch_size, config.data_streams)
    data_streams.check_hosts(count, streams, hosts, config.train_batch_size)
    return {"files": count, "streams": streams, "hosts": hosts, "files_per_host": count // hosts}

"""What a plan says of the training files of each host."""

from __future__ import annotations

from official.config import Config, data_streams
from official.distribution.batch_plan import Layout
from official.distribution.layout import shares
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.io.record_paths import find_files
from official.planning.batches import num_hosts


def planned_files(config: Config, layout: Layout | None) -> dict | None:
    """Returns {files, streams, hosts, files_per_host} of a pre-training run; None where it reads no files, or
    they are not here.

    A worker of the layout has files of its own; a host reads those of all workers whose micro batches it
    computes.

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
    hosts = num_hosts(config)
    workers = layout.workers if layout else hosts
    streams = data_streams.num_streams(count, config.train_batch_size, config.data_streams)
    data_streams.check_hosts(count, streams, workers, config.train_batch_size)
    return {
        "files": count,
        "streams": streams,
        "hosts": hosts,
        "files_per_host": count // workers * _most_workers_of_a_host(layout, hosts),
    }


def _most_workers_of_a_host(layout: Layout | None, hosts: int) -> int:
    if layout is None or layout.workers == hosts or layout.micro_batches % hosts:
        return 1
    return max(len(shares(layout, host, hosts)) for host in range(hosts))

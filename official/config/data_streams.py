"""Distribution of the files of training records to streams, and of these to hosts. Arithmetic only.

A step takes the same number of rows from every stream, and a host reads whole streams. What a step trains on
is thus the same however many hosts there are.
"""

from __future__ import annotations

from official.config.table import Config
from official.io.errors import ConfigError

MOST_STREAMS = 32  # where --data_streams does not ask for more


def num_streams(num_files: int, train_batch_size: int, asked: int | None = None) -> int:
    """Returns the number of streams that the training files are dealt out to: the most, up to 32, that
    divides both numbers; or that of --data_streams, which must.

    Raises:
      ConfigError: where what is asked for divides one of them not.
    """
    if asked is None:
        return max(
            count
            for count in range(1, MOST_STREAMS + 1)
            if train_batch_size % count == 0 and num_files % count == 0
        )
    for value, what in ((num_files, "files of --input_files"), (train_batch_size, "rows of a step")):
        if value % asked:
            raise ConfigError(
                f"data_streams={asked} does not divide the {value} {what}, expected a number that does."
                " Change --data_streams."
            )
    return asked


def check_hosts(num_files: int, streams: int, hosts: int, train_batch_size: int) -> None:
    """Raises ConfigError where the streams cannot be shared out evenly among hosts, each with files of its
    own."""
    if num_files < hosts:
        raise ConfigError(
            f"input_files: {num_files} files for {hosts} hosts: host {num_files} and those behind it would"
            f" have none. Write a number of shards that is a multiple of {hosts}, or start {num_files} hosts"
            " at most."
        )
    if streams % hosts == 0:
        return
    fits = num_files % hosts == 0 and train_batch_size % hosts == 0
    advice = (
        f"Give --data_streams={hosts}, from the beginning of the run: it is part of the order of the data."
        if fits
        else f"Write a number of shards that is a multiple of {hosts}, with a --train_batch_size that is one"
        " too."
    )
    raise ConfigError(
        f"input_files: {num_files} files make {streams} streams, which {hosts} hosts cannot share evenly."
        f" {advice}"
    )


def check_streams(config: Config) -> None:
    """Refuses more streams than the places of packed rows are counted for."""
    if config.pack_on_the_fly and (config.data_streams or 0) > MOST_STREAMS:
        raise ConfigError(
            f"data_streams={config.data_streams} does not go with --pack_on_the_fly, which counts the"
            f" sequences of {MOST_STREAMS} streams at most. Pack the records beforehand: bert pack."
        )

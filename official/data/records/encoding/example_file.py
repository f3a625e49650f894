"""Files of records that are written some examples at a time: TFRecords of one format."""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Callable, Iterator, Sequence

from official.data import compiled
from official.data.pretraining.examples import Examples
from official.data.records.encoding import encoders, native


@contextlib.contextmanager
def writing(
    path: str, record_format: str, pad_position_value: int | None = None
) -> Iterator[Callable[[Examples], None]]:
    """Yields what writes a batch of examples to a new file of this machine; it is complete after the block.

    Args:
      path: of the file.
      record_format, pad_position_value: as of `encoders.encode`; a batch is encoded at once.

    Raises:
      OSError: where the file cannot be written.
      ConfigError, ValueError: as `encoders.encode` does.
    """
    library = compiled.library()
    if library is None:
        with _tensorflow_writer(path) as write:
            yield lambda examples: write(encoders.encode(examples, record_format, pad_position_value))
        return
    with open(path, "wb", buffering=0) as file:
        if record_format == "plain":
            yield lambda examples: _write_all(file, native.plain_records(library, examples))
        else:
            yield lambda examples: _write_all(
                file, native.framed(library, encoders.encode(examples, record_format, pad_position_value))
            )


def _write_all(file: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


@contextlib.contextmanager
def _tensorflow_writer(path: str) -> Iterator[Callable[[Sequence[bytes]], None]]:
    import tensorflow as tf  # late: jobs that can do without do not load it

    try:
        with tf.io.TFRecordWriter(path) as writer:

            def write(records: Sequence[bytes]) -> None:
                for record in records:
                    writer.write(record)

            yield write
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, str(error), path) from None

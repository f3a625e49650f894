"""Reads the texts of a column of Parquet files, row by row, from the row groups of a split.

A row group belongs to the split with its first byte. Needs the package pyarrow.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import BinaryIO

from official.io.errors import ConfigError, check_installed


def bounds(file: BinaryIO, path: str, size: int, split_bytes: int) -> list[int]:
    """Returns the bounds of the splits of a file, which are at row groups, so that a split exceeds
    `split_bytes` by at most one row group.

    Args:
      file: the open Parquet file.
      path: path of the file, for messages.
      size: size of the file in bytes.
      split_bytes: wanted size of a split.

    Raises:
      ConfigError: for a damaged file, or if pyarrow is not installed.
    """
    found = [0]
    with reading(file, path) as parquet:
        for start in _starts(parquet)[1:]:
            if start - found[-1] >= split_bytes:
                found.append(start)
    return [*found, size]


def read_texts(
    file: BinaryIO, path: str, field: str, start: int, end: int | None
) -> Iterator[tuple[str | None, int]]:
    """Yields (text, or None for a row without one; its size in UTF-8) for the rows of a split.

    Args:
      file: the open Parquet file.
      path: path of the file, for messages.
      field: name of the column.
      start, end: range of the split, in bytes.

    Raises:
      ConfigError: for a damaged file, and a missing column or one without text; the message names the columns
        with text.
    """
    with reading(file, path) as parquet:
        from pyarrow import types

        kinds = {column.name: column.type for column in parquet.schema_arrow}
        values = {
            name: kind.value_type if types.is_dictionary(kind) else kind for name, kind in kinds.items()
        }
        texts = [
            name for name, kind in values.items() if str(kind) in ("string", "large_string", "string_view")
        ]
        if field not in texts:
            what = f"no text, but {kinds[field]}, in the column" if field in kinds else "no column"
            names = ", ".join(texts[:20]) or "none"
            raise ConfigError(f"{path} has {what} --text_field={field}. Columns with text: {names}.")
        places = _starts(parquet)
        behind = max([start, *places]) + 1 if end is None else end
        if not (groups := [number for number, place in enumerate(places) if start <= place < behind]):
            return
        for batch in parquet.iter_batches(256, row_groups=groups, columns=[field], use_threads=False):
            for value in batch.column(field).to_pylist():
                yield value, len((value or "").encode("utf-8", "surrogatepass"))


def text_bytes(file: BinaryIO, path: str, field: str) -> int:
    """Estimates the uncompressed size of a column in bytes; texts that are repeated in a row group may count
    once. 0 if the column is missing. See `read_texts`."""
    with reading(file, path) as parquet:
        columns = itertools.chain.from_iterable(_columns_of_groups(parquet))
        return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == field)


@contextlib.contextmanager
def reading(file: BinaryIO, path: str) -> Iterator:
    """Yields pyarrow's reader of a file; its errors are raised as ConfigErrors with the path."""
    check_installed(f"{path} is a Parquet file, which", "parquet", "pyarrow")
    import pyarrow  # late: 150 MB, needed only for Parquet
    from pyarrow import parquet

    try:
        yield parquet.ParquetFile(file, page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = f"{path} is a truncated or damaged Parquet file: {' '.join(str(error).split())[:200]}"
        raise ConfigError(f"{problem}. Fetch or write it again, or leave it out.") from None


def _starts(parquet) -> list[int]:
    """Returns the first byte of each row group."""
    starts = []
    for columns in _columns_of_groups(parquet):
        pages = [(column.dictionary_page_offset, column.data_page_offset) for column in columns]
        starts.append(min(filter(None, itertools.chain(*pages)), default=0))
    return starts


def _columns_of_groups(parquet) -> Iterator[list]:
    """Yields the metadata of the columns of each row group."""
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        yield [group.column(column) for column in range(group.num_columns)]

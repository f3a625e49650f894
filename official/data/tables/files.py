"""Reads tables as batches of rows: CSV, TSV, JSON lines, Parquet, and folders that `datasets` saved.

Format, delimiter, header and quoting are detected from the content. Ambiguous files are refused, with their
first rows, instead of guessing: a wrong column would silently train a wrong model.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from official.data.text import parquet_files, text_files
from official.io import files
from official.io.errors import ConfigError, counted, shortened, suggest
from official.io.json_files import expect, parse_json, read_json, with_each_key_once

BATCH_ROWS = 8192
_SAMPLE_BYTES = 1 << 20  # bytes of a delimited file that determine its delimiter and quoting
_MAX_FIELD = 1 << 24  # characters; a longer field has an unclosed quotation mark
_MAX_LINE = _MAX_ARRAY = 1 << 28  # bytes of a line, and of a JSON array, which are read at once
_DELIMITERS = ",\t;|"
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_SHOWN_ROWS, _SHOWN_WIDTH = 3, 50


class Batch(NamedTuple):
    """Consecutive rows of a table.

    Attributes:
      first: number of rows before them in the table.
      columns: {name: values}; a value is a text, or None if missing; in JSON and Parquet also a number, a
        boolean, or a list.
      problems: {number of a row in the batch: fault}; the values of such a row are None.
    """

    first: int
    columns: dict[str, list]
    problems: dict[int, str]


@dataclasses.dataclass(frozen=True)
class Part:
    """A file of a table: its format, and the delimiter and quoting of a delimited one."""

    path: str
    kind: str  # delimited | lines | array | parquet | arrow | conll
    delimiter: str = ","
    quoted: bool = True
    classes: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # names of numbered labels


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of one or several files, which can be read repeatedly, in order.

    Attributes:
      given: value of the flag.
      flag: name of the flag.
      columns: names of the columns, those of the first file first; "1", "2", ... for a file without a header.
        A row has None for columns that are missing in its file.
      has_header: whether the files have a header; true for formats in which each value has a name.
    """

    given: str
    flag: str
    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    has_header: bool

    @property
    def paths(self) -> list[str]:
        return [part.path for part in self.parts]

    def arrow_types(self) -> dict[str, Any]:
        """Returns pyarrow's types of the columns, if all files have types and agree on them; except labels
        with names, which become texts."""
        found: dict[str, set] = {}
        for part in self.parts:
            if part.kind not in ("parquet", "arrow"):
                return {}
            with _arrow_batches(part, None) as schema:
                for field in schema:
                    is_named = field.name in part.classes
                    found.setdefault(field.name, set()).add(None if is_named else field.type)
        return {name: next(iter(kinds)) for name, kinds in found.items() if len(kinds) == 1}

    def batches(self, names: Sequence[str] | None = None, rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yields all rows, in batches.

        Args:
          names: names of the columns to read; None: all.
          rows: maximum number of rows in a batch.

        Raises:
          ConfigError: for a file that cannot be read completely.
        """
        names, first = list(self.columns if names is None else names), 0
        found = itertools.chain.from_iterable(self._rows(part, names) for part in self.parts)
        while chunk := list(itertools.islice(found, rows)):
            problems = {number: row for number, row in enumerate(chunk) if isinstance(row, str)}
            missing = (None,) * len(names)
            values = zip(*(missing if isinstance(row, str) else row for row in chunk))
            yield Batch(first, dict(zip(names, map(list, values))), problems)
            first += len(chunk)

    def _rows(self, part: Part, names: list[str]) -> Iterator[Sequence | str]:
        """Yields the values of each row of a file, or its fault."""
        with _naming(self.flag, self.given):
            if part.kind == "delimited":
                yield from self._delimited_rows(part, names)
            elif part.kind in ("parquet", "arrow"):
                yield from _arrow_rows(part, names)
            else:
                for values in _objects(part):
                    yield [values.get(name) for name in names] if isinstance(values, dict) else values

    def _delimited_rows(self, part: Part, names: list[str]) -> Iterator[Sequence | str]:
        rows: Iterator[list[Any]] = _delimited(part)
        columns = next(rows) if self.has_header else self.columns
        places, count = {name: place for place, name in enumerate(columns)}, len(columns)
        chosen = [places.get(name, count) for name in names]
        others = columns[1:] if self.has_header else ()
        for row in rows:
            if others and row[1:] == others and row[0].strip("\ufeff") == columns[0]:
                yield "repeats the header"  # as in files that were joined; a single word may be a text
            elif len(row) == count:
                row.append(None)
                yield [row[place] for place in chosen]
            elif row:  # skips empty lines
                yield f"{len(row)} fields, expected {count}"


def open_table(given: str, flag: str, wanted: Sequence[str] = (), all_columns: bool = False) -> Table:
    """Finds the files of a table, and detects their formats.

    Args:
      given: comma-separated files, globs, or folders that `datasets` saved; a file counts once.
      flag: name of the flag that gave it, for messages.
      wanted: required columns: names, or, for files without a header, numbers from 1 on.
      all_columns: whether every column is needed: then all rows of JSON are read to find them, not only the
        first ones.

    Raises:
      ConfigError: for a file that is missing, not a table, or lacks a wanted column; the message shows the
        first rows.
    """
    with _naming(flag, given):
        names = filter(None, map(str.strip, given.split(",")))
        parts = [*{part.path: part for one in names for part in _parts_of(one, wanted)}.values()]
        if not parts:
            raise ConfigError(f"--{flag}={given} names no file.")
        by_number = bool(wanted) and all(name.isdecimal() for name in wanted)
        if by_number and len({part.kind == "delimited" for part in parts}) > 1:
            raise ConfigError(f"--{flag}={given} has files with and without names of columns, not numbers.")
        columns: dict[str, None] = {}
        first = _columns_of(parts[0], by_number)
        for part in parts:
            found = _columns_of(part, by_number, all_columns)
            columns.update(dict.fromkeys(found))
            if missing := [name for name in wanted if name not in found]:
                raise ConfigError(_describe_missing(part, missing[0], found, by_number))
            if part.kind == "delimited" and len(found) != len(first):
                raise ConfigError(
                    f"{part.path} has {len(found)} columns and {parts[0].path} has {len(first)}: files of"
                    " one table have the same."
                )
        has_header = not (by_number and parts[0].kind == "delimited")
        return Table(given, flag, tuple(parts), tuple(columns) if has_header else first, has_header)


@contextlib.contextmanager
def _naming(flag: str, given: str) -> Iterator[None]:
    """Makes error messages of the text readers name the flag of the table."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).replace("--input_files", f"--{flag}"), error.details) from None


def _parts_of(path: str, wanted: Sequence[str]) -> list[Part]:
    if path.lower().endswith(_SPREADSHEETS):
        raise ConfigError(f"{path} is a spreadsheet. Save it as CSV in UTF-8, and give that file.")
    if files.is_folder(path):
        return _saved_data_set(path)
    return [_part_of(found, wanted) for found in files.find_files(path, "input_files")]


def _part_of(path: str, wanted: Sequence[str]) -> Part:
    """Detects the format of a file from its content."""
    with text_files.open_text(text_files.Split(path)) as file:
        if kind := kind_of(file.head):
            classes = _classes_of_parquet(file.text, path) if kind == "parquet" else {}
            return Part(path, kind, classes=classes)
        if not _without_mark(file.head).strip():
            raise ConfigError(f"{path} is empty. Give a table with a header and rows.")
        sample = file.text.read(_SAMPLE_BYTES)
    text, is_cut = sample.decode("utf-8-sig", "replace"), len(sample) == _SAMPLE_BYTES
    return Part(path, "delimited", *_dialect(text, is_cut, path, wanted))


def kind_of(head: bytes) -> str | None:
    """Returns the kind of a file whose rows name their values, from its first bytes; else None."""
    if text_files.is_parquet(head):
        return "parquet"
    if _without_mark(head).lstrip().startswith(b"{"):
        return "lines"
    return "array" if text_files.is_json_array(head) else None


# -----------------------------------------------------------------------------------------------------------
# Delimited files


def _dialect(sample: str, is_cut: bool, path: str, wanted: Sequence[str]) -> tuple[str, bool]:
    """Returns the delimiter, and whether fields are quoted: the choice with which the first line has the
    wanted columns, and most lines have the same number of fields as the first one."""
    delimiters = "\t" if path.lower().split(".gz")[0].endswith((".tsv", ".tab")) else _DELIMITERS
    best, best_rank = (delimiters[0], True), (-1.0,) * 4
    count = 0  # number of rows with the same delimiter and quoting
    for delimiter, quoted in itertools.product(delimiters, (True, False)):
        reader = _reader(io.StringIO(sample, newline=""), delimiter, quoted)
        rows: list[list[str]] = []
        is_clean = True
        try:
            rows.extend(row for row in reader if row)
        except csv.Error as error:
            is_clean = is_cut and "end of data" in str(error)
        rows = rows[:-1] if is_cut and rows[1:] else rows
        is_even = all(len(row) == len(rows[0]) for row in rows)
        # Quotation marks around fields, or around fields with delimiters in them, are not part of the text:
        # in such a file a stray one is an error, with its line.
        is_quoting = delimiter != "\t" and any(
            _is_quoted(field) or field.startswith('"') and not is_even for row in rows for field in row
        )
        if not rows or not quoted and is_quoting:
            continue
        has_wanted = sum(name in rows[0] for name in wanted if not name.isdecimal())
        share = is_clean * sum(len(row) == len(rows[0]) for row in rows) / len(rows)
        # With quoting, fields would contain whole rows: from a stray quotation mark to a later one.
        holds_rows = not quoted and share == 1 and len(rows[0]) > 1 and len(rows) > count > 0
        count = len(rows) if quoted else 0
        rank = (float(has_wanted), share, float(len(rows[0])), float(quoted or 2 * holds_rows))
        if rank > best_rank:
            best, best_rank = (delimiter, quoted), rank
    return best


def _is_quoted(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'


def _reader(text: Iterable[str], delimiter: str, quoted: bool) -> Any:
    csv.field_size_limit(_MAX_FIELD)
    if quoted:
        return csv.reader(text, delimiter=delimiter, strict=True)
    return csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE)


def _delimited(part: Part) -> Iterator[list[str]]:
    """Yields the fields of each line; no fields for an empty line."""
    path = part.path
    with text_files.open_text(text_files.Split(path)) as file:
        text = io.TextIOWrapper(file.text, "utf-8-sig", newline="")
        reader = _reader(_lines(text, path), part.delimiter, part.quoted)
        try:
            yield from _checked(reader, path) if part.quoted and part.delimiter == "\t" else reader
        except csv.Error as error:
            raise ConfigError(
                f"{path}, line {reader.line_num}: {error}. A field that begins with a quotation mark must end"
                ' with one; inside it is written twice (""). Repair the line.'
            ) from None
        except UnicodeDecodeError:
            raise _not_utf8(path, reader.line_num + 1) from None
        finally:
            text.detach()


def _checked(reader: Any, path: str) -> Iterator[list[str]]:
    """Yields rows of tab-separated fields. Raises ConfigError for a field that contains whole rows, from a
    stray quotation mark to a later one; the sample that determined the quoting may lack such rows."""
    line = 0
    for row in reader:
        if reader.line_num > line + 1 and len(row) > 1:
            for number, field in enumerate(row):
                first, *others = [part.count("\t") for part in field.split("\n")]
                last, most = others[-1:], len(row) - 1
                if last == [number] and first == most - number and set(others[:-1]) <= {most}:
                    problem = f"the quotation mark of a field closes {counted(len(others), 'row')} later"
                    raise ConfigError(f"{path}, line {line + 1}: {problem}. Remove it, or write JSON lines.")
        line = reader.line_num
        yield row


def _not_utf8(path: str, line: int) -> ConfigError:
    problem = f"{path} is not UTF-8 text, near line {line}"
    return ConfigError(f"{problem}. Convert it: iconv -f WINDOWS-1252 -t UTF-8.")


# -----------------------------------------------------------------------------------------------------------
# JSON


def _objects(part: Part) -> Iterator[dict | str]:
    """Yields the object of each row, or its fault."""
    with text_files.open_text(text_files.Split(part.path)) as file:
        if part.kind == "array":
            content = file.text.read(_MAX_ARRAY + 1)
            if len(content) > _MAX_ARRAY:
                raise ConfigError(
                    f"{part.path} is one large JSON array. Write one object per line: jq -c '.[]'."
                )
            for values in parse_json(content, part.path, list, once=True, any_number=True):
                yield values if isinstance(values, dict) else "no JSON object"
            return
        for number, line in enumerate(_lines(file.text, part.path), 1):
            try:
                text = (_without_mark(line) if number == 1 else line).decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:  # not a faulty row: all rows with accents would be left out
                raise _not_utf8(part.path, number) from None
            if text.strip():
                yield _object(text)


def _lines(text: io.IOBase | BinaryIO, path: str) -> Iterator[Any]:
    """Yields the lines of a text. Raises ConfigError for a line that would take all memory, such as a few
    bytes of a compressed file can expand to."""
    while line := text.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ConfigError(
                f"{path} has a line of more than {_MAX_LINE:,} characters. Write one row per line."
            )
        yield line


def _without_mark(text: bytes) -> bytes:
    """Returns the text without a byte order mark."""
    return text[len(codecs.BOM_UTF8) :] if text.startswith(codecs.BOM_UTF8) else text


def _object(line: str) -> dict | str:
    try:
        values = json.loads(line, object_pairs_hook=with_each_key_once)
    except (ValueError, RecursionError) as error:
        return f"no JSON ({str(error)[:80]})"
    return values if isinstance(values, dict) else "no JSON object"


# -----------------------------------------------------------------------------------------------------------
# Parquet, and the Arrow files of `datasets`


def _saved_data_set(folder: str) -> list[Part]:
    """Returns the files of a folder of `Dataset.save_to_disk`."""
    if files.is_file(os.path.join(folder, "dataset_dict.json")):
        source = os.path.join(folder, "dataset_dict.json")
        splits = [*map(str, expect(read_json(source), "splits", list, source, []))] or ["NAME"]
        raise ConfigError(
            f"{folder} holds several data sets: {shortened(splits)}. Give one of them:"
            f" {os.path.join(folder, splits[0])}."
        )
    state = os.path.join(folder, "state.json")
    if not files.is_file(state):
        raise ConfigError(f"{folder} is a folder. Give the files in it, such as {folder}/*.csv.")
    told = read_json(state)
    if told.get("_indices_data_files"):  # datasets 1 saved a selection so
        problem = "indices.arrow chooses the rows, and their order"
        raise ConfigError(f"{state}: {problem}. Save the data set again after flatten_indices().")
    info = os.path.join(folder, "dataset_info.json")
    values = read_json(info, any_number=True) if files.is_file(info) else {}
    classes = _classes_of_features(values, info)
    names = [expect(each, "filename", str, state) for each in expect(told, "_data_files", list, state)]
    if outside := [name for name in names if os.path.basename(name) != name]:
        raise ConfigError(f"{state}: the file {outside[0][:60]!r} is not in its folder. Put it there.")
    return [Part(os.path.join(folder, name), "arrow", classes=classes) for name in names]


def _classes_of_features(values: dict, source: str) -> dict[str, list[str]]:
    """Returns {column: names of its numbered labels} from the `features` that `datasets` writes, including
    features in lists. `source` begins the messages."""
    found = {}
    for name, feature in (expect(values, "features", (dict, type(None)), source, None) or {}).items():
        # A list is [feature], or {feature: .., _type: Sequence, List or LargeList}.
        while isinstance(feature, list) and feature or _is_list_of_features(feature):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            found[name] = list(map(str, expect(feature, "names", list, f"{source}: {name}")))
    return found


def _is_list_of_features(feature: Any) -> bool:
    return isinstance(feature, dict) and isinstance(feature.get("_type"), str) and "feature" in feature


def _classes_of_parquet(file: BinaryIO, path: str) -> dict[str, list[str]]:
    with parquet_files.reading(file, path) as parquet:
        text = (parquet.schema_arrow.metadata or {}).get(b"huggingface")
    values = parse_json(text, path, any_number=True) if text else {}
    return _classes_of_features(expect(values, "info", dict, path, {}), path)


def _arrow_rows(part: Part, names: list[str]) -> Iterator[Sequence]:
    with _arrow_batches(part, names) as batches:
        for batch in batches:
            batch.validate(full=True)  # in a damaged file, offsets may be out of bounds
            there = set(batch.schema.names)
            columns = [
                batch.column(name).to_pylist() if name in there else [None] * batch.num_rows for name in names
            ]
            for number, name in enumerate(names):
                if name in part.classes:
                    columns[number] = [_named(value, part.classes[name]) for value in columns[number]]
            yield from zip(*columns)


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


@contextlib.contextmanager
def _arrow_batches(part: Part, names: list[str] | None) -> Iterator[Any]:
    """Yields pyarrow's batches of the columns, or the schema if `names` is None."""
    with files.naming(part.path), files.open_binary(part.path) as file:
        if part.kind == "parquet":
            with parquet_files.reading(file, part.path) as parquet:
                yield parquet.schema_arrow if names is None else parquet.iter_batches(2048, columns=names)
        else:
            import pyarrow

            try:
                stream = pyarrow.ipc.open_stream(file)
                yield stream.schema if names is None else stream
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
                reason = str(error)[:100] or "a part of it is larger than the memory"
                raise ConfigError(f"{part.path} is a damaged Arrow file: {reason}.") from None


# -----------------------------------------------------------------------------------------------------------
# Columns


def _columns_of(part: Part, by_number: bool, all_rows: bool = False) -> tuple[str, ...]:
    """Returns the names of a file's columns; for JSON, those of its first rows, or of all rows."""
    if part.kind not in ("parquet", "arrow", "delimited"):
        rows = itertools.islice(_objects(part), None if all_rows else 100)
        return tuple(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))
    if part.kind == "delimited":
        first = next(_delimited(part), [])
        if by_number:
            numbers = [str(number) for number in range(len(first) + 1)]
            if len(first) > 1 and first in (numbers[:-1], numbers[1:]):  # as pandas names columns
                problem = f"begins with a header of the numbers {first[0]} to {first[-1]}"
                advice = "Write names there: numbers count columns of files without a header"
                raise ConfigError(f"{part.path} {problem}. {advice}.")
            return tuple(numbers[1:])
    else:
        with _arrow_batches(part, None) as schema:
            first = list(schema.names)
    twice = [name for name in first if first.count(name) > 1]
    if twice:
        raise ConfigError(f"{part.path} has two columns {twice[0][:60]!r}. Rename one.")
    return tuple(first)


def _describe_missing(part: Part, name: str, columns: tuple[str, ...], by_number: bool) -> str:
    """Returns the message about a missing column."""
    if by_number and part.kind == "delimited":
        return f"{part.path} has {len(columns)} columns, counted from 1, and no column {name}."
    missing = f"{part.path} has no column {name!r}{suggest(name, columns)}."
    if part.kind in ("lines", "array") and not columns:
        problem = next((row for row in _objects(part) if isinstance(row, str)), "no row")
        return f"{part.path}: {problem}. Write one JSON object per line."
    if part.kind != "delimited":
        return f"{missing} Columns: {shortened([str(column) for column in columns])}."
    rows = itertools.islice(_delimited(part), _SHOWN_ROWS)
    shown = "; ".join(f"{number}: {' | '.join(row)[:_SHOWN_WIDTH]}" for number, row in enumerate(rows, 1))
    named = "--text_columns, and for training --label_column; by number if there is no header"
    return f"{missing} First rows: {shown}. Name the columns: {named}."

"""Files of embeddings: written from the texts of a table, and searched for nearest neighbours.

V.npy is one NumPy array, V.parquet the table with a column `embedding`. The sidecar file V.npy.json or
V.parquet.json names the model and the settings. Both are written and read in blocks, so memory does not grow
with the number of rows.

Source: https://github.com/UKPLab/sentence-transformers, `quantize_embeddings`: int8 and binary are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import logging

from official.data.tables import files as tables
from official.data.tables import predictions, texts, vectors
from official.data.tables.vectors import normalized
from official.data.text import parquet_files
from official.inference import onnx_files
from official.inference.predict_file import Part, write_in_parts, write_parquet
from official.io import files, json_files, writing
from official.io.errors import ConfigError, check_one_of, counted
from official.io.json_files import is_of_kind

if TYPE_CHECKING:
    from official.inference.methods import Model

FORMATS = (".npy", ".parquet")
DTYPES = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "binary": np.int8}
COLUMN = "embedding"  # name in Parquet files
_SIMILARITIES = ("cosine", "dot")  # supported by the search


def digest_of(model: Model) -> str:
    """Returns a digest of everything that determines the vectors: weights, vocabulary, pooling."""
    source, settings = model.source, model.embedder.embedding
    kinds = [settings.pooling, settings.normalize, settings.lower_case]
    layers = [
        [each.activation, *(hashlib.sha256(values.tobytes()).hexdigest() for values in each.weights())]
        for each in settings.dense
    ]
    text = [source.vocabulary.sha256, source.vocabulary.do_lower_case, *kinds, layers]
    identity = json.dumps([onnx_files.digest_of(source), dataclasses.asdict(source.bert), *text], default=str)
    return hashlib.sha256(identity.encode()).hexdigest()


def _digest_of_texts(given: Iterable[str], first: int) -> int:
    """Returns a digest of the texts of consecutive rows and the index of the first one; the digests of
    several batches add up, modulo 2^128, to that of all rows. Rows without a text count as empty."""
    hashes = (
        hashlib.blake2b(f"{row} {text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for row, text in enumerate(given, first)
    )
    return sum(int.from_bytes(each, "big") for each in hashes) % 2**128


def _text_of(value: Any) -> str:
    return value if texts.wrong_text([value]) is None else ""


# -----------------------------------------------------------------------------------------------------------
# Numbers of fewer bits


class Ranges(NamedTuple):
    """Minimum and maximum of each component, float32 [D], divided into 256 levels for int8."""

    lowest: np.ndarray
    highest: np.ndarray

    @property
    def steps(self) -> np.ndarray:
        steps = (self.highest - self.lowest) / 255
        return np.where(steps == 0, np.float32(1), steps)


def quantized(vectors_ND: np.ndarray, dtype: str, ranges: Ranges | None = None) -> np.ndarray:
    """Returns vectors in one of DTYPES: int8 [N, D] in steps of `ranges`; binary as int8 [N, D / 8], the
    signs of 8 components, minus 128. Raises ConfigError for numbers that are too large for float16."""
    if dtype == "int8":
        assert ranges is not None
        steps = np.clip(np.floor((vectors_ND - ranges.lowest) / ranges.steps), 0, 255)
        return (steps - 128).astype(np.int8)
    if dtype == "binary":
        return (np.packbits(vectors_ND > 0, axis=-1) ^ 0x80).view(np.int8)
    with np.errstate(over="ignore"):
        values_ND = vectors_ND.astype(DTYPES[dtype])
    if not np.isfinite(values_ND).all():
        problem = f"cannot hold the vectors, with numbers up to {np.abs(vectors_ND).max():,.0f}"
        raise ConfigError(f"--vector_dtype={dtype} {problem}. Give float32.")
    return values_ND


def restored(values_ND: np.ndarray, dtype: str, size: int, ranges: Ranges | None = None) -> np.ndarray:
    """Inverse of `quantized`, float32 [N, D]: the middle of each step for int8, 1 and -1 for binary."""
    if dtype == "int8":
        assert ranges is not None
        return (values_ND.astype(np.float32) + 128.5) * ranges.steps + ranges.lowest
    if dtype == "binary":
        bits_ND = np.unpackbits(values_ND.view(np.uint8) ^ np.uint8(0x80), axis=-1)[:, :size]
        return bits_ND.astype(np.float32) * 2 - 1
    return values_ND.astype(np.float32)


# -----------------------------------------------------------------------------------------------------------
# Writing


def embed_file(
    model: Model,
    table: tables.Table,
    column: str,
    output_file: str,
    dtype: str = "float32",
    prompt: str = "",
    identity: Sequence[Any] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the embedding of each row of a table, and the sidecar file; returns the sidecar's content.

    A row without a text gets the vector of the empty string. Such rows, and truncated texts, are counted and
    reported.

    Args:
      model: model that computes the vectors.
      table: the rows.
      column: column with the texts.
      output_file: .npy, or .parquet, which has the columns of the table and `embedding`.
      dtype: one of DTYPES.
      prompt: text to prepend to each text.
      identity: further JSON values that identify the job: the settings of the model.
      overwrite: whether to replace an existing file.

    Raises:
      ConfigError: if the output exists or cannot be written, or if a row of the table is malformed.
    """
    ending = predictions.check_format(output_file, formats=FORMATS)
    check_one_of(f"--vector_dtype={dtype[:60]}", dtype, DTYPES)
    embedder, settings = model.embedder, model.embedder.embedding
    if dtype == "binary" and embedder.size % 8:
        raise ConfigError(f"--vector_dtype=binary packs 8 components, and vectors have {embedder.size}.")
    if ending == ".parquet" and COLUMN in table.columns:
        logging.warning("%s: its column %s is replaced by the new vectors", table.given, COLUMN)
    embedder.cut.is_reported = True  # all are reported at the end
    kept = "float32" if dtype == "int8" else dtype  # type of the parts: ranges depend on all rows
    kinds = table.arrow_types() if ending == ".parquet" else {}
    kinds.pop(COLUMN, None)

    def make(batch: tables.Batch) -> tuple[bytes, dict[str, Any]]:
        given = list(map(_text_of, batch.columns[column]))
        found = embedder(given, settings, prompt)
        vectors_ND, ranges = found.vectors_ND, {}
        if dtype == "int8":
            ranges = {"lowest": vectors_ND.min(0).tolist(), "highest": vectors_ND.max(0).tolist()}
        note = {"rows": len(given), "empty": given.count(""), "cut": int(found.is_cut_N.sum()), **ranges}
        note["texts"] = f"{_digest_of_texts(given, batch.first):x}"
        values_ND = quantized(vectors_ND, kept)
        if ending == ".npy":
            return values_ND.tobytes(), note
        columns: dict[str, Any] = {name: values for name, values in batch.columns.items() if name != COLUMN}
        columns[COLUMN] = list(values_ND)
        return predictions.encode(ending, columns, with_header=True, arrow_types=kinds), note

    def join(parts: Sequence[Part]) -> None:
        ranges = _ranges_of(parts) if dtype == "int8" else None
        rows = sum(part.note["rows"] for part in parts)
        width = embedder.size // 8 if dtype == "binary" else embedder.size
        content.update(
            rows=rows,
            empty_texts=sum(part.note["empty"] for part in parts),
            truncated_texts=sum(part.note["cut"] for part in parts),
            texts_digest=f"{sum(int(part.note['texts'], 16) for part in parts) % 2**128:032x}",
        )
        if ranges:
            content["ranges"] = {name: values.tolist() for name, values in ranges._asdict().items()}
        writing.replace_file(sidecar(output_file), json_files.written(content))
        with writing.replacing(output_file) as path:
            if ending == ".npy":
                _write_array(parts, path, (rows, width), kept, dtype, ranges)
            else:
                write_parquet([part.path for part in parts], path, _changed(dtype, width, ranges))

    content: dict[str, Any] = {
        "checkpoint": os.path.abspath(model.source.location),
        "model": digest_of(model),
        "dtype": dtype,
        "size": embedder.size,
        **{name: getattr(settings, name) for name in ("pooling", "normalize", "similarity")},
        "prompt": prompt,
        "max_seq_length": embedder.length_of(settings),
        "model_dtype": embedder.settings.dtype,
        "input_file": table.given,
        "text_column": column,
    }
    beside = sidecar(output_file)
    described = json_files.read_json_or_empty(beside) if files.is_file(beside) else content
    if not overwrite and not content.keys() <= described.keys():  # a killed job may have left its own
        problem = f"{beside}, which describes the vectors, exists and is another program's"
        raise ConfigError(f"--output_file={output_file}: {problem}. Give another one, or --overwrite.")
    job = {"columns": [column], "vectors": {**content, "checkpoint": ""}, "how": list(identity)}
    write_in_parts(table, output_file, job, make, join, overwrite, "Embedding")
    for key, what in (
        ("empty_texts", "without a text: the vector is that of an empty one"),
        ("truncated_texts", f"longer than max_seq_length={content['max_seq_length']} tokens and cut"),
    ):
        if content[key]:
            logging.warning("%s: %s %s.", table.given, counted(content[key], "row"), what)
    return content


def sidecar(path: str) -> str:
    """Returns the path of the sidecar file of a file of vectors."""
    return f"{path}.json"


def _ranges_of(parts: Sequence[Part]) -> Ranges:
    lowest = np.min([part.note["lowest"] for part in parts], axis=0).astype(np.float32)
    return Ranges(lowest, np.max([part.note["highest"] for part in parts], axis=0).astype(np.float32))


def _write_array(
    parts: Sequence[Part], path: str, shape: tuple[int, int], kept: str, dtype: str, ranges: Ranges | None
) -> None:
    with open(path, "wb") as file:
        descr = np.lib.format.dtype_to_descr(np.dtype(DTYPES[dtype]))
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            values = np.frombuffer(files.read_bytes(part.path, part.path), DTYPES[kept])
            values = values.reshape(part.note["rows"], -1)
            file.write((quantized(values, dtype, ranges) if kept != dtype else values).tobytes())


def _changed(dtype: str, width: int, ranges: Ranges | None) -> Any:
    """Returns the function that casts the vectors of a Parquet table to their type: lists of a fixed size."""
    import pyarrow  # late: only Parquet needs it

    def change(table: Any) -> Any:
        values = table.column(COLUMN).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        values = values.reshape(len(table), width)
        values = quantized(values, dtype, ranges) if ranges else values.astype(DTYPES[dtype])
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), width)
        return table.set_column(table.column_names.index(COLUMN), COLUMN, column)

    return change


# -----------------------------------------------------------------------------------------------------------
# Reading and searching


class Neighbour(NamedTuple):
    """A row of a file of vectors, counted from 0, and its similarity to a query."""

    row: int
    score: float


class VectorFile:
    """Vectors in a file, with the content of its sidecar file.

    Attributes:
      path: path of the vectors.
      said: content of the sidecar file.
      rows, size: number and size of the vectors.
    """

    def __init__(self, path: str):
        """Reads the sidecar file. Raises ConfigError if it is missing or belongs to another file."""
        self._ending, self.path = predictions.check_format(path, "vectors", FORMATS), path
        if not files.is_file(path):
            raise ConfigError(f"--vectors={path} does not exist.")
        source = sidecar(path)
        if not files.is_file(source):
            raise ConfigError(
                f"--vectors={path}: {source}, with the name of their model, is missing. Use bert embed."
            )
        said = json_files.read_json(source)
        kinds = {"dtype": str, "similarity": str, "model": str, "checkpoint": str}
        kinds |= {"text_column": str, "input_file": str}
        for key, kind in {"rows": int, "size": int, **kinds}.items():
            json_files.expect(said, key, kind, source)
        self.said, self.rows, self.size, self.dtype = said, said["rows"], said["size"], said["dtype"]
        check_one_of(f"{source}: dtype={self.dtype[:60]!r}", self.dtype, DTYPES)
        self._ranges = None
        if self.dtype == "int8":
            values = json_files.expect(said, "ranges", dict, source)
            named = [json_files.expect(values, name, list, f"{source}: ranges") for name in Ranges._fields]
            for numbers in named:
                if len(numbers) != self.size or not all(is_of_kind(each, float) for each in numbers):
                    raise ConfigError(f"{source}: ranges: expected lists of {self.size} numbers.")
            self._ranges = Ranges(*(np.array(numbers, np.float32) for numbers in named))
        if said["similarity"] not in _SIMILARITIES:
            allowed = ", ".join(_SIMILARITIES)
            raise ConfigError(
                f"{source}: similarity={said['similarity']!r} is not supported, only {allowed}."
            )
        self._width = self.size // 8 if self.dtype == "binary" else self.size

    def check_model(self, model: Model) -> None:
        """Raises ConfigError if another model made the vectors."""
        own = model.embedder.size
        if own != self.size:
            problem = f"has vectors of size {self.size}, but {model.source.name} has size {own}"
            raise ConfigError(f"--vectors={self.path} {problem}. Give the --checkpoint that computed them.")
        if digest_of(model) != self.said["model"]:
            problem = f"was made by another model ({self.said['checkpoint']}) than {model.source.name}"
            raise ConfigError(
                f"--vectors={self.path} {problem}. Give that --checkpoint, or embed the texts again."
            )

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the vectors in order, float32 [some, D]. Raises ConfigError if the number of rows differs
        from the sidecar file's, or a number is not finite."""
        read = self._read_array() if self._ending == ".npy" else self._read_parquet()
        with files.naming(self.path):
            for values in read:
                if not np.isfinite(values).all():
                    self._refuse("NaN, nulls or infinite numbers")
                yield restored(values, self.dtype, self.size, self._ranges)

    def _read_array(self) -> Iterator[np.ndarray]:
        kind = np.dtype(DTYPES[self.dtype])
        with files.open_binary(self.path) as file:
            try:
                np.lib.format.read_magic(file)
                shape, is_by_column, found = np.lib.format.read_array_header_1_0(file)
            except (ValueError, tokenize.TokenError) as error:
                raise ConfigError(f"--vectors={self.path} is not a NumPy file ({str(error)[:80]}).") from None
            if (shape, found) != ((self.rows, self._width), kind) or is_by_column:
                self._refuse(f"{found} {shape}" + ", column by column" * is_by_column)
            # A header of a few bytes may state any size.
            if files.sizes([self.path])[0] - file.tell() < self.rows * self._width * kind.itemsize:
                self._refuse("fewer")
            for first in range(0, self.rows, vectors.BLOCK_ROWS):
                count = min(vectors.BLOCK_ROWS, self.rows - first)
                content = file.read(count * self._width * kind.itemsize)
                yield np.frombuffer(content, kind).reshape(count, self._width)

    def _read_parquet(self) -> Iterator[np.ndarray]:
        with files.open_binary(self.path) as file, parquet_files.reading(file, self.path) as table:
            if table.metadata.num_rows != self.rows or COLUMN not in table.schema_arrow.names:
                self._refuse(f"{table.metadata.num_rows} rows of {', '.join(table.schema_arrow.names)[:90]}")
            kind = str(table.schema_arrow.field(COLUMN).type)
            if not re.match("(fixed_size_|large_)?list<", kind):
                self._refuse(f"the column {COLUMN} of {kind[:60]}")
            for batch in table.iter_batches(vectors.BLOCK_ROWS, columns=[COLUMN]):
                values = batch.column(0).flatten().to_numpy(zero_copy_only=False)
                if values.dtype.kind not in "fi" or len(values) != len(batch) * self._width:
                    self._refuse(f"{len(values):,} values of {kind[:60]} in {len(batch):,} rows")
                yield values.astype(DTYPES[self.dtype], copy=False).reshape(len(batch), self._width)

    def _refuse(self, found: str) -> None:
        expected = f"{self.rows:,} vectors of {self.dtype} x {self.size}, the file has {found}"
        raise ConfigError(f"--vectors={self.path}: {sidecar(self.path)} says {expected}. Make both again.")

    def search(self, queries_QD: np.ndarray, top_k: int) -> list[list[Neighbour]]:
        """Returns the exact nearest rows of each query, best first, by the model's similarity; ties in the
        order of the file. For binary vectors only signs are compared.

        Args:
          queries_QD: float32 vectors of the same model.
          top_k: number of rows per query, 1 or more.
        """
        blocks: Iterable[np.ndarray] = self.blocks()
        if self.dtype == "binary":
            queries_QD = restored(quantized(queries_QD, "binary"), "binary", self.size)
        if self.said["similarity"] == "cosine" or self.dtype == "binary":
            queries_QD, blocks = normalized(queries_QD), map(normalized, blocks)
        found = zip(*vectors.neighbours(queries_QD, blocks, top_k))
        return [[Neighbour(int(row), float(score)) for row, score in zip(*each)] for each in found]


def read_rows(table: tables.Table, column: str, wanted: set[int], count: int) -> tuple[dict[int, str], str]:
    """Returns {row: text} of some rows of a table, and the `texts_digest` of all rows. Raises ConfigError if
    it does not have `count` rows."""
    found: dict[int, str] = {}
    total = digest = 0
    for batch in table.batches([column]):
        values = batch.columns[column]
        digest += _digest_of_texts(map(_text_of, values), batch.first)
        numbers = wanted.intersection(range(batch.first, batch.first + len(values)))
        found |= {row: str(values[row - batch.first] or "") for row in numbers}
        total = batch.first + len(values)
    if total != count:
        raise ConfigError(
            f"--{table.flag}={table.given} has {total:,} rows, and there are {count:,} vectors. Give the"
            " table that they were made from."
        )
    return found, f"{digest % 2**128:032x}"

"""Model versions: finding, loading, serving, and replacing them by newer ones."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from official.inference import Model, signatures
from official.inference.backends import Settings, free_memory
from official.inference.methods import classes_of
from official.inference.rows import join
from official.inference.signatures import SIGNATURES, Signature
from official.io import model_folder
from official.io.errors import ConfigError
from official.serving.server import embeddings, reading
from official.serving.server.monitoring import Log
from official.serving.server.protocols import Sizes

# -----------------------------------------------------------------------------------------------------------
# Served


class Loading(NamedTuple):
    """Settings for loading a version.

    Attributes:
      vocab_file, do_lower_case, max_seq_length: as in `source.find`.
      settings: settings of the back end.
      calibration_file: texts to calibrate int8 with.
      methods: methods to serve; None for all that the model supports.
    """

    vocab_file: str | None
    do_lower_case: bool | None
    settings: Settings
    calibration_file: str | None
    methods: tuple[str, ...] | None
    max_seq_length: int | None = None


class Result(NamedTuple):
    """Result of a row, and whether one of its texts was truncated."""

    value: Any
    is_cut: bool


class Served:
    """A loaded version of the model.

    Attributes:
      version: version number.
      methods: methods that it serves, the default one first.
      signatures: {name: signature}; `serving_default` is the default method.
      sizes: limits of token ids.
      labels: names of a classifier's outputs; () if they are only numbered.
      thresholds: of several labels: the probability from which on a text has each; () means 0.5 for all.
    """

    def __init__(self, version: int, model: Model, methods: Sequence[str]):
        self.version = version
        self.methods = tuple(methods)
        self._model = model
        is_classifier = "classify" in methods
        self.labels = model.label_names if is_classifier else ()
        self.thresholds = model.source.thresholds if is_classifier else ()
        main, bert = self.methods[0], model.source.bert
        ids = Signature(main, signatures.TENSOR_INPUTS, signatures.TENSOR_OUTPUTS[main])
        self.signatures = {**{name: SIGNATURES[name] for name in methods}, signatures.TENSORS: ids}
        values = {"answer": 2, "embed": bert.hidden_size, "fill_mask": bert.vocab_size}.get(main, 1)
        values = model.source.classes if main == "tag" else values
        segments = bert.type_vocab_size if bert.reads_segments else 2
        self.sizes = Sizes(bert.vocab_size, segments, bert.positions, values)

    @property
    def vector_size(self) -> int:
        """Number of components of the vectors of `embed`."""
        return self._model.embedder.size

    def compute(self, name: str, asked: list[Any]) -> list[Result]:
        """Computes a batch; one thread at a time.

        Args:
          name: name of the signature.
          asked: rows, in the form of `protocols.Call`.

        Returns:
          One result per row, whose value is an Answer, a Label, a vector, or the words of each mask; for
          token ids {output: array}; for OpenAI's embeddings {vector, tokens, is_cut}.

        Raises:
          ConfigError: if a row cannot be computed; then no row has been computed.
        """
        if name == embeddings.NAME:
            found = self._model.embedder(asked)
            rows = zip(found.vectors_ND, found.tokens_N, found.is_cut_N.tolist())
            return [
                Result({"vector": row, "tokens": count, "is_cut": is_cut}, is_cut)
                for row, count, is_cut in rows
            ]
        if name != signatures.TENSORS:
            values, is_cut_N = self._model.results(name, asked)
            return [Result(value, bool(is_cut)) for value, is_cut in zip(values, is_cut_N, strict=True)]
        method = self.methods[0]
        made = join(*map(list, zip(*asked)))
        if method == "fill_mask":  # predicts every token
            made = made._replace(masked_M=np.arange(len(made.ids_T), dtype=np.int32))
        outputs = self._model.outputs(method, made)
        ends = np.cumsum(made.lengths_N) if method != "classify" else np.arange(len(asked)) + 1
        parts = {name: np.split(values, ends[:-1]) for name, values in outputs.items()}
        one = 0 if method == "classify" else slice(None)
        values = ({name: rows_of[n][one] for name, rows_of in parts.items()} for n in range(len(asked)))
        return [Result(value, False) for value in values]

    def warm_up(self) -> None:
        """Computes generated texts of several lengths, so that the first requests of clients are not delayed.
        Raises ConfigError."""
        for method in self.methods:
            self._model.prepare(method)
        self._model.report_cuts(False)
        for name, words, number in itertools.product(self.signatures, (4, 30, 120, 400), (1, 8)):
            self.compute(name, [self._sample(name, words)] * number)
        self._model.report_cuts(True)

    def _sample(self, name: str, words: int) -> Any:
        """Returns a row of about so many words."""
        positions = self.sizes.positions
        if name == signatures.TENSORS:
            return (np.zeros(min(words, positions), np.int32),) * 2
        if name == "fill_mask":  # texts that are too long are an error, and each letter may be a word piece
            return "word " * min(words, positions // 5) + "[MASK]"
        text = "word " * words
        if name == "classify":
            return [text] * (classes_of(self._model.source).texts or 1)
        return ("a word?", text) if name == "answer" else text


def load(version: int, path: str, loading: Loading) -> Served:
    """Loads a version and warms it up.

    Args:
      version: version number.
      path: an export, a run, or a checkpoint of any known format.
      loading: settings.

    Raises:
      ConfigError: if it cannot be loaded.
    """
    with reading.reading(path, loading.vocab_file, loading.do_lower_case, loading.max_seq_length) as found:
        for method in loading.methods or ():
            found.check_can(method)
        methods = [name for name in SIGNATURES if name in (loading.methods or found.abilities())]
        if "classify" in methods and model_folder.KIND_OF.get(str(found.problem_type)) == "choice":
            problem = "it chooses from several texts, and a request has one or two"
            raise ConfigError(f"{found.name}: {problem}. Use bert predict, or give --methods=embed.")
        served = Served(version, Model(found, loading.settings, loading.calibration_file), methods)
        try:
            served.warm_up()
        except MemoryError:
            raise ConfigError(f"--export_dir={path}: not enough memory to load it.") from None
    return served


# -----------------------------------------------------------------------------------------------------------
# Versions
#
# A folder with numbered subfolders holds versions, as in TensorFlow Serving; any other path is one version.
# Files, dangling links, and links to a parent folder are not versions. A newer version is loaded once its
# files have not changed between two checks, since it may still be copied.


_NUMBER = re.compile("0|[1-9][0-9]{0,17}")
Load = Callable[[int, str], Served]


class Location(NamedTuple):
    """Number and path of a version."""

    version: int
    path: str


class State(NamedTuple):
    """State of a version as in TensorFlow Serving: LOADING, AVAILABLE or END, and the error that ended it."""

    state: str
    error: str = ""


def find_versions(export_dir: str) -> list[Location]:
    """Returns the numbered versions in a folder, newest first; for any other path a single version, with the
    number in its name or 1."""
    name = os.path.basename(os.path.normpath(export_dir))
    one = Location(int(name) if _NUMBER.fullmatch(name) else 1, export_dir)
    return _numbered(export_dir) or [one]


def _numbered(export_dir: str) -> list[Location]:
    try:
        names = filter(_NUMBER.fullmatch, os.listdir(export_dir))
    except OSError:
        return []
    found = sorted((Location(int(name), os.path.join(export_dir, name)) for name in names), reverse=True)
    return [location for location in found if os.path.isdir(location.path) and not _is_around(location.path)]


def _is_around(path: str) -> bool:
    """Tells whether a path is a link to one of its parent folders, which would nest versions endlessly."""
    above = os.path.realpath(os.path.dirname(path))
    return os.path.commonpath([above, target := os.path.realpath(path)]) == target


def look(path: str) -> frozenset[tuple[str, int, int]]:
    """Returns the files of a version with sizes and times, which change while it is being copied."""
    found = set()
    for file in (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names):
        with contextlib.suppress(OSError):  # removed, or a dangling link
            status = os.stat(file)
            found.add((os.path.relpath(file, path), status.st_size, status.st_mtime_ns))
    return frozenset(found)


class Versions:
    """The served version, and the states of all versions so far. For use in the event loop only.

    Attributes:
      served: the served version; None before the first one is ready.
      states: {version: state}, the newest last.
    """

    def __init__(self, export_dir: str, load: Load, log: Log):
        self.served: Served | None = None
        self.states: dict[int, State] = {}
        self._export_dir, self._load, self._log = export_dir, load, log
        self._seen: dict[str, frozenset] = {}  # {served or newer version: its files at the last check}
        self._failed: dict[str, frozenset] = {}  # {version that could not be loaded: its files at that time}
        self._told_change: int | None = None  # version whose files changed while it was served

    async def start(self) -> float:
        """Loads the newest version that can be loaded. Returns the seconds that this took.

        Raises:
          ConfigError: the error of the newest version, if none can be loaded.
        """
        failures: list[tuple[Location, ConfigError]] = []
        for location in await in_thread(find_versions, self._export_dir):
            self._seen[location.path] = await in_thread(look, location.path)
            try:
                secs = await self._take(location)
            except ConfigError as error:
                self._failed[location.path] = self._seen[location.path]
                failures.append((location, error))
            else:
                for failure in failures:
                    self._note_failure(*failure)
                return secs
        raise failures[0][1]

    async def refresh(self, is_used: Callable[[Served], bool]) -> None:
        """Checks for a newer version, or for any if the folder of the served one is gone. If one is
        complete, loads and serves it, and frees the old one once `is_used` is false for it."""
        location = await in_thread(self._newer)
        if location is None:
            return
        old = self.served
        try:
            await self._take(location)
        except ConfigError as error:
            self._failed[location.path] = self._seen[location.path]
            self._note_failure(location, error)
            return
        while old is not None and is_used(old):
            await asyncio.sleep(0.05)
        old = None
        await in_thread(free_memory)

    async def _take(self, location: Location) -> float:
        """Loads and serves a version. Raises ConfigError."""
        self._set_state(location.version, State("LOADING"))
        began = time.monotonic()
        served = await in_thread(self._load, *location)
        secs, old = time.monotonic() - began, self.served
        self.served, replaced = served, old.version if old else None
        if replaced is not None:
            self._set_state(replaced, State("END"))
        self._set_state(location.version, State("AVAILABLE"))
        self._log.info("serving", version=location.version, replaced=replaced, secs=round(secs, 2))
        if old and old.methods != served.methods:  # the first is the default one
            before, now = (", ".join(each.methods) for each in (old, served))
            self._log.warning("other methods are served", version=location.version, before=before, now=now)
        return secs

    def _newer(self) -> Location | None:
        """Returns the newest version that has not changed since the last check and has not failed with the
        same files, if it is newer than the served one, or that is gone; else None. Logs once if the files of
        the served one have changed."""
        found, served = _numbered(self._export_dir), self.served.version if self.served else None
        is_there = any(location.version == served for location in found)
        for location in found:
            files = look(location.path)
            before, self._seen[location.path] = self._seen.get(location.path), files
            if is_there and location.version == served:  # all others are older
                if files != before and self._told_change != served:
                    self._told_change = served
                    self._log.warning("files have changed: what was loaded is served", version=served)
                return None
            if files and files == before and files != self._failed.get(location.path):
                return location
        return None

    def _note_failure(self, location: Location, error: ConfigError) -> None:
        self._set_state(location.version, State("END", str(error)))
        self._log.error("version not loaded", version=location.version, error=str(error))

    def _set_state(self, version: int, state: State) -> None:
        self.states.pop(version, None)
        self.states[version] = state
        while len(self.states) > 16:  # forgets the oldest ones
            self.states.pop(next(iter(self.states)))


def in_thread(function: Callable, *arguments: Any) -> asyncio.Future:
    """Runs a function in a daemon thread, which does not delay the end of the process; returns its future."""
    future: concurrent.futures.Future = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # pylint: disable=broad-except  # raised where it is awaited
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(future)

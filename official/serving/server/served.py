"""A version of the model that is ready to be asked."""

import gc
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from official.inference import Model, backends, rows, signatures
from official.inference.signatures import Signature
from official.io.errors import ConfigError
from official.serving.server import reading
from official.serving.server.calls import Sizes

_WARMING_WORDS = (4, 30, 120, 400)  # words of the texts that a new version answers first
_WARMING_ROWS = (1, 8)
# {signature: the method of Model that answers many}
_METHODS = {"answer": "answer_all", "classify": "classify_all", "embed": "embed", "fill_mask": "fill_masks"}


class Loading(NamedTuple):
    """Settings that a version is loaded with.

    Attributes:
      vocab_file, do_lower_case, max_seq_length: as of `source.find`.
      settings: of the back end.
      calibration_file: for int8.
      methods: that are served; None for all that the model can.
    """

    vocab_file: str | None
    do_lower_case: bool | None
    settings: backends.Settings
    calibration_file: str | None
    methods: tuple[str, ...] | None
    max_seq_length: int | None = None


class Served:
    """A version of the model.

    Attributes:
      version: its number.
      methods: that it answers, its main one first.
      signatures: {name: signature}; the main method also is `serving_default`.
      sizes: that token ids have to fit into.
      labels: names of a classifier's outputs; none where they only count them.
    """

    def __init__(self, version: int, model: Model, methods: Sequence[str]):
        self.version = version
        self.methods = tuple(methods)
        self._model = model
        self.labels = model.label_names if "classify" in methods else ()
        main = self.methods[0]
        self.signatures: dict[str, Signature] = {name: signatures.SIGNATURES[name] for name in methods}
        outputs = signatures.TENSOR_OUTPUTS[main]
        self.signatures[signatures.TENSORS] = Signature(main, signatures.TENSOR_INPUTS, outputs)
        bert = model.source.bert
        values = {"answer": 2, "embed": bert.hidden_size, "fill_mask": bert.vocab_size}.get(main, 1)
        self.sizes = Sizes(bert.vocab_size, bert.type_vocab_size, bert.max_position_embeddings, values)

    def compute(self, name: str, asked: list[Any]) -> list[Any]:
        """Computes a batch; one thread at a time.

        Args:
          name: of a signature.
          asked: rows, as `calls.Call` has them.

        Returns:
          One result a row: an Answer, a Label, a vector, the words of each mask; of ids {output: array}.

        Raises:
          ConfigError: where a row cannot be computed. Nothing has been computed then.
        """
        if name == signatures.TENSORS:
            return self._compute_ids(asked)
        return list(getattr(self._model, _METHODS[name])(asked))

    def _compute_ids(self, asked: list[tuple[np.ndarray, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        method = self.methods[0]
        made = rows.join([ids for ids, _ in asked], [segments for _, segments in asked])
        if method == "fill_mask":  # every token is one to predict
            made = made._replace(masked_M=np.arange(len(made.ids_T), dtype=np.int32))
        outputs = self._model.outputs(method, made)
        ends = np.cumsum(made.lengths_N) if method != "classify" else np.arange(len(asked)) + 1
        parts = {name: np.split(values, ends[:-1]) for name, values in outputs.items()}
        one = 0 if method == "classify" else slice(None)
        return [{name: rows_of[n][one] for name, rows_of in parts.items()} for n in range(len(asked))]

    def warm_up(self) -> None:
        """Answers made-up texts of several lengths, so that the first ones of clients do not wait. Raises
        ConfigError."""
        for method in self.methods:
            self._model.prepare(method)
        self._model.tell_of_cuts(False)
        for name in self.signatures:
            for words in _WARMING_WORDS:
                for number in _WARMING_ROWS:
                    self.compute(name, [self._made_up(name, words)] * number)
        self._model.tell_of_cuts(True)

    def _made_up(self, name: str, words: int) -> Any:
        """Returns a row of about so many words."""
        positions = self.sizes.positions
        if name == signatures.TENSORS:
            return (np.zeros(min(words, positions), np.int32),) * 2
        if name == "fill_mask":  # too long is an error here, and each letter may be a piece
            return " ".join(["word"] * min(words, positions // 5) + ["[MASK]"])
        text = " ".join(["word"] * words)
        if name == "classify":
            return [text] * (self._model.texts_of_a_row or 1)
        return ("a word?", text) if name == "answer" else text


def load(version: int, path: str, loading: Loading) -> Served:
    """Loads a version and warms it up.

    Args:
      version: its number.
      path: of an export, a run, or a checkpoint of any known format.
      loading: how.

    Raises:
      ConfigError: where that is not possible.
    """
    how = loading.vocab_file, loading.do_lower_case, loading.max_seq_length
    with reading.reading(path, *how) as found:
        can = found.abilities()
        for method in loading.methods or ():
            found.check_can(method)
        methods = [name for name in signatures.SIGNATURES if name in (loading.methods or can)]
        model = Model(found, loading.settings, loading.calibration_file)
        try:
            for method in methods:
                model.prepare(method)
            served = Served(version, model, methods)
            served.warm_up()
        except MemoryError:
            raise ConfigError(f"--export_dir={path}: there is not enough memory for it.") from None
    return served


def timed_load(version: int, path: str, loading: Loading) -> tuple[Served, float]:
    """Does what `load` does. Returns also the seconds that it took."""
    began = time.monotonic()
    served = load(version, path, loading)
    return served, time.monotonic() - began


def free_memory() -> None:
    """Returns unused memory to the system, where the C library can."""
    import ctypes

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)

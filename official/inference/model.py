"""A loaded model, with its methods: answer, classify, embed, fill_mask."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from official.inference import methods
from official.inference.backends import Settings, begin
from official.inference.rows import Outputs, Rows, run
from official.inference.signatures import TOP_WORDS
from official.inference.source import Source, find
from official.io import model_folder
from official.io.model_folder import Pooling


def load(
    path: str,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    backend: str = "tensorflow",
    dtype: str = "fp32",
    calibration_file: str | None = None,
    threads: int | None = None,
    max_seq_length: int | None = None,
) -> "Model":
    """Loads a model.

    Args:
      path, vocab_file, do_lower_case, max_seq_length: as of `source.find`.
      backend: what computes it, one of `backends.names()`.
      dtype: of products: fp32, bf16 or int8.
      calibration_file: what the ranges of int8's activations are taken from, see `methods.Method`. Unset: the
        training data of the run.
      threads: of products, 1 or more; unset: as many as there are cores. TensorFlow has one number in a
        process, which must be given before it computes anything.

    Raises:
      ConfigError: also for a back end or dtype that there is not.
    """
    settings = Settings(backend, dtype, threads)
    begin(settings)
    found = find(path, vocab_file, do_lower_case, max_seq_length=max_seq_length)
    return Model(found, settings, calibration_file)


class Model:
    """A model with its vocabulary. What a question needs is built when it is first asked.

    Every method raises ConfigError where the model has no head for it, or its weights cannot be read.
    """

    def __init__(
        self,
        found: Source,
        settings: Settings = Settings(),  # noqa: B008  # frozen
        calibration_file: str | None = None,
    ):
        self.source = found
        self._how = found, settings, calibration_file
        self._methods: dict[str, Any] = {}

    def prepare(self, method: str) -> None:
        """Builds what a method needs, so that the first question does not wait for it.

        Args:
          method: answer, classify, embed or fill_mask.
        """
        self._method(method)

    def report_cuts(self, is_on: bool) -> None:
        """Says, or does not say, that texts are cut, in the methods that are prepared: once from now on."""
        for method in self._methods.values():
            method.cut.is_reported = not is_on

    def outputs(self, method: str, rows: Rows) -> Outputs:
        """Returns the outputs of a method's network for token ids, as `rows.Network` has them, of all
        rows at once and in their order.

        Args:
          method: answer, classify, embed or fill_mask.
          rows: sequences, one or more, that fit the model's sizes.
        """
        return run(self._method(method).network, method, rows)

    def settings_of(self, method: str) -> Settings:
        """Returns the settings of a method: for int8, with the sequences that ranges were taken from."""
        return self._method(method).settings

    def answer(self, question: str, context: str) -> methods.Answer:
        """Returns the answer to a question: a stretch of the context, or '' for no answer."""
        return self.answers(question, context)[0]

    def answers(self, question: str, context: str) -> list[methods.Answer]:
        """Returns the answers of the n-best list, the one that is predicted first."""
        return self._method("answer")([(question, context)])[0]

    def answer_all(self, asked: Sequence[tuple[str, str]]) -> list[methods.Answer]:
        """Returns the answer to each (question, context); windows of all of them are batched by length."""
        return [found[0] for found in self._method("answer")(asked)]

    @overload
    def classify(self, a: str, b: str | None = None) -> methods.Label: ...

    @overload
    def classify(
        self, a: list[Any] | tuple[Any, ...], b: list[str] | tuple[str, ...] | None = None
    ) -> list[methods.Label]: ...

    def classify(self, a, b=None):
        """Returns the label, or the score, of a sentence or of a pair of them.

        Args:
          a: a sentence; or several, whose labels are a list: sentences, or pairs of them.
          b: the second sentence, or those of several.
        """
        if isinstance(a, str) and (b is None or isinstance(b, str)):
            return self._method("classify")([[a] if b is None else [a, b]])[0]
        return self._method("classify")(methods.text_rows(a, b))

    def classify_all(self, rows: Sequence[Sequence[str]]) -> list[methods.Label]:
        """Returns the label of each row of one or two texts; rows are batched by length."""
        return self._method("classify")(rows)

    @property
    def texts_of_a_row(self) -> int | None:
        """Number of texts of a row of `classify`, 1 or 2; None where nothing says it."""
        return self._method("classify").texts

    @property
    def kind_of_labels(self) -> str:
        """Kind of the labels that `classify` gives: one of many, several at once, or a number."""
        return self._method("classify").kind

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the outputs that `classify` gives; none where a model only counts them, as LABEL_0."""
        labels = methods.classes_of(self.source).labels
        return () if model_folder.are_numbered_labels(labels) else labels

    def embed(self, texts: str | Sequence[str], pooling: Pooling | None = None) -> np.ndarray:
        """Returns a vector for each text.

        Args:
          texts: some, or one.
          pooling: how the vectors of a text's tokens become one. Unset: as modules.json beside the checkpoint
            says, which is what sentence-transformers does with it; else the mean.

        Returns:
          float32 [N, D]; [D] of one text.
        """
        if isinstance(texts, str):
            return self._method("embed")([texts], pooling)[0]
        return self._method("embed")(list(texts), pooling)

    def fill_mask(self, text: str, top_k: int = TOP_WORDS) -> list[list[methods.Word]]:
        """Predicts the words of a text that stand as [MASK].

        Args:
          text: one sequence.
          top_k: words to return for each mask, 1 or more; at most those that there are.

        Returns:
          For each mask, in their order, [(word piece, probability)], likeliest first.

        Raises:
          ConfigError: also where the text has no mask, or more word pieces than the model has positions.
        """
        return self._method("fill_mask")([text], top_k)[0]

    def fill_masks(self, texts: Sequence[str], top_k: int = TOP_WORDS) -> list[list[list[methods.Word]]]:
        """Returns the predictions of `fill_mask` for each text; texts are batched by length."""
        return self._method("fill_mask")(texts, top_k)

    def _method(self, name: str) -> Any:
        """Returns the function that computes a method; it is made when it is first asked."""
        if name not in self._methods:
            self._methods[name] = methods.METHODS[name](*self._how)
        return self._methods[name]

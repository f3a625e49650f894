"""Loaded models and their methods: answer, classify, tag, embed and fill_mask. Each method turns texts into
token rows, rows into the network's outputs, and outputs into results."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import tensorflow as tf
from absl import logging
from scipy.special import softmax

from official.data.glue import files as glue_files
from official.data.glue import tasks
from official.data.rows.text_rows import encode
from official.data.squad import answers, features, squad_files
from official.data.tables import files as tables
from official.data.tables import labels as labels_lib
from official.data.tables import predictions
from official.data.tables import tags as tags_lib
from official.data.tables.labels import CHOICE, NUMBER, ONE, Labels
from official.data.tables.texts import wrong_text
from official.data.tables.vectors import normalized
from official.data.word_pieces.tokenizer import MASK, Tokenizer, tokenize_masked, tokenizer_of
from official.data.word_pieces.vocabulary import Vocabulary
from official.inference.backends import Settings, begin, build
from official.inference.rows import Outputs, Rows, batches_of, join, of_token_rows, run
from official.inference.signatures import TOP_WORDS
from official.inference.source import Source, Truncation, find
from official.io import files, model_folder, sentence_folder
from official.io.errors import ConfigError, counted
from official.io.sentence_folder import EmbeddingSettings

_CALIBRATION_BATCH = 16
_TABLES = (".json", ".jsonl", ".csv", ".parquet")  # not one text per line


class Method:
    """A method of a model: its network, and its inputs.

    For int8 the ranges of activations are taken from a file, or from the training data of the run if they
    still exist: for `answer` SQuAD's JSON, for `classify` one row per line with a tab between the texts of a
    pair, for the others one text per line.

    Attributes:
      settings: settings of the network; for int8 with the calibration sequences.
      network: network of the method's head.
      cut: reports truncated texts.
    """

    name: str
    __call__: Callable[..., Any]

    def __init__(self, source: Source, settings: Settings, calibration_file: str | None = None):
        """Builds the network. Raises ConfigError if the model has no head for the method."""
        source.check_can(self.name)
        self._source, self._bert, self._vocabulary = source, source.bert, source.vocabulary
        self._tokenizer = tokenizer_of(source.vocabulary)
        self.cut = Truncation(source.name)
        self._set_up(source)
        if settings.dtype == "int8" and not settings.calibration:
            rows = self._calibration_rows(calibration_file)
            starts = np.arange(_CALIBRATION_BATCH, len(rows.lengths_N), _CALIBRATION_BATCH)
            batches = [rows.pick(part) for part in np.split(np.arange(len(rows.lengths_N)), starts)]
            settings = dataclasses.replace(settings, calibration=batches)
        self.settings = settings
        self.network = build(source, self.name, settings)

    def _set_up(self, source: Source) -> None:
        """Sets the attributes of the method from the model. Called before the network is built."""

    def _calibration_rows(self, file: str | None) -> Rows:
        """Returns the sequences to calibrate the ranges of int8's activations with."""
        raise NotImplementedError

    def results(self, rows: Sequence[Any]) -> tuple[Any, np.ndarray]:  # an array is not a Sequence
        """Returns (the result of each row, bool [N]: whether a text of the row was too long and truncated).
        Texts with masked words that are too long are refused, and tagging uses windows."""
        return self(rows), np.zeros(len(rows), bool)

    def _outputs(self, rows: Rows) -> Outputs:
        return finite(run(self.network, self.name, rows), self._source.name)

    def _of_run(self, setting: str) -> str:
        """Returns the path in a file setting of the run. Raises ConfigError if the file no longer exists."""
        path = self._source.setting(setting, None)
        if path is None or not os.path.exists(path):
            what = f"{setting}={path} of its run does not exist"
            what = what if path else "the model does not name its training data"
            needs = "int8 needs data to calibrate the ranges of activations"
            raise ConfigError(f"{needs}, and {what}. Give --calibration_file=F.")
        return path


def finite(outputs: Outputs, name: str) -> Outputs:
    """Returns the outputs of a model. Raises ConfigError, beginning with its name, if some are NaN or
    infinite: the first label, or any word, would then be the most probable."""
    if wrong := [key for key, values in outputs.items() if not np.isfinite(values).all()]:
        problem = f"outputs NaN or infinite numbers ({wrong[0]})"
        raise ConfigError(f"{name} {problem}. Give --dtype=fp32, or an earlier checkpoint.")
    return outputs


def calibration_texts(path: str | None) -> list[str]:
    """Returns up to 128 lines of a calibration file, evenly spaced; one text per line. Raises ConfigError."""
    if not path:
        raise ConfigError("int8 needs texts to calibrate activations with. Give --calibration_file=F.")
    flag = f"--calibration_file={path}"
    lines = [line for line in files.read_text(path, flag).split("\n") if line.strip()]
    if not lines:
        raise ConfigError(f"{flag} has no text.")
    if path.lower().endswith(_TABLES):
        raise ConfigError(f"{flag} is a table. Expected one text a line, or two with a tab between them.")
    return _spread(lines)


def _spread(values: Sequence[Any]) -> list[Any]:
    """Returns at most 128 of the values, evenly spaced, beginning with the first."""
    count = min(len(values), 128)
    return [values[place] for place in np.linspace(0, len(values), count, endpoint=False).astype(int)]


# -----------------------------------------------------------------------------------------------------------
# Answers to questions about a context


class Answer(NamedTuple):
    """Answer to a question: a span of the context.

    Attributes:
      text: text of the span; '' for no answer.
      probability: its probability among the n-best answers, in [0, 1].
      start, end: character offsets of the span in the context, `end` exclusive; 0 and 0 for no answer.
    """

    text: str
    probability: float
    start: int = 0
    end: int = 0


def answer_rules(source: Source) -> tuple[features.WindowRules, answers.AnswerRules]:
    """Returns the settings with which a model splits contexts into windows and selects answers."""
    length = source.length(384)
    stride, query = source.setting("doc_stride", length // 3), source.setting("max_query_length", length // 6)
    if source.max_seq_length:  # the others are for another length
        stride, query = min(stride, length // 3), min(query, length // 2)
    windows = features.WindowRules(length, stride, query)
    names = "n_best_size", "max_answer_length", "version_2_with_negative", "null_score_diff_threshold"
    usual = answers.AnswerRules
    rules = usual(*(source.setting(name, getattr(usual, name)) for name in names))
    return windows, rules


class Reader(Method):
    """Extractive question answering, with the same answers as the predictions of --task=squad."""

    name = "answer"

    def _set_up(self, source: Source) -> None:
        source.check_pairs()
        self._windows, self._rules = answer_rules(source)
        self.cut = Truncation(f"{source.name}, questions", "max_query_length")

    def __call__(self, asked: Sequence[tuple[str, str]]) -> list[list[Answer]]:
        """Answers questions.

        Args:
          asked: pairs (question, context). A context of several questions is tokenized once.

        Returns:
          For each question the answers of its n-best list: the predicted one first, then the others, best
          first.
        """
        return self._answers(asked)[0]

    def results(self, rows: Sequence[tuple[str, str]]) -> tuple[list[Answer], np.ndarray]:
        """Returns (the answer to each question, bool [N]: whether the question was cut; contexts are not)."""
        found, is_cut_N = self._answers(rows)
        return [best for best, *_ in found], is_cut_N

    def _answers(self, asked: Sequence[tuple[str, str]]) -> tuple[list[list[Answer]], np.ndarray]:
        data, windows = self._windows_of(asked)
        longest = self._windows.max_query_length
        is_cut_N: np.ndarray = np.zeros(len(asked), bool)
        if (windows.first_lengths >= longest + 2).any():  # of maximum length, or truncated
            _, counts = self._tokenizer.tokenize([question for question, _ in asked])
            is_cut_N = counts > longest
            self.cut.report(int(is_cut_N.sum()), longest)
        is_token_NL = np.arange(windows.lengths.max(initial=1)) < windows.lengths[:, None]
        start_NL, end_NL = (np.zeros(is_token_NL.shape, np.float32) for _ in range(2))
        if len(windows):
            outputs = self._outputs(of_token_rows(windows.rows({})))
            start_NL[is_token_NL], end_NL[is_token_NL] = outputs["start_logits"], outputs["end_logits"]
        found = answers.answer_questions(start_NL, end_NL, windows, data, self._rules)
        return [answers_of(found, str(number)) for number in range(len(asked))], is_cut_N

    def _windows_of(
        self, asked: Sequence[tuple[str, str]]
    ) -> tuple[squad_files.SquadData, features.Features]:
        data = data_of(asked, self._rules.version_2_with_negative)
        return data, features.make_features(data, self._vocabulary, self._windows, self._tokenizer)

    def _calibration_rows(self, file: str | None) -> Rows:
        data = squad_files.read_squad(file or self._of_run("train_file"), "calibration_file", False, True)
        asked = [(one.text, data.contexts[one.context]) for one in _spread(data.questions)]
        return of_token_rows(self._windows_of(asked)[1].rows({}))


def answers_of(found: answers.Answers, identity: str) -> list[Answer]:
    """Returns the answers of the n-best list of a question, the prediction first, then the others."""
    # The sort is stable.
    best = sorted(found.nbest[identity], key=lambda entry: entry.text != found.predictions[identity])
    spans = found.spans[identity]
    return [Answer(entry.text, entry.probability, *spans.get(entry.text, (0, 0))) for entry in best]


def data_of(asked: Sequence[tuple[str, str]], with_negative: bool) -> squad_files.SquadData:
    """Returns questions in the form of a SQuAD file, sorted by context; a question's id is its index."""
    contexts = list(dict.fromkeys(context for _, context in asked))
    numbers = {context: number for number, context in enumerate(contexts)}
    questions = [
        squad_files.Question(str(number), question, numbers[context], (), (), False)
        for number, (question, context) in enumerate(asked)
    ]
    questions.sort(key=lambda question: question.context)
    return squad_files.SquadData("", "", False, with_negative, contexts, questions, {}, [])


# -----------------------------------------------------------------------------------------------------------
# Labels, or scores, of a sentence or of a pair of them


class Label(NamedTuple("_Label", [("label", str | None), ("score", float)])):
    """Prediction of a classifier or regression model for one row.

    Attributes:
      label: the most probable label; None for regression.
      score: the probability of `label`; for regression the first output.
      scores: {output name: probability, or score for regression}, in the order of the outputs.
    """

    scores: dict[str, float]

    def __new__(cls, label: str | None, score: float, scores: dict[str, float]):
        made = super().__new__(cls, label, score)
        made.scores = scores
        return made


class Classes(NamedTuple):
    """Inputs and outputs of a classifier.

    Attributes:
      texts: number of texts per row: 1 or 2, more for multiple choice; None if unknown.
      kind: kind of label, one of `labels.KINDS`.
      labels: names of the outputs.
    """

    texts: int | None
    kind: str
    labels: tuple[str, ...]


def classes_of(source: Source) -> Classes:
    """Returns the inputs and outputs of a model's classifier. A single output means regression, unless the
    model's configuration says that it is multi-label."""
    outputs, run = source.classes, source.run
    labels, texts = source.labels, None
    kind = model_folder.KIND_OF.get(str(source.problem_type), ONE)
    if run and run.task == "glue":
        task = tasks.find_task(run.glue_task)
        labels, kind, texts = task.labels, NUMBER if task.is_regression else ONE, len(task.text_columns)
    elif run and run.task == "classify":
        texts = len((run.text_columns or "text").split(","))
    kind = NUMBER if outputs == 1 and kind == ONE else kind
    names = labels or tuple(f"LABEL_{number}" for number in range(outputs))
    return Classes(texts, kind, names)


def text_rows(a: Sequence[Any], b: Sequence[str] | None = None) -> list[list[str]]:
    """Returns a list of texts for each row. `a` holds sentences, pairs or lists of texts; with `b`, `a` and
    `b` hold the first and the second sentences. Raises ConfigError for anything else."""
    if isinstance(a, str) or isinstance(b, str):
        raise ConfigError("one text and a list to classify: give two texts, or two lists of equal length.")
    if b is not None and len(a) != len(b):
        raise ConfigError(f"{len(a)} first and {len(b)} second texts to classify, expected equal numbers.")
    given: Any = a if b is None else zip(a, b)
    rows = [list(row) if isinstance(row, (list, tuple)) else [row] for row in given]
    for number, row in enumerate(rows):
        if not row or not all(isinstance(text, str) for text in row):
            raise ConfigError(f"row {number} to classify is {str(row)[:100]}, expected texts.")
    return rows


def rows_of(
    columns: Sequence[list[str]], tokenizer: Tokenizer, vocabulary: Vocabulary, length: int
) -> tuple[Rows, np.ndarray]:
    """Returns (token rows without padding, bool [N]: whether each row was truncated) for one column of texts,
    or for two columns of text pairs."""
    made, whole_lengths = encode(columns, tokenizer, vocabulary, length)
    return of_token_rows(made), made.lengths < whole_lengths


class Classifier(Method):
    """Text classification and regression, with the same predictions as --task=classify and glue.

    Attributes:
      texts: number of texts per row: 1 or 2, more for multiple choice; None if unknown.
      kind: kind of label, one of `labels.KINDS`.
    """

    name = "classify"

    def _set_up(self, source: Source) -> None:
        self.texts, self.kind, names = classes_of(source)
        self._length = source.length()
        is_one_number = self.kind == NUMBER and len(names) == 1
        self.labels = Labels(self.kind, () if is_one_number else names, source.thresholds)
        self._names = names

    def __call__(self, rows: Sequence[Sequence[str]]) -> list[Label]:
        """Returns the label of each row. Raises ConfigError if a row has another number of texts than the
        task."""
        return self.results(rows)[0]

    def results(self, rows: Sequence[Sequence[str]]) -> tuple[list[Label], np.ndarray]:
        """Returns (the label of each row, bool [N]: whether a text of the row was cut)."""
        logits_NC, is_cut_N = self.logits(rows)
        values_NC = labels_lib.probabilities(self.labels, logits_NC)
        return [self._label_of(values_C) for values_C in values_NC], is_cut_N

    def logits(self, rows: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns (logits of rows, float32 [N, C]; bool [N]: whether a text of the row was cut). A row of
        multiple choice is a text and C candidates."""
        sequences = self._sequences(rows)
        if self.kind == CHOICE and rows:
            made, is_cut = self._rows_of(sequences)
            shape = len(rows), -1
            return self._outputs(made)["logits"].reshape(shape), is_cut.reshape(shape).max(axis=1)
        found, is_cut_N = np.zeros((len(rows), self._source.classes), np.float32), np.zeros(len(rows), bool)
        for count in {len(texts) for texts in rows}:
            chosen = [number for number, texts in enumerate(rows) if len(texts) == count]
            made, is_cut_N[chosen] = self._rows_of([rows[number] for number in chosen])
            found[chosen] = self._outputs(made)["logits"]
        return found, is_cut_N

    def _sequences(self, rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
        """Returns the texts of each sequence of the rows; for multiple choice a pair per candidate. Raises
        ConfigError if a row has another number of texts than the task."""
        counts = {len(texts) for texts in rows}
        for count in counts:
            least, most = (3, count) if self.kind == CHOICE else (1, 2)
            if self.texts not in (None, count) or not least <= count <= most:
                allowed = "a text and two or more to choose from" if self.kind == CHOICE else "a text or two"
                expected = f"{self.texts} as in training" if self.texts else allowed
                raise ConfigError(f"{counted(count, 'text')} to classify, expected {expected}.")
            if count > 1:
                self._source.check_pairs()
        if self.kind != CHOICE:
            return rows
        if len(counts) > 1:
            received = " and ".join(map(str, sorted(counts)))
            raise ConfigError(f"rows with {received} texts, expected the same number in all rows.")
        return [[texts[0], choice] for texts in rows for choice in texts[1:]]

    def rows_of(self, texts: Sequence[Sequence[str]]) -> Rows:
        """Returns rows of texts, all with the same number of texts, as token rows without padding."""
        return self._rows_of(texts)[0]

    def _rows_of(self, texts: Sequence[Sequence[str]]) -> tuple[Rows, np.ndarray]:
        rows, is_cut_N = rows_of(
            list(map(list, zip(*texts))), self._tokenizer, self._vocabulary, self._length
        )
        self.cut.report(int(is_cut_N.sum()), self._length)
        return rows, is_cut_N

    def _label_of(self, values_C: np.ndarray) -> Label:
        best = 0 if self.kind == NUMBER else int(values_C.argmax())
        names = self._names if self.kind != CHOICE else [str(number + 1) for number in range(len(values_C))]
        scores = dict(zip(names, map(float, values_C)))
        return Label(None if self.kind == NUMBER else names[best], float(values_C[best]), scores)

    def _calibration_rows(self, file: str | None) -> Rows:
        if file:
            sequences = self._sequences([line.split("\t") for line in calibration_texts(file)])
            if len({len(texts) for texts in sequences}) > 1:
                raise ConfigError(
                    f"--calibration_file={file} has rows of 1 and 2 texts, expected the same number in all."
                )
            return self.rows_of(sequences)
        run = self._source.run
        if run is not None and run.task == "classify":
            columns = (run.text_columns or "text").split(",")
            table = tables.open_table(self._of_run("train_file"), "calibration_file", columns)
            batch = next(table.batches(columns))
            rows = _spread([row for row in zip(*batch.columns.values()) if not wrong_text(row)])
            return self.rows_of(self._sequences(rows))
        folder = self._of_run("data_dir")
        split = glue_files.read_split(tasks.find_task(run.glue_task), "train", folder)
        return self.rows_of(_spread([list(texts) for texts in zip(*split.texts)]))


# -----------------------------------------------------------------------------------------------------------
# Tags of words


class Tagger(Method):
    """Token classification, with the same predictions as --task=tag.

    Attributes:
      tags: names of the outputs.
      scheme: scheme of the tags, one of `tags.SCHEMES`.
    """

    name = "tag"

    def _set_up(self, source: Source) -> None:
        self.tags = source.labels or tuple(f"LABEL_{number}" for number in range(source.classes))
        self.scheme = tags_lib.scheme_of(self.tags)
        self._length = source.length()

    def __call__(self, texts: Sequence[str | list[str]]) -> list[list[dict]]:
        """Returns the entities of each text, or list of words, see `tags.entities`."""
        sentences = [tags_lib.sentence_of(text) for text in texts]
        called, chances = self.tag(sentences)
        parts = zip(sentences, called, chances)
        return [tags_lib.entities(*each, self.scheme) for each in parts]

    def tag(self, sentences: Sequence[tags_lib.Sentence]) -> tuple[list[list[str]], list[list[float]]]:
        """Returns the tags of the words of each sentence, and their probabilities."""
        windows, rows = self._windows_of(sentences)
        if not len(windows.lengths_N):
            return [[] for _ in sentences], [[] for _ in sentences]
        chances_TC = softmax(self._outputs(rows)["logits"], axis=-1)
        counts = [len(one.words) for one in sentences]
        called = windows.joined(chances_TC.argmax(axis=1), counts)
        chances = windows.joined(chances_TC.max(axis=1), counts)
        return [[self.tags[n] for n in own] for own in called], [own.tolist() for own in chances]

    def _windows_of(self, sentences: Sequence[tags_lib.Sentence]) -> tuple[tags_lib.Windows, Rows]:
        words = [one.words for one in sentences]
        windows = tags_lib.make_windows(words, self._tokenizer, self._vocabulary, self._length)
        return windows, Rows(windows.ids_T, np.zeros_like(windows.ids_T), windows.lengths_N)

    def _calibration_rows(self, file: str | None) -> Rows:
        if file:
            sentences = list(map(tags_lib.sentence_of, calibration_texts(file)))
        else:
            sentences = _spread(tags_lib.read_sentences(self._of_run("train_file"), "", False))
        return self._windows_of(sentences)[1]


# -----------------------------------------------------------------------------------------------------------
# Masked words


class Word(NamedTuple):
    """A word piece and its probability."""

    word: str
    probability: float


class Filler(Method):
    """Predicts masked words."""

    name = "fill_mask"

    def __call__(self, texts: Sequence[str], top_k: int = TOP_WORDS) -> list[list[list[Word]]]:
        """See `Model.fill_mask`; for several texts."""
        if top_k < 1:
            raise ConfigError(f"top_k={top_k}, expected 1 or more words for each mask.")
        if not texts:
            return []
        made = self.rows_of(texts)
        logits_MV = self._outputs(made)["logits"][:, : self._vocabulary.size]
        words, word_of = [], self._tokenizer.word_of
        for probabilities_V in map(softmax, logits_MV):
            best = np.argsort(-probabilities_V, kind="stable")[:top_k]
            words.append([Word(word_of(n), float(probabilities_V[n])) for n in best])
        ends: list[int] = made.masked_ends_N.tolist()
        return [words[first:last] for first, last in zip([0, *ends], ends)]

    def rows_of(self, texts: Sequence[str]) -> Rows:
        """Returns texts as token rows without padding. Raises ConfigError for one without a mask, or one
        that is too long."""
        ids = [self._ids_of(text) for text in texts]
        mask = self._vocabulary.special_ids.mask
        if not all(mask in ids_L for ids_L in ids):
            remedy = f"Write {MASK}, with its brackets and in capitals, in place of each word to predict."
            raise ConfigError(f"no {MASK} in the text. {remedy}")
        joined = join(ids)
        return joined._replace(masked_M=np.flatnonzero(joined.ids_T == mask).astype(np.int32))

    def _ids_of(self, text: str) -> np.ndarray:
        """Returns the ids [L] of a text with [CLS] and [SEP]."""
        special = self._vocabulary.special_ids
        pieces, _ = tokenize_masked(self._tokenizer, self._vocabulary, [text])
        ids_L = np.concatenate([[special.cls], pieces, [special.sep]]).astype(np.int32)
        if len(ids_L) > (most := self._bert.positions):
            received = f"{len(ids_L):,} word pieces with [CLS] and [SEP], the model takes at most {most:,}."
            raise ConfigError(f"{received} Shorten the text.")
        return ids_L

    def _calibration_rows(self, file: str | None) -> Rows:
        texts = calibration_texts(file)
        return self.rows_of([text if MASK in text else f"{text} {MASK}" for text in texts])


# -----------------------------------------------------------------------------------------------------------
# Vectors of texts
#
# Source: https://github.com/UKPLab/sentence-transformers, the modules Transformer, Pooling, Dense, Normalize.

ACTIVATIONS: dict[str, Callable[[Any], tf.Tensor]] = {
    "identity": tf.identity,
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "gelu": tf.nn.gelu,  # the exact form, with erf
    "silu": tf.nn.silu,
    "sigmoid": tf.sigmoid,
}


def embedding_settings(source: Source) -> EmbeddingSettings:
    """Returns the settings of a model's vectors, with the length that texts are cut to.

    Raises:
      ConfigError: if the files next to it need an unsupported feature.
    """
    saved = sentence_folder.read_settings(source.location, source.vocabulary.do_lower_case)
    settings = saved or EmbeddingSettings()
    length = min(settings.max_seq_length or source.length(), source.bert.positions)
    return dataclasses.replace(settings, max_seq_length=source.max_seq_length or length)


class Embedded(NamedTuple):
    """Vectors of texts.

    Attributes:
      vectors_ND: float32.
      tokens_N: number of tokens of each text, with [CLS] and [SEP].
      is_cut_N: bool: whether a text was truncated.
    """

    vectors_ND: np.ndarray
    tokens_N: np.ndarray
    is_cut_N: np.ndarray


class Embedder(Method):
    """Computes vectors of texts.

    Attributes:
      embedding: the settings of the model's folder.
      size: size of the vectors.
    """

    name = "embed"

    def _set_up(self, source: Source) -> None:
        self.embedding = embedding_settings(source)
        self.size = self.embedding.size(self._bert.hidden_size)
        self._dense = [(*each.weights(), ACTIVATIONS[each.activation]) for each in self.embedding.dense]
        self._has_told_prompts = False

    def __call__(
        self, texts: Sequence[str], settings: EmbeddingSettings | None = None, prompt: str | None = None
    ) -> Embedded:
        """Returns the vectors of texts, each with a prompt in front; None: the default one. Even with
        settings other than the folder's, Dense modules are those of the folder."""
        settings = settings or self.embedding
        if prompt is None:
            self.report_prompts()
            prompt = settings.prompt()
        rows, cut = self.rows_of(texts, settings, prompt)
        self.cut.report(int(cut.sum()), self.length_of(settings))
        return Embedded(self.vectors_of(rows, settings), rows.lengths_N, cut)

    def report_prompts(self) -> None:
        """Logs once that the folder has prompts, none of which is used."""
        named = [name for name, text in self.embedding.prompts.items() if text]
        if named and self.embedding.default_prompt_name is None and not self._has_told_prompts:
            self._has_told_prompts = True
            warning = "%s has prompts (%s) but no default: texts get no prompt, unless a prompt_name"
            logging.warning(f"{warning} is given. This is logged once.", self._source.name, ", ".join(named))

    def length_of(self, settings: EmbeddingSettings) -> int:
        """Returns the maximum length of a text in tokens."""
        positions = self._bert.positions
        return min(settings.max_seq_length or self.embedding.max_seq_length or positions, positions)

    def rows_of(
        self, texts: Sequence[str], settings: EmbeddingSettings, prompt: str = ""
    ) -> tuple[Rows, np.ndarray]:
        """Returns (rows [CLS] text [SEP] without padding, bool [N]: whether the text was truncated). Raises
        ConfigError for anything but text, such as the None or NaN of an empty cell."""
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ConfigError(f"text {number} to embed is {str(text)[:60]}, expected a text.")
        given = [
            sentence_folder.lower_cased(prompt + text) if settings.lower_case else prompt + text
            for text in texts
        ]
        return rows_of([given], self._tokenizer, self._vocabulary, self.length_of(settings))

    def results(self, rows: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns (the vector of each text, bool [N]: whether it was cut)."""
        found = self(rows)
        return found.vectors_ND, found.is_cut_N

    def vectors_of(self, rows: Rows, settings: EmbeddingSettings) -> np.ndarray:
        """Returns the vectors of rows, float32 [N, D]. Token vectors of only one batch are in memory."""
        vectors_ND = np.empty((len(rows.lengths_N), self._bert.hidden_size), np.float32)
        for batch in batches_of(rows.lengths_N):
            part = rows.pick(batch)
            vectors_ND[batch] = self._pooled(self.network(part)["sequence"], part, settings.pooling)
        for kernel_IO, bias_O, activation in self._dense:
            vectors_ND = activation(vectors_ND @ kernel_IO + bias_O).numpy()
        finite({"vectors": vectors_ND}, self._source.name)
        return (normalized(vectors_ND) if settings.normalize else vectors_ND).astype(np.float32)

    def _pooled(self, sequence_TD: Any, rows: Rows, pooling: str) -> np.ndarray:
        if pooling == "cls":
            return tf.gather(sequence_TD, rows.firsts_N).numpy()
        # On the device of the vectors, of which only a small part has to leave it.
        pool = tf.math.segment_max if pooling == "max" else tf.math.segment_mean
        return pool(sequence_TD, np.repeat(np.arange(len(rows.lengths_N)), rows.lengths_N)).numpy()

    def _calibration_rows(self, file: str | None) -> Rows:
        return self.rows_of(calibration_texts(file), self.embedding, self.embedding.prompt())[0]


METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Reader, Classifier, Tagger, Embedder, Filler)
}


# -----------------------------------------------------------------------------------------------------------
# Models


def load(
    path: str | os.PathLike[str],
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    backend: str = "tensorflow",
    dtype: str = "fp32",
    calibration_file: str | None = None,
    threads: int | None = None,
    max_seq_length: int | None = None,
) -> "Model":
    """Loads a model.

    Args:
      path, vocab_file, do_lower_case, max_seq_length: see `source.find`.
      backend: library that computes the model, one of `backends.names()`.
      dtype: type of matrix products: fp32, bf16 or int8.
      calibration_file: texts to calibrate int8's activation ranges with, see `Method`. Unset: the training
        data of the run.
      threads: number of threads for matrix products; unset: one per core. TensorFlow has one number per
        process, so set it before the process computes anything.

    Raises:
      ConfigError: for a path that cannot be loaded, an unknown back end, or a type that it does not support.
    """
    settings = Settings(backend, dtype, threads)
    begin(settings)
    found = find(path, vocab_file, do_lower_case, max_seq_length=max_seq_length)
    return Model(found, settings, calibration_file)


class Model:
    """A loaded model with its tokenizer. The network of a method is built at the first call of the method.

    Every method raises ConfigError if the model has no head for it, or if its weights cannot be read.
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
        """Builds the network of a method, so that its first call does not wait for it.

        Args:
          method: answer, classify, embed or fill_mask.
        """
        self._method(method)

    def report_cuts(self, is_on: bool) -> None:
        """Switches the warning about truncated texts on (once from now) or off, for all built methods."""
        for method in self._methods.values():
            method.cut.is_reported = not is_on

    def results(self, method: str, rows: Sequence[Any]) -> tuple[Any, np.ndarray]:
        """Returns (the result of each row of a method, bool [N]: whether a text of the row was cut). Rows
        are questions with contexts, lists of texts, or texts."""
        return self._method(method).results(rows)

    def outputs(self, method: str, rows: Rows) -> Outputs:
        """Returns the outputs of a method's network for token ids, in the form of `rows.Network`. All rows
        are computed in one batch.

        Args:
          method: answer, classify, embed or fill_mask.
          rows: sequences, one or more, that fit the model's sizes.
        """
        return finite(run(self._method(method).network, method, rows), self.source.name)

    def settings_of(self, method: str) -> Settings:
        """Returns the settings of a method, which for int8 include the calibration sequences."""
        return self._method(method).settings

    def answer(self, question: str, context: str) -> Answer:
        """Returns the answer to a question: a span of the context, or '' for no answer."""
        return self.answers(question, context)[0]

    def answers(self, question: str, context: str) -> list[Answer]:
        """Returns the answers of the n-best list, the predicted one first."""
        return self._method("answer")([(question, context)])[0]

    def answer_all(self, asked: Sequence[tuple[str, str]]) -> list[Answer]:
        """Returns the answer to each (question, context). Windows are batched by length."""
        return [found[0] for found in self._method("answer")(asked)]

    @overload
    def classify(self, a: str, b: str | None = None) -> Label: ...

    @overload
    def classify(
        self, a: list[Any] | tuple[Any, ...], b: list[str] | tuple[str, ...] | None = None
    ) -> list[Label]: ...

    def classify(self, a, b=None):
        """Classifies a sentence, a pair of sentences, or several of them.

        Args:
          a: a sentence, or a list of sentences or pairs.
          b: the second sentence, or the list of second sentences.

        Returns:
          `Label`; for a list of inputs, a list of `Label`.
        """
        if isinstance(a, str) and (b is None or isinstance(b, str)):
            return self._method("classify")([[a] if b is None else [a, b]])[0]
        return self._method("classify")(text_rows(a, b))

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the outputs of `classify`; () if they are only numbered, as LABEL_0."""
        labels = classes_of(self.source).labels
        return () if model_folder.are_numbered_labels(labels) else labels

    def tag(self, texts: str | Sequence[str]) -> list[Any]:
        """Returns the entities of a text, or a list of entities per text: {type, text, start, end,
        probability}, with character offsets, `end` exclusive."""
        return self._method("tag")([texts])[0] if isinstance(texts, str) else self._method("tag")(list(texts))

    def predict(self, texts: Sequence[Any]) -> list[Any]:
        """Returns the prediction for each text or row of texts, by the task that the model was fine-tuned
        for: a `Label`, a list of entities, or the `Answer` to a (question, context)."""
        task = self.task
        if task == "answer":
            return self.answer_all(list(texts))
        return self.tag(list(texts)) if task == "tag" else self.classify(list(texts))

    @property
    def task(self) -> str:
        """The method that the model was fine-tuned for: answer, classify or tag. Raises ConfigError if it has
        no such head."""
        can = self.source.abilities()
        found = next((method for method in ("tag", "classify", "answer") if method in can), None)
        if found is None:
            problem = "it has no head for labels, tags or answers"
            raise ConfigError(f"{self.source.name}: {problem}. Give a run of --task=classify, tag or squad.")
        return found

    def columns_of(
        self,
        rows: Sequence[Sequence[str]],
        all_probabilities: bool = False,
        choices: Sequence[str] = (),
    ) -> dict[str, list]:
        """Returns the columns that `bert predict` adds to rows of texts, {column: values}: label and
        probability, labels (JSON), score, entities (JSON), or answer and probability. For `choices` see
        `predictions.columns_of`."""
        if self.task == "classify":
            method = self._method("classify")
            return predictions.columns_of(method.labels, method.logits(rows)[0], all_probabilities, choices)
        if self.task == "tag":
            found = self._method("tag")([row[0] for row in rows])
            return {"entities": list(map(tags_lib.entities_json, found))}
        found = self.answer_all([(question, context) for question, context in rows])
        return {"answer": [one.text for one in found], "probability": [one.probability for one in found]}

    def tagged_words(self, rows: Sequence[Sequence[Any]]) -> dict[str, list]:
        """Returns the words and tags of each row, {tokens: lists, tags: lists}. A row has one text, or one
        list of words."""
        sentences = [tags_lib.sentence_of(row[0]) for row in rows]
        called, _ = self._method("tag").tag(sentences)
        return {"tokens": [one.words for one in sentences], "tags": called}

    def embed(
        self,
        texts: str | Sequence[str],
        settings: EmbeddingSettings | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray:
        """Returns the embeddings of texts.

        Args:
          texts: a text, or a sequence of texts.
          settings: pooling, normalization and length. Unset: those of the sentence-transformers files in the
            folder of the checkpoint, otherwise the mean of the token vectors.
          prompt: text to prepend to each text. Unset: that of `prompt_name`.
          prompt_name: name of a prompt of the folder, such as query or passage. Unset: its default prompt.

        Returns:
          float32 [N, D]; [D] for a single text.
        """
        text: str | None = None
        if prompt is not None or prompt_name is not None:
            text = (settings or self.embedder.embedding).prompt(prompt, prompt_name)
        if isinstance(texts, str):
            return self.embedder([texts], settings, text).vectors_ND[0]
        return self.embedder(list(texts), settings, text).vectors_ND

    @property
    def embedder(self) -> Embedder:
        """The method behind `embed`, with its settings. It also returns token counts and truncated texts."""
        return self._method("embed")

    def fill_mask(self, text: str, top_k: int = TOP_WORDS) -> list[list[Word]]:
        """Predicts the word at each [MASK] of a text.

        Args:
          text: a text with one or more [MASK].
          top_k: number of words to return per mask, 1 or more.

        Returns:
          For each mask, in the order of the text, a list of (word piece, probability), most probable first.

        Raises:
          ConfigError: also if the text has no mask, or more word pieces than the model has positions.
        """
        return self._method("fill_mask")([text], top_k)[0]

    def _method(self, name: str) -> Any:
        """Returns the object that computes a method, built at the first call."""
        if name not in self._methods:
            self._methods[name] = METHODS[name](*self._how)
        return self._methods[name]

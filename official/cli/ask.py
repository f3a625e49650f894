"""`bert ask`, `classify`, `tag`, `predict` and `fill-mask`: predictions for typed text and for tables."""

from __future__ import annotations

import argparse
import codecs
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from official.cli import command_line
from official.cli.command_line import LengthFlag, LowerCaseFlag
from official.io import files, streams
from official.io.errors import ConfigError, counted, report_error

if TYPE_CHECKING:
    from official.inference import Model, backends
    from official.inference.methods import Label


# -----------------------------------------------------------------------------------------------------------
# The model that the flags name, and lines of stdin


MAX_LINE = 2**24


class CheckpointFlags(LowerCaseFlag):
    """Flags that name the model to load.

    Attributes:
      checkpoint: A run's folder (--model_dir), or a checkpoint of any known format: file, prefix or folder.
      vocab_file: Vocabulary. Unset: the one in the folder of the checkpoint or run.
    """

    checkpoint: str
    vocab_file: str | None = None


class InferenceFlags(command_line.Flags):
    """Flags that say how a model computes.

    Attributes:
      backend: Library that computes the model: tensorflow, onnxruntime or openvino.
      dtype: Type of matrix products: fp32, bf16 or int8.
      threads: Number of threads for matrix products. Unset: one per core.
      calibration_file: Texts to calibrate the activation ranges of int8 with: SQuAD's JSON for a SQuAD model,
        else one text per line, or pairs separated by a tab. Unset: the training data of the run, if it still
        exists.
    """

    backend: str = "tensorflow"
    dtype: str = "fp32"
    threads: int | None = None
    calibration_file: str | None = None


class ModelFlags(CheckpointFlags, InferenceFlags):
    """Flags of the commands here."""


def begin(flags: argparse.Namespace) -> backends.Settings:
    """Checks the flags for back end and type, and sets the threads. Raises ConfigError."""
    from official.inference import backends

    if flags.calibration_file and flags.dtype != "int8":
        raise ConfigError(f"--calibration_file is for --dtype=int8, not for --dtype={flags.dtype}.")
    settings = backends.Settings(flags.backend, flags.dtype, flags.threads)
    backends.begin(settings)
    return settings


def how(flags: argparse.Namespace) -> list:
    """Returns the flags that change outputs, as JSON values. A job resumes only if they are equal."""
    calibration = files.digest([flags.calibration_file]) if flags.calibration_file else None
    return [flags.backend, flags.dtype, *([calibration] if calibration else [])]


def load(flags: argparse.Namespace) -> Model:
    """Loads the model that the flags name. Raises ConfigError."""
    from official.inference import Model, source

    settings = begin(flags)
    length = getattr(flags, "max_seq_length", None)
    found = source.find(flags.checkpoint, flags.vocab_file, flags.do_lower_case, "checkpoint", length)
    return Model(found, settings, flags.calibration_file)


def lines(prompt: str) -> Iterator[tuple[int, bytes]]:
    """Yields (number, bytes) of each line of stdin, stripped, until the reader of the output ends. Drops a
    byte order mark; on a terminal, shows the prompt and skips blank lines. Raises ConfigError for a line of
    MAX_LINE bytes or more, such as from a device without line ends."""
    if sys.stdin is None:  # closed
        return
    is_terminal = sys.stdin.isatty()
    stream = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
    for number in itertools.count(1):
        if streams.is_unread():
            return
        if is_terminal:
            print(prompt, end="", flush=True)
        line = stream.readline(MAX_LINE)
        if len(line) == MAX_LINE:
            raise ConfigError(
                f"a line of the input has {MAX_LINE:,} characters or more. Give one text per line."
            )
        if not line:
            return
        line = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip()
        if line or not is_terminal:
            yield number, line


def answer_each(
    prompt: str,
    answer: Callable[[str], str],
    unusable: Callable[[bytes, ConfigError | None], str | None] = lambda line, error: None,
    nothing: str = "",
) -> int:
    """Prints an answer to each line of stdin. Reports unusable lines on stderr and continues with the others.

    Args:
      prompt: shown on a terminal.
      answer: text -> output for it.
      unusable: (line, error; None for a blank line) -> output in place of an answer; None: no output.
      nothing: message of the ConfigError if every line is blank; empty: none is raised.

    Returns:
      The exit code: 2 if a line could not be used.
    """
    code, is_asked = 0, False
    for number, line in lines(prompt):
        error, is_asked = None, is_asked or bool(line)
        try:
            printed = answer(line.decode()) if line else unusable(line, None)
        except (ConfigError, UnicodeDecodeError) as found:
            error, code = found, 2
            if isinstance(error, UnicodeDecodeError):
                error = ConfigError(f"not UTF-8 text ({error.reason} at byte {error.start}).")
            printed = unusable(line, error)
        if error:
            report_error(command_line.program(), f"line {number}: {error}")
        if printed is not None:
            print(printed, flush=True)
    if nothing and not is_asked:
        raise ConfigError(nothing)
    return code


# -----------------------------------------------------------------------------------------------------------
# bert ask


class Ask(ModelFlags, LengthFlag):
    """Answers typed questions about a text, with a model that was fine-tuned on SQuAD.

      bert ask --checkpoint=runs/squad --context=text.txt
      echo "Who was first?" | bert ask --checkpoint=runs/squad --context=text.txt --answers=3

    Reads one question per line until the end of input. Each answer is printed with its probability among the
    answers of the n-best list. Lines that cannot be used are named on stderr, and the exit code is 2; the
    others are answered.

    Attributes:
      context: File with the text to search for answers, UTF-8.
      answers: Number of answers to show per question.
    """

    RANGES = {"answers": command_line.COUNT}
    context: str
    answers: int = 1


def read_context(path: str) -> str:
    """Returns the text of a file. Raises ConfigError where there is none."""
    text = files.read_text(path, f"--context={path}")
    if not text.strip():
        raise ConfigError(f"--context={path} has no text.")
    return text


def run_ask() -> int:
    flags = Ask.parse()
    context = read_context(flags.context)
    model = load(flags)
    model.prepare("answer")

    def answer(question: str) -> str:
        found = model.answers(question, context)[: flags.answers]
        texts = [" ".join(each.text.split()) or "(no answer)" for each in found]
        return "\n".join(f"{text}  {each.probability:.2f}" for text, each in zip(texts, found))

    return answer_each("question> ", answer)


# -----------------------------------------------------------------------------------------------------------
# bert classify


class Classify(ModelFlags, LengthFlag):
    """Labels typed sentences, or pairs of them, with a fine-tuned classifier.

      bert classify --checkpoint=runs/sst2
      echo "A fine film." | bert classify --checkpoint=runs/sst2
      bert classify --checkpoint=runs/sst2 --all_probabilities < sentences.txt > labels.txt

    Reads one sentence per line, or two separated by a tab for tasks with pairs, until the end of input.
    Prints one line per line of a file. It is blank if the input line is blank or cannot be used; the latter
    is named on stderr with its number, and the exit code is 2. For multi-label and regression models all
    labels or scores are printed.

    Attributes:
      all_probabilities: Print every label with its probability, the highest first, instead of only the most
        probable one.
    """

    all_probabilities: bool = False


def run_classify() -> int:
    flags = Classify.parse()
    from official.inference.methods import classes_of

    model = load(flags)
    model.prepare("classify")
    classes = classes_of(model.source)

    def answer(line: str) -> str:
        found = model.classify([line.split("\t")])[0]
        return shown_label(found, classes.kind, flags.all_probabilities)

    prompt = "sentence<TAB>sentence> " if classes.texts == 2 else "sentence> "
    return answer_each(prompt, answer, lambda line, error: "")


def shown_label(found: Label, kind: str, shows_all: bool = False) -> str:
    """Returns the output line: the label and its probability, or the score. For multi-label models and
    several scores, or with `shows_all`: all names and values, the highest probability first."""
    is_one = kind == "one" or len(found.scores) == 1 and kind == "number"
    if is_one and not (shows_all and len(found.scores) > 1):
        return f"{found.score:.2f}" if found.label is None else f"{found.label}  {found.score:.2f}"
    digits, order = 4 if shows_all else 2, (lambda item: 0) if kind == "number" else (lambda item: -item[1])
    return "  ".join(f"{name} {score:.{digits}f}" for name, score in sorted(found.scores.items(), key=order))


# -----------------------------------------------------------------------------------------------------------
# bert tag


class Tag(ModelFlags, LengthFlag):
    """Tags the words of typed sentences, with a model that was fine-tuned with --task=tag.

      bert tag --checkpoint=runs/names
      echo "Anna lives in Berlin." | bert tag --checkpoint=runs/names --json

    Reads one text per line until the end of input. Prints one line per text: its entities with their types
    and probabilities, or a blank line.

    Attributes:
      json: Print the entities as JSON, with character offsets.
    """

    json: bool = False


def run_tag() -> int:
    flags = Tag.parse()
    model = load(flags)
    model.prepare("tag")

    def answer(line: str) -> str:
        found = model.tag(line)
        if flags.json:
            return as_json_line(found)
        return "  ".join(f"{one['text']} {one['type']} {one['probability']:.2f}" for one in found)

    return answer_each("text> ", answer, lambda line, error: "")


# -----------------------------------------------------------------------------------------------------------
# bert predict


class Predict(ModelFlags, LengthFlag):
    """Predicts for every row of a table, and writes the table with columns of predictions added.

      bert predict --checkpoint=runs/tickets --input_file=new.csv --output_file=out.csv

    The columns are label and probability for a classifier, labels (JSON) for a multi-label model, score for
    regression, entities (JSON, with character offsets) for a tagger, answer and probability for SQuAD. A
    killed command resumes where it was.

    Attributes:
      input_file: CSV, TSV, JSON lines, Parquet, a folder written by datasets' save_to_disk; globs, compressed
        files. For a tagger also CoNLL, one word per line, in files named .conll.
      output_file: CSV, TSV, JSON lines or Parquet, by its suffix. For a tagger also .conll: a word and its
        tag per line, an empty line after each row.
      text_columns: Columns with the texts. Unset: those that the run was trained with, or text; for SQuAD
        question,context.
      all_probabilities: Also write a column probability_LABEL for every label.
      overwrite: Replace an existing --output_file.
    """

    input_file: str
    output_file: str
    text_columns: str | None = None
    all_probabilities: bool = False
    overwrite: bool = False


def run_predict() -> None:
    flags = Predict.parse()
    from official.data.tables import predictions, tags
    from official.data.tables.files import open_table
    from official.inference.methods import classes_of
    from official.inference.predict_file import predict_file

    ending = predictions.check_format(flags.output_file)
    model = load(flags)
    task = model.task
    usual = {"answer": "question,context"}.get(task, "text")
    columns = (flags.text_columns or model.source.setting("text_columns", None) or usual).split(",")
    if flags.all_probabilities and (task != "classify" or classes_of(model.source).kind == "number"):
        can = f"can {task}" if task != "classify" else "gives numbers"
        raise ConfigError(f"--all_probabilities is for classifiers, and the model {can}. Drop it.")
    is_conll = task == "tag" and tags.is_conll(flags.input_file)
    columns = ["tokens"] if is_conll and flags.text_columns is None else columns
    if is_conll and columns != ["tokens"]:
        raise ConfigError(f"--text_columns={flags.text_columns}: CoNLL files have only tokens. Drop it.")
    count = {"answer": 2, "tag": 1}.get(task, len(columns))
    if len(columns) != count:
        received = f"{counted(len(columns), 'column')} ({','.join(columns)})"
        raise ConfigError(f"--text_columns: {received}, the model can {task} of {count}.")
    by_word = ending == predictions.CONLL
    if by_word and task != "tag":
        raise ConfigError(f"--output_file={flags.output_file}: .conll is for tags, and the model can {task}.")
    if is_conll:
        table = tags.open_conll(flags.input_file, "input_file")
    else:
        table = open_table(flags.input_file, "input_file", columns, all_columns=True)
    model.prepare(task)
    identity = {
        "model": model.source.digest(),
        "how": [*how(flags), flags.max_seq_length, flags.all_probabilities],
    }

    def predict(texts: list[list[str]]) -> dict[str, list]:
        return model.columns_of(texts, flags.all_probabilities, columns[1:])

    rows = predict_file(
        model.tagged_words if by_word else predict,
        table,
        columns,
        flags.output_file,
        identity,
        flags.overwrite,
        with_words=task == "tag",
    )
    print(f"{flags.output_file}: {rows:,} rows")


# -----------------------------------------------------------------------------------------------------------
# bert fill-mask


class FillMask(ModelFlags):
    """Predicts the words at [MASK] in typed text, with any checkpoint that has a masked-LM head.

      echo "the capital of france is [MASK]." | bert fill-mask --checkpoint=runs/mine
      bert fill-mask --checkpoint=bert-base-uncased --top_k=3 --json < lines.txt

    Reads one text per line until the end of input. Prints one line per [MASK]: the most probable words with
    their probabilities. Lines that cannot be used are named on stderr, and the exit code is 2; the others
    are answered.

    Attributes:
      top_k: Number of words to show per mask.
      json: Print a JSON object for each text: {text, masks: [[{word, probability}]]}, or {text, error}.
    """

    RANGES = {"top_k": command_line.COUNT}
    top_k: int = 5
    json: bool = False


def shown_masks(text: str, masks: Sequence[Sequence[tuple[str, float]]], as_json: bool) -> str:
    """Returns the output for a text: a line of words for each mask, or one JSON object."""
    if as_json:
        named = [[{"word": word, "probability": share} for word, share in words] for words in masks]
        return as_json_line({"text": text, "masks": named})
    return "\n".join(
        "  ".join(f"{word} {share:.3f}" if share >= 0.001 else f"{word} {share:.1e}" for word, share in words)
        for words in masks
    )


def as_json_line(values: dict | list) -> str:
    """Returns values as one line of JSON, escaped to ASCII where stdout cannot encode all letters."""
    return json.dumps(values, ensure_ascii=not streams.has_all_letters())


def run_fill_mask() -> int:
    flags = FillMask.parse()
    model = load(flags)
    model.prepare("fill_mask")

    def answer(text: str) -> str:
        return shown_masks(text, model.fill_mask(text, flags.top_k), flags.json)

    def unusable(line: bytes, error: ConfigError | None) -> str | None:
        values = {"text": line.decode(errors="replace"), "error": str(error)}
        return as_json_line(values) if flags.json and error else None

    return answer_each("text> ", answer, unusable, "no text on stdin. Give lines with [MASK] in them.")

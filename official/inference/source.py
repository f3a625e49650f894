"""Model at a path: its tensors, sizes, vocabulary, and the settings of its training."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint import canonical, naming_unreadable, sidecar_files
from official.checkpoint.containers import saved_model
from official.checkpoint.formats import Options
from official.checkpoint.tensors import Tensor, Tensors
from official.config import BertConfig, ConfigError, bert_config_from_dict
from official.config.derived import VOCABULARY_ROUNDING, is_padded, is_vocabulary_of
from official.config.model import is_hugging_face
from official.config.setting import FINE_TUNING
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary, load_for_text
from official.inference.signatures import output_names
from official.io import files, json_files, model_folder, vocabulary_files
from official.io.files import expanded
from official.modeling.layers import computing_in
from official.modeling.models import BertEncoder, MaskedLMModel, SequenceModel, SpanModel, TagModel

SHORTEST = 3  # tokens: [CLS], one word piece, [SEP]
# {method of a model: (what it needs, weights of its head, how such a model is made)}
_CLASSIFIER = (*canonical.CLASSIFIER_HEAD, *canonical.POOLER)
_MASKED_LM = (*canonical.TRANSFORM, canonical.OUTPUT_BIAS)
HEADS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "answer": ("head for answers", canonical.SQUAD_HEAD, "fine-tuned with --task=squad"),
    "classify": ("classifier", _CLASSIFIER, "fine-tuned with --task=classify or glue"),
    "tag": ("classifier of words", canonical.CLASSIFIER_HEAD, "fine-tuned with --task=tag"),
    "fill_mask": ("masked-LM head", _MASKED_LM, "pre-trained with its head kept"),
    "embed": ("encoder", (), ""),
}
# {method: stages that its outputs do not need}
TAGS = model_folder.PROBLEM_TYPE_OF["tag"]
UNUSED_STAGES = {"embed": ("pooler",)}


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint with its vocabulary and settings, before a network is built.

    Attributes:
      name: how messages call the model: the path as the user gave it, with the flag if there is one.
      location: prefix, folder or file of the checkpoint.
      tensors: the weights, under canonical names, read on demand.
      bert: the model's sizes.
      vocabulary: the vocabulary; the model's embeddings may have a few rows more.
      run: configuration of the fine-tuning run; None for other checkpoints.
      labels: names of a classifier's outputs; None if unknown.
      problem_type: a value of `model_folder.PROBLEM_TYPE_OF` for classifiers; None if unknown.
      thresholds: for multi-label classifiers: the minimum probability of each label; () means 0.5 for all.
      max_seq_length: maximum length in tokens that the user asked for; None: see `length`.
      vocab_file: path of the vocabulary.
    """

    name: str
    location: str
    tensors: Tensors
    bert: BertConfig
    vocabulary: Vocabulary
    run: Any
    labels: tuple[str, ...] | None
    problem_type: str | None = None
    thresholds: tuple[float, ...] = ()
    max_seq_length: int | None = None
    vocab_file: str = ""

    def setting(self, name: str, default: Any) -> Any:
        """Returns a setting of the run, or `default` if there is no run."""
        return default if self.run is None else self.run[name]

    def length(self, usual: int | None = None) -> int:
        """Returns the maximum length of a sequence in tokens: the user's `max_seq_length`, otherwise the
        run's, otherwise the maximum of tokenizer and positions.

        Args:
          usual: upper limit of the last case; None: no limit.
        """
        positions = self.bert.positions
        most = min(self.vocabulary.max_length or positions, positions, usual or positions)
        return self.max_seq_length or self.setting("max_seq_length", most)

    def check_pairs(self) -> None:
        """Raises ConfigError if the model does not support text pairs."""
        if why := self.bert.why_no_pairs(self.vocabulary.marks_pairs):
            raise ConfigError(f"{self.name} has {why}")

    @property
    def classes(self) -> int:
        """Number of a classifier's outputs; 0 without one."""
        return self.tensors["output_weights"].shape[0] if "output_weights" in self.tensors else 0

    def digest(self) -> str:
        """Returns a digest of the model's files (names, sizes, times) and settings."""
        folder = model_folder.folder_of(self.location)
        prefix = os.path.basename(self.location)
        names = sorted(os.listdir(folder))
        own = [name for name in names if self.location == folder or name.startswith(prefix)]
        found = [(name, *files.version(os.path.join(folder, name))) for name in own]
        text = self.vocabulary.sha256, self.vocabulary.do_lower_case, self.max_seq_length
        settings = [*text, self.labels, self.problem_type, self.thresholds]
        return hashlib.sha256(repr([found, settings]).encode()).hexdigest()

    def abilities(self) -> list[str]:
        """Returns the names of the methods that the model has a head for."""
        other = "classify" if self.problem_type == TAGS else "tag"
        found = {name for name in HEADS if all(part in self.tensors for part in self._head_of(name))}
        return [name for name in HEADS if name in found - {other}]

    def _head_of(self, method: str) -> tuple[str, ...]:
        """Returns the names of the weights of a method's head."""
        _, head, _ = HEADS[method]
        if not head or not self.bert.family_row.has_prediction_head:
            return head
        others = (*canonical.POOLER, *canonical.TRANSFORM)
        return (*(name for name in head if name not in others), *canonical.PREDICTION_HEAD)

    def check_can(self, method: str) -> None:
        """Raises ConfigError if the model has no head for a method."""
        what, _, origin = HEADS[method]
        if missing := [name for name in self._head_of(method) if name not in self.tensors]:
            can = f"so it cannot {method}; it can {', '.join(self.abilities())}. Give one that was {origin}."
            can = can.replace("fill_mask", "fill masks")
            raise ConfigError(f"{self.name} has no {what} ({missing[0]} is missing), {can}")
        if method not in self.abilities():
            can = ", ".join(self.abilities())
            raise ConfigError(f"{self.name} has no {what}: its classifier has another kind. It can {can}.")

    def fill(self, model: tf.keras.layers.Layer, copies: Mapping[str, tf.Variable] | None = None) -> None:
        """Assigns the checkpoint's weights to the variables of a model, which need no values before, or in
        their place to copies in another type, {name of the variable: copy}. A missing pooler becomes zero.

        Raises:
          ConfigError: if weights are missing, not finite, or cannot be read.
        """
        for variable in model.variables:
            name, copy = name_of(variable), (copies or {}).get(variable.name, variable)
            is_known = name in self.tensors or name not in canonical.POOLER
            copy.assign(tf.cast(self.values(name) if is_known else tf.zeros(variable.shape), copy.dtype))

    def values(self, name: str) -> np.ndarray:
        """Returns a weight in float32. Raises ConfigError if it is missing, not finite, or unreadable."""
        if name not in self.tensors:
            raise ConfigError(f"{self.name} has no {name}.")
        with naming_unreadable(self.name):
            values = self.tensors[name].read().astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            problem = f"holds NaN or infinite numbers in {name}. Give an earlier checkpoint."
            raise ConfigError(f"{self.name} {problem}")
        return values


def make_network(
    bert: BertConfig, head: str, classes: int, dtype: str = "fp32", kernels: str = "plain"
) -> Any:
    """Builds the `official.modeling` model of a head, with fresh weights.

    Args:
      bert: sizes of the model.
      head: one of HEADS.
      classes: number of outputs of `classify` and `tag`.
      dtype: type of matrix products: fp32, bf16 or int8.
      kernels: see `BertEncoder`.
    """
    with computing_in(dtype):
        if head in ("classify", "tag"):
            return (SequenceModel if head == "classify" else TagModel)(bert, classes, kernels)
        return {"answer": SpanModel, "embed": BertEncoder, "fill_mask": MaskedLMModel}[head](bert, kernels)


def head_outputs(carried: dict[str, tf.Tensor], head: str) -> dict[str, tf.Tensor]:
    """Returns the outputs of a head, by the names of `signatures.TENSOR_OUTPUTS`, from the tensors of the
    stages of its model."""
    logits = {"tag": "tag_logits", "fill_mask": "masked_lm_logits"}.get(head, "logits")
    return {name: carried[logits if name == "logits" else name] for name in output_names(head)}


def name_of(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]


class Truncation:
    """Warns once about texts that are truncated.

    Attributes:
      is_reported: whether the warning was logged.
    """

    def __init__(self, name: str, setting: str = "max_seq_length"):
        """`name` is the model's name in messages, `setting` the name of the setting with the length."""
        self._name, self._setting, self.is_reported = name, setting, False

    def report(self, texts: int, length: int) -> None:
        """Logs that `texts` texts were truncated to `length` tokens, unless it is 0 or already logged."""
        if texts and not self.is_reported:
            self.is_reported, number = True, f"{texts} are" if texts > 1 else "one is"
            warning = "%s: %s longer than %s=%d tokens and cut. This is logged once."
            logging.warning(warning, self._name, number, self._setting, length)


def find(
    path: str | os.PathLike[str],
    vocab_file: str | os.PathLike[str] | None = None,
    do_lower_case: bool | None = None,
    flag: str = "",
    max_seq_length: int | None = None,
) -> Source:
    """Opens a checkpoint with its vocabulary and settings; reads no weights.

    Args:
      path: folder of a run, or a checkpoint of any format of `registry.FORMATS`: file, prefix or folder. In a
        run's folder the checkpoint of the best evaluation is used, or the newest.
      vocab_file: path of the vocabulary. Unset: the one in the folder of the checkpoint or run.
      do_lower_case: whether to lower-case text and strip accents. Unset: from the run's settings or the files
        next to the vocabulary.
      flag: name of the flag that the path comes from, for messages.
      max_seq_length: maximum length of a sequence in tokens. Unset: see `Source.length`.

    Raises:
      ConfigError: if there is no checkpoint or vocabulary, if they do not match, or if a file in their folder
        needs an unsupported feature.
    """
    path, vocab_file = expanded(path), expanded(vocab_file) if vocab_file else None
    name = f"--{flag}={path}" if flag else path
    settings = _settings_of_run(path)
    checkpoint = sidecar_files.open_best(path, f"--{flag}" if flag else "path")
    options = sidecar_files.with_settings(Options(), checkpoint)
    with naming_unreadable(name):
        read = checkpoint.to_canonical(options)
        options, tensors = sidecar_files.with_family_of(options, read), read.tensors
        sidecar_files.check_source(checkpoint.location, read)
    found = vocab_file or vocabulary_files.find(model_folder.folder_of(checkpoint.location))
    vocab_file = _vocabulary_file(found, settings, checkpoint.location)
    if do_lower_case is None:
        config_file = str(sidecar_files.config_beside(checkpoint.location))
        do_lower_case = json_files.expect(settings, "do_lower_case", (bool, type(None)), config_file, None)
    bert = _sizes(tensors, options, checkpoint.location)
    positions = bert.positions
    if max_seq_length is not None and not SHORTEST <= max_seq_length <= positions:
        allowed = f"the model has {positions} positions. Allowed: {SHORTEST} to {positions}."
        raise ConfigError(f"--max_seq_length={max_seq_length} is out of range: {allowed}")
    vocabulary = load_for_text(vocab_file, do_lower_case, checkpoint.location)
    words, rows = vocabulary.size, bert.vocab_size
    sizes = f"has {words} words, the model's vocab_size is {rows}"
    is_near = abs(words - rows) < VOCABULARY_ROUNDING  # as where one of them is cut to a round number
    if not is_near and (words > rows or not is_vocabulary_of(vocab_file, bert)):
        raise ConfigError(f"vocab_file={vocab_file} {sizes}. Change --vocab_file.")
    if words < rows and not is_padded(words, rows) and not settings.get("fit_vocabulary"):
        logging.warning("%s %s: the other rows stand for no word.", vocab_file, sizes)
    vocabulary = vocabulary.cut(rows)
    if checkpoint.format.name == "huggingface":
        padding = bert.position_offset - 1
        vocabulary_files.check_padding(vocabulary.words, vocabulary.special, padding, vocab_file)
    run = None
    if settings.get("task") in FINE_TUNING:
        changed = {"vocab_file": vocab_file, "do_lower_case": do_lower_case, "kernels": "plain"}
        changed |= {"max_seq_length": max_seq_length} if max_seq_length else {}
        beside = str(sidecar_files.config_beside(checkpoint.location))
        run = config_lib.build_config([(beside, settings), ("command line", changed)])
    head = options.labels, options.problem_type, options.thresholds
    return Source(
        name, checkpoint.location, tensors, bert, vocabulary, run, *head, max_seq_length, vocab_file
    )


def random_source(bert: BertConfig, head: str, classes: int = 2, seed: int = 0) -> Source:
    """Returns a model with random weights, for benchmarks.

    Args:
      bert: sizes of the model.
      head: one of HEADS.
      classes: number of outputs of `classify` and `tag`.
      seed: seed of the weights.
    """
    with tf.Graph().as_default():  # no initialization
        variables = make_network(bert, head, classes).variables
        shapes = {name_of(variable): tuple(variable.shape) for variable in variables}
    tensors = {}
    for number, (name, shape) in enumerate(shapes.items()):
        read = functools.partial(_random, name, shape, bert.initializer_range, (seed, number))
        tensors[name] = Tensor(shape, np.dtype(np.float32), read)
    words = *SPECIAL_TOKENS, *(f"word{number}" for number in range(len(SPECIAL_TOKENS), bert.vocab_size))
    vocabulary = Vocabulary(words[: bert.vocab_size], "")
    return Source("made-up", "made-up", tensors, bert, vocabulary, None, None)


def _random(name: str, shape: tuple[int, ...], stddev: float, seed: tuple[int, int]) -> np.ndarray:
    """Returns the initial values of a variable, as for training: ones for gamma, zeros, or normal numbers."""
    if name.endswith("gamma"):
        return np.ones(shape, np.float32)
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(stddev)


def _settings_of_run(path: str) -> dict:
    """Returns the config.json of a run; empty without one, or for Hugging Face's. Raises ConfigError if its
    task is unknown."""
    beside = sidecar_files.config_beside(saved_model.locate(path) or path)
    if beside is None:
        return {}
    settings = model_folder.with_model_type(json_files.read_json(beside, any_number=True), beside)
    if is_hugging_face(settings):
        return {}
    if "task" in settings:
        config_lib.FIELDS["task"].checked(settings["task"], beside)
    return settings


def _vocabulary_file(found: str | None, settings: dict, location: str) -> str:
    """Returns the path of the vocabulary: the given one, the one next to the weights, or, for runs without a
    copy, the original file."""
    beside = str(sidecar_files.config_beside(location))
    named = json_files.expect(settings, "vocab_file", (str, type(None)), beside, None)
    if not (found or named):
        raise ConfigError(f"{location} has no vocabulary in its folder. Give --vocab_file=PATH.")
    if not found and not os.path.exists(named):
        raise ConfigError(f"{beside}: vocab_file={named} no longer exists. Give --vocab_file=PATH.")
    return found or named


def _sizes(tensors: Tensors, options: Options, location: str) -> BertConfig:
    """Returns the model's configuration: sizes from the tensors, the rest from the sidecar files."""
    known = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(BertConfig)}
    known = {name: value for name, value in known.items() if value is not None}
    known |= dict(options.of_family)
    if "num_attention_heads" not in known:
        raise ConfigError(
            f"{location}: the number of attention heads is unknown, and cannot be derived from the weights."
            " Put the model's bert_config.json, or Hugging Face's config.json, next to them."
        )
    return bert_config_from_dict(known | sidecar_files.sizes_of(tensors), location)

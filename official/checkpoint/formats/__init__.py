"""Checkpoint formats: names of tensors, kinds of files, options of a conversion.

Every module here defines one or several formats; `registry.FORMATS` lists them, and `google` has the
shortest. A format is a table of names (`mapping`), two functions that use it, and the name of a container.
Actions, --help, flags, reading and writing follow from it.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from official.checkpoint.containers import Progress
from official.checkpoint.mapping import Mapped
from official.checkpoint.tensors import Tensors
from official.config import BertConfig, ConfigError
from official.io import model_folder, sentence_folder, vocabulary_files
from official.io.sentence_folder import EmbeddingSettings

# -----------------------------------------------------------------------------------------------------------
# Options of a conversion


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting that only some formats have; its flag has the same name.

    Attributes:
      name: name of the flag.
      default: value if the flag is not given.
      help: text of the flag for --help.
      most: maximum of an option that is a number from 1; None for a boolean.
      for_target: whether it changes only the written format.
    """

    name: str
    default: bool | int | None
    help: str
    most: int | None = None
    for_target: bool = False


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a conversion.

    Attributes:
      vocab_size: words of the target; None: as in the source.
      averages: {id of a word of the target: ids of words of the source}; it gets the mean of their embeddings
        and output biases.
      with_optimizer: carry optimizer slots over if both formats have them.
      precision: 16 or 32, the float type of the target; None: unchanged.
      num_attention_heads: number of heads, for formats that split the attention kernels; None: from shapes or
        a config file.
      hidden_act: the model's activation, by its name in config.model.ACTIVATIONS; None: from a config file,
        otherwise the usual one of the source's format. Stored in the config file of the result.
      layer_norm_eps: epsilon of LayerNorm, in the same way; None: from a config file, otherwise the usual one
        of the source's format.
      family: family of the model, one of `config.model.FAMILIES`.
      of_family: {key of BertConfig: value} of its `Family.without_shape`, from a config file or the usual
        ones.
      of_training: {key: value} of `config.model.OF_TRAINING`, and of the dropout of heads in Hugging Face's
        files, as far as a config file has them.
      vocab_file: vocabulary that is copied next to the result: vocab.txt, tokenizer.json, or a folder with
        one of them.
      do_lower_case: whether its text is lower-cased; None: from the vocabulary's files, otherwise guessed
        from its words.
      labels: names of a classifier's classes, in the order of its outputs; None: unknown.
      problem_type: type of a classifier, a value of `model_folder.PROBLEM_TYPE_OF`; None: unknown.
      thresholds: minimum probability of each of several labels; empty: unknown.
      scale: (mean, deviation), the units of a regression model's outputs in the source. The result's outputs
        are the numbers themselves.
      model_card: README.md of a folder for Hugging Face; None if the checkpoint is not of a run.
      embedding: settings from sentence-transformers files next to the source; None without such files.
      of_formats: {name of an Option: value}: the given options of formats.
    """

    vocab_size: int | None = None
    averages: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    with_optimizer: bool = False
    precision: int | None = None
    num_attention_heads: int | None = None
    hidden_act: str | None = None
    layer_norm_eps: float | None = None
    family: str = BertConfig.family
    of_family: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    of_training: Mapping[str, float] = dataclasses.field(default_factory=dict)
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    labels: tuple[str, ...] | None = None
    problem_type: str | None = None
    thresholds: tuple[float, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)
    model_card: str | None = None
    embedding: EmbeddingSettings | None = None
    of_formats: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, **settings: Any) -> Options:
        """Returns the options with these settings, general ones or those of formats, by their names."""
        everywhere = {field.name for field in dataclasses.fields(cls)}
        return cls(
            **{name: value for name, value in settings.items() if name in everywhere},
            of_formats={name: value for name, value in settings.items() if name not in everywhere},
        )

    def get(self, option: Option) -> Any:
        """Returns the value of an option of a format: as given, otherwise its default."""
        return self.of_formats.get(option.name, option.default)

    def positions_of(self, rows: int | None) -> int:
        """Returns the maximum tokens per sequence; `rows` is the length of the position table, None in
        families without one."""
        rows = self.of_family["max_position_embeddings"] if rows is None else rows
        return rows - self.of_family.get("position_offset", 0)

    def files_beside(
        self, has_classes: bool, hidden_size: int, rows: int | None, has_segments: bool = True
    ) -> dict[str, bytes]:
        """Returns {name: content} of the sidecar files for weights of these sizes, except configurations:
        vocabulary, labels, settings of vectors. `rows` as in `positions_of`."""
        found: dict[str, bytes] = {}
        if self.vocab_file:
            positions = self.positions_of(rows)
            found |= vocabulary_files.companions(self.vocab_file, self.do_lower_case, positions, has_segments)
        if has_classes and (self.labels or self.problem_type):
            labels = model_folder.labels_json(self.labels, self.problem_type, self.thresholds)
            found[model_folder.LABELS] = labels.encode()
        if self.embedding is not None:
            found |= sentence_folder.contents(self.embedding, hidden_size)
        return found

    def heads_of(self, hidden_size: int) -> int | None:
        """Returns the given number of attention heads; None if none is given. Raises ConfigError for one that
        does not divide the hidden size."""
        heads = self.num_attention_heads
        if heads is not None and (type(heads) is not int or heads < 1 or hidden_size % heads):
            raise ConfigError(
                f"--num_attention_heads={heads!r} must be an integer that divides hidden_size={hidden_size}."
            )
        return heads


NOTHING_GIVEN = Options()


# -----------------------------------------------------------------------------------------------------------
# Formats


ENCODER_NAMES = r"(^|[/.])(bert|encoder|embeddings|transformer)[/.]"


@dataclasses.dataclass(frozen=True, eq=False)
class Format:
    """A checkpoint format.

    Attributes:
      name: name in actions and messages.
      title: display name.
      container: name of the module of `containers` that reads and writes its files.
      to_canonical: function that renames its tensors to the canonical names.
      from_canonical: function that renames canonical tensors to its names.
      aliases: other accepted names.
      name_in_reports: older name, kept in reports and listings; empty: `name`.
      signature: regular expression of a tensor name that identifies the format within its container; None if
        the container identifies it.
      foreign: regular expression of a tensor name that the format never has, unlike another format with the
        same signature; None for none.
      precedence: of two formats that match a path, the one with the higher number is taken.
      encoder_names: regular expression that matches part of the names that must belong to an encoder.
      partners: {format: its name in actions}, for a format that is converted only to and from these; only its
        defaults then apply. None: converted to and from all.
      options: the format's own options.
      as_source, as_target: {setting: default value}.
      usual_activation, usual_epsilon: activation of its models, and epsilon of their LayerNorm, if there is
        no configuration.
      float32_names: regular expression of tensor names that are float32 at any precision; None for none.
      heads_of: function that derives the number of attention heads from tensor shapes; None if they do not
        show it.
      may_lack_biases: whether its models may lack biases in the attention; other formats get zeros for them.
      families: names of the families of `config.model` that it supports.
      brings_sidecar_files: whether `write` also writes configuration and vocabulary.
      writer: function that writes tensors with their sidecar files; None: the container writes them.
      is_only_read: whether it is never a target.
    """

    name: str
    title: str
    container: str
    to_canonical: Callable[[Tensors, Options], Mapped]
    from_canonical: Callable[[Tensors, Options], Mapped]
    aliases: tuple[str, ...] = ()
    name_in_reports: str = ""
    signature: str | None = None
    foreign: str | None = None
    precedence: int = 5
    encoder_names: str = ENCODER_NAMES
    partners: Mapping[str, str] | None = None
    options: tuple[Option, ...] = ()
    as_source: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    as_target: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    usual_activation: str = BertConfig.hidden_act
    usual_epsilon: float = BertConfig.layer_norm_eps
    float32_names: str | None = None
    heads_of: Callable[[Tensors], int | None] = lambda tensors: None
    may_lack_biases: bool = False
    families: Collection[str] = (BertConfig.family,)
    brings_sidecar_files: bool = False
    writer: Callable[[Tensors, str, Options, Progress], None] | None = None
    is_only_read: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def reported_name(self) -> str:
        return self.name_in_reports or self.name

    def load_container(self) -> ModuleType:
        """Returns its container, imported when needed, since some import TensorFlow."""
        return importlib.import_module(f"official.checkpoint.containers.{self.container}")

    def fits(self, names: Collection[str]) -> bool:
        """Returns whether tensor names in its container are of this format."""

        def has(pattern: str) -> bool:
            return any(re.fullmatch(pattern, name) for name in names)

        return (self.signature is None or has(self.signature)) and not (self.foreign and has(self.foreign))

    def write(self, tensors: Tensors, location: str, options: Options, progress: Progress) -> None:
        """Writes tensors under its names, one after the other. Raises ConfigError for tensors that it cannot
        hold."""
        if self.writer is None:
            return self.load_container().write(tensors, location, progress)
        return self.writer(tensors, location, options, progress)

"""Checkpoint formats: names of tensors, kinds of files, options of a conversion.

Every module here holds one format or several; `registry.FORMATS` names them, and
`google` has the shortest. A format is a table of names (`mapping`), the two functions that use it, and the
name of a container. Actions, --help, flags, reading and writing follow from it.
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
    """A setting that only some formats have; the flag of a conversion has its name.

    Attributes:
      name: of the flag.
      default: the value if it is not given.
      help: what the flag does, for --help.
      most: the largest number, for an option that is a number from 1; None: it is on or off.
      for_target: it changes only what is written.
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
      vocab_size: words of the target; None: as many as the source has.
      averages: {word of the target: words of the source}, by ids: it gets the mean of their embeddings and
        output biases.
      with_optimizer: carry optimizer slots where both formats have them.
      precision: 16 or 32, the float type of the target; None: as it is.
      num_attention_heads: splits the attention kernels where a format does; None: as shapes or a config file
        say.
      hidden_act: the model's activation, by its name in config.model.ACTIVATIONS; None: as a config file
        says, else the usual one of the source's format. The config file beside the result says it.
      layer_norm_eps: epsilon of LayerNorm, in the same way; None: as a config file says, else
        the usual one of the source's format.
      family: of the model, one of `config.model.FAMILIES`.
      of_family: {key of BertConfig: value} of its `Family.without_shape`, as a config file says them, else
        the usual ones.
      of_training: {key: value} of `config.model.OF_TRAINING`, and of the dropout of heads in Hugging Face's
        files, of those that a config file says.
      vocab_file: vocabulary that is put beside the result: vocab.txt, tokenizer.json, or a folder with one of
        them.
      do_lower_case: whether its text is lower-cased; None: as the vocabulary's files say, else as its words
        look.
      labels: names of a classifier's classes, in their order; None: not known.
      problem_type: of a classifier, a value of `model_folder.PROBLEM_TYPE_OF`; None: not known.
      thresholds: of several labels: the probability from which on a text has each; none: not known.
      scale: of a number: the (mean, deviation) that the source's outputs are in units of. The result's are
        the numbers themselves.
      model_card: README.md of a folder for Hugging Face; None: of no run.
      embedding: of the files of sentence-transformers beside the source; None: there are none.
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
        """Returns the options with these settings, of every conversion or of formats, by their names."""
        everywhere = {field.name for field in dataclasses.fields(cls)}
        return cls(
            **{name: value for name, value in settings.items() if name in everywhere},
            of_formats={name: value for name, value in settings.items() if name not in everywhere},
        )

    def get(self, option: Option) -> Any:
        """Returns the value of an option of a format: as given, else its default."""
        return self.of_formats.get(option.name, option.default)

    def positions_of(self, rows: int | None) -> int:
        """Returns how many tokens a sequence may have; `rows` are those of the position table, None in
        families without one."""
        rows = self.of_family["max_position_embeddings"] if rows is None else rows
        return rows - self.of_family.get("position_offset", 0)

    def files_beside(
        self, has_classes: bool, hidden_size: int, rows: int | None, has_segments: bool = True
    ) -> dict[str, bytes]:
        """Returns {name: content} of the files beside weights of these sizes that are no configuration:
        vocabulary, labels, settings of vectors. `rows` as of `positions_of`."""
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
        """Returns the number of attention heads that is given; None where none is. Raises ConfigError for one
        that does not divide the hidden size."""
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
      name: as actions and messages have it.
      title: its name for people.
      container: name of the module of `containers` that reads and writes its files.
      to_canonical: gives its tensors the canonical names.
      from_canonical: gives canonical tensors its names.
      aliases: other names that are understood.
      name_in_reports: where reports and listings keep an older name; empty: `name`.
      signature: regular expression of a tensor's name that identifies the format within its container; None:
        the container alone does.
      foreign: regular expression of a tensor's name that the format never has, where another with the same
        signature does; None: there is none.
      precedence: of two formats that fit a path, the one with the higher number is taken.
      encoder_names: regular expression, found in names that must belong to an encoder.
      partners: {format: its name in actions}, of a format that is converted only to and from these; only its
        own defaults then apply. None: it is converted to and from all.
      options: that it brings.
      as_source, as_target: {setting: default value}.
      usual_activation, usual_epsilon: of its models, and of their LayerNorm, where no configuration is there.
      float32_names: regular expression of names of tensors that are float32 at any precision; None: of none.
      heads_of: the number of attention heads that shapes of its tensors tell; None where they do not.
      may_lack_biases: its models may lack biases in the attention; in other formats, zeros replace them.
      families: names of those of `config.model` whose models it holds.
      brings_sidecar_files: `write` puts configuration and vocabulary with the weights.
      writer: writes tensors with what belongs to them; None: the container does.
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
        """Its name and the others that are understood."""
        return (self.name, *self.aliases)

    @property
    def reported_name(self) -> str:
        return self.name_in_reports or self.name

    def load_container(self) -> ModuleType:
        """Returns its kind of files, imported when it is needed: TensorFlow comes with some."""
        return importlib.import_module(f"official.checkpoint.containers.{self.container}")

    def fits(self, names: Collection[str]) -> bool:
        """Returns whether names of tensors in its container are of this format."""

        def has(pattern: str) -> bool:
            return any(re.fullmatch(pattern, name) for name in names)

        return (self.signature is None or has(self.signature)) and not (self.foreign and has(self.foreign))

    def write(self, tensors: Tensors, location: str, options: Options, progress: Progress) -> None:
        """Writes tensors under its names, one after the other. Raises ConfigError for what it cannot hold."""
        if self.writer is None:
            return self.load_container().write(tensors, location, progress)
        return self.writer(tensors, location, options, progress)

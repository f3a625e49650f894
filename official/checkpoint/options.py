"""Options of conversions: settings of every conversion, and those that formats bring."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting that only some formats have; the flag of a conversion has its name.

    Attributes:
      name: of the flag.
      default: what counts where nothing is given.
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
      with_optimizer: carry optimizer slots where both formats have them.
      precision: 16 or 32, the float type of the target; None: as it is.
      num_attention_heads: splits the attention kernels where a format does; None: hidden size / 64, or as a
        config file says.
      hidden_act: the model's activation, by its name in config.model.ACTIVATIONS; None: as a config file
        says, else the usual one of the source's format. The config file beside the result says it.
      layer_norm_eps: epsilon of LayerNorm, in the same way; None: as a config file says, else
        the usual one of the source's format.
      vocab_file: vocabulary that is put beside the result: vocab.txt, tokenizer.json, or a folder with one of
        them.
      do_lower_case: whether its text is lower-cased; None: as the vocabulary's files say, else as its words
        look.
      labels: names of a classifier's classes, in their order; None: not known.
      problem_type: of a classifier, in Hugging Face's words: regression, single_label_classification; None:
        not known.
      of_formats: {name of an Option: value}, what was given of those that formats bring.
    """

    vocab_size: int | None = None
    with_optimizer: bool = False
    precision: int | None = None
    num_attention_heads: int | None = None
    hidden_act: str | None = None
    layer_norm_eps: float | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    labels: tuple[str, ...] | None = None
    problem_type: str | None = None
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


NOTHING_GIVEN = Options()

"""Registry of the formats: lists them, detects the format of a path, and lists the allowed conversions."""

import dataclasses
import importlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from official.checkpoint import canonical, naming_unreadable
from official.checkpoint.formats import NOTHING_GIVEN, Format, Option, Options
from official.checkpoint.mapping import Mapped
from official.checkpoint.tensors import Tensors, changed, is_float
from official.config import ConfigError, suggest
from official.config.model import FAMILIES
from official.io.errors import describe_names, shortened

_FILES = ("garden", "google", "graphcore", "huggingface", "popart", "research")
_MODULES = [importlib.import_module(f"official.checkpoint.formats.{name}") for name in _FILES]
FORMATS = {one.name: one for module in _MODULES for one in vars(module).values() if isinstance(one, Format)}
FORMATS = dict(sorted(FORMATS.items()))


def get_format(name: str) -> Format:
    """Returns the format with a name or alias. Raises ConfigError for an unknown one."""
    for one in FORMATS.values():
        if name in one.names:
            return one
    allowed = f"{suggest(name, FORMATS)}. Allowed: {', '.join(FORMATS)}."
    raise ConfigError(f"unknown checkpoint format {name!r}{allowed}")


def actions() -> dict[str, tuple[Format, Format]]:
    """Returns {SOURCE2TARGET: (source, target)}, under all names of formats."""
    return {
        f"{ours}2{theirs}": (source, target)
        for source in FORMATS.values()
        for target in FORMATS.values()
        if source is not target and not target.is_only_read
        for ours in _names_beside(source, target)
        for theirs in _names_beside(target, source)
    }


def get_action(name: str) -> tuple[str, Format, Format]:
    """Returns an action, by its first name, with its source and target. Raises ConfigError for an unknown
    one."""
    known = actions()
    if name not in known:
        raise ConfigError(f"unknown action {name!r}{suggest(name, known)}. It is {describe_actions()}.")
    return next(other for other in known if known[other] == known[name]), *known[name]


def describe_actions() -> str:
    """Returns the allowed actions as text, for messages and --help."""
    only_read = [one.name for one in FORMATS.values() if one.is_only_read]
    free = [
        f"{one.name} ({', '.join(one.aliases)})" if one.aliases else one.name
        for one in FORMATS.values()
        if one.partners is None and not one.is_only_read
    ]
    others = [one for one, ends in actions().items() if any(end.partners is not None for end in ends)]
    return (
        f"SOURCE2TARGET with two of {', '.join(free)}, or {' or '.join(others)}; SOURCE may be"
        f" {', '.join(only_read)}, too"
    )


def _names_beside(one: Format, other: Format) -> tuple[str, ...]:
    """Returns the names of a format in actions with another; none if they are not converted."""
    if other.partners is not None:
        return (other.partners[one.name],) if one.name in other.partners else ()
    return one.names if one.partners is None or other.name in one.partners else ()


def options_of_formats() -> dict[Option, list[Format]]:
    """Returns {option: formats with it}."""
    options = dict.fromkeys(option for one in FORMATS.values() for option in one.options)
    return {option: [one for one in FORMATS.values() if option in one.options] for option in options}


def check_concerned(action: str, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for options {name: value} that do not apply to an action."""
    _, source, target = get_action(action)
    for option, having in options_of_formats().items():
        ends = {target} if option.for_target else {source, target}
        if given.get(option.name) in (None, option.default) or ends & set(having):
            continue
        names = " and ".join(one.name for one in having)
        why = f"only {names}, and {action} neither reads nor writes these"
        if option.for_target:
            why = f"only the writing of {names}, not {action}"
        raise ConfigError(f"--{option.name} concerns {why}. Drop the flag.")


def make_options(source: Format, target: Format, given: Mapping[str, Any]) -> Options:
    """Returns the options of a conversion: {name: given value, or None} over the defaults of the two
    formats."""
    usual = {**source.as_source, **target.as_target}
    if source.partners or target.partners:
        usual = dict(source.as_source if source.partners else target.as_target)
    return Options.of(**{**usual, **{name: value for name, value in given.items() if value is not None}})


class Checkpoint(NamedTuple):
    """A checkpoint whose tensors have not been read yet.

    Attributes:
      format: format of the checkpoint.
      location: prefix, folder or file.
      tensors: lazy tensors under the format's names.
    """

    format: Format
    location: str
    tensors: Tensors

    def to_canonical(self, options: Options = NOTHING_GIVEN) -> Mapped:
        """Returns the tensors under canonical names.

        Raises:
          ConfigError: listing all names that the format does not have, or all missing and misshapen tensors
            of the encoder or an incomplete head; also for weights that are not floating-point numbers.
        """
        mapped = self.format.to_canonical(self.tensors, options)
        if mapped.unmatched:
            unknown = sorted(mapped.unmatched)
            problem = f"{self.location} is not a {self.format.title} checkpoint of BERT"
            found = _format_in(self.format.container, self.tensors)
            if found not in (None, self.format):
                problem += f" but one of {found.title} (use {found.name}2TARGET)"
            raise ConfigError(f"{problem}: unknown names {shortened(unknown)}.", {"unknown": unknown})
        check_types(mapped.tensors, self)
        mapped = dataclasses.replace(mapped, tensors=_in_numbers(mapped.tensors, options.scale))
        shapes = {name: tensor.shape for name, tensor in mapped.tensors.items()}
        has_segments = FAMILIES[mapped.family or options.family].has_segments
        if problems := canonical.encoder_problems(shapes, has_segments):
            problem = f"is not a whole encoder. {describe_names(problems)}."
            raise ConfigError(f"{self.location} ({self.format.title}) {problem}", problems)
        return mapped

    @property
    def heads(self) -> int | None:
        """Number of attention heads according to tensor shapes; None if unknown."""
        return self.format.heads_of(self.tensors)


def open_checkpoint(path: str, label: str, format_name: str | None = None) -> Checkpoint:
    """Detects the format of a path and opens it, without reading a weight.

    Args:
      path: prefix, folder or file; for a folder of TensorFlow checkpoints, the newest.
      label: source of the path, for messages: --init_checkpoint or PATH.
      format_name: name of the format, if known.

    Raises:
      ConfigError: if there is no checkpoint, or it is damaged.
    """
    known = get_format(format_name) if format_name else None
    strange = None
    with naming_unreadable(f"{label}={path}"):
        for kind, one in {one.container: one for one in ([known] if known else _by_precedence())}.items():
            container = one.load_container()
            if (location := container.locate(path)) is not None:
                tensors = container.read(location)
                if found := known or _format_in(kind, tensors):
                    return Checkpoint(found, location, tensors)
                strange = location, sorted(tensors)
    if strange:
        problem = f"is not a BERT checkpoint of a known format; tensors: {shortened(strange[1]) or 'none'}."
        raise ConfigError(f"{strange[0]} {problem}", {"tensors": strange[1]})
    if known:
        raise ConfigError(f"{label}={path} has no checkpoint in the form of {known.reported_name}.")
    from official.checkpoint.containers import bundle  # late: imports TensorFlow

    raise ConfigError(f"{label}={path}: {bundle.why_none(path)}.")


def _by_precedence() -> list[Format]:
    return sorted(FORMATS.values(), key=lambda one: -one.precedence)


def _format_in(container: str, tensors: Tensors) -> Format | None:
    """Returns the format of tensors in a container; None for an unknown one."""
    return next((one for one in _by_precedence() if one.container == container and one.fits(tensors)), None)


def _in_numbers(tensors: Tensors, scale: tuple[float, float]) -> Tensors:
    """Rescales the head of a regression model to output numbers instead of (number - mean) / deviation."""
    mean, deviation = scale
    if (mean, deviation) == (0.0, 1.0) or canonical.CLASSIFIER_HEAD[0] not in tensors:
        return tensors
    weights, bias = canonical.CLASSIFIER_HEAD
    own = {
        weights: changed(tensors[weights], lambda values: (values * deviation).astype(values.dtype)),
        bias: changed(tensors[bias], lambda values: (values * deviation + mean).astype(values.dtype)),
    }
    return tensors | own


def check_types(mapped: Tensors, checkpoint: Checkpoint) -> None:
    """Raises ConfigError if a weight or an optimizer slot, under canonical names, is read from tensors other
    than floats."""
    read = _read_from(mapped, checkpoint)
    if wrong := sorted(f"{name} ({one.dtype.name})" for name, one in read.items() if not is_float(one)):
        raise ConfigError(
            f"{checkpoint.location}: weights must be floating-point numbers; these are not:"
            f" {shortened(wrong)}. Save the model without quantization in its own program."
        )


def check_finite(mapped: Tensors, checkpoint: Checkpoint) -> None:
    """Reads the tensors that canonical ones are read from, one after the other. Raises ConfigError if one
    holds NaN or infinity."""
    read = _read_from(mapped, checkpoint)
    if bad := sorted(name for name, one in read.items() if not np.isfinite(one.read()).all()):
        problem = f"holds NaN or infinite numbers in {shortened(bad)}. Give an earlier checkpoint."
        raise ConfigError(f"{checkpoint.location} {problem}")


def _read_from(mapped: Tensors, checkpoint: Checkpoint) -> Tensors:
    """Returns the file's tensors from which canonical weights and slots are read; an unknown name maps to
    itself."""
    found: Tensors = {}
    for name, tensor in mapped.items():
        if name not in canonical.COUNTERS:
            found |= {source: checkpoint.tensors.get(source, tensor) for source in tensor.sources or (name,)}
    return found


def size_of(tensors: Tensors) -> dict[str, int]:
    """Returns {tensors, parameters, bytes}: numbers of tensors, parameters and bytes."""
    numbers = sum(math.prod(tensor.shape) for tensor in tensors.values())
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {"tensors": len(tensors), "parameters": numbers, "bytes": size}

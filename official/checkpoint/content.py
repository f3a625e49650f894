"""Content of a conversion: a checkpoint's tensors by its target's names, words and precision."""

import dataclasses
from collections.abc import Callable

import numpy as np

from official.checkpoint import companions, registry, vocabulary_rows
from official.checkpoint.format import Format
from official.checkpoint.mapping import biases, canonical
from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.mapping.tensors import Tensor, Tensors
from official.checkpoint.options import Options
from official.io.errors import ConfigError, shortened


@dataclasses.dataclass(frozen=True)
class Content:
    """Content of the result of a conversion.

    Attributes:
      result: tensors under the names of the target's format.
      canonical: the same under canonical names.
      cut_rows: words that were cut off, under canonical names.
      vocabulary: of `vocabulary_rows.with_vocabulary`.
      dropped, added: {name: reason}.
      options: of the conversion, with what lies beside the source.
    """

    result: Tensors
    canonical: Tensors
    cut_rows: Tensors
    vocabulary: dict[str, int]
    dropped: dict[str, str]
    added: dict[str, str]
    options: Options


def content_of(checkpoint: registry.Checkpoint, target: Format, given: Options) -> Content:
    """Maps a checkpoint to a format, reading only what has to be checked.

    Raises:
      ConfigError: for a checkpoint that is not whole or not finite, and for names that the target has no
        place for.
      DamagedError: where a tensor that has to be checked cannot be read.
    """
    options = companions.with_companions(given, checkpoint)
    read = checkpoint.to_canonical(options)
    companions.check_source(checkpoint.location, read.tensors)
    if not target.may_lack_biases:
        biases.add_zero_biases(read)
    dropped = dict(read.dropped)
    kept = _without_slots(read.tensors, options, dropped)
    registry.check_finite(kept, checkpoint)
    kept, vocabulary, rows = vocabulary_rows.with_vocabulary(kept, checkpoint.location, options)
    if target.brings_companions and not given.vocab_file:
        options = _without_long_vocabulary(options, vocabulary["to"], dropped)
    mapped = target.from_canonical(kept, options)
    if mapped.unmatched:
        strange = sorted(mapped.unmatched)
        raise ConfigError(
            f"{checkpoint.location}: the {target.title} format has no place for {shortened(strange)}.",
            {"no place": strange},
        )
    result = _with_precision(mapped.tensors, options, target.keeps_float32)
    dropped |= {_source_names(kept[name]) or name: reason for name, reason in mapped.dropped.items()}
    added = {**read.added, **mapped.added, **vocabulary_rows.restored(result, vocabulary)}
    return Content(result, kept, rows, vocabulary, dropped, added, options)


def _without_slots(tensors: Tensors, options: Options, dropped: dict[str, str]) -> Tensors:
    if options.with_optimizer:
        return tensors
    slots = {name for name in tensors if name.rpartition("/")[2] in canonical.SLOTS}
    dropped |= {
        _source_names(tensors[name]) or name: "optimizer slot; --with_optimizer carries it" for name in slots
    }
    return {name: tensor for name, tensor in tensors.items() if name not in slots}


def _without_long_vocabulary(options: Options, words: int, dropped: dict[str, str]) -> Options:
    """Leaves out a vocabulary, found and not given, that has words which the result does not have."""
    path = options.vocab_file
    count = companions.count_words(path) if path else 0
    if path is None or count <= words:
        return options
    dropped[path] = f"it has {count} words, the result {words}"
    return dataclasses.replace(options, vocab_file=None)


def _with_precision(tensors: Tensors, options: Options, keeps_float32: Callable[[str], bool]) -> Tensors:
    if options.precision is None:
        return tensors
    wanted = np.dtype({16: np.float16, 32: np.float32}[options.precision])

    def converted(name: str, tensor: Tensor) -> Tensor:
        dtype = np.dtype(np.float32) if keeps_float32(name) else wanted
        return tensors_lib.checked_cast(name, tensor, dtype) if tensors_lib.is_float(tensor) else tensor

    return {name: converted(name, tensor) for name, tensor in tensors.items()}


def _source_names(tensor: Tensor) -> str:
    return ", ".join(tensor.sources)

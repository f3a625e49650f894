"""Converts a checkpoint: reads, renames, writes, reads back, compares, publishes and reports."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.checkpoint import DamagedError, canonical, mapping, naming_unreadable, registry, sidecar_files
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import Progress, hf_folder
from official.checkpoint.formats import NOTHING_GIVEN, Format, Options
from official.checkpoint.tensors import Tensor, Tensors
from official.config.model import FAMILIES
from official.io import vocabulary_files, writing
from official.io.errors import ConfigError, shortened

# Function ({format, path} of the source, the same of the result, options) -> {passed, ...}
Verify = Callable[[dict, dict, Options], dict]


class MismatchError(Exception):
    """The written result differs from the source tensors."""


def convert(
    source: str | registry.Checkpoint,
    target_format: str,
    output_dir: str,
    options: Options = NOTHING_GIVEN,
    overwrite: bool = False,
    progress: Callable[[int], Progress] = lambda total: lambda size: None,
    verify: Verify | None = None,
) -> dict:
    """Converts a checkpoint. The result is written to a temporary folder, verified there, and then published
    as a whole.

    Args:
      source: prefix, folder or file; for a run's folder its best checkpoint, for another folder of TensorFlow
        checkpoints the newest. Or a checkpoint from `registry.open_checkpoint`.
      target_format: a name in `registry.FORMATS`.
      output_dir: the result is OUTPUT_DIR/<basename of the source>, or the folder itself for huggingface.
      options: settings of the conversion.
      overwrite: replace an older result.
      progress: called with the total number of bytes; its result, with the bytes written since the last call.
      verify: an additional check of the result; None: no check.

    Returns:
      The report: source, target, written {name: from, shape, dtype}, dropped {name: reason}, added {name:
      reason}, reshaped, cast, vocabulary, num_attention_heads (None: unknown), hidden_act, companions (paths
      of sidecar files of the result), notes (lines about settings that tensors do not show), compared (number
      of tensors read back and found equal), verification (result of `verify`), published (False if that
      failed: then nothing was written or replaced).

    Raises:
      ConfigError: for a source that cannot be read, is of another format or incomplete, for names that the
        target does not know, and if the result already exists.
      MismatchError: if the result differs when read back; then nothing was written or replaced.
    """
    checkpoint = sidecar_files.open_best(source, "PATH") if isinstance(source, str) else source
    target, folder = registry.get_format(target_format), output_dir or "."
    if target.is_only_read:
        raise ConfigError(f"a conversion cannot write an {target.title}. Use bert export.")
    container = target.load_container()
    location = container.target(folder, checkpoint.location)
    _check_free(checkpoint, container, location, overwrite)
    notes = sidecar_files.notes_of_source(options, checkpoint)
    with naming_unreadable(checkpoint.location):
        content = content_of(checkpoint, target, options)
        sidecars = sidecar_files.plan(
            checkpoint.location, location, target, content.canonical, content.options, overwrite
        )
        written = {path: data for path, data in sidecars.items() if data is not None}
        with contextlib.ExitStack() as stack:
            with _writing_to(folder):
                work = stack.enter_context(writing.unpublished(folder))
            made = container.target(work, checkpoint.location)
            total = sum(tensor.nbytes for tensor in content.result.values())
            with _writing_to(made):
                target.write(content.result, made, content.options, progress(total))
            _read_back_and_compare(container, content.result, made)
            _write_cut_words(content.cut_rows, made)
            for path, data in written.items():
                beside = os.path.join(work, os.path.relpath(path, folder))
                with _writing_to(beside):
                    writing.put_file(beside, data)
            verified = {}
            if verify is not None:
                ours = {"format": checkpoint.format.name, "path": checkpoint.location}
                theirs = {"format": target.name, "path": made}
                verified = {"verification": verify(ours, theirs, content.options)}
            published = not verified or verified["verification"]["passed"]
            if published:
                _publish(container, work, location, [cut_words_path(location), *(sidecars.keys() - written)])
    if not target.brings_sidecar_files:
        notes += sidecar_files.notes_of_result(content.options, list(written), target)
    report = _report(checkpoint, {"format": target.reported_name, "path": location}, content)
    report |= {"compared": len(content.result), "published": published, **verified}
    return {**report, "companions": list(written), "notes": notes}


def _check_free(
    checkpoint: registry.Checkpoint, container: ModuleType, location: str, overwrite: bool
) -> None:
    """Raises ConfigError if the output folder is the source, or has an older result that may not be
    replaced."""
    source, result = os.path.realpath(checkpoint.location), os.path.realpath(location)
    is_in_folder = checkpoint.format.load_container().IS_FOLDER and os.path.isfile(source)
    if result == source or is_in_folder and result == os.path.dirname(source):
        folder = location if os.path.isdir(location) else os.path.dirname(location)
        problem = "is the folder of the source. Give another --output_dir."
        raise ConfigError(f"--output_dir={folder or '.'} {problem}")
    if (there := container.files(location)) and not overwrite:
        raise ConfigError(f"{there[0]} exists. Give another --output_dir, or replace it with --overwrite.")


# -----------------------------------------------------------------------------------------------------------
# Content of the result


class Content(NamedTuple):
    """Content of the result of a conversion.

    Attributes:
      result: tensors under the target format's names.
      canonical: the same under canonical names.
      cut_rows: rows of words that were cut off, under canonical names.
      vocabulary: counts of words from `with_vocabulary`.
      dropped, added: {name: reason}.
      options: options of the conversion, completed from the sidecar files of the source.
    """

    result: Tensors
    canonical: Tensors
    cut_rows: Tensors
    vocabulary: dict[str, int]
    dropped: dict[str, str]
    added: dict[str, str]
    options: Options


def content_of(checkpoint: registry.Checkpoint, target: Format, given: Options) -> Content:
    """Maps a checkpoint to a format, reading only the tensors that must be verified.

    Raises:
      ConfigError: for a checkpoint that is incomplete or not finite, and for names that the target lacks.
      DamagedError: if a tensor that must be verified cannot be read.
    """
    options = sidecar_files.with_sidecar_files(given, checkpoint)
    read = checkpoint.to_canonical(options)
    options = sidecar_files.with_family_of(options, read)
    if options.family not in target.families:
        holders = ", ".join(
            one.title
            for one in registry.FORMATS.values()
            if options.family in one.families and not one.is_only_read
        )
        problem = f"is of family={options.family}, for which {target.title} has no names"
        raise ConfigError(f"{checkpoint.location} {problem}. Allowed: {holders}.")
    sidecar_files.check_source(checkpoint.location, read)
    if options.vocab_file and "huggingface" in (checkpoint.format.name, target.name):
        file, padding = vocabulary_files.read(options.vocab_file), options.of_family.get("position_offset", 0)
        special = file.tokenizer.special if file.tokenizer else vocabulary_files.SPECIAL_TOKENS
        vocabulary_files.check_padding(file.words, special, padding - 1, file.path)
    if not target.may_lack_biases and FAMILIES[options.family].has_biases:
        mapping.add_zero_biases(read)
    dropped, kept = dict(read.dropped), read.tensors
    if not options.with_optimizer:
        slots = {name for name in kept if name.rpartition("/")[2] in canonical.SLOTS}
        reason = "optimizer slot; --with_optimizer carries it"
        dropped |= _at_source(dict.fromkeys(slots, reason), kept)
        kept = {name: kept[name] for name in kept if name not in slots}
    registry.check_finite(kept, checkpoint)
    kept, vocabulary, rows = with_vocabulary(kept, checkpoint.location, options)
    if target.brings_sidecar_files and not given.vocab_file and options.vocab_file:
        count = len(vocabulary_files.read(options.vocab_file).words)
        if count > vocabulary["to"]:  # found next to the source: it has words that the result lacks
            dropped[options.vocab_file] = f"it has {count} words, the result {vocabulary['to']}"
            options = dataclasses.replace(options, vocab_file=None)
    mapped = target.from_canonical(kept, options)
    if strange := sorted(mapped.unmatched):
        problem = f"the {target.title} format has no place for {shortened(strange)}."
        raise ConfigError(f"{checkpoint.location}: {problem}", {"no place": strange})
    result = mapped.tensors
    if options.precision is not None:
        result = {name: _with_precision(name, tensor, options, target) for name, tensor in result.items()}
    dropped |= _at_source(mapped.dropped, kept)
    added = read.added | mapped.added
    if count := vocabulary["restored"]:
        reason = f"{count} of its words were cut off by an earlier conversion and come from {CUT_WORDS}"
        sources = {name: " ".join(tensor.sources) for name, tensor in result.items()}
        added |= {name: reason for name, names in sources.items() if f"{CUT_WORDS}:" in names}
    return Content(result, kept, rows, vocabulary, dropped, added, options)


def _with_precision(name: str, tensor: Tensor, options: Options, target: Format) -> Tensor:
    if not tensors_lib.is_float(tensor):
        return tensor
    is_half = options.precision == 16 and not re.fullmatch(target.float32_names or "", name)
    return tensors_lib.checked_cast(name, tensor, np.dtype(np.float16 if is_half else np.float32))


def _at_source(names: dict[str, str], tensors: Tensors) -> dict[str, str]:
    """Returns {canonical name: reason} under the names in the source, if they exist there."""
    return {", ".join(tensors[name].sources) or name: reason for name, reason in names.items()}


# -----------------------------------------------------------------------------------------------------------
# Report


def _report(checkpoint: registry.Checkpoint, target: dict[str, str], content: Content) -> dict:
    """Returns the report of a conversion, from its content; `target`: {format, path} of the result.

    Fields: {source, target: {format, path, tensors, parameters, bytes}, written: {name: {from, shape,
    dtype}}, reshaped: {name: {from, to}}, cast: {name: {from, to}}, dropped, added: {name: reason},
    vocabulary: see `with_vocabulary`, num_attention_heads, hidden_act}.
    """
    source = {"format": checkpoint.format.reported_name, "path": checkpoint.location}
    written, reshaped, cast = {}, {}, {}
    for name, tensor in sorted(content.result.items()):
        shape, dtype = list(tensor.shape), tensor.dtype.name
        written[name] = {"from": list(tensor.sources), "shape": shape, "dtype": dtype}
        # Restored words count with the type that they had.
        old = [checkpoint.tensors[one] for one in tensor.sources if one in checkpoint.tensors]
        types = sorted({one.dtype.name for one in old})
        if len(tensor.sources) == len(old) == 1 and list(old[0].shape) != shape:
            reshaped[name] = {"from": list(old[0].shape), "to": shape}
        if types and types != [dtype]:
            cast[name] = {"from": ", ".join(types), "to": dtype}
    return {
        "source": {**source, **registry.size_of(checkpoint.tensors)},
        "target": {**target, **registry.size_of(content.result)},
        "written": written,
        "reshaped": reshaped,
        "cast": cast,
        "dropped": dict(sorted(content.dropped.items())),
        "added": dict(sorted(content.added.items())),
        "vocabulary": content.vocabulary,
        "num_attention_heads": content.options.num_attention_heads,
        "hidden_act": content.options.hidden_act,
    }


def describe(report: dict) -> str:
    """Returns a report as lines of text."""
    source, target, vocabulary = report["source"], report["target"], report["vocabulary"]
    lines = [
        f"{side:<8}{size['format']:<12}{size['path']}: {size['tensors']} tensors, {size['parameters']:,}"
        f" numbers, {size['bytes'] / 1e6:,.1f} MB"
        for side, size in (("read", source), ("written", target))
    ]
    if vocabulary["from"] != vocabulary["to"]:
        phrases = {"cut": "cut off (kept next to the result)", "restored": "restored"}
        phrases["filled"] = "filled with zeros"
        parts = ", ".join(f"{vocabulary[what]} {text}" for what, text in phrases.items() if vocabulary[what])
        lines.append(f"vocabulary {vocabulary['from']} -> {vocabulary['to']} words: {parts}")
    for title in ("dropped", "added"):
        for reason, names in _by_reason(report[title]).items():
            shown = ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} more"
            lines.append(f"{title}: {shown} ({reason})")
    casts = {name: f"{change['from']} -> {change['to']}" for name, change in report["cast"].items()}
    lines += [f"cast: {len(names)} tensors {change}" for change, names in _by_reason(casts).items()]
    lines += [f"note: {note}" for note in report["notes"]]
    lines.append(f"checked: {report['compared']} tensors read back, equal bit by bit")
    return "\n".join(lines)


def _by_reason(names: dict[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, reason in names.items():
        groups.setdefault(reason, []).append(name)
    return groups


# -----------------------------------------------------------------------------------------------------------
# Writing, comparison, publication


def _writing_to(path: str) -> contextlib.AbstractContextManager:
    return writing.naming_output(path, kinds=(OSError, tf.errors.OpError))


def _read_back_and_compare(container: ModuleType, expected: Tensors, location: str) -> None:
    """Raises MismatchError if the written tensors differ from the source in any bit."""
    where = "the result"
    try:
        written = container.read(location)
        bookkeeping = {"save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH"}
        problems = list((written.keys() ^ expected.keys()) - bookkeeping)
        for where in written.keys() & expected.keys():
            ours, theirs = expected[where].read(), written[where].read()
            bits = f"u{ours.dtype.itemsize}"  # compared as integers: NaN is equal to itself, 0 not to -0
            if ours.dtype != theirs.dtype or not np.array_equal(ours.view(bits), theirs.view(bits)):
                problems.append(where)
    except DamagedError as error:
        raise MismatchError(f"read back, {where} is damaged ({error}).") from None
    if problems:
        raise MismatchError(
            f"after writing, these tensors differ when read back: {shortened(sorted(problems))}."
        )


def _publish(container: ModuleType, work: str, location: str, obsolete: list[str]) -> None:
    """Publishes the result, and removes other files of an older one, and `obsolete`."""
    kept = set(vocabulary_files.KEPT)
    if vocabulary_files.find(work):  # otherwise an older vocabulary is kept
        kept = set()
    old = [path for path in (*container.files(location), *obsolete) if os.path.basename(path) not in kept]
    with _writing_to(location):
        writing.publish_all(work, os.path.dirname(work), container.LAST, old)


# -----------------------------------------------------------------------------------------------------------
# Numbers of words
#
# With the published defaults, BERT-large loses 122 of its 30,522 words on conversion to Graphcore's format.
# Stored, they are 0.5 MB next to 655 MB, and the way back restores them all; without them it would end at
# 30,400 words, a size that no published vocabulary has.

# Sidecar file of a checkpoint with a cut vocabulary: the words that were cut off.
CUT_WORDS = "vocab_rows.safetensors"
_WORDS = "bert/embeddings/word_embeddings"


def with_vocabulary(
    tensors: Tensors, source: str, options: Options
) -> tuple[Tensors, dict[str, int], Tensors]:
    """Cuts or pads the vocabulary: word embeddings, output bias and their slots together. New words get the
    averages of the options, or zeros.

    Returns:
      The tensors; {from, to, restored: words from an earlier conversion, filled: words with zeros, cut: words
      cut off}; and {name: tensor of the rows that were cut off}.

    Raises:
      ConfigError: if the number of words of one of these tensors differs from that of the embeddings, or the
        words of an earlier conversion do not match.
    """
    have, path = tensors[_WORDS].shape[0], cut_words_path(source)
    by_word = [name for name in tensors if name.startswith(canonical.VOCABULARY)]
    other = [f"{name} {list(tensors[name].shape)}" for name in by_word if tensors[name].shape[0] != have]
    if other:
        problem = f"the word embeddings have {have} words, but {shortened(other)} have another number."
        raise ConfigError(f"{source}: {problem}")
    more = options.vocab_size is None or options.vocab_size > have
    rows = _read_cut_words(path) if more else {}
    count = rows[_WORDS].shape[0] if rows else 0
    want = options.vocab_size or have + count
    changed, cut = dict(tensors), {}
    for name in by_word:
        tensor, cut_off = tensors[name], rows.get(name)
        if cut_off is not None and cut_off.shape != (count, *tensor.shape[1:]):
            problem = f"{name} {list(cut_off.shape)} there, {list(tensor.shape)} here. Remove it."
            raise ConfigError(f"{path} does not belong to this checkpoint: {problem}")
        if cut_off is not None:
            # Joined in the wider type, so that a float32 result loses nothing.
            floats = (one.dtype for one in (tensor, cut_off) if one.dtype.kind == "f")
            wide, own = np.result_type(np.float32, *floats), tensor.dtype
            tensor = tensors_lib.joined([tensors_lib.cast(one, wide) for one in (tensor, cut_off)], 0)
            if options.precision is None:
                tensor = tensors_lib.checked_cast(name, tensor, own)
        if tensor.shape[0] > want:
            cut[name] = tensors_lib.rows_from(tensor, want)
        changed[name] = tensors_lib.with_average_rows(tensors_lib.with_rows(tensor, want), options.averages)
    numbers = {
        "from": have,
        "to": want,
        "restored": min(count, want - have) if rows else 0,
        "filled": max(want - have - count, 0),
        "cut": max(have - want, 0),
    }
    return changed, numbers, cut


def cut_words_path(location: str) -> str:
    """Returns the path of the words that were cut off a checkpoint: in a Hugging Face folder, or next to a
    bundle or file."""
    location = location.rstrip("/") or location
    if os.path.basename(location) == hf_folder.WEIGHTS:
        location = os.path.dirname(location) or "."
    if os.path.isdir(location) and not os.path.exists(location + ".index"):
        return os.path.join(location, CUT_WORDS)
    return f"{location}.{CUT_WORDS}"


def _read_cut_words(path: str) -> Tensors:
    """Raises ConfigError for a damaged file."""
    if not os.path.exists(path):
        return {}
    try:
        found = hf_folder.read_file(path)
        if _WORDS not in found:
            raise DamagedError(f"it has no {_WORDS}")
        return {name: tensors_lib.of_array(one.read(), f"{CUT_WORDS}:{name}") for name, one in found.items()}
    except (DamagedError, OSError) as error:
        reason = f"cannot be read ({error}). Restore it, or remove it to convert without these words."
        raise ConfigError(f"{path}, which holds words that an earlier conversion cut off, {reason}") from None


def _write_cut_words(rows: Tensors, location: str) -> None:
    if rows:
        from safetensors.numpy import save_file

        arrays = {name: np.ascontiguousarray(tensor.read()) for name, tensor in rows.items()}
        with _writing_to(location):
            save_file(arrays, cut_words_path(location))

"""Converts a checkpoint from one format to another, checks what was written, and tells everything that happened.

    report = convert("uncased_L-12_H-768_A-12/bert_model.ckpt", "huggingface", "bert_hf")
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from official.checkpoint import reading
from official.checkpoint.formats import canonical, companions, hf_folder, registry, tensors as tensors_lib
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.tensors import Tensor, Tensors
from official.config import ConfigError
from official.io import vocabulary_files, writing
from official.io.errors import shortened

SIDECAR = "vocab_rows.safetensors"  # with a checkpoint whose vocabulary was cut: the words that were cut off
_WORDS = "bert/embeddings/word_embeddings"


class MismatchError(Exception):
    """What was written is not what was meant to be."""


def convert(source: str, target_format: str, output_dir: str, source_format: str | None = None, options: Options = Options(),
            overwrite: bool = False, progress=lambda done, total: None, verify: Callable[[dict, dict, Options], dict] | None = None) -> dict:
    """Converts a checkpoint. The result is written beside its place, checked there, and takes its place last, all at once.

    Args:
      source: prefix, folder or file; of a folder of TensorFlow checkpoints, the newest.
      target_format: one of `registry.FORMATS`.
      output_dir: the result is OUTPUT_DIR/<basename of the source>, or the folder itself for huggingface.
      source_format: unset: found out from the files.
      options: what to keep, cut, join and cast.
      overwrite: replace an older result.
      progress: called with bytes written so far and in all.
      verify: ({format, path} of the source, of the result, options) -> {passed, ...}, one more check of the result; unset: none.

    Returns:
      The report: source, target, written {name: from, shape, dtype}, dropped {name: reason}, added {name: reason}, reshaped,
      cast, vocabulary, num_attention_heads (None: not known), hidden_act, companions (paths of files beside the result),
      notes (lines about settings that no tensor tells), compared (number of tensors read back and found equal), verification (what
      `verify` returned), published (False where that did not pass: then nothing was written or replaced).

    Raises:
      ConfigError: for a source that cannot be read, is of another format or incomplete, for names that the target does not know,
        and where the result is there already.
      MismatchError: where the result, read back, differs; nothing was written or replaced then.
    """
    names, container = registry.get_format(target_format)
    checkpoint = registry.open_checkpoint(source, "PATH", source_format)
    folder = output_dir or "."
    source, location = checkpoint.location, container.target(folder, checkpoint.location)
    _check_free(container, location, checkpoint, overwrite)
    given_vocabulary, notes = options.vocab_file, companions.notes_of_source(options, source, checkpoint.title, checkpoint.usual_activation)
    options = with_companions(options, checkpoint)
    try:
        read = checkpoint.to_canonical(options)
        companions.check_source(source, read.tensors)
        dropped = dict(read.dropped)
        kept = _without_slots(read.tensors, options, dropped)
        registry.check_finite(kept, checkpoint)
        kept, vocabulary, rows = _with_vocabulary(kept, source, options)
        if target_format == "huggingface" and not given_vocabulary:
            options = _without_long_vocabulary(options, vocabulary["to"], dropped)
        mapped = names.from_canonical(kept, options)
        if mapped.unmatched:
            strange = sorted(mapped.unmatched)
            raise ConfigError(f"{source}: the {names.TITLE} format has no place for {shortened(strange)}.", {"no place": strange})
        result = _with_precision(mapped.tensors, options, getattr(names, "keeps_float32", lambda name: False))
        beside = _plan_companions(target_format, source, location, kept, options, overwrite)
        with _work_folder(folder) as work:
            made = container.target(work, source)
            _write(container, result, made, options, progress)
            compared = _read_back_and_compare(container, result, made)
            _write_sidecar(rows, made)
            gone = companions.hand_on(beside, work)
            ends = [{"format": name, "path": path} for name, path in ((checkpoint.format, source), (target_format, made))]
            verification = verify(*ends, options) if verify else None
            published = verification is None or verification["passed"]
            if published:
                _publish(container, work, folder, location, gone)
    except reading.DamagedError as error:
        raise ConfigError(f"{source}: unreadable checkpoint ({error}).") from None
    dropped |= {_source_names(kept[name]) or name: reason for name, reason in mapped.dropped.items()}
    added = {**read.added, **mapped.added, **_restored(result, vocabulary)}
    report = _report(checkpoint, target_format, location, result, dropped, added, vocabulary, compared)
    written = [path for path, content in beside.items() if content is not None]
    notes += companions.notes_of_result(options, written) if target_format != "huggingface" else []
    return {**report, "num_attention_heads": options.num_attention_heads, "hidden_act": options.hidden_act, "published": published,
            **({"verification": verification} if verify else {}), "companions": written, "notes": notes}


def with_companions(options: Options, checkpoint: registry.Checkpoint) -> Options:
    """Returns the options with what the checkpoint's shapes and the files beside it say about heads, activation and vocabulary."""
    return companions.with_companions(options, checkpoint.location, checkpoint.heads, checkpoint.usual_activation)


def _check_free(container, location: str, checkpoint: registry.Checkpoint, overwrite: bool) -> None:
    there, source = container.files(location), os.path.realpath(checkpoint.location)
    places = {source, os.path.dirname(source)} if checkpoint.format == "huggingface" and os.path.isfile(source) else {source}
    if os.path.realpath(location) in places:
        folder = location if os.path.isdir(location) else os.path.dirname(location)
        raise ConfigError(f"--output_dir={folder or '.'} is where the source is. Give another --output_dir.")
    if there and not overwrite:
        raise ConfigError(f"{there[0]} exists. Give another --output_dir, or replace it with --overwrite.")


def _without_long_vocabulary(options: Options, words: int, dropped: dict[str, str]) -> Options:
    """Leaves out a vocabulary, found and not given, that has words which the result does not have."""
    path = options.vocab_file
    count = companions.count_words(path) if path else 0
    if count <= words:
        return options
    dropped[path] = f"it has {count} words, the result {words}"
    return dataclasses.replace(options, vocab_file=None)


def _plan_companions(target_format: str, source: str, location: str, kept: Tensors, options: Options, overwrite: bool) -> dict:
    if target_format != "huggingface":
        return companions.plan(source, location, kept, options, overwrite)
    if options.vocab_file:  # which the folder's writer copies, as it writes config.json
        content = vocabulary_files.read(options.vocab_file).content
        companions.check_free({os.path.join(location, hf_folder.VOCABULARY): content}, overwrite)
    return {}


def _without_slots(tensors: Tensors, options: Options, dropped: dict[str, str]) -> Tensors:
    if options.with_optimizer:
        return tensors
    slots = {name for name in tensors if name.rpartition("/")[2] in canonical.SLOTS}
    dropped |= {_source_names(tensors[name]) or name: "optimizer slot; --with_optimizer carries it" for name in slots}
    return {name: tensor for name, tensor in tensors.items() if name not in slots}


def _source_names(tensor: Tensor) -> str:
    return ", ".join(tensor.sources)


def _with_vocabulary(tensors: Tensors, source: str, options: Options) -> tuple[Tensors, dict, Tensors]:
    """Cuts or fills up the vocabulary: word embeddings, output bias and their slots together.

    Returns:
      The tensors; {from, to, restored: words from the sidecar file of the source, filled: words of zeros, cut: words cut off}; and
      {name: tensor of what was cut off}.

    Raises:
      ConfigError: where one of these tensors has another number of words than the embeddings, or the sidecar does not fit.
    """
    by_word = [name for name in tensors if name.startswith(canonical.VOCABULARY)]
    have = tensors[_WORDS].shape[0]
    other = [f"{name} {list(tensors[name].shape)}" for name in by_word if tensors[name].shape[0] != have]
    if other:
        raise ConfigError(f"{source}: the word embeddings have {have} words, and another number have {shortened(other)}.")
    rows = _read_sidecar(sidecar_path(source)) if options.vocab_size is None or options.vocab_size > have else {}
    restored = rows[_WORDS].shape[0] if rows else 0
    changed = dict(tensors)
    for name in rows.keys() & set(by_word):
        changed[name] = _with_rows_of_sidecar(name, tensors[name], rows[name], restored, sidecar_path(source), options)
    want = options.vocab_size or have + restored
    cut = {name: tensors_lib.rows_from(changed[name], want) for name in by_word if changed[name].shape[0] > want}
    for name in by_word:
        changed[name] = tensors_lib.with_rows(changed[name], want)
    return changed, {"from": have, "to": want, "restored": min(restored, want - have) if rows else 0,
                     "filled": max(want - have - restored, 0), "cut": max(have - want, 0)}, cut


def _with_rows_of_sidecar(name: str, tensor: Tensor, rows: Tensor, words: int, path: str, options: Options) -> Tensor:
    """Joins in the wider type, so that nothing is lost where the result is float32; else the result has the tensor's type."""
    if rows.shape != (words, *tensor.shape[1:]):
        raise ConfigError(f"{path} does not belong to this checkpoint: {name} {list(rows.shape)} there, {list(tensor.shape)} here. Remove it.")
    wide = np.result_type(np.float32, *(one.dtype for one in (tensor, rows) if one.dtype.kind == "f"))
    joined = tensors_lib.joined([tensors_lib.cast(tensor, wide), tensors_lib.cast(rows, wide)], 0)
    return joined if options.precision else _checked_cast(name, joined, tensor.dtype)


def sidecar_path(location: str) -> str:
    """Returns where the words are that were cut off a checkpoint: in a Hugging Face folder, or beside a bundle or file."""
    location = location.rstrip("/") or location
    if os.path.basename(location) == hf_folder.WEIGHTS:
        location = os.path.dirname(location) or "."
    if os.path.isdir(location) and not os.path.exists(location + ".index"):
        return os.path.join(location, SIDECAR)
    return f"{location}.{SIDECAR}"


def _source_in_sidecar(name: str) -> str:
    return f"{SIDECAR}:{name}"


def _read_sidecar(path: str) -> Tensors:
    """Raises ConfigError for a damaged file."""
    if not os.path.exists(path):
        return {}
    try:
        rows = hf_folder.read(path)
        rows = {name: tensors_lib.of_array(tensor.read(), _source_in_sidecar(name)) for name, tensor in rows.items()}
        if _WORDS not in rows:
            raise reading.DamagedError(f"it has no {_WORDS}")
    except (reading.DamagedError, OSError) as error:
        raise ConfigError(f"{path}, with the words that were cut off, cannot be read ({error}). Restore it, or remove it to do without.") from None
    return rows


def _write_sidecar(rows: Tensors, location: str) -> None:
    if rows:
        from safetensors.numpy import save_file

        with _writing(location):
            save_file({name: np.ascontiguousarray(tensor.read()) for name, tensor in rows.items()}, sidecar_path(location))


@contextlib.contextmanager
def _work_folder(folder: str) -> Iterator[str]:
    """Yields a folder in which the result is made and checked, beside its place."""
    with contextlib.ExitStack() as stack:
        with _writing(folder):
            work = stack.enter_context(writing.unpublished(folder))
        yield work


def _publish(container, work: str, folder: str, location: str, gone: list[str]) -> None:
    """Puts the result in its place, and takes away what is left of an older one: its other files, its cut words and companions."""
    of_vocabulary = (vocabulary_files.VOCABULARY, vocabulary_files.TOKENIZER, vocabulary_files.TOKENIZER_CONFIG)
    brings_one = os.path.exists(os.path.join(work, vocabulary_files.VOCABULARY))  # otherwise an older one stays
    old = [path for path in (*container.files(location), sidecar_path(location)) if brings_one or os.path.basename(path) not in of_vocabulary]
    with _writing(location):
        writing.publish_all(work, folder, container.LAST, (*old, *gone))


@contextlib.contextmanager
def _writing(path: str):
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise ConfigError(f"{path} cannot be written: {getattr(error, 'strerror', None) or (str(error).splitlines() or [error])[0]}.") from None


def _with_precision(tensors: Tensors, options: Options, keeps_float32) -> Tensors:
    if options.precision is None:
        return tensors
    wanted = np.dtype({16: np.float16, 32: np.float32}[options.precision])

    def converted(name, tensor):
        dtype = np.dtype(np.float32) if keeps_float32(name) else wanted
        return _checked_cast(name, tensor, dtype) if tensors_lib.is_float(tensor) else tensor

    return {name: converted(name, tensor) for name, tensor in tensors.items()}


def _checked_cast(name: str, tensor: Tensor, dtype: np.dtype) -> Tensor:
    if tensor.dtype == dtype:
        return tensor

    def read():
        values = tensor.read()
        with np.errstate(over="ignore"):
            result = values.astype(dtype)
        if np.isfinite(values).all() and not np.isfinite(result).all():
            advice = " Use --precision=32." if dtype.itemsize == 2 else ""
            raise ConfigError(f"{name} holds values up to {float(np.abs(values).max()):g}, beyond what {dtype.name} can hold.{advice}")
        return result

    return Tensor(tensor.shape, dtype, read, tensor.sources)


def _write(container, tensors: Tensors, location: str, options: Options, progress) -> None:
    total, done = sum(tensor.nbytes for tensor in tensors.values()), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    with _writing(location):
        container.write(tensors, location, options, count)


def _read_back_and_compare(container, wanted: Tensors, location: str) -> int:
    """Compares what was written with what was to be written. Returns the number of tensors."""
    try:
        written = container.read(location)
    except reading.DamagedError as error:
        raise MismatchError(f"read back, the result is damaged ({error}).") from None
    return _compare(written, wanted)


def _compare(written: Tensors, wanted: Tensors) -> int:
    """Reads the result back and compares it bit by bit. Returns the number of tensors."""
    problems = [name for name in written.keys() ^ wanted.keys() if name not in _BOOKKEEPING]
    for name in written.keys() & wanted.keys():
        ours, theirs = wanted[name].read(), _read_back(name, written[name])
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape or ours.tobytes() != theirs.tobytes():
            problems.append(name)
    if problems:
        raise MismatchError(f"read back, these tensors differ from what was to be written: {shortened(sorted(problems))}.")
    return len(wanted)


def _read_back(name: str, tensor: Tensor) -> np.ndarray:
    try:
        return tensor.read()
    except reading.DamagedError as error:
        raise MismatchError(f"read back, {name} is damaged ({error}).") from None


_BOOKKEEPING = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")


def _restored(result: Tensors, vocabulary: dict) -> dict[str, str]:
    reason = f"{vocabulary['restored']} words of it come from {SIDECAR}, with those that an earlier conversion cut off"
    return {name: reason for name, tensor in result.items() if vocabulary["restored"] and any(one.startswith(f"{SIDECAR}:") for one in tensor.sources)}


def _casts(checkpoint, result: Tensors) -> dict[str, dict]:
    """Returns {name: {from, to}} where one of the source's tensors has another type; words that come back were of the type that they had."""
    casts = {}
    for name, tensor in sorted(result.items()):
        types = sorted({checkpoint.tensors[one].dtype.name for one in tensor.sources if one in checkpoint.tensors})
        if types and types != [tensor.dtype.name]:
            casts[name] = {"from": ", ".join(types), "to": tensor.dtype.name}
    return casts


def _report(checkpoint, target_format: str, location: str, result: Tensors, dropped: dict, added: dict, vocabulary: dict, compared: int) -> dict:
    single = {name: (checkpoint.tensors[tensor.sources[0]], tensor) for name, tensor in result.items()
              if len(tensor.sources) == 1 and tensor.sources[0] in checkpoint.tensors}
    return {
        "source": {"format": checkpoint.format, "path": checkpoint.location, **registry.size_of(checkpoint.tensors)},
        "target": {"format": target_format, "path": location, **registry.size_of(result)},
        "written": {name: {"from": list(tensor.sources), "shape": list(tensor.shape), "dtype": tensor.dtype.name}
                    for name, tensor in sorted(result.items())},
        "dropped": dict(sorted(dropped.items())),
        "added": dict(sorted(added.items())),
        "reshaped": {name: {"from": list(old.shape), "to": list(new.shape)} for name, (old, new) in sorted(single.items()) if old.shape != new.shape},
        "cast": _casts(checkpoint, result),
        "vocabulary": vocabulary,
        "compared": compared,
    }


def describe(report: dict) -> str:
    """Returns a report as lines for people."""
    source, target, vocabulary = report["source"], report["target"], report["vocabulary"]
    lines = [f"{side:<8}{size['format']:<12}{size['path']}: {size['tensors']} tensors, {size['parameters']:,} numbers, {size['bytes'] / 1e6:,.1f} MB"
             for side, size in (("read", source), ("written", target))]
    if vocabulary["from"] != vocabulary["to"]:
        parts = [f"{vocabulary[what]} {text}" for what, text in (("cut", "cut off (kept beside the result)"), ("restored", "restored"),
                                                                 ("filled", "filled with zeros")) if vocabulary[what]]
        lines.append(f"vocabulary {vocabulary['from']} -> {vocabulary['to']} words: {', '.join(parts)}")
    for title in ("dropped", "added"):
        lines += [f"{title}: {_folded(names)} ({reason})" for reason, names in _by_reason(report[title]).items()]
    casts = _by_reason({name: f"{change['from']} -> {change['to']}" for name, change in report["cast"].items()})
    lines += [f"cast: {len(names)} tensors {change}" for change, names in casts.items()]
    lines += [f"note: {note}" for note in report["notes"]]
    lines.append(f"checked: {report['compared']} tensors read back, equal bit by bit")
    return "\n".join(lines)


def _by_reason(names: dict[str, str]) -> dict[str, list[str]]:
    groups = {}
    for name, reason in names.items():
        groups.setdefault(reason, []).append(name)
    return groups


def _folded(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} more"

"""Converts a checkpoint from one format to another, checks what was written, and tells everything that happened.

    report = convert("uncased_L-12_H-768_A-12/bert_model.ckpt", "huggingface", "bert_hf")
"""

import os

import numpy as np
import tensorflow as tf

from official.checkpoint import reading
from official.checkpoint.formats import canonical, companions, registry, tensors as tensors_lib
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.table import Mapped
from official.checkpoint.formats.tensors import Tensor, Tensors
from official.config import ConfigError

SIDECAR = ".vocab_rows.safetensors"  # beside a checkpoint whose vocabulary was cut: the words that were cut off


class MismatchError(Exception):
    """What was written is not what was meant to be."""


def convert(source: str, target_format: str, output_dir: str, source_format: str | None = None, options: Options = Options(),
            overwrite: bool = False, progress=lambda done, total: None) -> dict:
    """Converts a checkpoint.

    Args:
      source: prefix, folder or file; of a folder of TensorFlow checkpoints, the newest.
      target_format: one of `registry.FORMATS`.
      output_dir: the result is OUTPUT_DIR/<basename of the source>, or the folder itself for huggingface.
      source_format: unset: found out from the files.
      options: what to keep, cut, join and cast.
      overwrite: replace an older result.
      progress: called with bytes written so far and in all.

    Returns:
      The report: source, target, written {name: from, shape, dtype}, dropped {name: reason}, added {name: reason}, reshaped,
      cast, vocabulary, compared (number of tensors read back and found equal).

    Raises:
      ConfigError: for a source that cannot be read, is of another format or incomplete, for names that the target does not know,
        and where the result is there already.
      MismatchError: where the result, read back, differs.
    """
    names, container = registry.get_format(target_format)
    checkpoint = registry.open_checkpoint(source, "PATH", source_format)
    location = container.target(output_dir, checkpoint.location)
    _check_free(container, location, checkpoint.location, overwrite)
    options = companions.with_companions(options, checkpoint.location)
    try:
        read = checkpoint.to_canonical(options)
        dropped = dict(read.dropped)
        kept = _without_slots(read.tensors, options, dropped)
        kept, vocabulary = _with_vocabulary(kept, checkpoint.location, options)
        mapped = names.from_canonical(kept, options)
        if mapped.unmatched:
            raise ConfigError(f"{checkpoint.location}: the {names.TITLE} format has no place for {', '.join(sorted(mapped.unmatched))}.")
        result = _with_precision(mapped.tensors, options, getattr(names, "keeps_float32", lambda name: False))
        _write(container, result, location, options, progress)
        _write_sidecar(vocabulary.pop("rows"), location)
        compared = _compare(container.read(location), result)
        if target_format != "huggingface":  # which has its own
            companions.hand_on(checkpoint.location, location, kept, options)
    except reading.DamagedError as error:
        raise ConfigError(f"{checkpoint.location}: unreadable checkpoint ({error}).") from None
    dropped |= {_source_names(kept[name]) or name: reason for name, reason in mapped.dropped.items()}
    return _report(checkpoint, target_format, location, result, dropped, {**read.added, **mapped.added}, vocabulary, compared)


def _check_free(container, location: str, source: str, overwrite: bool) -> None:
    there = container.files(location)
    if os.path.abspath(location) == os.path.abspath(source):
        raise ConfigError(f"--output_dir={os.path.dirname(location) or '.'} is where the source is. Give another --output_dir.")
    if there and not overwrite:
        raise ConfigError(f"{there[0]} exists. Give another --output_dir, or replace it with --overwrite.")


def _without_slots(tensors: Tensors, options: Options, dropped: dict[str, str]) -> Tensors:
    if options.with_optimizer:
        return tensors
    slots = {name for name in tensors if name.rpartition("/")[2] in canonical.SLOTS}
    dropped |= {_source_names(tensors[name]) or name: "optimizer slot; --with_optimizer carries it" for name in slots}
    return {name: tensor for name, tensor in tensors.items() if name not in slots}


def _source_names(tensor: Tensor) -> str:
    return ", ".join(tensor.sources)


def _with_vocabulary(tensors: Tensors, source: str, options: Options) -> tuple[Tensors, dict]:
    """Cuts or fills up the vocabulary, word embeddings and output bias together.

    Returns:
      The tensors, and {from, to, restored: words from the sidecar file of the source, filled: words of zeros, cut: words cut off,
      rows: {name: tensor of what was cut off}}.
    """
    by_word = [name for name in tensors if name.startswith(canonical.VOCABULARY)]
    have = tensors["bert/embeddings/word_embeddings"].shape[0]
    rows = _read_sidecar(source + SIDECAR) if options.vocab_size is None or options.vocab_size > have else {}
    restored = rows["bert/embeddings/word_embeddings"].shape[0] if rows else 0
    changed = dict(tensors)
    for name in rows.keys() & set(by_word):
        changed[name] = tensors_lib.joined([tensors[name], tensors_lib.cast(rows[name], tensors[name].dtype)], 0)
    want = options.vocab_size or have + restored
    cut = {name: tensors_lib.rows_from(changed[name], want) for name in by_word if changed[name].shape[0] > want}
    for name in by_word:
        changed[name] = tensors_lib.with_rows(changed[name], want)
    return changed, {"from": have, "to": want, "restored": min(restored, want - have) if rows else 0,
                     "filled": max(want - have - restored, 0), "cut": max(have - want, 0), "rows": cut}


def _read_sidecar(path: str) -> Tensors:
    if not os.path.exists(path):
        return {}
    from safetensors.numpy import load_file

    return {name: tensors_lib.of_array(array, name) for name, array in load_file(path).items()}


def _write_sidecar(rows: Tensors, location: str) -> None:
    path = location.rstrip("/") + SIDECAR
    if not rows:
        if os.path.exists(path):
            os.remove(path)  # of an older result that was replaced
        return
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(tensor.read()) for name, tensor in rows.items()}, path + ".tmp")
    os.replace(path + ".tmp", path)


def _with_precision(tensors: Tensors, options: Options, keeps_float32) -> Tensors:
    if options.precision is None:
        return tensors
    wanted = np.dtype({16: np.float16, 32: np.float32}[options.precision])

    def converted(name, tensor):
        if not tensors_lib.is_float(tensor) or keeps_float32(name) or tensor.dtype == wanted:
            return tensor
        return _checked_cast(name, tensor, wanted)

    return {name: converted(name, tensor) for name, tensor in tensors.items()}


def _checked_cast(name: str, tensor: Tensor, dtype) -> Tensor:
    def read():
        values = tensor.read()
        with np.errstate(over="ignore"):
            result = values.astype(dtype)
        if np.isfinite(values).all() and not np.isfinite(result).all():
            raise ConfigError(f"{name} holds values up to {np.abs(values).max():g}, beyond what float16 can hold. Use --precision=32.")
        return result

    return Tensor(tensor.shape, dtype, read, tensor.sources)


def _write(container, tensors: Tensors, location: str, options: Options, progress) -> None:
    total, done = sum(tensor.nbytes for tensor in tensors.values()), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    try:
        tf.io.gfile.makedirs(os.path.dirname(location) or ".")
        container.write(tensors, location, options, count)
    except (OSError, tf.errors.OpError) as error:
        raise ConfigError(f"{location} cannot be written: {getattr(error, 'strerror', None) or str(error).splitlines()[0]}.") from None


def _compare(written: Tensors, wanted: Tensors) -> int:
    """Reads the result back and compares it bit by bit. Returns the number of tensors."""
    problems = [name for name in written.keys() ^ wanted.keys() if name not in _BOOKKEEPING]
    for name in written.keys() & wanted.keys():
        ours, theirs = wanted[name].read(), written[name].read()
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape or ours.tobytes() != theirs.tobytes():
            problems.append(name)
    if problems:
        raise MismatchError(f"read back, these tensors differ from what was to be written: {', '.join(sorted(problems))}.")
    return len(wanted)


_BOOKKEEPING = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")


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
        "cast": {name: {"from": old.dtype.name, "to": new.dtype.name} for name, (old, new) in sorted(single.items()) if old.dtype != new.dtype},
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
    lines.append(f"checked: {report['compared']} tensors read back, equal bit by bit")
    return "\n".join(lines)


def _by_reason(names: dict[str, str]) -> dict[str, list[str]]:
    groups = {}
    for name, reason in names.items():
        groups.setdefault(reason, []).append(name)
    return groups


def _folded(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} more"

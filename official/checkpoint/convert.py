"""Conversion of a checkpoint: read, renamed, written, read back, compared, published, reported."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from official.checkpoint import registry, sidecar_files
from official.checkpoint.containers import hf_folder
from official.checkpoint.errors import DamagedError
from official.checkpoint.format import NOTHING_GIVEN, Container, Format, Options
from official.checkpoint.mapping import canonical, table
from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.mapping.tensors import Tensor, Tensors
from official.io import vocabulary_files, writing
from official.io.errors import ConfigError, shortened

# -----------------------------------------------------------------------------------------------------------
# Content of the result


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
    options = sidecar_files.with_companions(given, checkpoint)
    read = checkpoint.to_canonical(options)
    sidecar_files.check_source(checkpoint.location, read.tensors)
    if not target.may_lack_biases:
        table.add_zero_biases(read)
    dropped = dict(read.dropped)
    kept = _without_slots(read.tensors, options, dropped)
    registry.check_finite(kept, checkpoint)
    kept, vocabulary, rows = with_vocabulary(kept, checkpoint.location, options)
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
    added = {**read.added, **mapped.added, **restored(result, vocabulary)}
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
    count = sidecar_files.count_words(path) if path else 0
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


# -----------------------------------------------------------------------------------------------------------
# Report


def report_of(checkpoint: registry.Checkpoint, target: dict[str, str], content: Content) -> dict:
    """Returns the report of a conversion, from its content.

    Args:
      checkpoint: the source.
      target: {format, path} of the result.
      content: of the result.

    Returns:
      {source, target: {format, path, tensors, parameters, bytes}, written: {name: {from, shape, dtype}},
      reshaped: {name: {from, to}}, cast: {name: {from, to}}, dropped, added: {name: reason}, vocabulary: of
      `vocabulary_rows.with_vocabulary`, num_attention_heads, hidden_act}.
    """
    result = content.result
    single = {
        name: (checkpoint.tensors[tensor.sources[0]], tensor)
        for name, tensor in result.items()
        if len(tensor.sources) == 1 and tensor.sources[0] in checkpoint.tensors
    }
    return {
        "source": {
            "format": checkpoint.format.reported_name,
            "path": checkpoint.location,
            **registry.size_of(checkpoint.tensors),
        },
        "target": {**target, **registry.size_of(result)},
        "written": {
            name: {"from": list(tensor.sources), "shape": list(tensor.shape), "dtype": tensor.dtype.name}
            for name, tensor in sorted(result.items())
        },
        "reshaped": {
            name: {"from": list(old.shape), "to": list(new.shape)}
            for name, (old, new) in sorted(single.items())
            if old.shape != new.shape
        },
        "cast": _casts(checkpoint, result),
        "dropped": dict(sorted(content.dropped.items())),
        "added": dict(sorted(content.added.items())),
        "vocabulary": content.vocabulary,
        "num_attention_heads": content.options.num_attention_heads,
        "hidden_act": content.options.hidden_act,
    }


def _casts(checkpoint: registry.Checkpoint, result: Tensors) -> dict[str, dict]:
    """Returns {name: {from, to}} where one of the source's tensors has another type; words that come back
    were of the type that they had."""
    casts = {}
    for name, tensor in sorted(result.items()):
        types = sorted(
            {checkpoint.tensors[one].dtype.name for one in tensor.sources if one in checkpoint.tensors}
        )
        if types and types != [tensor.dtype.name]:
            casts[name] = {"from": ", ".join(types), "to": tensor.dtype.name}
    return casts


def describe(report: dict) -> str:
    """Returns a report as lines for people."""
    source, target, vocabulary = report["source"], report["target"], report["vocabulary"]
    lines = [
        f"{side:<8}{size['format']:<12}{size['path']}: {size['tensors']} tensors, {size['parameters']:,}"
        f" numbers, {size['bytes'] / 1e6:,.1f} MB"
        for side, size in (("read", source), ("written", target))
    ]
    if vocabulary["from"] != vocabulary["to"]:
        parts = [
            f"{vocabulary[what]} {text}"
            for what, text in (
                ("cut", "cut off (kept beside the result)"),
                ("restored", "restored"),
                ("filled", "filled with zeros"),
            )
            if vocabulary[what]
        ]
        lines.append(f"vocabulary {vocabulary['from']} -> {vocabulary['to']} words: {', '.join(parts)}")
    for title in ("dropped", "added"):
        lines += [
            f"{title}: {_folded(names)} ({reason})" for reason, names in _by_reason(report[title]).items()
        ]
    casts = _by_reason(
        {name: f"{change['from']} -> {change['to']}" for name, change in report["cast"].items()}
    )
    lines += [f"cast: {len(names)} tensors {change}" for change, names in casts.items()]
    lines += [f"note: {note}" for note in report["notes"]]
    lines.append(f"checked: {report['compared']} tensors read back, equal bit by bit")
    return "\n".join(lines)


def _by_reason(names: dict[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, reason in names.items():
        groups.setdefault(reason, []).append(name)
    return groups


def _folded(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} more"


# -----------------------------------------------------------------------------------------------------------
# Publication


# Is called with the bytes written so far and in all.
ProgressOfAll = Callable[[int, int], None]
_BOOKKEEPING = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")


class MismatchError(Exception):
    """The written result differs from the tensors that it was made of."""


@contextlib.contextmanager
def work_folder(folder: str) -> Iterator[str]:
    """Yields a folder in which the result is made and checked, beside its place."""
    with contextlib.ExitStack() as stack:
        with writing_to(folder):
            work = stack.enter_context(writing.unpublished(folder))
        yield work


def publish(container: Container, work: str, location: str, obsolete: Iterable[str]) -> None:
    """Puts the result in its place, and takes away what is left of an older one.

    Args:
      container: of the result's format.
      work: of `work_folder`, in the folder of the result.
      location: of the result.
      obsolete: files beside the result, there or not, that the result has none in place of.
    """
    of_vocabulary = (
        vocabulary_files.VOCABULARY,
        vocabulary_files.TOKENIZER,
        vocabulary_files.TOKENIZER_CONFIG,
    )
    brings_one = os.path.exists(
        os.path.join(work, vocabulary_files.VOCABULARY)
    )  # otherwise an older one stays
    old = [
        path
        for path in (*container.files(location), *obsolete)
        if brings_one or os.path.basename(path) not in of_vocabulary
    ]
    with writing_to(location):
        writing.publish_all(work, os.path.dirname(work), container.LAST, old)


@contextlib.contextmanager
def writing_to(path: str) -> Iterator[None]:
    """Makes of what fails in its block a ConfigError that names the path."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), repr(error))
        raise ConfigError(f"{path} cannot be written: {reason}.") from None


def write(target: Format, tensors: Tensors, location: str, options: Options, progress: ProgressOfAll) -> None:
    """Writes the tensors; `progress` is called with the bytes written so far and in all. Raises
    ConfigError."""
    total, done = sum(tensor.nbytes for tensor in tensors.values()), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    with writing_to(location):
        target.write(tensors, location, options, count)


def read_back_and_compare(container: Container, wanted: Tensors, location: str) -> int:
    """Compares what was written with what was to be written. Returns the number of tensors."""
    try:
        written = container.read(location)
    except DamagedError as error:
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
        raise MismatchError(
            f"read back, these tensors differ from what was to be written: {shortened(sorted(problems))}."
        )
    return len(wanted)


def _read_back(name: str, tensor: Tensor) -> np.ndarray:
    try:
        return tensor.read()
    except DamagedError as error:
        raise MismatchError(f"read back, {name} is damaged ({error}).") from None


# -----------------------------------------------------------------------------------------------------------
# Numbers of words
#
# With the published defaults, BERT-large loses 122 of its 30,522 words on the way to Graphcore. Kept, they
# are 0.5 MB beside 655 MB, and the way back has them all; without them it would end at 30,400 words, which
# no published vocabulary has.


SIDECAR = "vocab_rows.safetensors"  # with a checkpoint whose vocabulary was cut: the words that were cut off
_WORDS = "bert/embeddings/word_embeddings"


def with_vocabulary(
    tensors: Tensors, source: str, options: Options
) -> tuple[Tensors, dict[str, int], Tensors]:
    """Cuts or fills up the vocabulary: word embeddings, output bias and their slots together.

    Returns:
      The tensors; {from, to, restored: words from the sidecar file of the source, filled: words of zeros,
      cut: words cut off}; and {name: tensor of what was cut off}.

    Raises:
      ConfigError: where one of these tensors has another number of words than the embeddings, or the sidecar
        does not fit.
    """
    have = tensors[_WORDS].shape[0]
    by_word = _names_by_word(tensors, have, source)
    more = options.vocab_size is None or options.vocab_size > have
    rows = _read_sidecar(sidecar_path(source)) if more else {}
    restored = rows[_WORDS].shape[0] if rows else 0
    changed = dict(tensors)
    for name in rows.keys() & set(by_word):
        changed[name] = _with_rows_of_sidecar(
            name, tensors[name], rows[name], restored, sidecar_path(source), options
        )
    want = options.vocab_size or have + restored
    cut = {
        name: tensors_lib.rows_from(changed[name], want) for name in by_word if changed[name].shape[0] > want
    }
    for name in by_word:
        changed[name] = tensors_lib.with_rows(changed[name], want)
    return (
        changed,
        {
            "from": have,
            "to": want,
            "restored": min(restored, want - have) if rows else 0,
            "filled": max(want - have - restored, 0),
            "cut": max(have - want, 0),
        },
        cut,
    )


def _names_by_word(tensors: Tensors, words: int, source: str) -> list[str]:
    """Returns the names of tensors with a row for each word. Raises ConfigError where one has another number
    of rows."""
    names = [name for name in tensors if name.startswith(canonical.VOCABULARY)]
    other = [f"{name} {list(tensors[name].shape)}" for name in names if tensors[name].shape[0] != words]
    if other:
        raise ConfigError(
            f"{source}: the word embeddings have {words} words, and another number have {shortened(other)}."
        )
    return names


def _with_rows_of_sidecar(
    name: str, tensor: Tensor, rows: Tensor, words: int, path: str, options: Options
) -> Tensor:
    """Joins in the wider type, so that nothing is lost where the result is float32; else the result has the
    tensor's type."""
    if rows.shape != (words, *tensor.shape[1:]):
        raise ConfigError(
            f"{path} does not belong to this checkpoint: {name} {list(rows.shape)} there,"
            f" {list(tensor.shape)} here. Remove it."
        )
    wide = np.result_type(np.float32, *(one.dtype for one in (tensor, rows) if one.dtype.kind == "f"))
    joined = tensors_lib.joined([tensors_lib.cast(tensor, wide), tensors_lib.cast(rows, wide)], 0)
    return joined if options.precision else tensors_lib.checked_cast(name, joined, tensor.dtype)


def sidecar_path(location: str) -> str:
    """Returns the path of the words that were cut off a checkpoint: in a Hugging Face folder, or beside a
    bundle or file."""
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
        rows = hf_folder.read_file(path)
        rows = {
            name: tensors_lib.of_array(tensor.read(), _source_in_sidecar(name))
            for name, tensor in rows.items()
        }
        if _WORDS not in rows:
            raise DamagedError(f"it has no {_WORDS}")
    except (DamagedError, OSError) as error:
        raise ConfigError(
            f"{path}, with the words that were cut off, cannot be read ({error}). Restore it, or remove it to"
            " do without."
        ) from None
    return rows


def write_sidecar(rows: Tensors, location: str) -> None:
    """Writes the rows that were cut off beside a checkpoint; nothing where there are none. Raises
    ConfigError."""
    if rows:
        from safetensors.numpy import save_file

        with writing_to(location):
            save_file(
                {name: np.ascontiguousarray(tensor.read()) for name, tensor in rows.items()},
                sidecar_path(location),
            )


def restored(result: Tensors, vocabulary: dict) -> dict[str, str]:
    """Returns {name: reason} of the tensors with words that came back; `vocabulary` is of
    `with_vocabulary`."""
    if not vocabulary["restored"]:
        return {}
    reason = (
        f"{vocabulary['restored']} words of it come from {SIDECAR}, with those that an earlier conversion"
        " cut off"
    )
    return {
        name: reason
        for name, tensor in result.items()
        if any(one.startswith(f"{SIDECAR}:") for one in tensor.sources)
    }


# -----------------------------------------------------------------------------------------------------------
# Conversion
#
# report = convert("uncased_L-12_H-768_A-12/bert_model.ckpt", "huggingface", "bert_hf")


Verify = Callable[[dict, dict, Options], dict]


def convert(
    source: str | registry.Checkpoint,
    target_format: str,
    output_dir: str,
    options: Options = NOTHING_GIVEN,
    overwrite: bool = False,
    progress: ProgressOfAll = lambda done, total: None,
    verify: Verify | None = None,
) -> dict:
    """Converts a checkpoint. The result is written beside its place, checked there, and takes its place last,
    all at once.

    Args:
      source: prefix, folder or file; of a folder of TensorFlow checkpoints, the newest. Or a checkpoint that
        `registry.open_checkpoint` gave.
      target_format: a name of one of `registry.FORMATS`.
      output_dir: the result is OUTPUT_DIR/<basename of the source>, or the folder itself for huggingface.
      options: what to keep, cut, join and cast.
      overwrite: replace an older result.
      progress: called with bytes written so far and in all.
      verify: ({format, path} of the source, of the result, options) -> {passed, ...}, one more check of the
        result; unset: none.

    Returns:
      The report: source, target, written {name: from, shape, dtype}, dropped {name: reason}, added {name:
        reason}, reshaped,
      cast, vocabulary, num_attention_heads (None: not known), hidden_act, companions (paths of files beside
      the result), notes (lines about settings that no tensor tells), compared (number of tensors read back
      and found equal), verification (what `verify` returned), published (False where that did not pass: then
      nothing was written or replaced).

    Raises:
      ConfigError: for a source that cannot be read, is of another format or incomplete, for names that the
        target does not know, and where the result is there already.
      MismatchError: where the result, read back, differs; nothing was written or replaced then.
    """
    checkpoint = (
        source if isinstance(source, registry.Checkpoint) else registry.open_checkpoint(source, "PATH")
    )
    ends = _Ends(checkpoint, registry.get_format(target_format), output_dir or ".")
    _check_free(ends, overwrite)
    notes = sidecar_files.notes_of_source(options, checkpoint)
    try:
        content = content_of(checkpoint, ends.target, options)
        beside = _plan_companions(ends, content, overwrite)
        checks = _write(ends, content, beside, progress, verify)
    except DamagedError as error:
        raise ConfigError(f"{checkpoint.location}: unreadable checkpoint ({error}).") from None
    written = [path for path, data in beside.items() if data is not None]
    if not ends.target.brings_companions:
        notes += sidecar_files.notes_of_result(content.options, written, ends.target)
    target = {"format": ends.target.reported_name, "path": ends.location}
    return {
        **report_of(checkpoint, target, content),
        **checks,
        "companions": written,
        "notes": notes,
    }


@dataclasses.dataclass(frozen=True)
class _Ends:
    """Source and target of a conversion.

    Attributes:
      source: what is converted.
      target: format of the result.
      folder: in which the result is to be.
    """

    source: registry.Checkpoint
    target: Format
    folder: str

    @property
    def location(self) -> str:
        """Path of the result in its folder."""
        return self.location_in(self.folder)

    def location_in(self, folder: str) -> str:
        return self.target.load_container().target(folder, self.source.location)


def _check_free(ends: _Ends, overwrite: bool) -> None:
    location, source = ends.location, os.path.realpath(ends.source.location)
    there = ends.target.load_container().files(location)
    places = {source}
    if ends.source.format.load_container().IS_FOLDER and os.path.isfile(source):
        places.add(os.path.dirname(source))
    if os.path.realpath(location) in places:
        folder = location if os.path.isdir(location) else os.path.dirname(location)
        raise ConfigError(f"--output_dir={folder or '.'} is where the source is. Give another --output_dir.")
    if there and not overwrite:
        raise ConfigError(f"{there[0]} exists. Give another --output_dir, or replace it with --overwrite.")


def _plan_companions(ends: _Ends, content: Content, overwrite: bool) -> dict[str, bytes | None]:
    options = content.options
    if not ends.target.brings_companions:
        return sidecar_files.plan(
            ends.source.location, ends.location, ends.target, content.canonical, options, overwrite
        )
    if options.vocab_file:  # which the format's writer copies, as it writes the configuration
        words = vocabulary_files.read(options.vocab_file).content
        sidecar_files.check_free({os.path.join(ends.location, vocabulary_files.VOCABULARY): words}, overwrite)
    return {}


def _write(
    ends: _Ends,
    content: Content,
    beside: dict[str, bytes | None],
    progress: ProgressOfAll,
    verify: Verify | None,
) -> dict:
    """Writes the result beside its place, checks it there and publishes it. Returns what the report says of
    the checks: compared, published and, where there is a `verify`, verification."""
    with work_folder(ends.folder) as work:
        made = ends.location_in(work)
        write(ends.target, content.result, made, content.options, progress)
        container = ends.target.load_container()
        compared = read_back_and_compare(container, content.result, made)
        write_sidecar(content.cut_rows, made)
        gone = sidecar_files.hand_on(beside, work)
        verified = {}
        if verify is not None:
            ours = {"format": ends.source.format.name, "path": ends.source.location}
            theirs = {"format": ends.target.name, "path": made}
            verified = {"verification": verify(ours, theirs, content.options)}
        published = not verified or verified["verification"]["passed"]
        if published:
            obsolete = (sidecar_path(ends.location), *gone)
            publish(container, work, ends.location, obsolete)
    return {"compared": compared, "published": published, **verified}

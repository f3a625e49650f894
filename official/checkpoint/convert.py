"""Converts a checkpoint from one format to another, checks what was written, and tells everything that happened.

report = convert("uncased_L-12_H-768_A-12/bert_model.ckpt", "huggingface", "bert_hf")
"""

import dataclasses
import os
from collections.abc import Callable
from types import ModuleType

import numpy as np

from official.checkpoint import conversion_report, publication, reading, vocabulary_rows
from official.checkpoint.formats import canonical, companions, huggingface, registry
from official.checkpoint.formats import tensors as tensors_lib
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.tensors import Tensor, Tensors
from official.config import ConfigError
from official.io import vocabulary_files
from official.io.errors import shortened


def convert(
    source: str,
    target_format: str,
    output_dir: str,
    source_format: str | None = None,
    options: Options = Options(),
    overwrite: bool = False,
    progress=lambda done, total: None,
    verify: Callable[[dict, dict, Options], dict] | None = None,
) -> dict:
    """Converts a checkpoint. The result is written beside its place, checked there, and takes its place last,
    all at once.

    Args:
      source: prefix, folder or file; of a folder of TensorFlow checkpoints, the newest.
      target_format: one of `registry.FORMATS`.
      output_dir: the result is OUTPUT_DIR/<basename of the source>, or the folder itself for huggingface.
      source_format: unset: found out from the files.
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
    names, container = registry.get_format(target_format)
    checkpoint = registry.open_checkpoint(source, "PATH", source_format)
    folder, source = output_dir or ".", checkpoint.location
    location = container.target(folder, source)
    _check_free(container, location, checkpoint, overwrite)
    notes = companions.notes_of_source(options, source, checkpoint.title, checkpoint.usual_activation)
    try:
        content = _content(checkpoint, names, options)
        beside = _plan_companions(target_format, source, location, content, overwrite)
        with publication.work_folder(folder) as work:
            made = container.target(work, source)
            publication.write(container, content.result, made, content.options, progress)
            compared = publication.read_back_and_compare(container, content.result, made)
            vocabulary_rows.write_sidecar(content.cut_rows, made)
            gone = companions.hand_on(beside, work)
            ends = [
                {"format": name, "path": path}
                for name, path in ((checkpoint.format, source), (target_format, made))
            ]
            verified = {"verification": verify(*ends, content.options)} if verify else {}
            published = not verify or verified["verification"]["passed"]
            if published:
                publication.publish(
                    container, work, location, (vocabulary_rows.sidecar_path(location), *gone)
                )
    except reading.DamagedError as error:
        raise ConfigError(f"{source}: unreadable checkpoint ({error}).") from None
    written = [path for path, data in beside.items() if data is not None]
    notes += companions.notes_of_result(content.options, written) if target_format != "huggingface" else []
    return {
        **conversion_report.report_of(
            checkpoint, {"format": target_format, "path": location}, content.result
        ),
        "dropped": dict(sorted(content.dropped.items())),
        "added": dict(sorted(content.added.items())),
        "vocabulary": content.vocabulary,
        "compared": compared,
        "num_attention_heads": content.options.num_attention_heads,
        "hidden_act": content.options.hidden_act,
        "published": published,
        **verified,
        "companions": written,
        "notes": notes,
    }


@dataclasses.dataclass(frozen=True)
class _Content:
    """What a result will hold.

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
    vocabulary: dict
    dropped: dict[str, str]
    added: dict[str, str]
    options: Options


def _content(checkpoint: registry.Checkpoint, names: ModuleType, given: Options) -> _Content:
    """Maps a checkpoint to the format `names`, reading only what has to be checked. Raises ConfigError and
    DamagedError."""
    options = with_companions(given, checkpoint)
    read = checkpoint.to_canonical(options)
    companions.check_source(checkpoint.location, read.tensors)
    dropped = dict(read.dropped)
    kept = _without_slots(read.tensors, options, dropped)
    registry.check_finite(kept, checkpoint)
    kept, vocabulary, rows = vocabulary_rows.with_vocabulary(kept, checkpoint.location, options)
    if names is huggingface and not given.vocab_file:
        options = _without_long_vocabulary(options, vocabulary["to"], dropped)
    mapped = names.from_canonical(kept, options)
    if mapped.unmatched:
        strange = sorted(mapped.unmatched)
        raise ConfigError(
            f"{checkpoint.location}: the {names.TITLE} format has no place for {shortened(strange)}.",
            {"no place": strange},
        )
    result = _with_precision(mapped.tensors, options, getattr(names, "keeps_float32", lambda name: False))
    dropped |= {_source_names(kept[name]) or name: reason for name, reason in mapped.dropped.items()}
    added = {**read.added, **mapped.added, **vocabulary_rows.restored(result, vocabulary)}
    return _Content(result, kept, rows, vocabulary, dropped, added, options)


def with_companions(options: Options, checkpoint: registry.Checkpoint) -> Options:
    """Returns the options with what the checkpoint's shapes and the files beside it say about heads,
    activation and vocabulary."""
    return companions.with_companions(
        options, checkpoint.location, checkpoint.heads, checkpoint.usual_activation
    )


def _check_free(container, location: str, checkpoint: registry.Checkpoint, overwrite: bool) -> None:
    there, source = container.files(location), os.path.realpath(checkpoint.location)
    places = (
        {source, os.path.dirname(source)}
        if checkpoint.format == "huggingface" and os.path.isfile(source)
        else {source}
    )
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


def _plan_companions(
    target_format: str, source: str, location: str, content: _Content, overwrite: bool
) -> dict:
    options = content.options
    if target_format != "huggingface":
        return companions.plan(source, location, content.canonical, options, overwrite)
    if options.vocab_file:  # which the folder's writer copies, as it writes config.json
        words = vocabulary_files.read(options.vocab_file).content
        companions.check_free({os.path.join(location, vocabulary_files.VOCABULARY): words}, overwrite)
    return {}


def _without_slots(tensors: Tensors, options: Options, dropped: dict[str, str]) -> Tensors:
    if options.with_optimizer:
        return tensors
    slots = {name for name in tensors if name.rpartition("/")[2] in canonical.SLOTS}
    dropped |= {
        _source_names(tensors[name]) or name: "optimizer slot; --with_optimizer carries it" for name in slots
    }
    return {name: tensor for name, tensor in tensors.items() if name not in slots}


def _with_precision(tensors: Tensors, options: Options, keeps_float32) -> Tensors:
    if options.precision is None:
        return tensors
    wanted = np.dtype({16: np.float16, 32: np.float32}[options.precision])

    def converted(name, tensor):
        dtype = np.dtype(np.float32) if keeps_float32(name) else wanted
        return tensors_lib.checked_cast(name, tensor, dtype) if tensors_lib.is_float(tensor) else tensor

    return {name: converted(name, tensor) for name, tensor in tensors.items()}


def _source_names(tensor: Tensor) -> str:
    return ", ".join(tensor.sources)

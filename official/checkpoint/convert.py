"""Converts a checkpoint from one format to another, checks what was written, and tells all that happened.

report = convert("uncased_L-12_H-768_A-12/bert_model.ckpt", "huggingface", "bert_hf")
"""

import dataclasses
import os
from collections.abc import Callable

from official.checkpoint import companions, conversion_report, publication, registry, vocabulary_rows
from official.checkpoint.content import Content, content_of
from official.checkpoint.errors import DamagedError
from official.checkpoint.format import Format
from official.checkpoint.options import NOTHING_GIVEN, Options
from official.io import vocabulary_files
from official.io.errors import ConfigError

Verify = Callable[[dict, dict, Options], dict]


def convert(
    source: str | registry.Checkpoint,
    target_format: str,
    output_dir: str,
    options: Options = NOTHING_GIVEN,
    overwrite: bool = False,
    progress: publication.ProgressOfAll = lambda done, total: None,
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
    notes = companions.notes_of_source(options, checkpoint)
    try:
        content = content_of(checkpoint, ends.target, options)
        beside = _plan_companions(ends, content, overwrite)
        checks = _write(ends, content, beside, progress, verify)
    except DamagedError as error:
        raise ConfigError(f"{checkpoint.location}: unreadable checkpoint ({error}).") from None
    written = [path for path, data in beside.items() if data is not None]
    if not ends.target.brings_companions:
        notes += companions.notes_of_result(content.options, written, ends.target)
    target = {"format": ends.target.reported_name, "path": ends.location}
    return {
        **conversion_report.report_of(checkpoint, target, content),
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
        return companions.plan(
            ends.source.location, ends.location, ends.target, content.canonical, options, overwrite
        )
    if options.vocab_file:  # which the format's writer copies, as it writes the configuration
        words = vocabulary_files.read(options.vocab_file).content
        companions.check_free({os.path.join(ends.location, vocabulary_files.VOCABULARY): words}, overwrite)
    return {}


def _write(
    ends: _Ends,
    content: Content,
    beside: dict[str, bytes | None],
    progress: publication.ProgressOfAll,
    verify: Verify | None,
) -> dict:
    """Writes the result beside its place, checks it there and publishes it. Returns what the report says of
    the checks: compared, published and, where there is a `verify`, verification."""
    with publication.work_folder(ends.folder) as work:
        made = ends.location_in(work)
        publication.write(ends.target, content.result, made, content.options, progress)
        container = ends.target.load_container()
        compared = publication.read_back_and_compare(container, content.result, made)
        vocabulary_rows.write_sidecar(content.cut_rows, made)
        gone = companions.hand_on(beside, work)
        verified = {}
        if verify is not None:
            ours = {"format": ends.source.format.name, "path": ends.source.location}
            theirs = {"format": ends.target.name, "path": made}
            verified = {"verification": verify(ours, theirs, content.options)}
        published = not verified or verified["verification"]["passed"]
        if published:
            obsolete = (vocabulary_rows.sidecar_path(ends.location), *gone)
            publication.publish(container, work, ends.location, obsolete)
    return {"compared": compared, "published": published, **verified}

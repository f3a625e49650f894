"""Converts text in any format of `official.data.text.documents` to sentences, one per line, split into
training and evaluation documents.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import re

from official.data.text import documents, read_counts, samples, text_files
from official.data.text.samples import SPLITS
from official.io import engines, files, jobs, writing
from official.io.errors import check_counts
from official.io.files import store_of

_RESULTS = "part-*.txt*"
_TASK_BYTES = 32 << 20  # size of a task's text: parts of a file, or small files
# Leftovers of templates, formulas, tables and links in extracted Wikipedia text, and emptied brackets.
_LEFTOVERS = re.compile(
    r"\{\{[^{}]*\}\}|\{\|.*?\|\}|</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>|\bformula_\d+\b|\bcodice_\d+\b|\[\[|\]\]|'''?"
)
_EMPTY = re.compile(r"\([;,:\s]*\)|\[\s*\]")
_SPACE = re.compile(r"\s+")
_SPACE_BEFORE = re.compile(r"\s+([,.;:!?)])")


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of preparing text; the fields are the flags of the same names."""

    input_files: str
    output_dir: str
    eval_share: float = 0.005
    min_sentences: int = 2
    sentence_splitting: str = "auto"
    text_field: str = "text"
    num_workers: int | None = 1
    overwrite: bool = False
    engine: str = "local"
    ray_address: str | None = None


def clean(sentence: str) -> str:
    """Returns the sentence without leftovers of markup, with single spaces; '' if it has no letter or
    digit."""
    text = _EMPTY.sub("", _LEFTOVERS.sub(" ", sentence))
    text = _SPACE_BEFORE.sub(r"\1", _SPACE.sub(" ", text)).strip()
    return text if any(map(str.isalnum, text)) else ""


def prepare(job: Job) -> dict:
    """Writes OUTPUT_DIR/{train,eval}/part-NNNNN.txt, one pair per task, and the manifest, unless they are
    complete.

    Returns:
      The manifest: flags and counts.

    Raises:
      ConfigError: for unusable input, or an output folder that is in use or cannot be written to.
    """
    samples.check(SPLITS[0], job.eval_share)
    check_counts(min_sentences=job.min_sentences)
    engines.check(job)
    paths = text_files.find_texts(job.input_files)
    for side in SPLITS:
        jobs.check_inputs(job.output_dir, f"{side}/{_RESULTS}", paths)
    states, versions = files.states(paths), files.versions(paths)
    flags = engines.flags_of(job)
    identity = {**flags, "text": text_files.identify(paths, versions)}
    if manifest := jobs.read_manifest(job.output_dir, identity, job.overwrite):
        return manifest
    for side in SPLITS:
        jobs.check_leftovers(job.output_dir, f"{side}/{_RESULTS}")
    sizes = {path: size for path, (size, _) in zip(paths, versions)}
    tasks = text_files.plan_tasks(sizes, _TASK_BYTES, states)
    work = identity | {"task_bytes": _TASK_BYTES}
    store, manifest_path = store_of(job.output_dir), os.path.join(job.output_dir, jobs.MANIFEST)
    with jobs.unfinished_folder(job.output_dir, work, job.overwrite) as folder, engines.opened(job) as engine:
        if store.exists(manifest_path):  # before its files are replaced
            store.remove(manifest_path)
        for side in SPLITS:
            store.make_folder(os.path.join(job.output_dir, side))
        counted = [os.path.join(folder, f"text-{number:05d}.json") for number in range(len(tasks))]
        numbered = enumerate(zip(counted, tasks))
        prepare_tasks = ((_prepare_text, job, path, each, own, len(tasks)) for each, (path, own) in numbered)
        num_bytes = sum(sizes.values())
        engine.run(engines.Round(prepare_tasks, len(tasks), num_bytes, "Cleaning", "documents", __name__))
        made = {path for number in range(len(tasks)) for path in _parts(job, number).values()}
        for side in SPLITS:
            jobs.remove_all_but(made, os.path.join(job.output_dir, side), _RESULTS)
        sums = read_counts.Sum()
        for done in jobs.each_done(counted):
            sums.add(done)
        samples.publish(sums.sample, job.output_dir)
        totals = {name: value for name, value in sums.totals.items() if value}
        manifest = {"flags": flags, **totals, "inputs": read_counts.listed(sums.by_file)}
        return jobs.write_manifest(job.output_dir, identity, manifest)


def _parts(job: Job, number: int) -> dict[str, str]:
    """Returns {side: path of a task's file}."""
    return {side: os.path.join(job.output_dir, side, f"part-{number:05d}.txt") for side in SPLITS}


def _prepare_text(job: Job, result: str, number: int, splits: list[text_files.Split], num_tasks: int) -> None:
    """Writes the two files of a task, then its counts with a sample of its documents."""
    paths = _parts(job, number)
    if jobs.read_done(result) and all(map(files.is_file, paths.values())):
        return
    counts, done = documents.ReadCounts(), 0
    sample = samples.DocumentSample(number, num_tasks)
    totals: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        temporary = {side: stack.enter_context(writing.replacing(path)) for side, path in paths.items()}
        as_text = functools.partial(open, mode="w", encoding="utf-8", errors="replace")
        outputs = {side: stack.enter_context(as_text(path)) for side, path in temporary.items()}
        for document in documents.read_splits(splits, job.sentence_splitting, counts, job.text_field):
            sentences = [text for text in map(clean, document) if text]
            kept = len(sentences) >= job.min_sentences
            if kept:
                side = samples.split_of(" ".join(document), job.eval_share)
                outputs[side].write("\n".join(sentences) + "\n\n")
                if side == SPLITS[0]:  # held-out text is not shown
                    sample.look_at("\n".join(sentences))
                totals.update({f"{side}_documents": 1, f"{side}_sentences": len(sentences)})
            totals.update(short_documents=not kept, empty_sentences=len(document) - len(sentences))
            engines.report(counts.bytes - done, 1)
            done = counts.bytes
    jobs.write_done(result, counts.result(totals, sample.documents()))

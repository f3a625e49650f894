"""Makes TFRecords of pre-training examples, and a manifest, from text files.

Rounds of independent tasks, each in --num_workers processes:
  1. The text is tokenised, a few megabytes per task, and written to the work folder, with the documents in
     the order of a random key (`official.data.pretraining.rounds`).
  2. If there is very much text, these files are merged, so that the documents of a pool are in few files
     (`official.data.pretraining.rounds`).
  3. Every shard is made from its pools; a pool is a random sample of the documents, of a few million tokens
     (`official.data.pretraining.plan`).
Memory holds a file of documents or a few pools per process, never the whole text. The output of a task
depends on the input, the flags and the task's number, not on the number of processes. A restarted job skips
finished tasks.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Iterable, Sequence

import numpy as np
from absl import logging

from official.data import compaction
from official.data.compaction import Grouping, done_path
from official.data.pretraining import card, disk_needs, examples, rounds
from official.data.pretraining.plan import Job, Layout, Source, copies_of, find_sources, plan_layout
from official.data.records import encoding, shard_files
from official.data.text import read_counts, samples, text_files
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text
from official.io import engines, files, jobs, record_paths
from official.io.engines import Round
from official.io.errors import ConfigError, check_counts

_VERSION = 7  # version of the output for the same flags and text
_TASKS = 64  # minimum number of tasks of the first round, for a large text
_MIN_TASK_BYTES = 8 << 20  # minimum size of a task's text: parts of a file, or small files


def create_pretraining_data(job: Job) -> dict:
    """Writes the TFRecords and the manifest of a job, or the rest of them after an interruption.

    Returns:
      The manifest.

    Raises:
      ConfigError: for unusable input, or an output folder that is in use or cannot be written to.
    """
    engines.check(job)
    check_counts(num_shards=job.num_shards)
    check_counts(0, random_seed=job.random_seed)
    samples.check(job.side, job.eval_share)
    words = load_for_text(job.vocab_file, job.do_lower_case)
    encoding.check_vocabulary(words, job.record_format)
    _check_pairs(words, job)
    _warn_of_few_masks(job.rules)
    # For other tokenizers than BERT's, nothing else stores it.
    lower_case = words.do_lower_case if words.tokenizer is None else None
    job = dataclasses.replace(job, do_lower_case=lower_case, vocabulary_sha256=words.sha256)
    sources = find_sources(job)
    paths = [path for source in sources for path in source.paths]
    states, versions = files.states(paths), files.versions(paths)
    sizes = {path: size for path, (size, _) in zip(paths, versions)}
    num_bytes = sum(sizes.values())
    if not jobs.may_be_finished(job.output_dir, job.overwrite):
        engines.load_ahead(job, __name__, num_bytes)
    # The values that determine the records.
    identity = {"version": _VERSION, **job.flags(), "vocabulary_sha256": words.sha256}
    identity["text"] = text_files.identify(paths, versions)
    weighs_what_is_left = job.mixture is not None and job.drop_duplicates
    if weighs_what_is_left:
        identity["mixture_of"] = "what is left"
    if manifest := jobs.read_manifest(job.output_dir, identity, job.overwrite):
        return manifest
    jobs.check_leftovers(job.output_dir, shard_files.SHARDS)
    record_paths.check_vocabulary(job.output_dir, job.vocab_file, job.overwrite)
    task_bytes = min(max(num_bytes // _TASKS, _MIN_TASK_BYTES), 64 << 20)
    tasks = [
        (number, splits)
        for number, source in enumerate(sources)
        for splits in text_files.plan_tasks({path: sizes[path] for path in source.paths}, task_bytes, states)
    ]
    disk_needs.check(job, [splits for _, splits in tasks], sizes, words)
    work = identity | {"task_bytes": task_bytes}
    with jobs.unfinished_folder(job.output_dir, work, job.overwrite) as folder, engines.opened(job) as engine:
        shard_files.remove_earlier(job.output_dir)

        def run(tasks: Iterable[tuple], number: int, doing: str, items: str) -> None:
            engine.run(Round(tasks, number, num_bytes, doing, items, __name__))

        # ---- Text -> documents
        grouping = Grouping(folder, 0, 0, jobs.digest(identity))
        own = (rounds.tokenize_text, job, grouping)
        text_tasks = ((*own, number, len(tasks), *task) for number, task in enumerate(tasks))
        run(text_tasks, len(tasks), "Tokenising", "documents")
        sums = read_counts.Sum()
        by_source: list[collections.Counter[str]] = [collections.Counter() for _ in sources]
        counted = jobs.each_done(done_path(folder, "text", number) for number in range(len(tasks)))
        for (source, _), done in zip(tasks, counted):
            sums.add(done)
            by_source[source].update(done["totals"])
        text = sums.totals
        grouping = dataclasses.replace(grouping, files=text["blocks"])
        tokens: Sequence[float] = [counts["tokens"] for counts in by_source]
        if weighs_what_is_left and text["blocks"]:
            tokens = rounds.tokens_left(grouping, tokens, text["kept_documents"])
        layout = plan_layout(job, text, copies_of(sources, tokens, job.rules.dupe_factor))

        # ---- Merging of the files of documents
        def merge(above: Grouping, files_below: int, place: tuple[int, int]) -> tuple:
            share = text["bytes"] / above.ranges / above.files
            return rounds.merge, job, above, files_below, place, share

        regroup = functools.partial(run, doing="Regrouping", items="documents")
        size = text["block_bytes"]
        grouping, dropped = compaction.compact(grouping, size, layout.num_pools, merge, regroup)

        # ---- Documents -> records
        shards, share = range(layout.num_shards), text["bytes"] / layout.num_shards
        shard_tasks = ((rounds.write_shard, job, grouping, layout, number, share) for number in shards)
        run(shard_tasks, len(shards), "Writing", "examples")
        shard_counts = list(jobs.each_done(done_path(folder, "shard", number) for number in shards))
        made = {os.path.join(job.output_dir, name) for name in layout.files}
        jobs.remove_all_but(made, job.output_dir, shard_files.SHARDS)
        for counts in (dropped, *(shard["dropped"] for shard in shard_counts)):
            text.update(counts)
        shown = card.kept_examples(folder, layout, job.record_format, words)
        samples.publish(sums.sample, job.output_dir, **shown)
        manifest = _manifest(job, layout, words, text, shard_counts)
        if sources[0].name:
            manifest["sources"] = _mixture(sources, by_source, layout, shard_counts)
        manifest["inputs"] = read_counts.listed(sums.by_file)
        record_paths.put_vocabulary(job.output_dir, job.vocab_file)
        return jobs.write_manifest(job.output_dir, identity, manifest)


def _check_pairs(words: Vocabulary, job: Job) -> None:
    """Raises ConfigError for pairs of segments if the tokenizer does not join them as [CLS] A [SEP] B
    [SEP]."""
    if not job.rules.has_pairs or (words.marks_pairs and words.separators == 1):
        return
    rows = "puts 2 separators between them" if words.marks_pairs else "gives both the segment 0"
    raise ConfigError(
        "--objective=mlm_nsp writes pairs of segments as BERT reads them, and the tokenizer of"
        f" --vocab_file={job.vocab_file} {rows}. Give --objective=mlm, which writes texts without pairs."
    )


def _warn_of_few_masks(rules: examples.ExampleRules) -> None:
    """Warns if max_predictions_per_seq allows clearly fewer predicted tokens in a full row than
    --masked_lm_prob; published recipes have 56 of 58."""
    most, wanted = rules.max_predictions_per_seq, round(rules.masked_lm_prob * rules.max_tokens)
    if rules.has_pairs and most < 0.9 * wanted:
        warning = (
            "--max_predictions_per_seq=%d limits the predictions of rows of %d tokens: --masked_lm_prob=%g"
            " of them are %d."
        )
        logging.warning(warning, most, rules.max_tokens, rules.masked_lm_prob, wanted)


def _manifest(job: Job, layout: Layout, words: Vocabulary, text: dict[str, int], shards: list[dict]) -> dict:
    """Returns the manifest, without `num_workers`, since the records do not depend on it."""
    lengths = np.sum([shard["lengths"] for shard in shards], axis=0)
    more = ["undecodable_bytes", "cut_documents", "duplicate_documents"]
    more += [name for name in read_counts.PAGES_LEFT_OUT if text[name]]
    summed = ("instances", "random_next", "masked_tokens")
    return {
        "version": _VERSION,
        "flags": job.flags() | {"num_shards": layout.num_shards},
        "vocabulary_sha256": words.sha256,
        "vocabulary_size": words.size,
        "input_files": text["files"],
        "input_bytes": text["bytes"],
        "documents": text["kept_documents"],
        "sentences": text["kept_sentences"],
        "tokens": text["tokens"],
        "unknown_share": text["unknown_tokens"] / max(text["tokens"], 1),
        "pools": layout.num_pools,
        **{name: text[name] for name in ("other_side_documents", "skipped_lines")},
        "skipped_sentences": text["sentences"] - text["kept_sentences"] - text["other_side_sentences"],
        **{name: text[name] for name in more},
        **{name: sum(shard[name] for shard in shards) for name in summed},
        "lengths": {str(length): int(lengths[length]) for length in np.flatnonzero(lengths)},
        "files": {name: shard["instances"] for name, shard in zip(layout.files, shards)},
        "file_bytes": {name: shard["bytes"] for name, shard in zip(layout.files, shards)},
    }


def _mixture(sources: list[Source], by_source: list, layout: Layout, shards: list[dict]) -> dict[str, dict]:
    """Returns the manifest's entries of the sources; `by_source` has the counts of each."""
    reached = np.sum([shard["source_tokens"] for shard in shards], axis=0)
    return {
        source.name: {
            "documents": counts["kept_documents"],
            "tokens": counts["tokens"],
            "copies": copies,
            "wanted_share": source.share,
            "reached_share": int(tokens) / int(reached.sum()),
        }
        for source, counts, copies, tokens in zip(sources, by_source, layout.copies, reached)
    }

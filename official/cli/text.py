"""`bert data create`, `prepare`, `corpus` and `bert vocab`: make records, clean text and vocabularies."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, Literal

from official.cli import command_line, outputs, records
from official.data.pretraining import examples, plan
from official.data.text import preparation, read_counts, text_files
from official.data.text.documents import ReadCounts, read_documents
from official.io import engines, files, jobs
from official.io.errors import ConfigError, counted
from official.io.writing import check_not_read, check_output_file

Splitting = Literal["auto", "always", "never"]

# -----------------------------------------------------------------------------------------------------------
# bert data create


class Create(command_line.TextFlags, command_line.LowerCaseFlag, command_line.EngineFlags):
    """Makes pre-training TFRecords from text: pairs of segments with masks, or texts whose masks are drawn
    during training.

    bert data create --input_files='wiki/wiki_*' --vocab_file=vocab.txt \\
      --output_dir=records

    Attributes:
      output_dir: Folder for part-00000-of-000NN.tfrecord, manifest.json and report.html.
      output_file: In place of --output_dir: exactly these files, comma-separated, without a manifest. For
        Graphcore's commands, whose other flag names are accepted, too: then case is kept unless
        --do_lower_case is set, --dupe_factor defaults to 6 and --random_seed to 1984.
      vocab_file: Vocabulary: vocab.txt (one word piece per line), tokenizer.json, or a folder with one of
        them.
      drop_duplicates: Keep only one of several documents that are equal token by token.
      mixture: Share of the tokens for each source: 'books=0.3,wiki=0.7'. Name the sources in --input_files:
        'books=FILES,..,wiki=FILES,..'.
      objective: mlm_nsp: pairs of segments with masks, half of them with a random second segment. mlm:
        documents concatenated into full rows without masks, which bert train --objective=mlm draws anew in
        every epoch.
      max_seq_length: Maximum number of tokens of an example.
      max_predictions_per_seq: For pairs: maximum number of masked tokens of an example. Unset: 20.
      dupe_factor: Number of times that the text is cut into examples, each time at other points and with
        other masks. Unset: 10; with --objective=mlm 1.
      masked_lm_prob: For pairs: share of the tokens that are masked. Unset: 0.15.
      short_seq_prob: For pairs: share of the documents that are cut into shorter examples. Unset: 0.1.
      do_whole_word_mask: For pairs: mask all word pieces of a word or none.
      random_seed: Seed of every random choice.
      sentence_splitting: Whether to split lines into sentences. auto: split WikiExtractor, WikiText and all
        other formats; plain text only if its lines are paragraphs.
      eval_share: With --side: share of the documents that is held out for evaluation, by a hash of their
        text.
      side: Documents to read: train or eval, as held out by --eval_share. Unset: all.
      record_format: plain: Google's tf.train.Example. compact: 16-bit ids without padding, less than half the
        size; bert train reads both.
      remask: Write Graphcore's static-mask records, with the masked tokens first.
      pad_position_value: With --remask: position id of padding. Unset: --max_seq_length.
      num_shards: Number of output files. Unset: 8, more for much text.
      overwrite: Replace the files of an earlier job in --output_dir, also an unfinished one with other flags.
    """

    # Graphcore's names of the flags
    ALIASES = dict(input_file="input_files", sequence_length="max_seq_length", seed="random_seed")
    ALIASES |= dict(mask_tokens="max_predictions_per_seq", duplication_factor="dupe_factor")
    ALIASES |= dict(mlm_prob="masked_lm_prob")
    LISTS = ("output_file",)
    OF = (examples.ExampleRules, plan.Job)
    output_dir: str | None = None
    output_file: str | None = None
    sentence_splitting: Splitting = "auto"
    objective: Literal["mlm_nsp", "mlm"] = "mlm_nsp"
    side: Literal["train", "eval"] | None = None
    record_format: Literal["plain", "compact"] = "plain"


def create_flags() -> Create:
    parser = Create.parser()
    flags = parser.parse()
    shards, padding = flags.num_shards, flags.pad_position_value
    if bool(flags.output_dir) == bool(flags.output_file):
        raise ConfigError("Give one of --output_dir=DIR and --output_file=FILES. See --help.")
    if flags.output_file and shards:
        raise ConfigError(f"num_shards={shards} excludes --output_file, which names the files.")
    if flags.remask and flags.record_format != "plain":
        conflict = f"--remask and --record_format={flags.record_format} exclude each other"
        raise ConfigError(f"{conflict}. Drop one of the two.")
    if padding is not None and not flags.remask:
        raise ConfigError(f"pad_position_value={padding} needs --remask.")
    if flags.output_file:
        paths = flags.output_file.split(",")
        if len({os.path.realpath(path) for path in paths if path}) < len(paths):
            raise ConfigError(
                f"--output_file={flags.output_file[:200]} names a file twice, or none. Correct it."
            )
        for path in paths:
            check_output_file(path, "output_file", flags.overwrite)
        # the values of Graphcore's commands
        values: dict[str, Any] = {"random_seed": 1984, "do_lower_case": False}
        if flags.objective == "mlm_nsp":
            values["dupe_factor"] = 6
        for name, value in values.items():
            if name not in parser.given:
                setattr(flags, name, value)
    return flags


def run_create() -> None:
    flags = create_flags()
    engines.load_ahead(flags, "official.data.pretraining.creation")
    command_line.configure_logging()
    paths = flags.output_file.split(",") if flags.output_file else []
    if paths:
        flags.num_shards, flags.output_dir = len(paths), f"{paths[0]}.unfinished"
    from official.data.pretraining import creation  # after the flags are checked

    kept = {"record_format": "remask"} if flags.remask else {}
    job = flags.make(plan.Job, rules=flags.make(examples.ExampleRules), **kept)
    manifest = run_once(creation.create_pretraining_data, job)
    show_manifest(manifest)
    made = [os.path.join(job.output_dir, name) for name in manifest["files"]]
    if not paths:
        records.write_card_beside(job.output_dir, made)
        return
    for path, file in zip(paths, made, strict=True):
        shutil.move(file, path)
    shutil.rmtree(job.output_dir)


def run_once(make: Callable[[Any], dict], job: Any) -> dict:
    """Runs a job and returns its manifest; prints a line if the job was already finished."""
    rounds = len(jobs.rounds)
    manifest = make(job)
    if len(jobs.rounds) == rounds:
        print(f"The job in {job.output_dir} is already finished; nothing is written.")
    return manifest


def print_counts(manifest: dict, *names: str) -> None:
    """Prints the counts of a manifest that are not zero, the numbers of skipped pages, and the undecodable
    bytes with their files."""
    for name in (*names, *read_counts.PAGES_LEFT_OUT):
        if manifest.get(name):
            print(f"{name}: {manifest[name]:,}")
    if manifest.get("undecodable_bytes"):
        files_of_them = read_counts.describe_undecodable(manifest["inputs"])
        print(f"undecodable_bytes: {manifest['undecodable_bytes']:,} ({files_of_them})")


def show_manifest(manifest: dict) -> None:
    """Prints the counts of a job, the totals last."""
    left_out = ("skipped_lines", "skipped_sentences", "cut_documents", "other_side_documents")
    print_counts(manifest, *left_out, "duplicate_documents")
    for name, source in manifest.get("sources", {}).items():
        print(
            "{name}: {documents:,} documents, {tokens:,} tokens, {copies:.2f} copies, {reached_share:.2%} of"
            " the text that was cut ({wanted_share:.2%} wanted).".format(name=name, **source)
        )
    left = manifest["undecodable_bytes"]
    print(
        f"{counted(manifest['instances'], 'example')} in {counted(len(manifest['files']), 'file')} from"
        f" {counted(manifest['input_files'], 'text file')}:"
        " {documents:,} documents, {sentences:,} sentences, {tokens:,} tokens, {unknown_share:.2%} of them"
        " [UNK]".format(**manifest)
        + (f"; {left:,} undecodable bytes left out." if left else ".")
    )


# -----------------------------------------------------------------------------------------------------------
# bert data prepare


class Prepare(command_line.TextFlags, command_line.EngineFlags):
    """Cleans text, splits it into sentences, and shares the documents out to training and evaluation.

      bert data prepare --input_files=extracted --output_dir=text --eval_share=0.005

    Writes OUTPUT_DIR/train/part-NNNNN.txt and OUTPUT_DIR/eval/part-NNNNN.txt (one sentence per line, a blank
    line between documents), manifest.json and report.html. A document's side depends only on its
    text.

    Attributes:
      output_dir: Folder for train/, eval/, manifest.json and report.html.
      eval_share: Share of the documents that are held out for evaluation.
      min_sentences: Drop documents with fewer sentences.
      sentence_splitting: As of bert data create.
      overwrite: Replace the files of an earlier job in --output_dir.
    """

    OF = (preparation.Job,)
    sentence_splitting: Splitting = "auto"


def run_prepare() -> None:
    flags = Prepare.parse()
    engines.load_ahead(flags, "official.data.text.preparation")
    command_line.configure_logging()
    job = flags.make(preparation.Job)
    manifest = run_once(preparation.prepare, job)
    print_counts(manifest, "short_documents", "empty_sentences", "skipped_lines", "cut_documents")
    for side in preparation.SPLITS:
        documents, sentences = (manifest.get(f"{side}_{what}", 0) for what in ("documents", "sentences"))
        print(f"{side}: {documents:,} documents, {sentences:,} sentences.")
    records.write_card_beside(job.output_dir, [])


# -----------------------------------------------------------------------------------------------------------
# bert data corpus


class Corpus(command_line.Flags):
    """Builds a small English corpus from installed packages: Python's language reference and docstrings.

      bert data corpus --output_dir=data/quickstart/corpus

    Writes train.txt and eval.txt (one sentence per line, a blank line between documents) and corpus.json.

    Attributes:
      output_dir: Folder for train.txt, eval.txt and corpus.json.
      sources: Comma-separated: topics (Python's language reference), stdlib (the standard library), installed
        packages, or folders (./NAME: docstrings and pages of documentation).
      eval_share: Share of the documents that are held out for evaluation.
      overwrite: Replace the files in --output_dir.
    """

    output_dir: str
    sources: str = "topics,stdlib,numpy,tensorflow,keras"
    eval_share: float = 0.1
    overwrite: bool = False


def run_corpus() -> None:
    from official.data.text import documentation_corpus

    flags = Corpus.parse()
    share = flags.eval_share
    if not 0 < share < 1:
        raise ConfigError(f"--eval_share={share} is out of range. Allowed: above 0, below 1.")
    paths = [os.path.join(flags.output_dir, name) for name in ("train.txt", "eval.txt", text_files.CORPUS)]
    for path in paths:
        check_output_file(path, "output_dir", flags.overwrite)
    train, evaluation, counts = documentation_corpus.build_corpus(flags.sources.split(","), share)
    if not train or not evaluation:
        raise ConfigError(
            f"--sources={flags.sources} --eval_share={share}: {len(train)} documents to train on and"
            f" {len(evaluation)} to evaluate on, expected one each at least. Add sources, or change"
            " --eval_share."
        )
    summary: dict[str, Any] = {"sources": flags.sources, "eval_share": share}
    lines = []
    for path, documents in zip(paths, (train, evaluation)):
        text = "\n\n".join("\n".join(document) for document in documents) + "\n"
        outputs.write_file(path, text)
        sentences, size = sum(map(len, documents)), len(text.encode())
        row = dict(documents=len(documents), sentences=sentences, bytes=size)
        name = os.path.basename(path)
        summary[name.removesuffix(".txt")] = row
        lines.append(f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in row.items()) + ".")
    summary |= counts
    outputs.write_file(paths[2], json.dumps(summary, indent=2) + "\n")
    print("\n".join(lines))


# -----------------------------------------------------------------------------------------------------------
# bert vocab


class Vocab(command_line.TextFlags):
    """Builds a WordPiece vocabulary of exactly --vocab_size lines, or another tokenizer, from text.

    bert vocab --input_files=corpus/train.txt --output_file=vocab.txt --vocab_size=8192

    Attributes:
      kind: wordpiece, as BERT; bpe: byte-level BPE, as RoBERTa; unigram, as XLM-RoBERTa.
      output_file: File to write: a vocabulary with one word piece per line, [PAD] [UNK] [CLS] [SEP] [MASK]
        first; for the other kinds a tokenizer.json.
      vocab_size: Number of entries of the vocabulary.
      do_lower_case: Lower-case the text and strip accents. Unset: true for wordpiece, false for the others.
        false also writes a tokenizer_config.json, which says so, into the folder of the vocabulary.
      max_sentences: Maximum number of sentences to learn from, evenly spread over the text.
      overwrite: Replace --output_file.
    """

    RANGES = {"vocab_size": (10, math.inf), "max_sentences": command_line.COUNT}
    output_file: str
    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    vocab_size: int = 30522
    do_lower_case: bool | None = None
    max_sentences: int = 1000000
    overwrite: bool = False


def read_sentences(
    patterns: str,
    most: int,
    counts: ReadCounts,
    text_field: str = "text",
    keeps: Callable[[list[str]], bool] = lambda document: True,
) -> list[str]:
    """Returns the sentences of all files, from documents for which `keeps` is true. If there are more than
    `most`, only every second, fourth, eighth, ... sentence."""
    import tqdm

    step, kept = 1, []
    paths = text_files.find_texts(patterns)
    size = sum(files.sizes(paths))
    with tqdm.tqdm(total=size, desc="Reading", unit="B", unit_scale=True, delay=0.5) as bar:
        read = filter(keeps, read_documents(paths, counts, text_field=text_field))
        for number, sentence in enumerate(itertools.chain.from_iterable(read)):
            if number % step == 0:
                kept.append(sentence)
            if len(kept) > most:
                step, kept = 2 * step, kept[::2]
            bar.update(counts.bytes - bar.n)
    return kept


def run_vocab() -> None:
    from official.data.word_pieces import vocabulary_building

    flags = Vocab.parse()
    is_wordpiece, lower_case = flags.kind == "wordpiece", flags.do_lower_case is not False
    if not is_wordpiece and (flags.do_lower_case or not flags.output_file.endswith(".json")):
        problem = f"do_lower_case=true: --kind={flags.kind} keeps capitals. Drop it"
        if not flags.do_lower_case:
            problem = f"output_file={flags.output_file}: --kind={flags.kind} needs a name that ends in .json"
        raise ConfigError(f"--{problem}.")
    # tokenizer_config.json holds do_lower_case=false. For an uncased vocabulary, only an existing file is
    # overwritten, since true is the default.
    config = os.path.join(os.path.dirname(flags.output_file), "tokenizer_config.json")
    said = {"do_lower_case": lower_case} if is_wordpiece else {"tokenizer_class": "PreTrainedTokenizerFast"}
    configs = [] if (lower_case or not is_wordpiece) and not os.path.exists(config) else [config]
    inputs = text_files.find_texts(flags.input_files) if flags.overwrite else []
    for path in (flags.output_file, *configs):
        check_output_file(path, "output_file", flags.overwrite)
        check_not_read(path, "output_file", inputs, "input_files")
    counts = ReadCounts()
    sentences = read_sentences(flags.input_files, flags.max_sentences, counts, flags.text_field)
    bars = sys.stderr.isatty()
    if is_wordpiece:
        built = vocabulary_building.build_vocabulary(sentences, flags.vocab_size, lower_case, bars)
        content, entries = "\n".join(built.words) + "\n", len(built.words)
        summary = (
            f"word pieces from {len(sentences):,} sentences: {built.learned:,} learned, {built.unused:,}"
            f" [unusedN] entries added; their characters cover {built.covered:.2%} of the words."
        )
    else:
        content, entries = vocabulary_building.build_tokenizer(sentences, flags.kind, flags.vocab_size, bars)
        summary = f"entries of a {flags.kind} tokenizer from {len(sentences):,} sentences."
    for path in configs:
        outputs.write_file(path, json.dumps(said) + "\n")
    outputs.write_file(flags.output_file, content)
    by_file = read_counts.listed(counts.by_file)
    print_counts({"undecodable_bytes": counts.undecodable_bytes, "inputs": by_file})
    print(f"{entries:,} {summary}")

"""`bert data create`, `prepare`, `corpus` and `bert vocab`: records, clean text, vocabularies from text."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from official.cli import command_line, outputs, records
from official.io import engines, files
from official.io.errors import ConfigError, counted
from official.io.writing import check_output_file

if TYPE_CHECKING:
    from official.data.text.documents import ReadCounts


# -----------------------------------------------------------------------------------------------------------
# bert data create


# Graphcore's names of the flags, and its values where a command of its does not say them.
_THEIR_NAMES = {
    "input_file": "input_files",
    "sequence_length": "max_seq_length",
    "mask_tokens": "max_predictions_per_seq",
    "duplication_factor": "dupe_factor",
    "mlm_prob": "masked_lm_prob",
    "seed": "random_seed",
}
_THEIR_VALUES = {"dupe_factor": 6, "random_seed": 1984, "do_lower_case": False}


def create_parser() -> command_line.Parser:
    parser = command_line.Parser(run_create.__doc__)
    parser.also(_THEIR_NAMES)
    parser.lists.add("output_file")
    add = parser.add_argument
    command_line.add_text_flags(parser)
    add("--output_dir", help="Folder for part-00000-of-000NN.tfrecord, manifest.json and report.html.")
    exactly = (
        "In place of --output_dir: exactly these files, comma-separated, and no manifest. As in Graphcore's"
        " commands, whose names of the other flags are taken, too, case is kept without --do_lower_case,"
        " --dupe_factor is 6 and --random_seed 1984."
    )
    add("--output_file", help=exactly)
    vocabulary = (
        "WordPiece vocabulary: one word piece per line, or tokenizer.json, or a folder with one of them."
    )
    add("--vocab_file", required=True, help=vocabulary)
    command_line.add_lower_case_flag(parser)
    duplicates = "Keep one of the documents that are the same, token by token."
    add("--drop_duplicates", action="store_true", help=duplicates)
    mixture = (
        "Shares of the tokens, by source: 'books=0.3,wiki=0.7'. --input_files then names the sources:"
        " 'books=FILES,..,wiki=FILES,..'."
    )
    add("--mixture", help=mixture)
    add("--max_seq_length", type=int, default=128, help="Tokens of an example.")
    add("--max_predictions_per_seq", type=int, default=20, help="Masked tokens of an example, at most.")
    dupes = "Times that the text is cut into examples, each time with other cuts and masks."
    add("--dupe_factor", type=int, default=10, help=dupes)
    add("--masked_lm_prob", type=float, default=0.15, help="Share of the tokens that are masked.")
    add("--short_seq_prob", type=float, default=0.1, help="Share of the documents cut into shorter examples.")
    add("--do_whole_word_mask", action="store_true", help="Mask all pieces of a word or none.")
    add("--random_seed", type=int, default=12345, help="Seed of every random choice.")
    splitting = (
        "Split lines into sentences. auto: those of WikiExtractor and WikiText, and of plain text whose lines"
        " are paragraphs."
    )
    choices = ("auto", "always", "never")
    add("--sentence_splitting", choices=choices, default="auto", help=splitting)
    held_out = (
        "Share of the documents that is held out for evaluation, by the documents' own text; with --side."
    )
    add("--eval_share", type=float, help=held_out)
    side = "Documents to read: those to train on, or those held out (--eval_share). Unset: all."
    add("--side", choices=("train", "eval"), help=side)
    formats = (
        "plain: Google's tf.train.Example. compact: 16-bit ids without padding, less than half the size;"
        " train.py reads both."
    )
    add("--record_format", choices=("plain", "compact"), default="plain", help=formats)
    remask = "Write Graphcore's static-mask records: the masked tokens first."
    add("--remask", action="store_true", help=remask)
    position = "With --remask: position of the padding. Unset: --max_seq_length."
    add("--pad_position_value", type=int, help=position)
    command_line.add_engine_flags(parser, "records")
    add("--num_shards", type=int, help="Output files. Unset: 8, more where the text is large.")
    overwrite = "Replace the files of an earlier run in --output_dir, and an unfinished one of other flags."
    add("--overwrite", action="store_true", help=overwrite)
    return parser


def create_flags() -> argparse.Namespace:
    parser = create_parser()
    flags = parser.parse()
    if bool(flags.output_dir) == bool(flags.output_file):
        raise ConfigError("Give one of --output_dir=DIR and --output_file=FILES. See --help.")
    if flags.output_file:
        if flags.num_shards:
            raise ConfigError(f"num_shards={flags.num_shards} excludes --output_file, which names the files.")
        for path in flags.output_file.split(","):
            check_output_file(path, "output_file", flags.overwrite)
        for name, value in _THEIR_VALUES.items():
            if name not in parser.given:
                setattr(flags, name, value)
    if flags.remask and flags.record_format != "plain":
        raise ConfigError(
            f"--remask and --record_format={flags.record_format} exclude each other. Drop one of the two."
        )
    if flags.pad_position_value is not None and not flags.remask:
        raise ConfigError(f"pad_position_value={flags.pad_position_value} needs --remask.")
    return flags


def run_create() -> None:
    """Makes TFRecords of masked-LM and next-sentence examples from text.

      bert data create --input_files='wiki/wiki_*' --vocab_file=vocab.txt \\
        --output_dir=records
    """
    given = create_flags()
    engines.load_ahead(given, "official.data.pretraining.creation")
    flags = vars(given)
    command_line.configure_logging()
    named = flags.pop("output_file")
    paths = named.split(",") if named else []
    if paths:
        flags |= {"num_shards": len(paths), "output_dir": f"{paths[0]}.unfinished"}
    if flags["remask"]:
        flags["record_format"] = "remask"
    from official.data.pretraining import creation, examples, plan  # after the flags are checked

    rules = {name: flags.pop(name) for name in examples.ExampleRules.__dataclass_fields__}
    job = plan.Job(rules=examples.ExampleRules(**rules), **flags)
    if creation.is_finished(job):
        print(f"All of this is done already in {job.output_dir}; nothing is written.")
    manifest = creation.create_pretraining_data(job)
    show_manifest(manifest)
    made = [os.path.join(job.output_dir, name) for name in manifest["files"]]
    if not paths:
        records.write_card_beside(job.output_dir, made)
        return
    for path, file in zip(paths, made, strict=True):
        shutil.move(file, path)
    shutil.rmtree(job.output_dir)


def show_manifest(manifest: dict) -> None:
    """Prints what was counted, the sum of it last."""
    from official.data.text import read_counts

    names = ("skipped_lines", "skipped_sentences", "cut_documents", "other_side_documents")
    for name in (*names, "duplicate_documents", *read_counts.PAGES_LEFT_OUT):
        if manifest.get(name):
            print(f"{name}: {manifest[name]:,}")
    undecodable = ""
    if manifest["undecodable_bytes"]:
        print(f"undecodable_bytes: {read_counts.describe_undecodable(manifest['inputs'])}")
        undecodable = f"; {manifest['undecodable_bytes']:,} undecodable bytes left out"
    for name, source in manifest.get("sources", {}).items():
        print(
            f"{name}: {source['documents']:,} documents, {source['tokens']:,} tokens, {source['copies']:.2f}"
            f" copies, {source['reached_share']:.2%} of the text that was cut ({source['wanted_share']:.2%}"
            " wanted)."
        )
    text_files = counted(manifest["input_files"], "text file")
    made = f"{counted(manifest['instances'], 'example')} in {counted(len(manifest['files']), 'file')}"
    read = (
        "{documents:,} documents, {sentences:,} sentences, {tokens:,} tokens, {unknown_share:.2%} of them"
        " [UNK]".format(**manifest)
    )
    print(f"{made} from {text_files}: {read}{undecodable}.")


# -----------------------------------------------------------------------------------------------------------
# bert data prepare


def prepare_parser() -> command_line.Parser:
    parser = command_line.Parser(run_prepare.__doc__)
    add = parser.add_argument
    command_line.add_text_flags(parser)
    add("--output_dir", required=True, help="Folder for train/, eval/, manifest.json and report.html.")
    add(
        "--eval_share",
        type=float,
        default=0.005,
        help="Share of the documents that are held out for evaluation.",
    )
    add("--min_sentences", type=int, default=2, help="Documents of fewer sentences are left out.")
    add(
        "--sentence_splitting",
        choices=("auto", "always", "never"),
        default="auto",
        help="As of create_pretraining_data.py.",
    )
    command_line.add_engine_flags(parser, "files")
    add("--overwrite", action="store_true", help="Replace the files of an earlier run in --output_dir.")
    return parser


def run_prepare() -> None:
    """Cleans text, splits it into sentences, and shares the documents out to training and evaluation.

      bert data prepare --input_files=extracted --output_dir=text --eval_share=0.005

    Writes OUTPUT_DIR/train/part-NNNNN.txt and OUTPUT_DIR/eval/part-NNNNN.txt (one sentence per line, a blank
    line between documents), manifest.json and report.html. On which side a document is depends on its text
    alone.
    """
    flags = prepare_parser().parse()
    engines.load_ahead(flags, "official.data.text.preparation")
    command_line.configure_logging()
    from official.data.text import (
        preparation,  # after the flags are checked
        read_counts,
    )

    job = preparation.Job(**vars(flags))
    if preparation.is_finished(job):
        print(f"All of this is done already in {job.output_dir}; nothing is written.")
    manifest = preparation.prepare(job)
    reasons = ("short_documents", "empty_sentences", "skipped_lines", "cut_documents")
    for name in (*reasons, *read_counts.PAGES_LEFT_OUT):
        if manifest.get(name):
            print(f"{name}: {manifest[name]:,}")
    if manifest.get("undecodable_bytes"):
        print(
            f"undecodable_bytes: {manifest['undecodable_bytes']:,}"
            f" ({read_counts.describe_undecodable(manifest['inputs'])})"
        )
    for side in preparation.SPLITS:
        print(
            f"{side}: {manifest.get(f'{side}_documents', 0):,} documents,"
            f" {manifest.get(f'{side}_sentences', 0):,} sentences."
        )
    records.write_card_beside(job.output_dir, [])


# -----------------------------------------------------------------------------------------------------------
# bert data corpus


_SUMMARY = "corpus.json"


def corpus_parser() -> command_line.Parser:
    from official.data.text import docstring_corpus

    parser = command_line.Parser(run_corpus.__doc__)
    add = parser.add_argument
    add("--output_dir", required=True, help="Folder for train.txt, eval.txt and corpus.json.")
    add(
        "--sources",
        default=",".join(docstring_corpus.SOURCES),
        help=(
            "topics (the language reference), stdlib (the standard library) and installed packages, separated"
            " by commas."
        ),
    )
    add(
        "--eval_share",
        type=float,
        default=0.1,
        help="Share of the documents that are held out for evaluation.",
    )
    add("--overwrite", action="store_true", help="Replace the files in --output_dir.")
    return parser


def run_corpus() -> None:
    """Builds a small English corpus from what is installed: the language reference and docstrings.

      bert data corpus --output_dir=data/quickstart/corpus

    Writes train.txt and eval.txt (one sentence per line, a blank line between documents) and corpus.json.
    """
    from official.data.text import docstring_corpus

    flags = corpus_parser().parse()
    if not 0 < flags.eval_share < 1:
        raise ConfigError(f"--eval_share={flags.eval_share} is out of range. Allowed: above 0, below 1.")
    for name in ("train.txt", "eval.txt", _SUMMARY):
        check_output_file(os.path.join(flags.output_dir, name), "output_dir", flags.overwrite)
    counts = docstring_corpus.CorpusCounts()
    train, evaluation = docstring_corpus.build_corpus(flags.sources.split(","), flags.eval_share, counts)
    if not train or not evaluation:
        raise ConfigError(
            f"--sources={flags.sources} --eval_share={flags.eval_share}: {len(train)} documents to train on"
            f" and {len(evaluation)} to evaluate on, expected one each at least. Add sources, or change"
            " --eval_share."
        )
    summary: dict[str, Any] = {"sources": flags.sources, "eval_share": flags.eval_share}
    told = []
    for name, documents in (("train", train), ("eval", evaluation)):
        text = "\n\n".join("\n".join(document) for document in documents) + "\n"
        outputs.write_file(os.path.join(flags.output_dir, f"{name}.txt"), text)
        sentences, size = sum(map(len, documents)), len(text.encode())
        summary[name] = {"documents": len(documents), "sentences": sentences, "bytes": size}
        told.append(f"{name}.txt: {len(documents):,} documents, {sentences:,} sentences, {size:,} bytes.")
    summary |= dataclasses.asdict(counts)
    outputs.write_file(os.path.join(flags.output_dir, _SUMMARY), json.dumps(summary, indent=2) + "\n")
    print("\n".join(told))


# -----------------------------------------------------------------------------------------------------------
# bert vocab


_CONFIG = "tokenizer_config.json"  # beside the vocabulary: what reads it finds there that capitals count


def vocab_parser() -> command_line.Parser:
    parser = command_line.Parser(run_vocab.__doc__)
    add = parser.add_argument
    command_line.add_text_flags(parser)
    add(
        "--output_file",
        required=True,
        help="Vocabulary to write, one word piece per line: [PAD] [UNK] [CLS] [SEP] [MASK] first.",
    )
    add("--vocab_size", type=int, default=30522, help="Lines of the vocabulary.")
    add(
        "--do_lower_case",
        type=command_line.truth,
        default=True,
        metavar="true|false",
        help=(
            f"Whether text loses capitals and accents. false also writes {_CONFIG} beside the vocabulary,"
            " which says so."
        ),
    )
    add(
        "--max_sentences",
        type=int,
        default=1_000_000,
        help="Learn from this many sentences at most, evenly spread.",
    )
    add("--overwrite", action="store_true", help="Replace --output_file.")
    return parser


def vocab_files(flags) -> list[str]:
    """Returns the files to write: beside an uncased vocabulary the other one only where there is one that may
    say otherwise."""
    config = os.path.join(os.path.dirname(flags.output_file), _CONFIG)
    return (
        [flags.output_file]
        if flags.do_lower_case and not os.path.exists(config)
        else [flags.output_file, config]
    )


def read_sentences(patterns: str, most: int, counts: ReadCounts, text_field: str = "text") -> list[str]:
    """Returns the sentences of all files or, where there are more than `most`, every second, fourth, eighth
    .. one."""
    import tqdm

    from official.data.text.documents import read_documents

    step, kept = 1, []
    paths = files.find_files(patterns, "input_files")
    with tqdm.tqdm(
        total=sum(files.sizes(paths)), desc="Reading", unit="B", unit_scale=True, delay=0.5
    ) as bar:
        documents = read_documents(paths, counts, text_field=text_field)
        for number, sentence in enumerate(itertools.chain.from_iterable(documents)):
            if number % step == 0:
                kept.append(sentence)
            if len(kept) > most:
                step, kept = 2 * step, kept[::2]
            bar.update(counts.bytes - bar.n)
    return kept


def run_vocab() -> None:
    """Builds a WordPiece vocabulary of exactly --vocab_size lines from text.

    bert vocab --input_files=corpus/train.txt --output_file=vocab.txt --vocab_size=8192
    """
    from official.data.text import read_counts
    from official.data.text.documents import ReadCounts
    from official.data.word_pieces import vocabulary_building

    flags = vocab_parser().parse()
    command_line.check_ranges(flags, {"vocab_size": (10, math.inf), "max_sentences": (1, math.inf)})
    for path in vocab_files(flags):
        check_output_file(path, "output_file", flags.overwrite)
    counts = ReadCounts()
    sentences = read_sentences(flags.input_files, flags.max_sentences, counts, flags.text_field)
    built = vocabulary_building.build_vocabulary(
        sentences, flags.vocab_size, flags.do_lower_case, show_progress=sys.stderr.isatty()
    )
    for path in vocab_files(flags)[1:]:
        outputs.write_file(path, json.dumps({"do_lower_case": flags.do_lower_case}) + "\n")
    outputs.write_file(flags.output_file, "\n".join(built.words) + "\n")
    if counts.undecodable_bytes:
        print(
            f"undecodable_bytes: {counts.undecodable_bytes:,}"
            f" ({read_counts.describe_undecodable(read_counts.listed(counts.by_file))})"
        )
    print(
        f"{len(built.words):,} word pieces from {len(sentences):,} sentences: {built.learned:,} learned,"
        f" {built.unused:,} [unusedN] entries added; their characters are those of {built.covered:.2%} of the"
        " words."
    )

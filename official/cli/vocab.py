"""Builds a WordPiece vocabulary of exactly --vocab_size lines from text.

bert vocab --input_files=corpus/train.txt --output_file=vocab.txt --vocab_size=8192
"""

import argparse
import itertools
import json
import os
import sys

import tqdm

from official.cli import command_line, outputs
from official.data.text import read_counts
from official.data.text.documents import ReadCounts, read_documents
from official.data.word_pieces import vocabulary_building
from official.io import files
from official.io.errors import ConfigError
from official.io.writing import check_output_file

_CONFIG = "tokenizer_config.json"  # beside the vocabulary: what reads it finds there that capitals count


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
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


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    for name, minimum in (("vocab_size", 10), ("max_sentences", 1)):
        if getattr(flags, name) < minimum:
            raise ConfigError(f"--{name}={getattr(flags, name)} is out of range. Allowed: {minimum} or more.")
    for path in files_of(flags):
        check_output_file(path, "output_file", flags.overwrite)
    return flags


def files_of(flags) -> list[str]:
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


def main() -> None:
    flags = parse_flags()
    counts = ReadCounts()
    sentences = read_sentences(flags.input_files, flags.max_sentences, counts, flags.text_field)
    built = vocabulary_building.build_vocabulary(
        sentences, flags.vocab_size, flags.do_lower_case, show_progress=sys.stderr.isatty()
    )
    for path in files_of(flags)[1:]:
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

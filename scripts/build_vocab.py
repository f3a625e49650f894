#!/usr/bin/env python3
"""Builds a WordPiece vocabulary of exactly --vocab_size lines from text.

  python scripts/build_vocab.py --input_files=corpus/train.txt --output_file=vocab.txt --vocab_size=8192
"""

import itertools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import command_line
from official.config import ConfigError
from official.data import vocabulary
from official.io import files
from official.data.documents import ReadCounts, read_documents


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    add = parser.add_argument
    add("--input_files", required=True, help="Text: comma-separated files, folders or globs. Plain text with blank lines between "
                                             "documents, WikiExtractor's output (text or JSON) or WikiText, also compressed.")
    add("--output_file", required=True, help="Vocabulary to write, one word piece per line: [PAD] [UNK] [CLS] [SEP] [MASK] first.")
    add("--vocab_size", type=int, default=30522, help="Lines of the vocabulary.")
    add("--max_sentences", type=int, default=1_000_000, help="Learn from this many sentences at most, evenly spread.")
    add("--overwrite", action="store_true", help="Replace --output_file.")
    flags = parser.parse()
    for name, minimum in (("vocab_size", 10), ("max_sentences", 1)):
        if getattr(flags, name) < minimum:
            raise ConfigError(f"--{name}={getattr(flags, name)} is out of range. Allowed: {minimum} or more.")
    command_line.check_output_file(flags.output_file, "output_file", flags.overwrite)
    return flags


def read_sentences(patterns: str, most: int) -> list[str]:
    """Returns the sentences of all files or, where there are more than `most`, every second, fourth, eighth .. one."""
    step, kept = 1, []
    documents = read_documents(files.find_files(patterns, "input_files"), ReadCounts())
    for number, sentence in enumerate(itertools.chain.from_iterable(documents)):
        if number % step == 0:
            kept.append(sentence)
        if len(kept) > most:
            step, kept = 2 * step, kept[::2]
    return kept


def main() -> None:
    flags = parse_flags()
    sentences = read_sentences(flags.input_files, flags.max_sentences)
    built = vocabulary.build_vocabulary(sentences, flags.vocab_size)
    command_line.write_file(flags.output_file, "\n".join(built.words) + "\n")
    print(f"{len(built.words):,} word pieces from {len(sentences):,} sentences: {built.learned:,} learned, the {built.dropped:,} least "
          f"frequent of them left out, {built.unused:,} [unusedN] entries added.")


if __name__ == "__main__":
    command_line.run(main)

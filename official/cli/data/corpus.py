"""Builds a small English corpus from what is installed: the language reference and docstrings.

  bert data corpus --output_dir=data/quickstart/corpus

Writes train.txt and eval.txt (one sentence per line, a blank line between documents) and corpus.json.
"""

import argparse
import dataclasses
import json
import os

from official.cli import command_line, outputs
from official.data.text import docstring_corpus
from official.io.errors import ConfigError
from official.io.writing import check_output_file

_SUMMARY = "corpus.json"


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
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


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    if not 0 < flags.eval_share < 1:
        raise ConfigError(f"--eval_share={flags.eval_share} is out of range. Allowed: above 0, below 1.")
    for name in ("train.txt", "eval.txt", _SUMMARY):
        check_output_file(os.path.join(flags.output_dir, name), "output_dir", flags.overwrite)
    return flags


def write_documents(path: str, documents: list[list[str]]) -> dict[str, int]:
    """Writes one sentence per line with blank lines between documents; returns the numbers of what was
    written."""
    text = "\n\n".join("\n".join(document) for document in documents) + "\n"
    outputs.write_file(path, text)
    return {"documents": len(documents), "sentences": sum(map(len, documents)), "bytes": len(text.encode())}


def main() -> None:
    flags = parse_flags()
    counts = docstring_corpus.CorpusCounts()
    train, evaluation = docstring_corpus.build_corpus(flags.sources.split(","), flags.eval_share, counts)
    if not train or not evaluation:
        raise ConfigError(
            f"--sources={flags.sources} --eval_share={flags.eval_share}: {len(train)} documents to train on"
            f" and {len(evaluation)} to evaluate on, expected one each at least. Add sources, or change"
            " --eval_share."
        )
    summary = {"sources": flags.sources, "eval_share": flags.eval_share}
    summary["train"] = write_documents(os.path.join(flags.output_dir, "train.txt"), train)
    summary["eval"] = write_documents(os.path.join(flags.output_dir, "eval.txt"), evaluation)
    outputs.write_file(
        os.path.join(flags.output_dir, _SUMMARY),
        json.dumps(summary | dataclasses.asdict(counts), indent=2) + "\n",
    )
    for name in ("train", "eval"):
        print(
            "{name}.txt: {documents:,} documents, {sentences:,} sentences, {bytes:,} bytes.".format(
                name=name, **summary[name]
            )
        )

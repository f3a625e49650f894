"""Cleans text, splits it into sentences, and shares the documents out to training and evaluation.

  bert data prepare --input_files=extracted --output_dir=text --eval_share=0.005

Writes OUTPUT_DIR/train/part-NNNNN.txt and OUTPUT_DIR/eval/part-NNNNN.txt (one sentence per line, a blank line
between documents), manifest.json and report.html. On which side a document is depends on its text alone.
"""

import argparse

from official.cli import command_line, engine_flags, text_flags
from official.cli.data import card
from official.io import engines


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    text_flags.add_text_flags(parser)
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
    engine_flags.add(parser, "files")
    add("--overwrite", action="store_true", help="Replace the files of an earlier run in --output_dir.")
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def main() -> None:
    flags = parse_flags()
    engines.load_ahead(flags, "official.data.text.preparation")
    engine_flags.configure_logging()
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
    card.write_beside(job.output_dir, [])

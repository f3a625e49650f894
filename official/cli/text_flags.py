"""Flags of the commands that read text."""

import argparse

_TEXT = (
    "Text: comma-separated files, globs or folders, of this machine or a store (s3://, gs://, hdfs://);"
    " also .gz .bz2 .xz .zst. Lines with blank lines between documents, WikiExtractor output, JSON lines or"
    " arrays, Parquet, WikiText, MediaWiki dumps."
)
_FIELD = (
    "Of JSON and Parquet: the field, or the column, that holds the text of a document. a.b is field b of the"
    " object in field a."
)


def add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --input_files and --text_field."""
    parser.add_argument("--input_files", required=True, help=_TEXT)
    parser.add_argument("--text_field", default="text", metavar="NAME", help=_FIELD)

"""Makes TFRecords of masked-LM and next-sentence examples from text.

  bert data create --input_files='wiki/wiki_*' --vocab_file=vocab.txt \\
    --output_dir=records
"""

import argparse
import os
import shutil
from typing import TYPE_CHECKING, Any

from official.cli import command_line, engine_flags, text_flags
from official.cli.data import card
from official.io import engines
from official.io.errors import ConfigError, counted
from official.io.writing import check_output_file

if TYPE_CHECKING:
    from official.data.pretraining.plan import Job

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


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.also(_THEIR_NAMES)
    parser.lists.add("output_file")
    add = parser.add_argument
    text_flags.add_text_flags(parser)
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
    _add_example_flags(parser)
    _add_format_flags(parser)
    engine_flags.add(parser, "records")
    add("--num_shards", type=int, help="Output files. Unset: 8, more where the text is large.")
    overwrite = "Replace the files of an earlier run in --output_dir, and an unfinished one of other flags."
    add("--overwrite", action="store_true", help=overwrite)
    return parser


def _add_example_flags(parser: command_line.Parser) -> None:
    """Adds the flags for the contents of the examples."""
    add = parser.add_argument
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


def _add_format_flags(parser: command_line.Parser) -> None:
    """Adds the flags for the format of the examples."""
    add = parser.add_argument
    formats = (
        "plain: Google's tf.train.Example. compact: 16-bit ids without padding, less than half the size;"
        " train.py reads both."
    )
    add("--record_format", choices=("plain", "compact"), default="plain", help=formats)
    remask = "Write Graphcore's static-mask records: the masked tokens first."
    add("--remask", action="store_true", help=remask)
    position = "With --remask: position of the padding. Unset: --max_seq_length."
    add("--pad_position_value", type=int, help=position)


def parse_flags() -> argparse.Namespace:
    parser = make_parser()
    flags = parser.parse()
    if bool(flags.output_dir) == bool(flags.output_file):
        raise ConfigError("Give one of --output_dir=DIR and --output_file=FILES. See --help.")
    if flags.output_file:
        _check_files(flags)
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


def _check_files(flags: argparse.Namespace) -> None:
    """Raises ConfigError for files that exist, without --overwrite, and for --num_shards beside named
    files."""
    if flags.num_shards:
        raise ConfigError(f"num_shards={flags.num_shards} excludes --output_file, which names the files.")
    for path in flags.output_file.split(","):
        check_output_file(path, "output_file", flags.overwrite)


def _publish(files: list[str], folder: str, made: list[str]) -> None:
    """Moves the files of a finished job to their places, and removes its folder."""
    for path, name in zip(files, made, strict=True):
        shutil.move(os.path.join(folder, name), path)
    shutil.rmtree(folder)


def _job(flags: dict[str, Any]) -> "Job":
    from official.data.pretraining import examples, plan  # after the flags are checked: these load NumPy

    rules = examples.ExampleRules(
        **{name: flags.pop(name) for name in examples.ExampleRules.__dataclass_fields__}
    )
    return plan.Job(rules=rules, **flags)


def main() -> None:
    given = parse_flags()
    engines.load_ahead(given, "official.data.pretraining.creation")
    flags = vars(given)
    engine_flags.configure_logging()
    files = (flags.pop("output_file") or "").split(",")
    if files != [""]:
        flags |= {"num_shards": len(files), "output_dir": f"{files[0]}.unfinished"}
    if flags["remask"]:
        flags["record_format"] = "remask"
    job = _job(flags)
    from official.data.pretraining import creation  # after the flags are checked, too

    if creation.is_finished(job):
        print(f"All of this is done already in {job.output_dir}; nothing is written.")
    manifest = creation.create_pretraining_data(job)
    show(manifest)
    if files == [""]:
        card.write_beside(job.output_dir, [os.path.join(job.output_dir, name) for name in manifest["files"]])
    else:
        _publish(files, job.output_dir, list(manifest["files"]))


def show(manifest: dict) -> None:
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

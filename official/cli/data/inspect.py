"""Checks every record of pre-training data, says what they hold, shows examples, and draws the lengths.

  bert data inspect 'records/*.tfrecord' --vocab_file=vocab.txt --picture=lengths.png

Exit code 2, with file and number, at the first record that departs from the schema.
"""

import argparse
import os
from typing import Any

from official.cli import command_line, outputs
from official.cli.data import card, spread
from official.cli.data.vocabularies import find_vocabulary
from official.io import engines
from official.io.errors import ConfigError, counted
from official.io.record_paths import find_files
from official.io.writing import check_output_file

_LABELS = {"records": "these records", "compare_to": "compared with"}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("files", nargs="+", help="TFRecord files, globs or folders.")
    add(
        "--vocab_file",
        help=(
            "Vocabulary of the records. Unset: the one that manifest.json beside the first file names, where"
            " it is there."
        ),
    )
    add("--examples", type=int, default=2, help="Examples to show.")
    add(
        "--compare_to",
        help="Files, globs or folders of other records, whose shares and lengths are shown beside.",
    )
    add("--picture", help="File for a histogram of the lengths (.png, .svg, .pdf).")
    add("--report", help="File for the numbers (JSON).")
    add("--report_page", help="File for the data card: a page about these records (HTML).")
    several = (
        "Every folder, and every file that is named or matched by a glob, is a data set of its own, as of a"
        " seed each: show mean and spread of their shares."
    )
    add("--spread", action="store_true", help=several)
    command_line.add_engine_flags(parser, "numbers")
    add("--work_dir", help="With --engine=ray: a folder that all nodes see, for temporary files.")
    add("--overwrite", action="store_true", help="Replace --picture, --report and --report_page.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    if flags.examples < 0:
        raise ConfigError(f"--examples={flags.examples} is out of range. Allowed: 0 or more.")
    if flags.picture:
        outputs.check_picture_file(flags.picture, "picture", flags.overwrite)
    for name in ("report", "report_page"):
        if getattr(flags, name):
            check_output_file(getattr(flags, name), name, flags.overwrite)
    engines.check(flags)
    if flags.work_dir and flags.engine != "ray":
        raise ConfigError(f"--work_dir={flags.work_dir} needs --engine=ray.")
    if flags.work_dir and not os.path.isdir(flags.work_dir):
        raise ConfigError(f"--work_dir={flags.work_dir} is not a folder of this machine.")
    if flags.spread and (flags.picture or flags.report_page):
        raise ConfigError("--spread excludes --picture and --report_page, which are about one data set.")
    return flags


def describe(summary, shares: dict, vocabulary) -> str:
    masks = (
        "[MASK] {masked:.2%}, kept {kept:.2%}, random {replaced:.2%}"
        if vocabulary
        else "kept {kept:.2%} (the rest needs --vocab_file)"
    )
    return "\n".join(
        [
            (
                f"{counted(summary.files, 'file')}, {counted(summary.records, 'example')},"
                f" {summary.bytes / 1e6:,.1f} MB, {summary.record_format}, {summary.max_seq_length} tokens,"
                f" {summary.max_predictions_per_seq} predictions at most"
            ),
            "lengths     median {median_length:,.0f}, {full_length:.1%} full, {padding:.1%} padding".format(
                **shares
            ),
            f"predicted   {summary.predictions / summary.records:.2f} an example, "
            + ("{predictions_of_tokens:.2%} of the tokens: " + masks).format(**shares),
            *_describe_packing(summary),
            "random next {random_next:.2%}".format(**shares),
            "repeated    {repeated_records:.2%} of the examples, {repeated_texts:.2%} of the texts (with"
            " other masks)".format(**shares)
            + _reliability(summary.repeats()),
        ]
    )


def _reliability(repeats: dict) -> str:
    """Returns how far off the shares of repetitions may be, where they are not exact."""
    if repeats["exact"]:
        return ""
    return f": estimates, to within {max(repeats['standard_errors'].values()):.3%} two times in three"


def _describe_packing(summary) -> list[str]:
    """Returns a line about packed rows, for records that are some."""
    if summary.record_format != "packed":
        return []
    used = summary.tokens / (summary.rows * summary.max_seq_length)
    return [
        f"packed      {summary.rows:,} rows of {summary.records / summary.rows:.3f} examples, {used:.2%} of"
        " their places used"
    ]


def draw(lengths: dict, path: str, longest: int) -> None:
    """Draws histograms of the lengths, each as a share of its examples."""
    import numpy as np

    from official.reporting import palette, plots

    with plots.style():
        figure = plots.new_figure(8, 3.6)
        axes = figure.subplots()
        edges = np.linspace(0, longest + 1, min(longest, 64) + 1)
        for (name, counts), color in zip(lengths.items(), palette.COLORS):
            axes.hist(
                np.arange(len(counts)),
                edges.tolist(),
                weights=counts / counts.sum(),
                histtype="stepfilled" if name == "records" else "step",
                color=color,
                label=_LABELS[name],
            )
        plots.write_head(axes, "Tokens of an example", "share of the examples")
        axes.set_xlabel("tokens")
        if len(lengths) > 1:
            axes.legend(frameon=False, loc="upper left")
        figure.tight_layout()
        outputs.write_file(path, plots.render(figure, outputs.picture_format(path)))


def report_of(summary: Any, shares: dict) -> dict:
    """Returns the numbers of some records, for --report."""
    names = ("files", "records", "rows", "bytes", "record_format", "max_seq_length", "predictions", "tokens")
    numbers = {name: getattr(summary, name) for name in names}
    counts = {"shares": shares, "repeats": summary.repeats(), "lengths": summary.lengths.tolist()}
    return {**numbers, **counts}


def main() -> None:
    flags = parse_flags()
    command_line.configure_logging()
    if flags.spread:
        show_spread(flags)
        return
    # After the flags are checked: TensorFlow takes seconds to load.
    from official.data.pretraining import inspection
    from official.data.pretraining.summary import largest_gap

    paths = {"records": find_files(",".join(flags.files))}
    if flags.compare_to:
        paths["compare_to"] = find_files(flags.compare_to, "compare_to")
    vocabulary = find_vocabulary(flags.vocab_file, paths["records"][0])
    with engines.opened(flags) as engine:
        summaries = {
            name: inspection.summarize(found, vocabulary, engine, flags.work_dir)
            for name, found in paths.items()
        }
    report: dict[str, Any] = {}
    for name, summary in summaries.items():
        report[name] = report_of(summary, summary.shares())
        print(describe(summary, report[name]["shares"], vocabulary), end="\n\n")
    lengths = {name: summary.lengths for name, summary in summaries.items()}
    if flags.compare_to:
        report["largest_gap_of_lengths"] = largest_gap(*lengths.values())
        print(f"largest gap between the distributions of lengths: {report['largest_gap_of_lengths']:.4f}\n")
    if vocabulary and flags.examples:
        for example in inspection.first_examples(paths["records"][0], flags.examples, vocabulary):
            print(example.text())
    if flags.picture:
        draw(lengths, flags.picture, summaries["records"].max_seq_length)
    if flags.report:
        outputs.write_json(flags.report, report)
    if flags.report_page:
        folder = os.path.dirname(paths["records"][0])
        card.write(flags.report_page, folder, paths["records"], summaries["records"], flags.vocab_file)


def show_spread(flags: argparse.Namespace) -> None:
    """Prints, and writes to --report, the mean and the spread of the shares of several data sets."""
    from official.data.pretraining import inspection

    groups = {"records": spread.data_sets(flags.files)}
    if flags.compare_to:
        groups["compare_to"] = spread.data_sets([flags.compare_to], "compare_to")
    vocabulary = find_vocabulary(flags.vocab_file, next(iter(groups["records"].values()))[0])
    with engines.opened(flags) as engine:
        shares = {
            name: {
                each: inspection.summarize(paths, vocabulary, engine, flags.work_dir).shares()
                for each, paths in group.items()
            }
            for name, group in groups.items()
        }
    report = spread.report_of(shares)
    print(spread.table(report))
    if flags.report:
        outputs.write_json(flags.report, report)

"""Packs several sequences into a row: records of any of our formats to packed records.

  bert pack --input_files='records/*.tfrecord' --output_dir=packed
  bert pack --histogram=lengths.json --algorithm=lpfhp --max_sequences_per_pack=12

Each sequence is in exactly one row. The same input and flags make the same files; the same command goes on
with what an interrupted one has left.
"""

import argparse
import os

from official.cli import command_line, outputs
from official.cli.data import card
from official.io.errors import ConfigError
from official.io.writing import check_output_file

ALGORITHMS = ("spfhp", "lpfhp", "nnlshp", "ennlshp")


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("--input_files", help="TFRecords of one format: comma-separated files, folders or globs.")
    add("--output_dir", help="Folder for part-00000-of-000NN.tfrecord, manifest.json and report.html.")
    histogram = "JSON with max_sequence_length and counts_by_length_from_1: only plan, without records."
    add("--histogram", help=histogram)
    algorithm = (
        "spfhp: into the row with the most room. lpfhp: into the fullest that fits. nnlshp, ennlshp: least"
        " squares over all ways to fill a row with up to 3 lengths. Unset: all are tried, and the one"
        " with the fewest rows is taken."
    )
    add("--algorithm", choices=ALGORITHMS, help=algorithm)
    add("--max_sequences_per_pack", type=int, default=3, help="Sequences of a row, at most.")
    add("--random_seed", type=int, default=12345, help="Seed of the order of the rows and who shares one.")
    command_line.add_engine_flags(parser, "records")
    add("--num_shards", type=int, help="Output files. Unset: 8, more where there are many sequences.")
    add("--report", help="File for the numbers (JSON).")
    picture = "File for a picture of the lengths before and the rows after (.png, .svg, .pdf)."
    add("--picture", help=picture)
    add("--overwrite", action="store_true", help="Replace what is there already.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    if flags.histogram and (flags.input_files or flags.output_dir):
        raise ConfigError("--histogram only plans. Drop it, or --input_files and --output_dir.")
    if not flags.histogram and not (flags.input_files and flags.output_dir):
        raise ConfigError("Give --input_files and --output_dir, or --histogram to plan only.")
    if flags.report:
        check_output_file(flags.report, "report", flags.overwrite)
    if flags.picture:
        outputs.check_picture_file(flags.picture, "picture", flags.overwrite)
    return flags


def plan_only(flags: argparse.Namespace) -> dict:
    """Returns the numbers of a plan."""
    from official.data.packing import algorithms

    histogram = algorithms.read_histogram(flags.histogram)
    planned = algorithms.plan_by_algorithm(histogram, flags.algorithm, flags.max_sequences_per_pack)
    return algorithms.describe(histogram, planned)


def pack(flags: argparse.Namespace) -> dict:
    """Writes the packed records; returns the numbers of the plan with those of the files."""
    from official.data.packing import creation  # after the flags are checked: it loads TensorFlow

    given = {name: getattr(flags, name) for name in creation.Job.__dataclass_fields__}
    manifest = creation.pack_records(creation.Job(**given))
    card.write_beside(flags.output_dir, [os.path.join(flags.output_dir, name) for name in manifest["files"]])
    names = ("packs", "sequences", "split_packs", "efficiency", "speedup", "sequences_per_pack")
    numbers = {**manifest["plan"], **{name: manifest[name] for name in names}}
    numbers["padding_after"] = 1 - manifest["efficiency"]
    return numbers


def describe(numbers: dict) -> str:
    """Returns two lines about a plan, or the files made by it."""
    text = (
        "{packs:,} rows of {max_seq_length} tokens hold {sequences:,} sequences, {speedup:.4f} a row,"
        " {sequences_per_pack} at most (bound by the lengths: {bound:.4f}).\n"
        "Efficiency {efficiency:.5f}: padding {padding_before:.2%} before, {padding_after:.2%} after. Planned"
        " in {secs:.3f} s{by}."
    )
    by = f" by {numbers['algorithm']}" if numbers.get("algorithm") else ""
    return text.format(**numbers, by=by)


def draw(numbers: dict, path: str) -> None:
    """Draws the tokens of the sequences and of the planned rows, and the padding before and after."""
    import numpy as np

    from official.reporting import palette, plots

    with plots.style():
        figure = plots.new_figure(8, 3.6)
        lengths, shares = figure.subplots(1, 2, width_ratios=[3, 2])
        drawn = {"lengths": "a sequence", "tokens_of_rows": "a packed row"}
        for (name, label), color in zip(drawn.items(), palette.COLORS):
            counts = np.array(numbers[name])
            bins = min(len(counts) - 1, 64)
            found, edges = np.histogram(np.arange(len(counts)), bins, weights=counts / counts.sum())
            lengths.stairs(found, edges, fill=name == "lengths", color=color, label=f"tokens of {label}")
        plots.write_head(lengths, "Before and after", "share of the sequences, share of the rows")
        lengths.set_xlabel("tokens")
        lengths.legend(frameon=False, loc="upper center")
        padding = [numbers["padding_before"], numbers["padding_after"]]
        bars = shares.bar(["one a row", "packed"], padding, color=palette.COLORS[:2])
        shares.bar_label(bars, [f"{share:.1%}" for share in padding])
        plots.write_head(shares, "Padding", "share of the places of a row")
        shares.set_ylim(0, 1.1 * max(*padding, 0.01))
        figure.tight_layout()
        outputs.write_file(path, plots.render(figure, outputs.picture_format(path)))


def main() -> None:
    flags = parse_flags()
    command_line.configure_logging()
    numbers = {"algorithm": flags.algorithm, **(plan_only if flags.histogram else pack)(flags)}
    print(describe(numbers))
    if flags.report:
        outputs.write_json(flags.report, numbers)
    if flags.picture:
        draw(numbers, flags.picture)

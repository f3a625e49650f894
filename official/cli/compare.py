"""Compares runs: a table of settings and results, their curves in one picture, and the MLPerf score of
several seeds.

  bert compare runs/lr_3e-3 runs/lr_5e-3 --target=0.30 --output=comparison.png
  bert compare runs/seed_* --mlperf --ruleset=1.0.0
"""

import argparse

from official.cli import command_line, outputs
from official.io.errors import ConfigError
from official.io.writing import check_output_file


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("folders", nargs="+", metavar="DIR", help="Folders of runs (--model_dir).")
    add(
        "--target",
        type=float,
        help="Masked-LM accuracy, or score of a task, to reach. Unset: each run's stop_threshold.",
    )
    add("--output", help="Picture to write: .png, .svg or .pdf.")
    add("--json", help="File for the numbers.")
    add(
        "--mlperf",
        action="store_true",
        help="Score the runs, which are one recipe with several seeds, as MLPerf does.",
    )
    add(
        "--ruleset",
        default="1.0.0",
        help="With --mlperf: the rules whose reference convergence points count, 1.0.0 to 5.0.0.",
    )
    add("--overwrite", action="store_true", help="Replace the files where they are there.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    if flags.target is not None and not 0 <= flags.target <= 1:
        raise ConfigError(f"--target={flags.target} is out of range. Allowed: 0 to 1.")
    if flags.output:
        outputs.check_picture_file(flags.output, "output", flags.overwrite)
    if flags.json:
        check_output_file(flags.json, "json", flags.overwrite)
    return flags


def main() -> None:
    flags = parse_flags()
    # After the flags are checked: these load TensorFlow.
    from official.reporting import comparison, convergence, plots

    if flags.mlperf and flags.ruleset not in convergence.RULESETS:
        raise ConfigError(f"--ruleset={flags.ruleset} is not one of {', '.join(convergence.RULESETS)}.")
    runs = comparison.read_runs(flags.folders)
    values = comparison.compare(runs, flags.target)
    texts = [comparison.format_comparison(values)]
    if flags.mlperf:
        values["mlperf"] = convergence.score(runs, flags.ruleset)
        texts.append(convergence.format_score(values["mlperf"]))
    print("\n\n".join(texts))
    if flags.output:
        figure = comparison.plot_comparison(runs, flags.target)
        outputs.write_file(flags.output, plots.render(figure, outputs.picture_format(flags.output)))
        print(f"\n{flags.output}")
    if flags.json:
        outputs.write_json(flags.json, values)

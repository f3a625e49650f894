"""`bert compare` and `bert record`: finished runs."""

import os

from official.cli import command_line, outputs
from official.io import files
from official.io.errors import ConfigError
from official.io.writing import check_output_file

# -----------------------------------------------------------------------------------------------------------
# bert compare


def compare_parser() -> command_line.Parser:
    parser = command_line.Parser(run_compare.__doc__)
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


def run_compare() -> None:
    """Compares runs: a table of settings and results, their curves in one picture, and the MLPerf score of
    several seeds.

      bert compare runs/lr_3e-3 runs/lr_5e-3 --target=0.30 --output=comparison.png
      bert compare runs/seed_* --mlperf --ruleset=1.0.0
    """
    flags = compare_parser().parse()
    command_line.check_ranges(flags, {"target": (0, 1)})
    if flags.output:
        outputs.check_picture_file(flags.output, "output", flags.overwrite)
    if flags.json:
        check_output_file(flags.json, "json", flags.overwrite)
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


# -----------------------------------------------------------------------------------------------------------
# bert record


def record_parser() -> command_line.Parser:
    parser = command_line.Parser(run_record.__doc__)
    parser.add_argument(
        "--model_dir", required=True, help="Folder of the run, or of several: comma-separated."
    )
    parser.add_argument(
        "--output", required=True, help="Files to write, without their endings: .json, and .png for one run."
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace them where they are there.")
    return parser


def read_file(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        raise ConfigError(f"--model_dir={folder} is not a finished run: {name} is missing.")
    return files.read_text(path, path)


def record_of(model_dir: str) -> dict:
    """Returns the record of a run, or of the runs of --num_runs: command, seed, result and evaluations."""
    from official.io.json_files import expect
    from official.reporting.result import load_result

    read_file(model_dir, "result.json")
    result, source = load_result(model_dir), f"{model_dir}/result.json: config"
    result.pop("examples", None)  # text of others, which is not ours to keep
    expect(result, "environment", dict, f"{model_dir}/result.json", default={}).pop("working_directory", None)
    config = expect(result, "config", dict, source)
    repeats, seed = (expect(config, name, int, source) for name in ("num_runs", "seed"))
    folders = [model_dir]
    if repeats > 1:
        folders = [os.path.join(model_dir, f"run-{number}") for number in range(1, repeats + 1)]
    evaluations = [_evaluations(folder) for folder in folders]
    return {
        "command": read_file(folders[0], "command.txt").strip(),
        "seed": seed,
        "repeats": repeats,
        "result": result,
        "evaluations": evaluations if repeats > 1 else evaluations[0],
    }


def _evaluations(folder: str) -> list[dict]:
    from official.reporting.metrics import read_metrics_counted

    records, damaged = read_metrics_counted(folder)
    if damaged:
        print(f"Note: {damaged:,} damaged lines of {folder}/metrics.jsonl are left out.")
    return [record for record in records if record["split"] == "eval"]


def run_record() -> None:
    """Records finished runs for the README: command, result (with commit, versions, machine) and evaluations,
    and the picture of one run.

      bert record --model_dir=runs/wikipedia_mini --output=results/wikipedia_mini
      bert record --model_dir=runs/glue_mrpc,runs/glue_cola --output=results/glue_minilm
    """
    flags = record_parser().parse()
    folders = flags.model_dir.split(",")
    values = {os.path.basename(os.path.normpath(folder)): record_of(folder) for folder in folders}
    first = next(iter(values.values()))
    has_picture = len(folders) == first["repeats"] == 1
    paths = [flags.output + ".json"] + [flags.output + ".png"] * has_picture
    for path in paths:
        check_output_file(path, "output", flags.overwrite)
    outputs.write_json(paths[0], values if len(folders) > 1 else first)
    if has_picture:
        from official.reporting import plots

        plots.save_run(flags.model_dir, paths[1])
    print(" and ".join(paths))

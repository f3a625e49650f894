"""Records finished runs for the README: command, result (with commit, versions, machine) and evaluations, and
the picture of one run.

  bert record --model_dir=runs/wikipedia_mini --output=results/wikipedia_mini
  bert record --model_dir=runs/glue_mrpc,runs/glue_cola --output=results/glue_minilm
"""

import argparse
import os

from official.cli import command_line, outputs
from official.io.writing import check_output_file


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument(
        "--model_dir", required=True, help="Folder of the run, or of several: comma-separated."
    )
    parser.add_argument(
        "--output", required=True, help="Files to write, without their endings: .json, and .png for one run."
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace them where they are there.")
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def read(folder: str, name: str) -> str:
    from official.io.errors import ConfigError

    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        raise ConfigError(f"--model_dir={folder} is not a finished run: {name} is missing.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def record(model_dir: str) -> dict:
    """Returns the record of a run, or of the runs of --num_runs: command, seed, result and evaluations."""
    from official.io.json_files import expect
    from official.reporting.result import load_result

    read(model_dir, "result.json")
    result, source = load_result(model_dir), f"{model_dir}/result.json: config"
    result.pop("examples", None)  # text of others, which is not ours to keep
    expect(result, "environment", dict, f"{model_dir}/result.json", default={}).pop("working_directory", None)
    config = expect(result, "config", dict, source)
    repeats, seed = (expect(config, name, int, source) for name in ("num_runs", "seed"))
    folders = (
        [os.path.join(model_dir, f"run-{number}") for number in range(1, repeats + 1)]
        if repeats > 1
        else [model_dir]
    )
    evaluations = [_evaluations(folder) for folder in folders]
    return {
        "command": read(folders[0], "command.txt").strip(),
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


def main() -> None:
    flags = parse_flags()
    folders = flags.model_dir.split(",")
    values = {os.path.basename(os.path.normpath(folder)): record(folder) for folder in folders}
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

"""Keeps the numbers of finished runs: command, result (with commit, versions, machine) and evaluations; and
the picture of one run.

  python benchmarks/record.py --model_dir=runs/wikipedia_mini --output=results/wikipedia_mini
  python benchmarks/record.py --model_dir=runs/glue_mrpc,runs/glue_cola --output=results/glue_minilm
"""

import os
from typing import Any

import harness
from official.cli import command_line, outputs
from official.io import files
from official.io.errors import ConfigError
from official.io.writing import check_output_file


class Main(command_line.Flags):
    """Flags of the program.

    Attributes:
      model_dir: Folder of the run, or comma-separated folders of several.
      output: Files to write, without their suffixes: .json, and .png for one run.
      overwrite: Replace existing files.
    """

    model_dir: str
    output: str
    overwrite: bool = False


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
    result.pop("examples", None)  # text from the data set, which records must not publish
    expect(result, "environment", dict, f"{model_dir}/result.json", default={}).pop("working_directory", None)
    config = expect(result, "config", dict, source)
    repeats, seed = (expect(config, name, int, source) for name in ("num_runs", "seed"))
    folders = [model_dir]
    if repeats > 1:
        folders = [os.path.join(model_dir, f"run-{number}") for number in range(1, repeats + 1)]
    found = {"command": read_file(folders[0], "command.txt").strip(), "seed": seed, "repeats": repeats}
    evaluations = [_evaluations(folder) for folder in folders]
    return {**found, "result": result, "evaluations": evaluations if repeats > 1 else evaluations[0]}


def _evaluations(folder: str) -> list[dict]:
    from official.reporting.metrics import read_metrics_counted

    records, damaged = read_metrics_counted(folder)
    if damaged:
        print(f"Note: {damaged:,} damaged lines of {folder}/metrics.jsonl are left out.")
    return [record for record in records if record["split"] == "eval"]


def picture_of(model_dir: str) -> Any:
    """Returns a figure of a run's loss, metric, learning rate and throughput."""
    from official.reporting import charts, plots
    from official.reporting.metrics import read_metrics
    from official.reporting.result import from_dict, load_result

    found = charts.run_charts(read_metrics(model_dir), from_dict(load_result(model_dir)))
    titles = ("Loss", found[1].title, "Learning rate", "Throughput")
    return plots.plot_charts([chart for chart in found if chart.title in titles])


def main() -> None:
    flags = Main.parse()
    folders = flags.model_dir.split(",")
    values = {os.path.basename(os.path.normpath(folder)): record_of(folder) for folder in folders}
    first = next(iter(values.values()))
    has_picture = len(folders) == first["repeats"] == 1
    paths = [flags.output + ".json"] + [flags.output + ".png"] * has_picture
    for path in paths:
        check_output_file(path, "output", flags.overwrite)
    outputs.write_json(paths[0], values if len(folders) > 1 else first)
    if has_picture:
        outputs.write_picture(paths[1], picture_of(flags.model_dir))
    print(" and ".join(paths))


if __name__ == "__main__":
    harness.main(main)

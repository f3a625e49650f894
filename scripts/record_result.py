#!/usr/bin/env python3
"""Records a finished run for the README: its command, result (with commit, versions, machine) and evaluations, and the picture.

  python scripts/record_result.py --model_dir=runs/wikipedia_mini --output=results/wikipedia_mini
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import command_line


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    parser.add_argument("--model_dir", required=True, help="Folder of the run.")
    parser.add_argument("--output", required=True, help="Files to write, without their endings .json and .png.")
    parser.add_argument("--overwrite", action="store_true", help="Replace them where they are there.")
    return parser.parse()


def record(model_dir: str) -> dict:
    from official.config import ConfigError
    from official.reporting.metrics import read_metrics

    values = {}
    for name in ("result.json", "config.json", "command.txt"):
        try:
            with open(os.path.join(model_dir, name), encoding="utf-8") as file:
                values[name] = file.read()
        except OSError:
            raise ConfigError(f"--model_dir={model_dir} is not a finished run: {name} is missing.") from None
    evaluations = [line for line in read_metrics(model_dir) if line["split"] == "eval"]
    return {"command": values["command.txt"].strip(), "seed": json.loads(values["config.json"])["seed"], "repeats": 1,
            "result": json.loads(values["result.json"]), "evaluations": evaluations}


def main() -> None:
    flags = parse_flags()
    from official.reporting import plots
    from official.reporting.metrics import read_metrics

    json_path, picture_path = flags.output + ".json", flags.output + ".png"
    for path in (json_path, picture_path):
        command_line.check_output_file(path, "output", flags.overwrite)
    values = record(flags.model_dir)
    result = values["result"]
    figure = plots.plot_run(read_metrics(flags.model_dir), result.get("target"), result.get("majority_accuracy"))
    command_line.write_file(json_path, json.dumps(values, indent=1) + "\n")
    command_line.write_file(picture_path, plots.render(figure, "png"))
    print(f"{json_path} and {picture_path}")


if __name__ == "__main__":
    command_line.run(main)

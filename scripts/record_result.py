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
    from official.config import ConfigError
    from official.reporting.files import replace_file
    from official.reporting.plots import save_picture

    json_path, picture_path = flags.output + ".json", flags.output + ".png"
    present = [path for path in (json_path, picture_path) if os.path.exists(path)]
    if present and not flags.overwrite:
        raise ConfigError(f"{present[0]} exists. Add --overwrite to replace it.")
    values = record(flags.model_dir)
    os.makedirs(os.path.dirname(json_path) or ".", exist_ok=True)
    replace_file(json_path, json.dumps(values, indent=1) + "\n")
    save_picture(flags.model_dir, picture_path)
    print(f"{json_path} and {picture_path}")


if __name__ == "__main__":
    command_line.run(main)

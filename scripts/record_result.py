#!/usr/bin/env python3
"""Records a finished run for the README: numbers, command, commit, versions and machine as JSON, and the picture.

  python scripts/record_result.py --model_dir=runs/wikipedia_mini --output=results/wikipedia_mini
"""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import command_line

PACKAGES = ("tensorflow", "tensorflow-addons", "tensorflow-text", "keras", "numpy")


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    parser.add_argument("--model_dir", required=True, help="Folder of the run.")
    parser.add_argument("--output", required=True, help="Files to write, without their endings .json and .png.")
    parser.add_argument("--overwrite", action="store_true", help="Replace them where they are there.")
    return parser.parse()


def machine() -> dict:
    """Returns what the run's speed depends on."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [line.split(":", 1) for line in file if ":" in line]
    cpu = {key.strip(): value.strip() for key, value in reversed(lines)}
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {"cpu": cpu.get("model name", platform.processor()), "cores": len(os.sched_getaffinity(0)),
            "instructions": [name for name in wanted if name in cpu.get("flags", "").split()],
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9), "system": platform.platform()}


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def record(model_dir: str) -> dict:
    from official.config import ConfigError
    from official.reporting.metrics import read_metrics

    try:
        with open(os.path.join(model_dir, "result.json"), encoding="utf-8") as file:
            result = json.load(file)
        with open(os.path.join(model_dir, "command.txt"), encoding="utf-8") as file:
            command = file.read().strip()
        with open(os.path.join(model_dir, "config.json"), encoding="utf-8") as file:
            seed = json.load(file)["seed"]
    except OSError as error:
        raise ConfigError(f"--model_dir={model_dir} is not a finished run: {error.filename} is missing.") from None
    evaluations = [line for line in read_metrics(model_dir) if line["split"] == "eval"]
    return {"command": command, "commit": commit(), "seed": seed, "repeats": 1, "machine": machine(), "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES}, "result": result, "evaluations": evaluations}


def main() -> None:
    flags = parse_flags()
    from official.config import ConfigError
    from official.reporting.metrics import replace_file
    from official.reporting.report import save_picture

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

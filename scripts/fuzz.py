#!/usr/bin/env python3
"""Damages command lines, flagfiles, data files and checkpoints at random and checks that train.py ends in order each time.

In order means: exit code 0, 1, 2 or 3, no exception, and for 2 one line that says what is wrong.

  python scripts/fuzz.py --cases=500 --seed=1 --output=results/fuzz.json
"""

import contextlib
import io
import json
import multiprocessing
import os
import random
import shutil
import string
import sys
import tempfile
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import command_line

KINDS = ("flags", "flagfile", "records", "checkpoint", "config")
# Values that are tried for any flag: small where they are valid, since a step count of a million is valid, too.
VALUES = ("", "0", "1", "2", "3", "5", "8", "16", "-1", "-7", "0.5", "1e-3", "1e400", "nan", "inf", "-inf", "true", "false", "None", "[]", "abc",
          "32", "7", "0x10", "1_0", "dynamic", "lamb", "adamw", "fp32", "bf16", "mirrored", "one_device", "tpu", "local", "global", "none",
          "micro_batch", "ünïcödé", "a,b", "*", "/nowhere/*", "x" * 300, "line\nbreak", "99999999999999999999")
# Values of the right type.
FITTING = {bool: ("true", "false"), int: ("1", "2", "3", "4", "8"), float: ("0.0", "0.1", "0.5", "1e-3", "2.0"), str: ("dynamic", "1024", "")}
# Flags left alone: they would leave the sandbox, or try another machine for a long time.
SPARED = ("model_dir", "tpu", "worker_hosts", "distribution_strategy", "mllog_file", "plan_file", "wandb")


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500, help="Random cases.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of all cases.")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="Processes.")
    parser.add_argument("--output", help="JSON file for the counts.")
    parser.add_argument("--overwrite", action="store_true", help="Replace --output where it is there.")
    return parser.parse()


def make_workspace(folder: str) -> None:
    """Writes a tiny model, records of random text and a run of four steps."""
    import numpy as np
    import tensorflow as tf
    from official.data import schema, synthetic

    sizes = dict(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16)
    with open(f"{folder}/bert.json", "w", encoding="utf-8") as file:
        json.dump(sizes, file)
    features = schema.pretraining_schema(16, 3, 40)
    batch = next(synthetic.synthetic_dataset(features, 40, 32, seed=1).as_numpy_iterator())
    for part in range(2):
        with tf.io.TFRecordWriter(f"{folder}/part-{part}") as writer:
            for row in np.arange(16) + 16 * part:
                writer.write(schema.serialize_example({name: batch[name][row] for name in features}, features))
    assert run_case(base_flags(folder, f"{folder}/base"))["code"] == 0


def base_flags(folder: str, model_dir: str) -> list[str]:
    return [f"--bert_config_file={folder}/bert.json", f"--input_files={folder}/part-*", f"--model_dir={model_dir}", "--max_seq_length=16",
            "--max_predictions_per_seq=3", "--train_batch_size=4", "--eval_batch_size=4", "--num_steps_per_epoch=4", "--num_train_epochs=1",
            "--steps_per_loop=2", "--warmup_steps=1", "--optimizer_type=lamb", "--do_eval", "--num_eval_samples=8", "--num_gpus=0"]


def run_case(argv: list[str]) -> dict:
    """Calls train.py's main and returns {code, line}; the code is None where an exception came through."""
    import train

    errors, output = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            code = train.main(["train.py", *argv])
    except BaseException:  # pylint: disable=broad-except  # finding any is what this is for
        return {"code": None, "line": traceback.format_exc()}
    lines = (errors if code == 2 else output).getvalue().strip().splitlines()
    complaint = [line for line in lines if line.startswith("train.py: ")]
    orderly = len(lines) > 0 and (code != 2 or len(complaint) == 1 and lines[-1] == complaint[0])
    return {"code": code if orderly else None, "line": lines[-1] if lines else "(nothing)"}


def mutate_flags(rng: random.Random, flags: list[str]) -> list[str]:
    from official.config import FIELDS

    flags = list(flags)
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice([name for name in FIELDS if name not in SPARED])
        kind = rng.random()
        if kind < 0.5:
            flags.append(f"--{name}={rng.choice(FIELDS[name].choices or FITTING[FIELDS[name].type])}")
        elif kind < 0.8:
            flags.append(f"--{name}={rng.choice(VALUES + FIELDS[name].choices)}")
        elif kind < 0.9:
            flags.append("--" + _damage_text(rng, name) + "=" + rng.choice(VALUES))
        else:
            flags.append(rng.choice(("--", "-", name, f"--{name}", f"--no{name}", "--flagfile=/nowhere", "--config=/nowhere.json", "--config=quick")))
    return flags


def _damage_text(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(string.printable) + text[place + rng.randrange(2):]


def damage_file(rng: random.Random, path: str) -> None:
    """Cuts a file, flips bits in it, repeats, inserts or empties a part of it."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    place = rng.randrange(max(len(data), 1))
    kind = rng.randrange(5)
    if kind == 0:
        del data[place:]
    elif kind == 1:
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        data[place:place] = data[:rng.randrange(200)]
    elif kind == 3:
        data[place:place + rng.randrange(200)] = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
    else:
        data = bytearray(rng.choice((b"", b"\0" * 100, b"text\n", bytes(range(256)))))
    with open(path, "wb") as file:
        file.write(data)


def make_case(rng: random.Random, kind: str, base: str, folder: str) -> list[str]:
    """Copies the workspace, damages one thing in it and returns the command line."""
    shutil.copytree(base, folder)
    flags = base_flags(folder, f"{folder}/run")
    if kind == "flags":
        return mutate_flags(rng, flags)
    if kind == "records":
        damage_file(rng, f"{folder}/part-{rng.randrange(2)}")
        return flags
    if kind == "checkpoint":
        damage_file(rng, f"{folder}/base/" + rng.choice([name for name in sorted(os.listdir(f"{folder}/base")) if name.startswith(("ckpt-", "checkpoint"))]))
        use = rng.choice(("resume", "init"))
        return [*flags, f"--model_dir={folder}/base", "--num_steps_per_epoch=6"] if use == "resume" else [*flags, f"--init_checkpoint={folder}/base"]
    if kind == "config":
        name = rng.choice(("base/config.json", "bert.json", "base/metrics.jsonl", "base/result.json", "base/mllog.txt"))
        damage_file(rng, f"{folder}/{name}")
        return [f"--config={folder}/base/config.json", f"--input_files={folder}/part-*", f"--model_dir={folder}/base", *flags[:1], "--num_steps_per_epoch=6"]
    path = f"{folder}/run.flags"
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(flags) + "\n")
    damage_file(rng, path)
    return [f"--flagfile={path}", *flags[2:3], "--num_steps_per_epoch=4", "--num_gpus=0", "--distribution_strategy=one_device"]


def one_case(arguments: tuple) -> dict:
    number, seed, base = arguments
    rng = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)]
    folder = os.path.join(base + "-cases", str(number))
    argv = make_case(rng, kind, base, folder)
    result = {"number": number, "kind": kind, **run_case(argv), "argv": argv}
    shutil.rmtree(folder)
    return result


def fuzz(cases: int, seed: int, workers: int) -> dict:
    """Returns {environment, cases, seed, counts: {kind: {code: count}}, failures: [...]}."""
    from tqdm import tqdm
    from official.reporting.environment import environment

    surroundings = environment()
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.join(folder, "base")
        os.makedirs(base)
        with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=60) as pool:
            pool.apply(make_workspace, (base,))
            jobs = [(number, seed, base) for number in range(cases)]
            results = list(tqdm(pool.imap_unordered(one_case, jobs), total=cases, disable=None))
    counts = {kind: {} for kind in KINDS}
    for result in results:
        code = str(result["code"])
        counts[result["kind"]][code] = counts[result["kind"]].get(code, 0) + 1
    return {"environment": surroundings, "cases": cases, "seed": seed, "counts": counts, "failures": [result for result in results if result["code"] not in (0, 1, 2, 3)]}


def main() -> None:
    flags = parse_flags()
    if flags.output:
        command_line.check_output_file(flags.output, "output", flags.overwrite)
    report = fuzz(flags.cases, flags.seed, flags.workers)
    for kind, codes in report["counts"].items():
        print(f"{kind:12}" + "  ".join(f"exit {code}: {count}" for code, count in sorted(codes.items())))
    for failure in report["failures"]:
        print(f"case {failure['number']} ({failure['kind']}): {failure['argv']}\n{failure['line']}")
    if flags.output:
        command_line.write_file(flags.output, json.dumps(report, indent=1) + "\n")
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    command_line.run(main)

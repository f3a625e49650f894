"""Our benchmarks.yml: the published runner could drive it, its commands are known, its numbers are found in
what our programs print."""

import importlib
import json
import re
import shlex
import sys

import pytest
import yaml

from official.cli import flags, table
from official.cli.benchmark import inference, run, spec
from official.cli.benchmark.inference import Block
from official.graphcore import log_style
from tests.fixtures import ROOT

sys.path.append(str(ROOT / "benchmarks"))
FILE = ROOT / "benchmarks.yml"
BENCHMARKS = spec.read([str(FILE)])


def published() -> dict[str, dict]:
    """Returns the entries as the published runner reads them."""
    with FILE.open(encoding="utf-8") as file:
        return {name: entry for name, entry in yaml.safe_load(file).items() if "options" not in name}


all_entries = pytest.mark.parametrize("name", list(published()))


def variants(name: str) -> list[run.Variant]:
    """Returns the runs of an entry; of a sweep, whose runs differ in a number only, the first one."""
    found = run.make_variants(BENCHMARKS[name], run.Main.parse([]), {"PATH": ""})
    return found[:1] if len(found) > 8 else found


def programs(variant: run.Variant) -> list[list[str]]:
    """Returns the programs that a command runs, with their arguments."""
    text = variant.words[2] if variant.words[0] == "bash" else shlex.join(variant.words)
    return [shlex.split(part)[1:] for part in text.split("&&")]


@all_entries
def test_every_command_is_one_of_ours_with_flags_that_it_knows(name, monkeypatch):
    for path, *arguments in [program for each in variants(name) for program in programs(each)]:
        script = ROOT / path
        if script.name == "train.py":
            flags.parse([*arguments, "--plan"])
            continue
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        if script.parent.name == "benchmarks":
            importlib.import_module(script.stem).Main.parser().parse()
            continue
        found = re.search(r'script\("(.*)"\)', script.read_text(encoding="utf-8"))
        table.COMMANDS[found[1]].parser().parse()


# ------------------------------------------------------------------------------------------------------------
# What our programs print


def interval(**losses) -> dict:
    values = {"learning_rate": 1e-4, "loss": 7.5, "sequences_per_sec": 1234.5, "samples": 80}
    return {**values, **losses}


def printed_by_training(variant: run.Variant) -> str:
    """Returns the lines of three intervals in the words of --log_style=graphcore."""
    pretraining = {"mlm_loss": 6.25, "nsp_loss": 0.7, "mlm_accuracy": 0.125, "nsp_accuracy": 0.5}
    arguments = programs(variant)[0][1:]
    assert "--log_style=graphcore" in arguments
    config = flags.parse([*arguments, "--plan"])
    if config.task != "pretrain":
        return "\n".join(log_style.step_line(step, 20, interval()) for step in (1, 2, 3))
    lines = []
    for step, secs in ((1, 9.0), (2, 9.0), (3, 0.25), (12, 0.75)):
        values = interval(**pretraining)
        lines += [log_style.step_line(step, 20, values)]
        lines += [log_style.iteration_line(config, step, values, secs)]
    return "\n".join(lines)


def printed_by_inference() -> str:
    blocks = [Block((0.01, 0.03), 100.0 + number, 100.0) for number in range(10)]
    return "\n".join(inference.plain_line("tensorflow fp32 128x1", block) for block in blocks)


def found_in(variant: run.Variant, text: str) -> dict[str, float | None]:
    """Returns the numbers of a variant in what was printed."""
    numbers = variant.benchmark.numbers
    results, problems = spec.find_numbers(numbers, text.splitlines(), variant.values)
    assert not problems
    return {name: spec.number_of(results, name) for name in results}


@all_entries
def test_the_numbers_are_found_in_what_is_printed(name):
    variant, kind = variants(name)[0], name.split("_")[0]
    if kind in ("pretrain", "packing", "squad", "glue"):
        found = found_in(variant, printed_by_training(variant))
        assert found["throughput"] == 1234.5 and found["total_loss"] == 7.5
        if kind == "pretrain":
            assert (found["mlm_loss"], found["nsp_loss"], found["mlm_acc"]) == (6.25, 0.7, 12.5)
            assert found["step_secs"] == 0.5  # the first two steps do not count
    elif kind == "inference":
        found = found_in(variant, printed_by_inference())
        assert found["throughput"] == 106.5 and found["latency"] == pytest.approx(20.0)
        assert (found["latency_min"], found["latency_max"]) == pytest.approx((10.0, 30.0))
        assert 20 < found["latency_99p"] < found["latency_99p9"] < 30


@pytest.mark.slow
def test_a_real_run_of_a_small_model(tmp_path, monkeypatch):
    entry = published()["pretrain_base_128_gen_cpu"]
    model = tmp_path / "tiny.json"
    model.write_text(json.dumps({"vocab_size": 200, "hidden_size": 16, "num_attention_heads": 2}))
    entry["cmd"] += f" --bert_config_file={model} --max_seq_length=32 --max_predictions_per_seq=4"
    entry["reference_directory"] = str(ROOT)
    (tmp_path / "small.yml").write_text(yaml.safe_dump({"small_gen": entry}))
    monkeypatch.setattr(sys, "argv", ["x", f"--spec={tmp_path}/small.yml", f"--log_dir={tmp_path}/logs"])
    assert run.main() == 0
    result = json.loads((tmp_path / "logs" / "small_gen" / "variant_result.json").read_text())
    found = {name: spec.number_of(result["results"], name) for name in result["results"]}
    assert all(value is not None and value >= 0 for value in found.values()), found
    assert result["sequences_per_sec"] > 0 and result["dtype"] == "fp32" and result["max_seq_length"] == 32

"""Our benchmarks.yml: the published runner could drive it, its commands are known, its numbers are found in
what our programs print."""

import functools
import importlib
import json
import re
import shlex
import sys

import pytest
import yaml

from official.cli import flags, table
from official.cli.benchmark import inference, run, runs, spec
from official.cli.benchmark.inference import Block
from official.graphcore import log_style
from official.reporting.measurement import Timing
from tests.conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
FILE = ROOT / "benchmarks.yml"
# What the published runner reads of an entry, and what is in published files besides.
PUBLISHED_KEYS = "description cmd parameters env location reference_directory data derived output timeout"
PUBLISHED_KEYS += " allow_wandb requirements_file"


@functools.cache
def benchmarks() -> dict[str, spec.Benchmark]:
    return spec.read([str(FILE)])


def published() -> dict[str, dict]:
    """Returns the entries as the published runner reads them."""
    with FILE.open(encoding="utf-8") as file:
        return {name: entry for name, entry in yaml.safe_load(file).items() if "options" not in name}


all_entries = pytest.mark.parametrize("name", list(published()))


def variants(name: str) -> list[runs.Variant]:
    """Returns the runs of an entry; of a sweep, whose runs differ in a number only, the first one."""
    found = runs.make_variants(benchmarks()[name], runs.Options(), {"PATH": ""})
    return found[:1] if len(found) > 8 else found


@all_entries
def test_the_published_runner_could_drive_it(name):
    entry = published()[name]
    assert set(entry) <= set(PUBLISHED_KEYS.split()) and entry["description"].strip()
    assert "gen" in name or "synth" in name, "else it needs DATASETS_DIR"
    for metric in entry["data"].values():
        assert set(metric) <= {"regexp", "skip", "reduction_type"}
        assert metric.get("reduction_type", "mean") in ("mean", "final", "min", "value")
        assert re.compile(metric["regexp"]).groups == 1
    for derived in entry.get("derived", {}).values():
        assert set(derived) <= {"expr", "reduction_type"}
        # It looks for all metrics that an expression may name under "mean".
        assert {metric.get("reduction_type", "mean") for metric in entry["data"].values()} == {"mean"}
    known = {*entry["data"], *entry.get("derived", {})}
    assert entry["output"] and {column for _, column in entry["output"]} <= known
    parameters = entry.get("parameters", {})
    assert isinstance(parameters, list) or all(isinstance(values, str) for values in parameters.values())
    first = benchmarks()[name].variants[0]
    words = " ".join(entry["cmd"].format(**first).replace("\n", " ").split()).split(" ")
    assert (ROOT / words[words.index("python3") + 1]).is_file()


def programs(variant: runs.Variant) -> list[list[str]]:
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
            importlib.import_module(script.stem).make_parser().parse()
            continue
        found = re.search(r'script\("(.*)"\)', script.read_text(encoding="utf-8"))
        table.COMMANDS[found[1]].parser().parse()


def test_each_has_a_small_one():
    small = {name.removesuffix("_cpu") for name in benchmarks() if name.endswith("_cpu")}
    kinds = {name.split("_")[0] for name in benchmarks()}
    assert kinds == {"pretrain", "packing", "squad", "glue", "inference", "data", "conversion"}
    assert {name.split("_")[0] for name in small} == kinds
    for size in ("base", "large"):
        assert {f"pretrain_{size}_{length}_gen" for length in (128, 384, 512)} <= small


# ------------------------------------------------------------------------------------------------------------
# What our programs print


def interval(**losses) -> dict:
    values = {"learning_rate": 1e-4, "loss": 7.5, "sequences_per_sec": 1234.5, "samples": 80}
    return {**values, **losses}


def printed_by_training(variant: runs.Variant) -> str:
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


def printed_by_conversion(monkeypatch, capsys) -> str:
    row = {"secs": 12.25, "peak_bytes_beyond_imports": 10**9, "share_of_checkpoint": 0.5}
    actions = ("google2graphcore", "graphcore2google", "google2graphcore --precision=16 --vocab_size=30400")
    conversions = {action: {**row, "secs": 12.25 + place} for place, action in enumerate(actions)}
    conversion = importlib.import_module("conversion")
    figures = {"checkpoint_bytes": 10**9, "conversions": conversions, "round_trip_is_bit_equal": True}
    monkeypatch.setattr(conversion, "measure", lambda *_: figures)
    monkeypatch.setattr(sys, "argv", ["x"])
    conversion.main()
    return capsys.readouterr().out


def printed_by_data(monkeypatch, capsys) -> str:
    """Returns what it prints of figures; the names of its cases are those that it measures."""

    data = importlib.import_module("data")

    class Flags:
        input_files = vocab_file = ""

    names = ["tokenizer", *data.creation_cases(Flags, "")]
    timings = {name: data._figures(Timing((2.0, 2.0)), 10.0 + place) for place, name in enumerate(names)}
    shares = dict.fromkeys(("share_of_tokenizer", "compact_bytes_of_plain", "compact_speed_of_plain"), 1.0)
    figures = {"mb_per_sec": timings, "records_per_sec": {}, **shares}
    monkeypatch.setattr(data, "time_all", lambda *_: figures)
    monkeypatch.setattr(sys, "argv", ["x", "--input_files=x", "--vocab_file=y"])
    data.main()
    return capsys.readouterr().out


def printed_by_inference() -> str:
    blocks = [Block((0.01, 0.03), 100.0 + number, 100.0) for number in range(10)]
    return "\n".join(inference.plain_line("tensorflow fp32 128x1", block) for block in blocks)


def found_in(variant: runs.Variant, text: str) -> dict[str, float | None]:
    """Returns the numbers of a variant in what was printed."""
    benchmark = variant.benchmark
    results, problems = runs.extract(benchmark.metrics, "", text, 0)
    results, more = runs.derive(benchmark.derived, results, variant.values, 0)
    assert not problems + more
    return {name: runs.number_of(results, name) for name in results}


@all_entries
def test_the_numbers_are_found_in_what_is_printed(name, monkeypatch, capsys):
    variant, kind = variants(name)[0], name.split("_")[0]
    if kind in ("pretrain", "packing", "squad", "glue"):
        found = found_in(variant, printed_by_training(variant))
        assert found["throughput"] == 1234.5 and found["total_loss"] == 7.5
        if kind == "pretrain":
            assert (found["mlm_loss"], found["nsp_loss"], found["mlm_acc"]) == (6.25, 0.7, 12.5)
            assert found["step_secs"] == 0.5  # the first two steps do not count
    elif kind == "conversion":
        found = found_in(variant, printed_by_conversion(monkeypatch, capsys))
        assert found == {"secs": 12.2, "secs_back": 13.2}
    elif kind == "inference":
        found = found_in(variant, printed_by_inference())
        assert found["throughput"] == 106.5 and found["latency"] == pytest.approx(20.0)
        assert (found["latency_min"], found["latency_max"]) == pytest.approx((10.0, 30.0))
        assert 20 < found["latency_99p"] < found["latency_99p9"] < 30
    elif kind == "data":
        found = found_in(variant, printed_by_data(monkeypatch, capsys))
        assert found["tokenizer"] == 5.0 and found["create_128"] == 5.5
        assert found["share_of_tokenizer"] == pytest.approx(1.1)


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
    found = {name: runs.number_of(result["results"], name) for name in result["results"]}
    assert all(value is not None and value >= 0 for value in found.values()), found
    assert result["sequences_per_sec"] > 0 and result["dtype"] == "fp32" and result["max_seq_length"] == 32

"""Files of benchmarks: how they are read, what becomes of commands, and how numbers are found and reduced."""

import os
import sys

import pytest

from official.cli.benchmark import run, runs, spec
from official.io.errors import ConfigError

ENTRY = """
shared_options: &shared
  env: {LEVEL: 3}
  data:
    throughput: {regexp: 'throughput: *(.*?) samples', skip: 1}
    loss: {regexp: 'loss: (\\d+)', reduction_type: final}
  output:
    - [samples/s, '{throughput}']
one_gen:
  <<: *shared
  description: One.
  parameters: {batch: "1,2", size: base}
  cmd: >-
    python3 train.py --batch={batch}
      --size {size} --home=$PLACE
  derived:
    each: {expr: '{throughput} / {batch}'}
  timeout: 5
"""


@pytest.fixture
def read(tmp_path):
    """Returns a function that reads a file with a text."""

    def read_text(text: str) -> dict[str, spec.Benchmark]:
        path = tmp_path / "benchmarks.yml"
        path.write_text(text)
        return spec.read([str(path)])

    return read_text


def variants(benchmark, environment=None, **options):
    return runs.make_variants(benchmark, runs.Options(**options), environment or {"PATH": "/bin"})


# ------------------------------------------------------------------------------------------------------------
# Reading


def test_an_entry_is_read_and_what_others_share_is_not_one(read, tmp_path):
    benchmarks = read(ENTRY)
    assert list(benchmarks) == ["one_gen"]
    one = benchmarks["one_gen"]
    assert one.path == str(tmp_path / "benchmarks.yml") and one.folder == str(tmp_path)
    assert one.variants == [{"batch": "1", "size": "base"}, {"batch": "2", "size": "base"}]
    assert [(each.name, each.skip, each.reduction) for each in one.metrics] == [
        ("throughput", 1, "mean"),
        ("loss", 0, "final"),
    ]
    assert one.columns == (("samples/s", "throughput"),) and one.env == {"LEVEL": "3"} and one.timeout == 5
    assert not one.needs_data and read("a: {cmd: x}")["a"].needs_data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {cmdd: x}", r"a: unknown key 'cmdd' \(did you mean cmd\?\)"),
        ("a: {description: x}", "a has no cmd"),
        ("a: [1]", "a is a list, expected keys"),
        ("a: {cmd: 'x {batch}', parameters: {bath: '1'}}", r"no parameter \{batch\} \(did you mean bath\?\)"),
        ("a: {cmd: 'x {'}", "Braces that are no"),
        ("a: {cmd: x, data: {t: {regexp: '('}}}", r"data: t: regexp '\(' is none: missing \)"),
        ("a: {cmd: x, data: {t: {regexp: '(a)(b)'}}}", "2 groups, expected one at most"),
        ("a: {cmd: x, data: {t: {regexp: a, skp: 1}}}", r"unknown key 'skp' \(did you mean skip\?\)"),
        ("a: {cmd: x, data: {t: {regexp: a, skip: -1}}}", "skip=-1, expected a whole number"),
        (
            "a: {cmd: x, data: {t: {regexp: a, reduction_type: avg}}}",
            "expected one of mean, final, min, max, value",
        ),
        ("a: {cmd: x, data: {t: {}}}", "data: t has no regexp"),
        ("a: {cmd: x, derived: {t: {expr: '{u} + 1'}}}", r"there is no parameter \{u\}"),
        ("a: {cmd: x, derived: {t: {expr: 'open(1)'}}}", r"'open\(1\)' is neither a number"),
        ("a: {cmd: x, parameters: 3}", "parameters is a whole number, expected names with values"),
        ("a: {cmd: x, parameters: {b: [1, 2]}}", 'expected values with commas between them, such as "1,2"'),
        ("a: {cmd: x, parameters: [[b, c], [1]]}", "row 1 has 1 values, expected 2: b, c"),
        ("a: {cmd: x, timeout: -1}", "timeout=-1, expected seconds above 0"),
        ("a: {cmd: x, timeout: '5'}", "timeout is a text, expected a number"),
        ("a: {cmd: 2020-01-01}", "cmd is 2020-01-01, expected a text"),
        ("a: {cmd: x, output: [[b]]}", r"output: expected \[label, metric\]"),
        ("a: {notebook: x.ipynb}", "notebooks are not run here. Give a cmd"),
        ("a: {cmd: x, cmd: y}", "the key 'cmd' is there twice"),
    ],
)
def test_a_wrong_entry_is_one_line(read, text, message):
    with pytest.raises(ConfigError, match=message) as error:
        read(text)
    assert "--spec=" in str(error.value) and "\n" not in str(error.value)


PUBLISHED = """
pretrain_options: &pretrain
  data:
    loss: {regexp: 'Loss: ([0-9.]+)', reduction_type: final}
pretrain_real_pod16:
  <<: *pretrain
  cmd: python3 bert.py --epochs 1
inference_opts: &inference
  description: what two entries share
  data:
    latency_s: {regexp: 'Mean Latency=([0-9.]+)', skip: 1}
  derived:
    latency_max: {expr: '{latency_s} * 1000.', reduction_type: max}
    latency_p999: {expr: '{latency_s} * 1000.', reduction_type: p999}
infer_gen_pod4:
  <<: *inference
  parameters: {batchsize: "1,2"}
  cmd: python3 bert.py --micro-batch-size {batchsize}
broken_conv:
  cmd: python3 bert.py {nothing}
"""


def test_only_entries_that_are_asked_for_are_checked(tmp_path, monkeypatch):
    """The broken one is: by name, or with those for convergence. What entries share is none."""
    path = tmp_path / "benchmarks.yml"
    path.write_text(PUBLISHED)

    def names_of(*arguments):
        monkeypatch.setattr(sys, "argv", ["x", f"--spec={path}", *arguments])
        monkeypatch.setenv("DATASETS_DIR", str(tmp_path))
        return [variant.name for variant in run.plan(run.parse_flags())]

    inference = ["infer_gen_pod4_batchsize_1", "infer_gen_pod4_batchsize_2"]
    assert names_of() == ["pretrain_real_pod16", *inference]
    assert names_of("--benchmark", "infer_gen_pod4") == inference
    for arguments in (["--benchmark=broken_conv"], ["--include_convergence"]):
        with pytest.raises(ConfigError, match="no parameter {nothing}"):
            names_of(*arguments)
    with pytest.raises(ConfigError, match="is not one of pretrain_real_pod16, infer_gen_pod4, broken_conv"):
        names_of("--benchmark=inference_opts")


def test_a_reduction_of_a_derived_number_is_its_label(read):
    (benchmark,) = read("a: {cmd: x, data: {t: {regexp: 't=(.*)', reduction_type: max}}, "
        "derived: {u: {expr: '{t} * 2', reduction_type: p99}}}").values()  # fmt: skip
    results, problems = runs.extract(benchmark.metrics, "t=1\nt=3\nt=2", "", 0)
    results, more = runs.derive(benchmark.derived, results, {}, 0)
    assert results == {"t": {"max": 3.0}, "u": {"p99": 6.0}} and not problems + more
    with pytest.raises(ConfigError, match="reduction_type=1, expected a text"):
        read("a: {cmd: x, derived: {u: {expr: '1', reduction_type: 1}}}")


def test_keys_that_the_published_files_have_and_nothing_reads_are_accepted(read):
    assert read("a: {cmd: x, pre_run_commands: [ls], required_apt_packages_path: y, requirements_path: z}")


def test_combinations_and_rows():
    grid = spec.expand({"a": "1,2", "b": "x,y"}, "")
    assert [each["a"] + each["b"] for each in grid] == ["1x", "2x", "1y", "2y"]  # as published
    assert spec.expand([["a", "b"], [1, "x"], [2, "y"]], "") == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
    assert spec.name_of("n", {"b": "x", "a": "1"}) == "n_a_1_b_x"


# ------------------------------------------------------------------------------------------------------------
# Commands


def test_a_command_is_one_line_with_a_whole_path_and_the_environment(read, tmp_path):
    _, second = variants(read(ENTRY)["one_gen"], {"PATH": "/bin", "PLACE": "a b"}, logging="ERROR")
    assert second.name == "one_gen_batch_2_size_base"
    assert second.command == f"python3 {tmp_path}/train.py --batch=2 --size base --home=$PLACE"
    assert second.words[1:] == (f"{tmp_path}/train.py", "--batch=2", "--size", "base", "--home=a", "b")
    assert second.env["PATH"] == f"{os.path.dirname(sys.executable)}{os.pathsep}/bin"
    assert second.added_env == {
        "POPLAR_LOG_LEVEL": "ERROR",
        "POPART_LOG_LEVEL": "ERROR",
        "TF_CPP_VMODULE": "poplar_compiler=1",
        "LEVEL": "3",
    }


def test_arguments_for_wandb_go_unless_they_are_allowed(read):
    text = "a_gen: {cmd: x --wandb --wandb-name N --wandb-project=P --n 1}"
    taken, kept = "x --n 1", "x --wandb --wandb-name N --wandb-project=P --n 1"
    assert variants(read(text)["a_gen"])[0].command == taken
    assert variants(read(text)["a_gen"], allow_wandb=True)[0].command == kept
    allowed = read(text[:-1] + ", allow_wandb: true}")["a_gen"]
    assert variants(allowed)[0].command == kept
    assert variants(allowed, allow_wandb=False)[0].command == taken


def test_only_compiling(read):
    benchmark = read("a_gen: {cmd: x --vipu-partition=p --wandb --n 1, allow_wandb: true}")["a_gen"]
    assert variants(benchmark, compile_only=True)[0].command == "x --n 1 --compile-only"


def test_profiles_go_to_a_folder_of_the_variant(read, tmp_path):
    (variant,) = variants(read("a_gen: {cmd: x}")["a_gen"], profile=True)
    assert f'"autoReport.directory": "{tmp_path}/a_gen_profile"' in variant.env["POPLAR_ENGINE_OPTIONS"]


def test_processes_of_mpirun_are_counted(read):
    (variant,) = variants(read("a_gen: {cmd: mpirun --tag-output --np 4 x}")["a_gen"])
    assert variant.processes == 4
    found, _ = runs.extract([metric("(.+)")], "3.0", "", 0, variant.processes)
    assert found == {"throughput": {"mean": 12.0}}


def test_data_and_variables_that_are_missing_are_named(read):
    with pytest.raises(ConfigError, match="a needs data: set DATASETS_DIR"):
        variants(read("a: {cmd: x}")["a"])
    words = variants(read("a: {cmd: x $DATASETS_DIR/y}")["a"], {"DATASETS_DIR": "/d"})[0].words
    assert words == ("x", "/d/y")
    partition = read("a_gen: {cmd: 'poprun --vipu-partition=$IPUOF_VIPU_API_PARTITION_ID x'}")["a_gen"]
    with pytest.raises(
        ConfigError, match="needs IPUOF_VIPU_API_PARTITION_ID in the environment, or PARTITION"
    ):
        variants(partition)
    assert "--vipu-partition=p" in variants(partition, {"PARTITION": "p"})[0].words
    with pytest.raises(ConfigError, match="its location .*/b is no folder"):
        variants(read("a_gen: {cmd: x, location: b}")["a_gen"])


# ------------------------------------------------------------------------------------------------------------
# Numbers


def test_a_row_says_what_the_command_does(read):
    train = "a_gen: {cmd: 'python3 train.py --config=benchmark_cpu --train_batch_size=6 --dtype=bf16'}"
    (variant,) = variants(read(train)["a_gen"])
    results = {"throughput": {"mean": 2.9}, "step_secs": {"mean": 2.0}, "latency_99p": {"mean": 5.0}}
    made = runs.make_row(variant, results)
    latencies = made.pop("latency_ms")
    assert made == {
        "name": "a_gen",
        "dtype": "bf16",
        "max_seq_length": 128,
        "batch": 6,
        "backend": "tensorflow",
        "sequences_per_sec": 3.0,
    }
    assert latencies == {"mean": None, "p50": None, "p99": 5.0, "p999": None, "min": None, "max": None}
    (packed,) = variants(read(train[:-2] + " --pack_on_the_fly'}")["a_gen"])
    assert runs.make_row(packed, results)["sequences_per_sec"] == 2.9  # a step has as many as fit
    (other,) = variants(
        read("b_gen: {cmd: 'x --backends a --dtypes=fp32,bf16 --micro-batch-size 4'}")["b_gen"]
    )
    made = runs.make_row(other, {})
    assert (made["backend"], made["dtype"], made["batch"]) == ("a", None, 4)


def metric(regexp: str, name: str = "throughput", skip: int = 0, reduction: str = "mean") -> spec.Metric:
    return spec.Metric(name, spec.re.compile(regexp), skip, reduction)


def test_reductions():
    for name, skip, reduction, value in (
        ("m", 0, "mean", 4.0),
        ("m", 1, "mean", 5.0),  # sorted first: the smallest is left out, wherever it stands
        ("latency", 1, "mean", 2.5),  # the largest
        ("m", 1, "final", 3.0),
        ("m", 0, "min", 2.0),
        ("m", 1, "value", 7.0),
    ):
        found, problems = runs.extract([metric(r"n=(\d)", name, skip, reduction)], "n=7\nx n=2", "n=3", 0)
        assert found == {name: {reduction: value}} and not problems


def test_a_number_that_is_missing_says_why():
    for text, code, why in (
        ("n=nan", 0, "NaN"),
        ("n=1", 3, "exit code 3"),
        ("", 0, "0 matches"),
        ("n=?", 0, "is no number"),
    ):
        found, problems = runs.extract([metric("n=(.*)")], text, "", code)
        assert found == {"throughput": {"mean": None}} and why in problems[0]


def test_as_many_matches_as_are_skipped_are_none():
    assert runs.extract([metric("n", skip=1)], "", "", 0)[1]
    found, _ = runs.extract([metric(r"\d", skip=1)], "1 2", "", 0)
    assert found == {"throughput": {"mean": 2.0}}


def test_derived_metrics_follow_one_another_and_parameters():
    derived = [spec.Derived("a", "{t} * {b}", "mean"), spec.Derived("c", "max({a}, 1) ** 2", "value")]
    found, problems = runs.derive(derived, {"t": {"final": 1.5}}, {"b": "4"}, 0)
    assert found == {"t": {"final": 1.5}, "a": {"mean": 6.0}, "c": {"value": 36.0}} and not problems
    found, problems = runs.derive(derived[:1], {"t": {"mean": None}}, {"b": "4"}, 0)
    assert found["a"] == {"mean": None} and "a: '{t} * {b}'" in problems[0]


def test_arithmetic_and_nothing_else():
    for text, value in (
        ("1 + 2 * 3", 7),
        ("-(7 // 2) % 3", 0),
        ("round(2.345, 1)", 2.3),
        ("min(3, 2) / 4", 0.5),
        ("int(2.9)", 2),
    ):
        assert spec.evaluate(text) == value
    others = "__import__('os')|a|[1]|(1).real|1 if 1 else 2|'a' * 9|max|min()|(-8) ** 0.5|1 +|1 << 2"
    for text in others.split("|"):
        with pytest.raises(ValueError):
            spec.evaluate(text)


def test_powers_do_not_grow_without_bound():
    with pytest.raises(ArithmeticError):
        spec.evaluate("9 ** 9 ** 9")

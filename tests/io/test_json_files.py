"""The one reader of JSON: what is not JSON of the wanted types is one line that names file and key."""

import functools
import json

import pytest

from official.io import json_files
from official.io.errors import ConfigError
from official.reporting import comparison, metrics, result
from tests.fixtures import ROOT
from tests.refusals import assert_refused


def test_what_is_no_object_is_one_line(tmp_path):
    path = tmp_path / "x.json"
    for content, message in (
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "9999999999999999999999999.. is too large a number"),
        (b'{"a": 9223372036854775808}', "is too large a number"),
        (b'{"a": 1e999}', "1e999 is too large a number"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": "caf\xe9"}', "byte 10 is not UTF-8"),
        (b'{"a":\n 1 2}', "line 2 column 4"),
        (b"[]", "expected an object, got a list"),
        (b"", "not a JSON file"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as error:
            json_files.read_json(str(path), "config")
        assert str(error.value).startswith(f"--config={path}") and len(str(error.value)) < 300
        assert json_files.read_json_or_empty(str(path)) == {}
    with pytest.raises(ConfigError, match="No such file"):
        json_files.read_json(str(tmp_path / "y.json"))


def test_what_is_json(tmp_path):
    values = {"a": [1, -2.5, "é", None, True], "b": {"c": 9223372036854775807}}
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(values).encode())
    assert json_files.read_json(str(tmp_path / "x.json")) == values


def test_what_is_no_yaml_is_one_line(tmp_path):
    def read(content: str) -> None:
        (tmp_path / "x.yml").write_text(content)
        json_files.read_yaml(str(tmp_path / "x.yml"), "config")

    values = ("2020-13-45", "0b_", "!!int x", "!!bool maybe", "!!timestamp x", "&b [*b]", "[1")
    cases = [(f"a: {value}\n", "--config=.*x.yml is not YAML") for value in values]
    cases += [("a: 1\na: 2\n", "--config=.*x.yml: the key 'a' occurs twice"), ("- 1\n", "holds a list")]
    for bomb in ("[{0}, {0}, {0}]", "{{<<: [{0}, {0}, {0}]}}"):
        lines = ["a0: &a0 {b: 1}", *(f"a{n + 1}: &a{n + 1} {bomb.format(f'*a{n}')}" for n in range(40))]
        cases.append(("\n".join(lines), "x.yml: its aliases (*name) stand for over 1,000,000 values"))
    assert_refused(read, cases)


def test_types_of_fields():
    wrong = (
        ({"a": True}, "a", int, '"a" is true or false, expected a whole number'),
        ({"a": 1.0}, "a", int, '"a" is a number, expected a whole number'),
        ({"a": None}, "a", str, '"a" is null, expected a text'),
        ({"a": "1"}, "a", (float, type(None)), '"a" is a text, expected a number or null'),
        ({}, "a", str, 'has no "a"'),
        ([], "a", str, 'expected an object with "a", got a list'),
    )
    assert_refused(functools.partial(json_files.expect, source="x.json"), wrong)
    assert json_files.expect({"a": 1}, "a", float, "x.json") == 1
    assert json_files.expect({}, "a", str, "x.json", default=None) is None


def test_every_reader_is_this_one():
    """json.load and json.loads are for what this program has made, or another part of it has said: of a flag
    in `values`, of a variable of the environment in `devices`; and for rows, whose faults are counted."""
    allowed = """io/json_files.py io/jobs.py training/finish.py training/run.py reporting/report.py
        cli/benchmark/inference.py cli/benchmark/answering.py launching/supervisor.py config/values.py
        graphcore/devices.py graphcore/run.py data/tables/files.py data/tables/labels.py
        data/squad/squad_files.py io/gpus.py io/tokenizer_files.py distribution/machine_checks.py"""
    readers = {
        str(path.relative_to(ROOT / "official"))
        for path in (ROOT / "official").rglob("*.py")
        if "json.load" in path.read_text(encoding="utf-8")
    }
    assert readers <= set(allowed.split())


def test_damaged_lines_of_metrics_are_counted(tmp_path):
    good = '{"split": "eval", "step": 4, "samples": 16, "loss": 1.5, "mlm_accuracy": 0.5}\n'
    wrong = ['"step": 1, "loss": "low"}', '"step": -1}', '"step": 1, "loss": NaN}']
    bad = "".join(f'{{"split": "train", {rest}\n' for rest in wrong) + "[" * 200_000 + "\n"
    (tmp_path / "metrics.jsonl").write_text(good + bad + good + '{"split": "tr')
    records, damaged = metrics.read_metrics_counted(str(tmp_path))
    (run,) = comparison.read_runs([str(tmp_path)])
    assert (len(records), damaged) == (2, 4) and "4 damaged lines" in run.notes[0]


RESULT = {"status": "finished", "reason": "all steps done", "step": 4, "samples": 16, "config": {"seed": 1}}


def test_results_and_compared_settings_are_checked(tmp_path):
    def load(changed: dict) -> None:
        (tmp_path / "result.json").write_text(json.dumps({**RESULT, **changed}))
        assert result.read_result(str(tmp_path)) == {}
        result.load_result(str(tmp_path))

    def compare(content: str) -> None:
        (tmp_path / "config.json").write_text(content)
        comparison.read_runs([str(tmp_path)])

    wrong = (
        ({"status": "done"}, "status='done' is not one of"),
        ({"status": 3}, '"status" is a whole number'),
        ({"step": "4"}, '"step" is a text'),
        ({"config": []}, '"config" is a list'),
        ({"best_step": "x"}, '"best_step" is a text'),
        ({"fresh_variables": [1]}, "fresh_variables: expected a text"),
    )
    assert_refused(load, wrong)
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    assert result.load_result(str(tmp_path)) == RESULT
    (tmp_path / "metrics.jsonl").write_text('{"split": "eval", "step": 4, "samples": 16, "loss": 1.5}\n')
    wrong = (("[]", "expected an object"), ('{"seed": "x"}', "seed='x', expected"))
    assert_refused(compare, (*wrong, ('{"model": 3}', '"model" is a whole number')))

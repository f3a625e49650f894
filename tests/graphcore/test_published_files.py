"""Graphcore's configuration files against the published ones: what is shipped is theirs, older spellings and
other programs are known."""

import json

import pytest
import yaml

from official.cli import flags
from official.graphcore.configuration_keys import FAMILIES
from official.io.errors import ConfigError
from official.io.json_files import read_yaml
from tests.fixtures import ROOT
from tests.refusals import assert_refused

pytestmark = pytest.mark.nightly

# Program -> {name: {key: value}}. The file holds what most files of a program say, and of each file what it
# says otherwise and which of those keys it has not.
PUBLISHED = {
    program: {
        name: {key: value for key, value in {**facts["common"], **own}.items() if key not in without}
        for name, (own, without) in facts["files"].items()
    }
    for program, facts in json.loads((ROOT / "tests/graphcore/published_files.json").read_text()).items()
}
SPELLINGS = yaml.safe_load((ROOT / "tests/graphcore/published_spellings.yml").read_text(encoding="utf-8"))
BACKENDS = ("mirrored", "ipu")


def path_of(folder, program: str, name: str):
    """Returns the path of a program's configuration: a file of its own, or an entry of a YAML file."""
    return folder / program / (name if name.endswith(".json") else f"{name}.yml")


def settings_of(path, backend: str) -> dict:
    """Returns the settings of a file, without the folder of the run, which has its name."""
    task = ["--task-name=mrpc"] if "glue" in path.name and "regression" not in path.name else []
    config = flags.parse([f"--config={path}", "--plan", f"--distribution_strategy={backend}", *task])
    values = {name: config[name] for name in flags.config_lib.FIELDS if name != "model_dir"}
    return {**values, "model": config.model}


def written(folder, program: str, name: str, values: dict):
    """Writes the file of a program. Returns its path."""
    path = path_of(folder, program, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values) if path.suffix == ".json" else yaml.safe_dump({name: values}))
    return path


def differing(one: dict, other: dict) -> dict:
    return {key: (one.get(key), other.get(key)) for key in {**one, **other} if one.get(key) != other.get(key)}


def as_json(values: dict) -> dict:
    """Returns values of YAML as JSON has them; texts that are numbers there, such as 5e-5, are numbers."""
    values = json.loads(json.dumps(values))
    return {key: float(value) if key == "learning_rate" else value for key, value in values.items()}


@pytest.mark.parametrize("program", PUBLISHED)
def test_published_files_are_taken_and_those_that_are_shipped_are_the_same(program, tmp_path):
    """All but those with a dynamic loss scale on IPUs, whose steps skip no update."""
    wrong, seen = [], 0
    for name, values in PUBLISHED[program].items():
        path = path_of(ROOT / "configs/graphcore", program.split()[0], name)  # none may be there
        theirs = written(tmp_path, program, name, values)
        is_shipped = path.exists()
        seen += is_shipped
        if is_shipped and path.suffix == ".json":
            wrong += [f"{name}: {each}" for each in differing(json.loads(path.read_text()), values).items()]
        elif is_shipped:
            ours = as_json(read_yaml(str(path), "config")[name])
            wrong += [f"{name}: {each}" for each in differing(ours, as_json(values)).items()]
        for backend in BACKENDS:
            if backend == "ipu" and name.endswith("_ALS"):
                with pytest.raises(ConfigError, match="^loss_scale=dynamic does not go with"):
                    settings_of(theirs, backend)
                continue
            found = settings_of(theirs, backend)
            different = differing(settings_of(path, backend), found) if is_shipped else {}
            wrong += [f"{name} on {backend}: {each}" for each in different.items()]
    assert seen >= 2 and not wrong, wrong
    assert seen == len(PUBLISHED[program]) or program.startswith("pytorch")


def renamed(values: dict, family: str) -> dict:
    """Returns the keys of a flat file in their older spellings."""
    older = {new: old for old, new in FAMILIES[family].older.items()}
    return {older.get(key, key): value for key, value in values.items()}


def test_older_spellings_are_those_of_today(tmp_path):
    pairs = [("tf2", "x.json", SPELLINGS["tf2"]["older"], SPELLINGS["tf2"]["today"])]
    for family, program, name in (
        ("tf1", "tf1", "squad_base_inference_1ipu.json"),
        ("tf1", "tf1", "glue_large.json"),
        ("popart", "popart", "pretrain_large_128.json"),
        ("pytorch", "pytorch squad", "squad_base_384"),
    ):
        today = PUBLISHED[program][name]
        pairs.append((program, name, renamed(today, family), today))
        assert pairs[-1][2] != today
    wrong = []
    for program, name, older, today in pairs:
        paths = (written(tmp_path / "a", program, name, older), written(tmp_path / "b", program, name, today))
        for backend in BACKENDS:
            found = differing(*(settings_of(path, backend) for path in paths))
            wrong += [f"{program}: {each}" for each in found.items()]
    assert not wrong, wrong


def test_packed_rows_without_a_factor_have_their_accumulation_divided_already(tmp_path):
    values = PUBLISHED["pytorch pretraining"]["pretrain_base_128"]
    values = {key: value for key, value in values.items() if key != "packing_factor"}
    values |= {"packed_data": True, "gradient_accumulation": 438}
    config = settings_of(written(tmp_path, "pytorch", "pretrain_base_128_packed", values), "mirrored")
    assert (config["train_batch_size"], config["average_sequences_per_pack"]) == (32 * 438 * 4, None)
    assert config["max_sequences_per_pack"] == 3


def test_a_file_of_another_program_is_refused_with_its_name(tmp_path):
    unread = SPELLINGS["unread"].items()
    for program, values in ((program, values) for program, files in unread for values in files):
        (tmp_path / "a.json").write_text(json.dumps(values))
        (tmp_path / "a.yml").write_text(yaml.safe_dump({"a": values, "b": values}))
        cases = [(f"--config={tmp_path}/{name}", f"Graphcore's {program}") for name in ("a.json", "a.yml:a")]
        assert_refused(lambda given: flags.parse([given, "--plan"]), cases)


def test_two_keys_of_one_meaning_agree(tmp_path):
    values = PUBLISHED["tf1"]["pretrain_tiny_128_lamb.json"]

    def parsed(changes: dict):
        return flags.parse([f"--config={written(tmp_path, 'tf1', 'x.json', values | changes)}", "--plan"])

    cases = [
        ({"batch_size": 3}, "batch_size=3, but micro_batch_size=1 means the same"),
        ({"init_checkpoint": "a", "restore_dir": "b"}, "restore_dir='b', but init_checkpoint='a' means"),
    ]
    assert_refused(parsed, cases)
    # The file's restore_dir is empty.
    assert parsed({"batch_size": 1, "init_checkpoint": "a"}).init_checkpoint == "a"

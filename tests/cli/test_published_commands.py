"""Each published command line of Graphcore's programs parses to a valid configuration, from any folder."""

import re
import shlex

import pytest
import yaml

from official.cli import command_line, configs, flags, foreign, train
from official.config import FIELDS, ConfigError, process_rank, train_steps
from tests.fixtures import ROOT

INFER = "--generated-data=true --epochs-inference 20 --input-files=squad/dev-v1.1.json"
SETTINGS = yaml.safe_load((ROOT / "tests/cli/published_settings.yml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """A folder without configs/, with vocabularies where the published files name them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASETS_DIR", "data")
    for name in ("ckpts/uncased_L-24_H-1024_A-16", "ckpts/uncased_L-12_H-768_A-12", "bert"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / "vocab.txt").write_text("".join(f"w{number}\n" for number in range(30522)))


def test_a_published_command_is_a_valid_configuration():
    assert len(SETTINGS) > 45
    for command, settings in (row.values() for row in SETTINGS):
        config, told = flags.read(shlex.split(command))
        values = {name: config[name] for name in FIELDS}
        for part in ("model", "ipu"):
            values |= {f"{part}.{name}": value for name, value in vars(getattr(config, part)).items()}
        found = {name: values[name] for name in settings}
        assert found == settings, command
        assert any(" -> " in line for line in told), command
        counted = config.task == "pretrain" and config.num_steps_per_epoch != 0
        assert not counted or train_steps(config) > 0, command


_LINES = (ROOT / "tests/cli/published_commands.txt").read_text(encoding="utf-8").splitlines()
PUBLISHED = [line for line in _LINES if not line.startswith("#")]


def test_every_published_command_line_is_taken():
    refused = []
    for line in PUBLISHED:
        try:
            flags.read([*shlex.split(line), "--plan"])
        except ConfigError as error:
            refused.append(f"{line}: {error}")
    assert len(PUBLISHED) == 46 and not refused, refused


@pytest.mark.slow
@pytest.mark.parametrize("line", PUBLISHED)
def test_every_published_command_line_is_planned(line, capsys):
    assert train.main([*shlex.split(line), "--plan"]) == 0, capsys.readouterr().err


def test_processes_of_mpirun_that_do_not_train_predict_in_folders_of_their_own(tmp_path):
    """As PopART's inference does: as many processes as there are devices, and their throughputs add up."""
    mpi = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    argv = [*shlex.split(f"--config configs/mk2/squad_large_128_inf.json {INFER}"), "--model_dir=run"]
    config, told = flags.read(argv, mpi)
    assert config.model_dir == "run_rank_2" and not config.init_checkpoint
    assert "rank 2 of 4" in told[-1] and "--model_dir=run_rank_2" in told[-1]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").write_text("")
    assert flags.read(argv, mpi)[0].init_checkpoint == "run"  # each starts from what was trained there
    assert flags.read([*argv, "--init_checkpoint=c"], mpi)[0].init_checkpoint == "c"
    assert flags.read(argv, {})[0].model_dir == "run"
    trains = {"model_dir": "run", "predict_epochs": 2}
    assert process_rank.placed([("", trains)], mpi)[0][1:] == [("", trains)]  # nothing is above


def test_the_table_names_field_value_what_replaces_it_and_what_is_for_ipus_only():
    words = "--config pretrain_tiny_128_lamb --compile-only --device-iterations 4 --steps 7"
    _, told = flags.read([*words.split(), "--base-learning-rate=0.5"])
    text = "\n".join(told)
    assert "graphcore/tf1/pretrain_tiny_128_lamb" in told[0]
    assert "-> train_batch_size=12, num_accumulation_steps=12" in text and "-> lr_schedule=up_down\n" in text
    assert "-> num_steps_per_epoch=7 by the command line" in text
    assert "-> learning_rate=0.5 by the command line" in text
    _, told = flags.read("--config mk2/pretrain_large_128 --epochs 1 --plan".split())
    assert "one of the 6 copies of each" in "\n".join(told)
    only_there = text.partition("only on an IPU: ")[2].split(", ")
    assert {"device_iterations", "pipeline_stages", "--device_iterations"} <= set(only_there)


NAMED = {
    "pretrain_large_128": "graphcore/pytorch/pretrain_large_128",  # PopART has it, too
    "pretrain_tiny_128_lamb": "graphcore/tf1/pretrain_tiny_128_lamb",
    "pretrain_base_groupbert_128": "graphcore/tf1/groupbert/pretrain_base_groupbert_128",
    "graphcore/tf2/squad_base": "graphcore/tf2/squad_base",
    "configs/squad_base.json": "graphcore/tf1/squad_base",
    "configs/mk2/pretrain_large_128.json": "graphcore/popart/mk2/pretrain_large_128",
    "configs/pretrain_large_512.json": "graphcore/popart/pretrain_large_512",
    "configs/glue_tiny.json": "graphcore/tf1/tests/glue_tiny",
}


def test_a_name_means_the_family_that_is_documented():
    assert {given: configs.find_theirs(given)[0] for given in NAMED} == NAMED
    assert configs.find_theirs("configs/squad_base_V2.json") == []  # theirs names it, and there is none


def test_a_name_that_both_have_is_ours_and_the_line_says_so():
    config, told = flags.read(["--config=squad_base", "--plan"])
    assert config.train_batch_size == 320 and config.model_dir == "runs/squad_base"
    assert "is ours" in told[0] and "graphcore/tf1/squad_base" in told[0] and len(told) == 1
    theirs, told = flags.read(["--config=graphcore/tf1/squad_base", "--plan"])
    assert theirs.train_batch_size == 1040 and theirs.model_dir != config.model_dir


def test_graphcores_options_on_the_page_are_taken():
    text = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    section = text.split("### Options over a configuration")[1].split("- **Batch.**")[0]
    left = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = [name.split()[0].replace("-", "_") for cell in left for name in re.findall(r"`([^`]+)`", cell)]
    known = set(FIELDS) | set(command_line.NAMES) | foreign.options_of_theirs()
    assert len(names) > 45 and set(names) <= known


OF_FLAGS = """
--task=glue --glue_task=mrpc --bert_config_file=configs/models/minilm_l6.json --model_dir=x --data_dir=y
--vocab_file= --max_seq_length=128 --train_batch_size=32 --num_train_epochs=3 --stop_steps=500 --plan
"""


def test_an_option_means_the_same_over_a_flagfile_and_over_a_configuration(tmp_path):
    """And the other way round: what the command line itself says in our words is above it."""
    path, written = tmp_path / "own.flags", OF_FLAGS.split()
    path.write_text("\n".join(written))
    others = [line for line in written if not line.startswith(("--num_train", "--stop", "--train_batch"))]
    sixty = "num_steps_per_epoch=60 num_train_epochs=1 stop_steps=None"
    for command, settings in {
        "--num_train_steps=60": sixty,
        "--num-train-steps 60": sixty,
        "--max_steps=60": sixty,
        "--epochs=2": "num_train_epochs=2",
        "--global_batch_size=64": "train_batch_size=64",
        "--micro_batch_size=8 --gradient_accumulation=2": "train_batch_size=16 num_accumulation_steps=2",
        "--vocab_size=30600": "",
        "--num_train_steps=60 --num_steps_per_epoch=20 --num_train_epochs=3": "num_train_epochs=3",
        "--num_train_steps=60 --stop_steps=30": "num_steps_per_epoch=60 stop_steps=30",
    }.items():
        expected = dict(each.split("=") for each in settings.split())
        for first in ([f"--flagfile={path}"], [f"--config={path}"], others):
            words = command.split()
            orders = [[*first, *words], [*words, *first]]
            for arguments in orders[:1] if "--stop_steps" in command else orders:
                config = flags.parse(arguments)
                assert {name: str(config[name]) for name in expected} == expected, arguments
                assert config.model.vocab_size == (30600 if "vocab_size" in command else 30522), arguments

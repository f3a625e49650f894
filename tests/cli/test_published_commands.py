"""Each published command line of Graphcore's programs parses to a valid configuration, from any folder."""

import re
import shlex

import pytest
import yaml

from official.cli import command_line, configs, flags, foreign, table, train
from official.config import FIELDS, ConfigError, process_rank, train_steps
from tests.conftest import ROOT

INFER = "--generated-data=true --epochs-inference 20 --input-files=squad/dev-v1.1.json"
SETTINGS = yaml.safe_load((ROOT / "tests/cli/published_settings.yml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """A folder without configs/, with vocabularies where the published files name them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASETS_DIR", "data")
    for size in ("24_H-1024_A-16", "12_H-768_A-12"):
        _write_vocabulary(tmp_path / f"data/ckpts/uncased_L-{size}")
    _write_vocabulary(tmp_path / "data/bert")


def _write_vocabulary(folder) -> None:
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"w{number}\n" for number in range(30522)))


def test_a_published_command_is_a_valid_configuration():
    assert len(SETTINGS) > 25
    for command, settings in (row.values() for row in SETTINGS):
        config, told = flags.read(shlex.split(command))
        assert {name: config[name] for name in settings} == settings, command
        assert any(" -> " in line for line in told), command
        assert config.task != "pretrain" or config.num_steps_per_epoch == 0 or train_steps(config) > 0, (
            command
        )


PUBLISHED = [
    line
    for line in (ROOT / "tests/cli/published_commands.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


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


def test_an_epoch_of_pretraining_is_once_through_the_records():
    """Unless steps are said, no records are read, or the configuration is ours."""
    for arguments, steps in (
        ("--config mk2/pretrain_large_128 --epochs 2 --plan", 0),
        ("--config mk2/packed_pretrain_tiny_128 --plan", 0),
        ("--config mk2/pretrain_large_128 --epochs 2 --num_steps_per_epoch=5 --plan", 5),
        ("--config mk2/pretrain_large_128 --plan", 7038),
        ("--config mk2/pretrain_large_128 --epochs 2 --generated-data", 1),
        ("--config graphcore/packed/pod16-closed --plan", 1000),
        ("--config quickstart --vocab_file= --epochs 2 --num_steps_per_epoch=9", 9),
    ):
        assert flags.parse(arguments.split()).num_steps_per_epoch == steps, arguments
    _, told = flags.read("--config mk2/pretrain_large_128 --epochs 1 --plan".split())
    assert "one of the 6 copies of each" in "\n".join(told)


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
    assert process_rank.with_folder_of_rank([("", trains)], mpi) == ([], [])


def test_the_table_names_field_value_and_what_is_for_ipus_only():
    _, told = flags.read(shlex.split("--config pretrain_tiny_128_lamb --compile-only --device-iterations 4"))
    text = "\n".join(told)
    assert "graphcore/tf1/pretrain_tiny_128_lamb" in told[0]
    assert "-> train_batch_size=12, num_accumulation_steps=12" in text
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


def test_flags_of_ours_are_above_options_of_theirs_above_the_file():
    command = "--config pretrain_tiny_128_lamb --generated-data --micro-batch-size 2"
    assert flags.parse(command.split()).train_batch_size == 24
    assert flags.parse([*command.split(), "--train_batch_size=48"]).train_batch_size == 48
    assert flags.parse([*command.split(), "--learning_rate=0.5"]).learning_rate == 0.5


@pytest.mark.parametrize("devices,accumulation", [(1, 40), (2, 20), (4, 10), (8, 5), (3, 10)])
def test_a_micro_batch_stays_what_it_is_on_other_numbers_of_devices(devices, accumulation):
    command = "--config pretrain_large_128_phase1_POD32 --replicas 4 --gradient-accumulation-count 10"
    config = flags.parse([*command.split(), "--generated-data", f"--num_virtual_devices={devices}"])
    assert (config.train_batch_size, config.num_accumulation_steps) == (320, accumulation)


def test_their_options_over_a_configuration_of_ours():
    command = (
        "--config quickstart --vocab_file= --micro-batch-size 4 --gradient-accumulation-count 3 --replicas 2"
    )
    config = flags.parse([*command.split(), "--steps", "7", "--vocab-size", "999"])
    assert (config.train_batch_size, config.num_steps_per_epoch, config.num_train_epochs) == (24, 7, 1)
    assert config.model.vocab_size == 999 and config.model.num_hidden_layers == 2


def test_lists_that_a_shell_has_made_and_truths_in_words_of_their_own():
    command = "--config pretrain_tiny_128_lamb --input-files a b c --wandb True --do-eval False --seed 5"
    config = flags.parse(command.split())
    assert (config.input_files, config.wandb, config.do_eval, config.seed) == ("a,b,c", True, False, 5)


def test_sizes_and_parts_of_the_model_are_options_too():
    command = "--config pretrain_tiny_128_lamb --generated-data --hidden-size 64 --use-prediction-bias False"
    model = flags.parse([*command.split(), "--use-cls-layer", "--num-hidden-layers", "1"]).model
    assert (model.hidden_size, model.num_hidden_layers) == (64, 1)
    assert (model.use_prediction_bias, model.use_cls_layer) == (False, True)


def test_a_key_that_the_command_line_replaces_says_so():
    _, told = flags.read("--config pretrain_tiny_128_lamb --plan --steps 7 --base-learning-rate 0.5".split())
    text = "\n".join(told)
    assert "-> num_steps_per_epoch=7 by the command line" in text
    assert "-> learning_rate=0.5 by the command line" in text and "-> lr_schedule=up_down\n" in text


def test_records_of_google_words_fit_their_models():
    assert flags.parse("--config pretrain_tiny_128_lamb --plan".split()).fit_vocabulary
    assert not flags.parse("--config pretrain_large_128 --plan".split()).fit_vocabulary  # PyTorch: 30,522


def test_variables_are_expanded_and_a_missing_one_is_named(monkeypatch):
    monkeypatch.delenv("DATASETS_DIR", raising=False)
    name = "--config=graphcore/tf2/pretrain_base_128_phase1"
    with pytest.raises(ConfigError, match="variable DATASETS_DIR is not set"):
        flags.parse([name])
    assert flags.parse([name, "--generated-data"]).generated_data
    monkeypatch.setenv("DATASETS_DIR", "/data/sets")
    assert flags.parse([name]).input_files == "/data/sets/wikipedia/128/*.tfrecord"


def test_what_is_wrong_is_named_in_a_line():
    tiny, large = "--config pretrain_tiny_128_lamb", "--config pretrain_large_128"
    for arguments, message in (
        (f"{tiny} --generated-data --micro-batch-sise 3", "did you mean micro_batch_size"),
        (f"{tiny} --micro-batch-size many", "micro_batch_size='many', expected a number"),
        (f"{large} --batches-per-stp 3", "did you mean batches_per_step"),
        (f"{large} --lr-power 3", "Unknown flag --lr_power over a PyTorch configuration"),
        ("--config mk2/pretrain_large_128 --micro-batch-size 7", "global_batch_size=65536 is not divisible"),
        (f"{tiny} --micro-batch-size", "Missing value for flag --micro_batch_size"),
        (f"{tiny} --micro-batch-size 2 3", "micro_batch_size=['2', '3'], expected"),
        (f"{tiny} --replication-factor 0", "replication_factor='0', expected a whole"),
        (f"{tiny} --epochs True", "epochs='True', expected a number"),
        (f"{tiny} --steps inf", "steps='inf', expected a number"),
        (f"{tiny} --vocab-size 0", "vocab_size='0', expected a whole number of 1"),
        (f"{tiny} --learning-rate True", "--learning_rate=True, expected a number"),
        ("--config pretrain_tiny_128_lam", "did you mean pretrain_tiny_128_lamb"),
    ):
        with pytest.raises(ConfigError) as error:
            flags.parse(arguments.split())
        assert message in str(error.value) and "\n" not in str(error.value), arguments


def documented_rows() -> list[tuple[str, list[str], list[str]]]:
    """Returns (right cell, names in the left one, flags in the right one) of the page's rows."""
    text = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE)
    return [(right, re.findall(r"`([^`]+)`", left), re.findall(r"--(\w+)", right)) for left, right in rows]


def test_the_page_names_flags_that_there_are():
    rows = documented_rows()
    assert len(rows) > 90
    names = ("data create", "convert", "ask", "benchmark run", "launch", "render-job")
    commands = {flag for name in names for flag in table.COMMANDS[name].parser().options()}
    known = set(FIELDS) | {"config"} | {name.removeprefix("--") for name in commands}
    assert {flag for _, _, flags_of_row in rows for flag in flags_of_row} <= known
    same = [name for right, names, _ in rows if right.startswith("the same name") for name in names]
    assert len(same) > 25 and set(same) <= set(FIELDS)


# Programs and scripts whose command lines are published, on the pages of the five systems.
PROGRAMS = (
    "bert.py run_pretraining.py run_squad.py run_classifier.py run_glue.py run_squad_runtime.py mpirun poprun"
    " examples_utils kubectl POPLAR_ENGINE_OPTIONS pretrain.sh pretrain_and_finetune_BERT.sh"
    " pretrain_distributed.sh pretrain_base_full.sh pretrain_large_full.sh pretrain_large_128_POD128.sh"
    " fine_tune_squad.sh fine_tune_glue.sh fine_tune_GroupBERT_glue.sh pretrain_base_groupbert_128"
    " pod16-closed create_pretraining_data.py create_wikipedia_dataset.sh tokenise_wikipedia.sh"
    " wikipedia_tokenize.py wiki_preprocess.py extract_wiki.sh wikipedia_extract.sh wiki_downloader.sh"
    " wikipedia_download.sh download_glue_data.py pack_pretraining_data.py pack_128.sh convert_ckpt.py"
    " evaluate-v1.1.py gcloud gce_nvme_raid docker nvidia-docker perfzero benchmark_methods git_repos"
).split()


def test_the_page_lists_every_published_command_and_what_is_there_instead():
    rows = documented_rows()
    published = " ".join(name for _, names, _ in rows for name in names)
    assert [name for name in PROGRAMS if name not in published] == []
    right = " ".join(right for right, *_ in rows)
    answers = re.findall(r"`(?:\./|python )?((?:scripts|deploy)/[\w./]+)", right)
    assert len(answers) > 8 and [path for path in answers if not (ROOT / path).exists()] == []


def test_graphcores_options_on_the_page_are_taken():
    text = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    section = text.split("### Options over a configuration")[1].split("- **Batch.**")[0]
    left = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = [name.split()[0].replace("-", "_") for cell in left for name in re.findall(r"`([^`]+)`", cell)]
    known = set(FIELDS) | set(command_line.NAMES) | foreign.options_of_theirs()
    assert len(names) > 45 and set(names) <= known


OF_FLAGS = """
--task=glue
--glue_task=mrpc
--bert_config_file=configs/models/minilm_l6.json
--model_dir=x
--data_dir=y
--vocab_file=
--max_seq_length=128
--train_batch_size=32
--num_train_epochs=3
--stop_steps=500
--plan
"""


def test_an_option_means_the_same_over_a_flagfile_and_over_a_configuration(tmp_path):
    """And the other way round: what the command line itself says in our words is above it."""
    path = tmp_path / "own.flags"
    path.write_text(OF_FLAGS)
    written = [line for line in OF_FLAGS.split() if line != "--plan"]
    others = [line for line in written if not line.startswith(("--num_train", "--stop", "--train_batch"))]
    expected = {
        "--num_train_steps=60": dict(num_steps_per_epoch=60, num_train_epochs=1, stop_steps=None),
        "--num-train-steps 60": dict(num_steps_per_epoch=60, num_train_epochs=1, stop_steps=None),
        "--max_steps=60": dict(num_steps_per_epoch=60, num_train_epochs=1, stop_steps=None),
        "--epochs=2": dict(num_train_epochs=2),
        "--global_batch_size=64": dict(train_batch_size=64),
        "--micro_batch_size=8 --gradient_accumulation=2": dict(train_batch_size=16, num_accumulation_steps=2),
        "--vocab_size=30600": dict(),
        "--num_train_steps=60 --num_steps_per_epoch=20 --num_train_epochs=3": dict(num_train_epochs=3),
        "--num_train_steps=60 --stop_steps=30": dict(num_steps_per_epoch=60, stop_steps=30),
    }
    for command, settings in expected.items():
        for first in ([f"--flagfile={path}"], [f"--config={path}"], [*others, "--plan"]):
            words = command.split()
            orders = [[*first, *words], [*words, *first]]
            for arguments in orders[:1] if "--stop_steps" in command else orders:
                config = flags.parse(arguments)
                assert {name: config[name] for name in settings} == settings, arguments
                assert config.model.vocab_size == (30600 if "vocab_size" in command else 30522), arguments
    for command, message in (
        ("--num_train_steps=60 --num_train_epochs=3", "--num_train_steps=60 is the number of updates"),
        ("--num_train_steps=60 --epochs=3", "--num_train_steps and --epochs both say how long"),
        ("--global_batch_size=64 --train_batch_size=16", "--global_batch_size=64 and --train_batch_size=16"),
    ):
        for first in (f"--flagfile={path}", f"--config={path}"):
            with pytest.raises(ConfigError, match=message):
                flags.parse([first, *command.split()])

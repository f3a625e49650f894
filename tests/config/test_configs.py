"""The configuration: every flagfile builds, precedence, messages for what is wrong."""

import json
import re
import shlex

import pytest

from official import config as config_lib
from official.cli import command_line, flags
from official.distribution.batch_plan import eval_is_due, loop_length, make_batch_plan, next_evaluation
from official.io.errors import ConfigError
from tests.fixtures import ROOT
from tests.refusals import assert_refused, refused

FLAGFILES = sorted((ROOT / "configs").glob("**/*.flags"))
PACKED = ROOT / "configs" / "packed"
GOOD = ["--model_dir=m", "--use_synthetic_data", f"--bert_config_file={ROOT}/configs/models/bert_tiny.json"]


@pytest.fixture(autouse=True)
def _in_repository_root(monkeypatch):
    """Flagfiles name files relative to the repository's root."""
    monkeypatch.chdir(ROOT)


def name_of(path) -> str:
    """Returns the name of a flagfile, as --config takes it."""
    return str(path.relative_to(ROOT / "configs").with_suffix(""))


@pytest.mark.parametrize("path", FLAGFILES, ids=name_of)
def test_every_flagfile_builds_its_configuration(path, tmp_path):
    settings = dict(re.findall(r"^--(\w+)=(.*)$", path.read_text(), re.MULTILINE))
    extra = []
    if "vocab_file" in settings:  # made by the quickstart, so not in a fresh clone
        vocab = tmp_path / "vocab.txt"
        model = json.loads((ROOT / settings["bert_config_file"]).read_text())
        vocab.write_text("word\n" * model["vocab_size"])
        extra = [f"--vocab_file={vocab}"]
    config = flags.parse([f"--flagfile={path}", *extra])
    assert config.model.vocab_size > 0
    assert config_lib.train_steps(config_lib.with_data(config, train_samples=10_000)) > 0


def test_published_arithmetic():
    for name, replicas, micro, first_eval in (
        ("mlperf_v100", 8, 5, 3948),
        ("mlperf_tpu_v3_32", 32, 24, 3912),
        ("mlperf_v100_logs", 8, 5, 6822),
        ("mlperf_tpu_v3_32_logs", 32, 14, 6702),
    ):
        config = flags.parse([f"--flagfile=configs/{name}.flags"])
        assert make_batch_plan(config, replicas).micro_batch_size == micro, name
        last = config_lib.train_steps(config)
        assert next(step for step in range(1, last + 1) if eval_is_due(config, step, last)) == first_eval


# Of Graphcore's podN-closed.json of MLPerf 2.0: packs of a step as replicas x accumulation x 3, beta_1,
# beta_2, rate, steps, max_training_sequences, gradient_clipping_norm.
PODS = {
    16: (2 * 256 * 3, 0.55, 0.885, 3.5e-3, 1000, 3_200_000, 1000.0),
    64: (8 * 96 * 3, 0.51, 0.72, 2.9e-3, 800, 4_500_000, 1000.0),
    128: (16 * 64 * 3, 0.62, 0.885, 3.5e-3, 700, 4_500_000, 100.0),
    256: (32 * 36 * 3, 0.62, 0.885, 3.5e-3, 700, 4_500_000, 100.0),
}


@pytest.mark.parametrize("pod", PODS)
def test_packed_mlperf_recipes_have_the_published_values(pod):
    config = flags.parse([f"--config=packed/mlperf_large_512_pod{pod}"])
    rows, beta_1, beta_2, rate, steps, most, clip = PODS[pod]
    assert (config.train_batch_size, config.beta_1, config.beta_2) == (rows, beta_1, beta_2)
    assert (config.learning_rate, config.num_steps_per_epoch, config.clip_norm) == (rate, steps, clip)
    assert (config.warmup_steps, config.weight_decay_rate, config.stop_threshold) == (0, 1e-3, 0.72)
    assert (config.max_sequences_per_pack, config.average_sequences_per_pack) == (3, 2)
    assert (config.optimizer_type, config.loss_averaging_basis) == ("lamb", "pertoken")
    plan = make_batch_plan(config, config.num_gpus).with_rows_of(2)
    assert plan.micro_batch_size == 3 and plan.num_replicas <= pod
    sequences = config_lib.train_steps(config) * plan.sequences_per_step
    assert most - 0.2 * most < sequences <= most
    interval = int(0.05 * (230.23 * plan.sequences_per_step + 3e6) / 25_000) * 25_000
    assert config.steps_between_eval == -(-interval // plan.sequences_per_step)
    assert f"{most:,}" in (PACKED / f"mlperf_large_512_pod{pod}.flags").read_text()


# Rows of a step and sequences a row. Source: Graphcore's packed PopART recipes, and for 512 the factor of its
# PyTorch ones, which is 2.0 there.
PACKED_BATCHES = {128: (54_784, 1.17), 384: (9_600, 1.7), 512: (16_384 // 2, 2.0)}


@pytest.mark.parametrize("path", sorted(PACKED.glob("pretrain_*.flags")), ids=name_of)
def test_packed_pretraining_is_the_plain_recipe_with_fewer_rows(path):
    packed, plain = flags.parse([f"--flagfile={path}"]), flags.parse([f"--config={path.stem}"])
    rows, average = PACKED_BATCHES[packed.max_seq_length]
    assert packed.pack_on_the_fly and packed.max_sequences_per_pack is None
    assert (packed.train_batch_size, packed.average_sequences_per_pack) == (rows, average)
    assert rows * average == pytest.approx(plain.train_batch_size, rel=0.03)
    assert make_batch_plan(packed, 8).micro_batch_size == make_batch_plan(plain, 8).micro_batch_size
    differs = {name for name in config_lib.FIELDS if packed[name] != plain[name]}
    of_packing = "pack_on_the_fly average_sequences_per_pack train_batch_size num_accumulation_steps"
    assert differs - {"init_checkpoint"} == {"model_dir", *of_packing.split()}
    if packed.init_checkpoint:
        first = flags.parse([f"--config=packed/pretrain_{path.stem.split('_')[1]}_128_phase1"])
        assert packed.init_checkpoint == first.model_dir


def test_published_flags_and_sizes_are_here():
    published = (ROOT / "tests/config/published_flags.txt").read_text(encoding="utf-8").split()
    assert set(published) <= set(config_lib.FIELDS)
    assert len((ROOT / "configs/models/bert_large.json").read_bytes()) == 314


def test_precedence(tmp_path):
    saved, flagfile = tmp_path / "c.json", tmp_path / "f.flags"
    saved.write_text(json.dumps({"learning_rate": 1.0, "beta_1": 0.5, "epsilon": 1e-3}))
    flagfile.write_text("--beta_1=0.6\n--epsilon=1e-4\n")
    config = flags.parse([*GOOD, f"--config={saved}", f"--flagfile={flagfile}", "--epsilon=1e-5"])
    assert (config.learning_rate, config.beta_1, config.epsilon, config.beta_2) == (1.0, 0.6, 1e-5, 0.999)


def test_an_empty_value_unsets_what_a_flagfile_has_set():
    evaluating = [*GOOD, "--do_eval", "--steps_between_eval=200", "--stop_threshold=0.5"]
    with pytest.raises(ConfigError, match="Add --do_eval, or --steps_between_eval= to unset it"):
        flags.parse([*evaluating, "--stop_threshold=", "--do_eval=false"])
    config = flags.parse([*evaluating, "--steps_between_eval=", "--stop_threshold=", "--do_eval=false"])
    assert (config.steps_between_eval, config.stop_threshold) == (None, None)
    with pytest.raises(ConfigError, match="seed"):  # has a default: nothing to unset
        flags.parse([*GOOD, "--seed="])


def test_wrong_settings_end_in_one_line():
    cases = [(shlex.split(words), message) for words, message in refused("config/refused_settings.txt")]
    cases.append((["--task=\n"], "is not one of pretrain"))
    assert_refused(lambda arguments: flags.parse([*GOOD, *arguments]), cases)


def test_gelu_is_what_the_writer_of_the_file_means():
    of_hugging_face, other = {"model_type": "bert"}, {"architectures": ["BertModel"]}
    for name, whose, expected in (
        (None, {}, "gelu_tanh"),
        ("gelu", {}, "gelu_tanh"),
        ("gelu_new", {}, "gelu_tanh"),
        ("gelu", of_hugging_face, "gelu_erf"),
        ("gelu", other, "gelu_erf"),
        (None, of_hugging_face, "gelu_erf"),
        ("gelu_tanh", of_hugging_face, "gelu_tanh"),
        ("gelu_erf", {}, "gelu_erf"),
    ):
        values = {"vocab_size": 100, **whose, **({"hidden_act": name} if name else {})}
        found = config_lib.bert_config_from_dict(values, "bert.json").hidden_act
        assert found == expected, (name, whose)


def test_an_older_run_keeps_its_activation_and_a_saved_one_has_a_plain_name():
    """What a run before the two names called gelu has the tanh form."""
    model = {"vocab_size": 100, "hidden_act": "gelu"}
    saved = {"model": model, "use_synthetic_data": True, "model_dir": "unused", "num_steps_per_epoch": 20000}
    config = config_lib.build_config([("config.json", saved)])
    assert json.loads(config_lib.to_json(config))["model"]["hidden_act"] == "gelu_tanh"


def test_a_truth_value_may_be_unset():
    for words, value in {
        "": None,
        "--do_lower_case": True,
        "--nodo_lower_case": False,
        "--do_lower_case=false --do_lower_case=": None,
    }.items():
        config = flags.parse([*GOOD, "--vocab_file=none.txt", "--plan", *words.split()])
        assert config.do_lower_case is value, words


def test_what_follows_for_own_data_is_not_taken_for_given():
    task = "--task=classify --train_file=t.csv --vocab_file=none.txt --plan --use_synthetic_data=false"
    config = flags.parse([*GOOD, *task.split(), '--lr_schedule={"0": 1e-4}'])  # no rate by the model's width
    assert config.do_eval and config.learning_rate == config_lib.FIELDS["learning_rate"].default
    config = flags.parse([*GOOD, *task.split(), "--synthetic_input", "--corpus_file="])
    assert not config.do_eval and config.train_file is None


# Settings of the sections below that change nothing about an evaluation's result, or to rounding only.
# Whatever else there is, or comes, in these sections does.
NOT_OF_EVALUATIONS = set(
    "bert_config_file cache_dir data_streams dtype length_buckets num_runs predict_epochs span_places"
    " train_file class_weights early_stopping_metric early_stopping_patience freeze_layers label_smoothing"
    " layer_decay teacher distill_share distill_temperature mask_share mask_span_length"
    " do_whole_word_mask score_loss temperature".split()
)


def test_every_setting_of_data_and_tasks_changes_the_evaluation_or_says_no():
    sections = {section.title: section for section in config_lib.SECTIONS}
    of_evaluations = {title for title, section in sections.items() if section.evaluation}
    assert of_evaluations == {"Model", "Data", "Fine-tuning"}
    rows = [field for section in sections.values() if section.evaluation for field in section.fields]
    assert {field.name for field in rows if not field.evaluation} == NOT_OF_EVALUATIONS


def test_settings_that_change_the_evaluation_in_some_runs():
    def names(*arguments) -> set[str]:
        config = flags.parse([*GOOD, *arguments])
        return {name for name, field in config_lib.FIELDS.items() if field.changes_evaluation(config)}

    random, real = names(), names("--use_synthetic_data=false", "--input_files=x")
    assert random - real == {"seed", "eval_batch_size"} and {"max_predictions_per_seq", "input_files"} <= real
    held_out = names("--use_synthetic_data=false", "--input_files=x", "--eval_files=y", "--do_eval")
    assert "input_files" not in held_out


def test_tpu_flagfiles_name_no_tpu():
    for path in (path for path in FLAGFILES if "tpu" in path.stem):
        config = flags.parse([f"--flagfile={path}"])
        assert config.tpu is None and config.distribution_strategy == "tpu"
        assert "--tpu=NAME" in path.read_text()
        with pytest.raises(ConfigError, match="gs://BUCKET"):
            flags.parse([f"--flagfile={path}", "--tpu=some-tpu"])


def test_help_shows_every_flag():
    for words in ("--help", "--help word", "word -h", "--help -- word"):
        with pytest.raises(flags.HelpRequested) as text:
            flags.parse(words.split())
        assert all(f"--{name}" in str(text.value) for name in config_lib.FIELDS), words


def test_step_budget_is_exact():
    step, loops = 0, []
    while step < 8103:
        loops.append(loop_length(step, 1137, 8103))
        step += loops[-1]
    assert step == 8103 and loops[:-1] == [1137] * 7 and loops[-1] == 144
    assert loop_length(1500, 1137, 8103) == 2274 - 1500  # resumed inside a loop: aligned again after it


def ruled(rule: str, batch: int, *arguments: str) -> config_lib.Config:
    return flags.parse([*GOOD, f"--eval_rule=mlperf_{rule}", f"--train_batch_size={batch}", *arguments])


def test_eval_rules_have_the_numbers_of_the_published_flagfiles():
    names = ("steps_between_eval", "steps_before_eval_start", "stop_threshold", "steps_per_loop")
    first_of_1_0 = {256: 150_000, 448: 150_000, 1536: 150_000, 3072: 175_000, 8192: 225_000}
    for rule, batch, *expected in (
        ("0.7", 440, 1137, 6819, 0.712, 3),
        ("0.7", 448, 1117, 6697, 0.712, 1),
        ("0.7", 760, 658, 3948, 0.712, 94),
        ("0.7", 768, 652, 3907, 0.712, 163),
        ("0.7", 8192, 62, 367, 0.706, 62),
        *(("1.0", batch, -(-samples // batch), 0, 0.72, 1) for batch, samples in first_of_1_0.items()),
    ):
        more = "--num_steps_per_epoch=9000" if rule == "0.7" else "--steps_per_loop=1"
        config = ruled(rule, batch, more)
        assert [config[name] for name in names] == expected, batch
        assert config.do_eval and config.num_eval_samples == 10000


def test_eval_rules_of_and_over_saved_configurations(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(config_lib.to_json(ruled("0.7", 440)))
    assert flags.parse([f"--config={path}"]) == ruled("0.7", 440)
    path.write_text(config_lib.to_json(flags.parse([*GOOD, "--train_batch_size=440"])))
    config = flags.parse([f"--config={path}", "--eval_rule=mlperf_1.0"])
    found = (config.steps_between_eval, config.steps_per_loop, config.stop_threshold)
    assert config.do_eval and found == (341, 31, 0.72)


MLPERF = [path for path in FLAGFILES if path.stem.startswith("mlperf_") and path.parent != PACKED]


@pytest.mark.parametrize("path", MLPERF, ids=lambda path: path.stem)
def test_mlperf_flagfiles_are_what_the_rule_of_0_7_means_and_take_that_of_1_0(path):
    flagfile = f"--flagfile={path}"
    plain, of_rule = flags.parse([flagfile]), flags.parse([flagfile, "--eval_rule=mlperf_0.7"])
    assert {name for name in config_lib.FIELDS if plain[name] != of_rule[name]} == {"eval_rule"}
    arguments = [flagfile, "--eval_rule=mlperf_1.0", "--eval_files=x"]
    with pytest.raises(ConfigError) as error:
        flags.parse(arguments)
    given = re.findall(r"(\w+)=(\S+?)(?:, |$)", str(error.value).split(" means ")[1].split(";")[0])
    named = [name for name, _ in given]
    assert named == ["steps_between_eval", "steps_before_eval_start", "stop_threshold", "steps_per_loop"]
    config = flags.parse([*arguments, *(f"--{name}={value}" for name, value in given)])
    assert all(str(config[name]) == value for name, value in given)
    assert config.steps_per_loop <= 200 and config.steps_between_eval % config.steps_per_loop == 0


def test_evaluations_fall_on_their_steps_and_always_on_the_last():
    steps = "--do_eval --steps_before_eval_start=25 --num_steps_per_epoch=75 --num_train_epochs=1"
    config = flags.parse([*GOOD, *steps.split(), "--steps_per_loop=5", "--steps_between_eval=10"])
    due = [step for step in range(1, 76) if eval_is_due(config, step, 75)]
    assert due == [30, 40, 50, 60, 70, 75]
    for step in range(75):
        assert next_evaluation(config, step, 75) == next(later for later in due if later > step)
    assert next_evaluation(flags.parse(GOOD), 3, 75) == 75


def test_other_spellings_become_ours(tmp_path):
    (tmp_path / "f.flags").write_text("--model-dir=p-q\n")
    words = f"--wandb --wandb-name=a-b --flagfile={tmp_path}/f.flags --train-batch-size 64 --mask-tokens=3"
    config = flags.parse([*GOOD, *words.split(), "--nodo-train", "--do-eval"])
    assert (config.wandb_name, config.model_dir, config.train_batch_size) == ("a-b", "p-q", 64)
    assert config.max_predictions_per_seq == 3 and not config.do_train
    others, ours = command_line.NAMES, config_lib.FIELDS.keys()
    assert set(others.values()) <= ours and not others.keys() & ours


def test_a_folder_of_the_name_of_a_configuration_hides_nothing(tmp_path, monkeypatch):
    (tmp_path / "quickstart").mkdir()
    monkeypatch.chdir(tmp_path)
    assert flags.read_config("quickstart")["model_dir"] == "runs/quickstart"


def test_the_scope_of_losses_and_clipping_follows_from_scale_loss():
    """Alone it is the way of the MLPerf v0.7 reference, whose flag lists say no more; what is said stays."""
    settings = {
        "": ("global", "global"),
        "--scale_loss": ("local", "micro_batch"),
        "--scale_loss --clip_scope=global": ("local", "global"),
        "--scale_loss --explicit_allreduce": ("local", "global"),
        "--scale_loss --loss_normalization=local": ("local", "global"),
        "--scale_loss --loss_normalization=local --clip_scope=micro_batch": ("local", "micro_batch"),
        "--loss_normalization=local": ("local", "global"),
    }
    for arguments, expected in settings.items():
        config = flags.parse([*GOOD, *arguments.split()])
        assert (config.loss_normalization, config.clip_scope) == expected, arguments

"""Graphcore's configurations: every shipped one builds and is a plan of stages, keys about IPUs are settings
there and notes elsewhere, and what is unknown is named. Their numbers: tests/cli/published_settings.yml."""

import json

import pytest
import yaml

from official import config as config_lib
from official.cli import configs, flags
from official.config.model import BertConfig
from official.distribution.pipeline_plan import allocation, make_plan, make_timeline
from official.graphcore import configuration_terms, pipeline, rules
from official.graphcore.configuration_keys import FAMILIES, IPU_ONLY, NOT_NEEDED
from official.graphcore.configurations import family_of
from official.graphcore.rules import OPTIONS
from tests.fixtures import ROOT
from tests.graphcore.conftest import REFUSED
from tests.refusals import assert_refused

pytestmark = pytest.mark.nightly

SHIPPED = sorted(configs.theirs())
PLANS = yaml.safe_load((ROOT / "tests/graphcore/published_plans.yml").read_text(encoding="utf-8"))
TINY, TF2 = "tf1/pretrain_tiny_128_lamb", "tf2/pretrain_tiny_128_phase1"
INFERENCE, PACKED = "tf1/squad_large_inference_2ipu", "popart/packed/packed_pretrain_tiny_128"
# Settings of a run on IPUs, which lack their options.
OURS = """--bert_config_file=configs/models/bert_tiny.json --model_dir=m --distribution_strategy=ipu
--num_accumulation_steps=6 --train_batch_size=12 --pipeline_stages=emb+pos/hid*2/mlm+nsp""".split()


def read(name, *arguments):
    """Reads a configuration; commands of GLUE always say the task."""
    task = ["--task-name=mrpc"] if "glue" in str(name) and "regression" not in str(name) else []
    return flags.read([f"--config={name}", "--plan", *task, *arguments])


def written(folder, values) -> str:
    """Writes a file of theirs. Returns its path."""
    path = folder / "theirs.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


def changed(name: str, key: str, value) -> dict:
    """Returns a shipped configuration with another value; dots in a key go into its objects."""
    values = json.loads((ROOT / f"configs/graphcore/{name}.json").read_text())
    *outer, last = key.split(".")
    inner = values
    for each in outer:
        inner = inner.setdefault(each, {})
    inner[last] = value
    return values


def plan(*arguments: str):
    return flags.parse([*arguments, "--plan"])


def on_ipus(name, *arguments):
    """Returns the configuration of a run on IPUs, and what is told."""
    return read(name, "--distribution_strategy=ipu", *arguments)


def planned(config):
    return make_plan(config, pipeline.names_of(config))


# ------------------------------------------------------------------------------------------------------------
# All of them


def test_every_shipped_configuration_builds_and_is_told_by_what_it_holds():
    for name in SHIPPED:
        config, told = read(name)
        assert config.train_batch_size % config.num_accumulation_steps == 0, name
        assert config.model.num_hidden_layers > 0 and len(told) > 5, name
        assert config.model.vocab_size in (30400, 30522, 30528, 30912), name
        assert "graphcore" in json.dumps(config_lib.to_json(config)), name  # what a run saves reads back
        _, family = flags.foreign.read_theirs(flags.foreign.find(name))
        assert family.name == name.split("/")[1], name


def test_every_shipped_stage_plan_is_one_here_and_published_ones_also_run_elsewhere():
    for name in SHIPPED:
        if name.endswith("popart/demo"):  # it places nothing
            continue
        config, told = on_ipus(name)
        plan = planned(config)
        assert sum(map(len, plan.stages)) == len(pipeline.names_of(config)), name
        assert plan.schedule == "grouped" and plan.num_devices in (1, 2, 3, 4, 8), name
        assert plan.device_of("embeddings") == 0, name
        assert len(allocation(plan)) > config.model.num_hidden_layers, name
        assert any("pipeline_stages" in line and "->" in line for line in told), name
        if known := PLANS.get(name.removeprefix("graphcore/")):
            found = (plan.notation, ",".join(map(str, plan.devices)), plan.micro_batches)
            assert found == tuple(known.values()), name
            config, told = read(name, "--distribution_strategy=pipeline", "--pipeline_schedule=1f1b")
            plan = planned(config)
            assert (plan.notation, plan.schedule) == (known["stages"], "1f1b"), name
            assert 0 <= make_timeline(plan).bubble < 0.9, name
            assert not any("a grouped pipeline" in line for line in told), name


def test_every_key_leads_somewhere():
    """To a setting, a size of the model, a term that is used, or it says why it has none."""
    of_model = {f"model.{name}" for name in BertConfig.__dataclass_fields__}
    known = {*config_lib.FIELDS, *OPTIONS, IPU_ONLY, *of_model}
    for family in FAMILIES.values():
        for key, row in family.table.items():
            assert row.to.startswith("@") or row.to in known or row.to == NOT_NEEDED and row.why, key
        assert set(family.defaults) <= set(family.table)


def test_a_configuration_of_ours_is_ours():
    assert family_of({"learning_rate": 1.0, "beta_1": 0.5, "epsilon": 1e-3}) is None
    assert family_of({"lerning_rate": 1.0}) is None
    saved = json.loads(config_lib.to_json(flags.parse(["--config=mlperf_v100"])))
    assert family_of(saved) is None


def test_powers_variants_and_schedules_by_step(tmp_path):
    values = {**changed(TINY, "lr_power", [0.5, 2]), "steps_per_ckpts": 25, "steps_per_logs": 10}
    values |= {"use_nvlamb": True, "use_debiasing": True, "reduction_type": "sum"}
    values |= {"loss_scaling_by_step": {"0": 1, "10": 8}}
    config = read(written(tmp_path, values)).config
    assert (config.warmup_power, config.poly_power, config.clip_scope) == (0.5, 2.0, "global")
    assert (config.bias_correction, config.loss_normalization) == (True, "local_sum")
    assert json.loads(config.loss_scale) == {"0": 1, "10": 8}
    assert config.checkpoint_every_steps == 30  # whole loops
    values |= {"lr_schedule": "custom", "lr_schedule_by_step": {"0": 1e-3, "5": 1e-4}}
    assert read(written(tmp_path, values)).config.lr_schedule.startswith("{")


def test_the_prediction_bias_is_that_of_the_model(tmp_path):
    for name, key, value in (
        (TINY, "use_prediction_bias", True),
        (TINY, "use_prediction_bias", False),
        (TF2, "use_prediction_bias", False),
        (PACKED, "projection_bias", False),
    ):
        config, told = read(written(tmp_path, changed(name, key, value)))
        assert config.model.use_prediction_bias is value
        assert f"-> model.use_prediction_bias={str(value).lower()}" in "\n".join(told)
    assert read("graphcore/tf1/pretrain_base_128_phase1").config.model.use_prediction_bias


def test_what_is_done_otherwise_than_by_their_program_is_told(tmp_path):
    told = "unlike their program: a warm-up begins at 0: lr_warmup_start"
    for value, is_unlike in ((0.002, True), (0, False)):
        lines = read(written(tmp_path, changed(PACKED, "lr_warmup_start", value)))[1]
        assert (told in "\n".join(lines)) == is_unlike
        assert not any("unlike" in line and "shuffle" in line for line in lines), "it shuffles, too"


# ------------------------------------------------------------------------------------------------------------
# What is not known


def test_unknown_keys_are_named_with_the_nearest_known_one(tmp_path):
    for name, key, nearest in REFUSED["misspelt"]:
        path, label = written(tmp_path, changed(name, key, 1)), FAMILIES[name.split("/")[0]].label
        told = f"{key!r} (did you mean {nearest}?) is no key of Graphcore's {label} files."
        assert_refused(plan, [(f"--config={path}", f"--config={path}: {told}")])


def test_a_wrong_value_names_file_and_key(tmp_path):
    for name, key, value, message in REFUSED["wrong"]:
        path = written(tmp_path, changed(name, key, value))
        strategy = ["--distribution_strategy=ipu"] if name == INFERENCE else []
        assert_refused(
            plan, [(f"--config={path}", *strategy, each) for each in (f"--config={path}: ", message)]
        )


def test_what_is_no_configuration_is_refused_in_a_line(tmp_path):
    files = {"deep.json": ("[" * 9999, "nested too deeply"), **REFUSED["files"]}
    for name, (content, _) in files.items():
        (tmp_path / name).write_text(content)
    cases = [(f"--config={tmp_path / name}", message) for name, (_, message) in files.items()]
    cases.append((f"--config={tmp_path}", "is a folder. Give a file in it, or the name of a configuration"))
    assert_refused(plan, [*cases, (f"--config={tmp_path}/nothing.yml", "No such file")])


def test_an_entry_of_a_yaml_file_of_several(tmp_path):
    path = ROOT / "tests/graphcore/entries.yml"
    config = flags.parse([f"--config={path}:one", "--generated-data"])
    assert (config.model.num_hidden_layers, config.learning_rate) == (1, 5e-5)  # YAML reads a text
    assert config.num_accumulation_steps == 9 and config.train_batch_size == 2 * 9 * 2  # ceil(10 / 1.17)
    assert (config.average_sequences_per_pack, config.warmup_steps) == (1.17, 25) and config.pack_on_the_fly
    bad = tmp_path / "configs.yml"
    bad.write_text("a: [1\n")
    cases = [
        (f"{path}:two", "did you mean micro_batch_size"),
        (path, "holds defaults, one, two. Give one: --config=FILE:NAME"),
        (bad, "is not YAML"),
    ]
    assert_refused(lambda given: flags.parse([f"--config={given}", "--generated-data"]), cases)


# ------------------------------------------------------------------------------------------------------------
# Batches, pipelines, IPUs


def test_elsewhere_pipelines_and_options_of_ipus_are_notes(tmp_path):
    name = "tf2/pretrain_base_128_phase1"
    config, told = read(f"graphcore/{name}")
    assert (config.pipeline_stages, config.device_mapping) == (None, None)
    note = next(line for line in told if "only on an IPU" in line)
    assert "ipu_config.pipeline_stages, ipu_config.pipeline_device_mapping" in note
    assert planned(on_ipus(f"graphcore/{name}", "--pipeline-stages=3").config).devices == (0, 1, 0)
    values = changed(TINY, "partials_type", "half") | dict(scheduler="CLUSTERING", no_outlining=True)
    config, told = read(written(tmp_path, values), "--device-mapping=0,1,0")
    assert config.ipu == rules.Options()
    note = next(line for line in told if "only on an IPU" in line)
    assert all(name in note for name in ("--device_mapping", "partials_type", "scheduler", "no_outlining"))


def test_schedules_of_theirs_are_for_ipus(tmp_path):
    values = {**changed(INFERENCE, "pipeline_schedule", "Interleaved"), "device_mapping": [0, 1]}
    for backend, expected in (("ipu", "interleaved"), ("pipeline", "1f1b")):
        config, told = read(written(tmp_path, values), f"--distribution_strategy={backend}")
        assert config.pipeline_schedule == expected == planned(config).schedule
        assert any("Interleaved" in line and f"pipeline_schedule={expected}" in line for line in told)


def test_what_is_rounded_and_what_is_whole_is_said():
    _, told = on_ipus("graphcore/packed/pod16-closed")
    assert any("num_accumulation_steps=270, not 256" in line for line in told)
    assert any("a block is whole, and where its attention is" in line for line in told)
    five = {"pipeline_stages": "5", "device_mapping": "0,1,2,3,0"}
    for count, found, trains, expected in (
        (2048, five, True, 2050),
        (2050, five, True, 2050),
        (4, five, False, 5),
        (7, {"pipeline_stages": "1"}, True, 7),
        (7, five | {"pipeline_schedule": "sequential"}, True, 7),
    ):
        assert configuration_terms.rounded_up(count, found, trains) == expected


def test_what_the_command_line_says_wins():
    typed = ["--ipu_options=replicas=2 partials_type=float scheduler=clustering", "--recompute=none"]
    config, told = on_ipus("graphcore/tf1/pretrain_large_128_phase1", *typed)
    assert any(line.endswith("-> partials_type=float by the command line") for line in told)
    assert not any("without a key in the file" in line and "scheduler" in line for line in told)
    assert (config.ipu.replicas, config.ipu.partials_type, config.recompute) == (2, "float", "none")
    assert config.train_batch_size == 8 * 2050 * 4  # of theirs; twice the micro batches make it
    assert config.num_accumulation_steps == 4100


def test_saved_settings_become_options_of_ipus():
    config = plan(*OURS, "--ipu_options=replicas=2 executable_cache_path='a b' replicas=1")
    assert (config.ipu.replicas, config.ipu.executable_cache_path) == (1, "a b")
    saved = json.loads(config_lib.to_json(config)) | {"ipu_options": None}
    old = {"ipu_replicas": 2, "no_outlining": True, "executable_cache_path": "a b", "scheduler": "clustering"}
    found = config_lib.build_config([("saved", {**saved, **old})]).ipu
    assert (found.replicas, found.no_outlining, found.executable_cache_path) == (2, True, "a b")
    assert found.scheduler == "clustering" and found.min_remote_tensor_size == 128
    for words in ("1 0", "t F", "yes no", "True false"):
        on, off = words.split()
        found = rules.read(f"no_outlining={on} stochastic_rounding={off}")
        assert (found.no_outlining, found.stochastic_rounding) == (True, False), words


def test_options_of_ipus_go_one_by_one_over_those_of_the_same_name(tmp_path):
    """Wherever the ones and the others are given."""
    lines = [*OURS, "--ipu_options=replicas=4 partials_type=half available_memory_proportion=0.1"]
    (tmp_path / "below.flags").write_text("\n".join(lines))
    below = f"--flagfile={tmp_path}/below.flags"
    saved = config_lib.to_dict(plan(below))
    (tmp_path / "saved.json").write_text(json.dumps(saved))
    old = {"ipu_options": None, "ipu_replicas": 4, "partials_type": "half"}
    (tmp_path / "old.json").write_text(json.dumps(saved | old))
    code = f"import ml_collections\ndef get_config(): return ml_collections.ConfigDict({saved!r})\n"
    (tmp_path / "config.py").write_text(code)
    one, other = "ipu_options=replicas=1", "ipu_options=replicas=2"
    for words in (
        [below, f"--{other}"],
        [*lines, f"--{one}", f"--{other}"],
        [below, f"--{other}", "--available-memory-proportion=0.2"],
        *(
            [f"--config={tmp_path}/{name}", f"--{other}"]
            for name in ("below.flags", "saved.json", "old.json", "config.py")
        ),
        [f"--config={tmp_path}/config.py", f"--config.{one}", f"--config.{other}"],
    ):
        options = plan(*words).ipu
        assert (options.replicas, options.partials_type) == (2, "half"), words
    # Options of theirs are over flagfiles, and below what is typed.
    theirs = ("--available-memory-proportion=0.2", "--device-iterations=3")
    options = plan(below, "--ipu_options=scheduler=clustering device_iterations=2", *theirs).ipu
    assert (options.replicas, options.available_memory_proportion) == (4, "0.2")
    assert (options.scheduler, options.device_iterations) == ("clustering", 2)
    assert plan(below, "--ipu_options=").ipu == rules.Options()


def test_shares_come_as_a_list_or_a_text(tmp_path):
    stages = [["emb", "pos"], ["hid", "hid"], ["mlm", "nsp"]]
    values = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, micro_batch_size=2, warmup=0)
    values |= dict(task="pretraining", loss_scaling=1, pipeline_stages=stages, gradient_accumulation_count=6)
    for shares in ("0.1 0.2", [0.1, 0.2], "0.1,0.2"):
        path = written(tmp_path, {**values, "available_memory_proportion": shares})
        config = on_ipus(path, "--use_synthetic_data").config
        assert config.ipu.available_memory_proportion == "0.1,0.2"

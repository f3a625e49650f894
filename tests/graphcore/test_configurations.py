"""Graphcore's configurations: every shipped one builds, numbers come out, what is unknown is named."""

import json

import pytest

from official import config as config_lib
from official.cli import configs, flags
from official.config.model import BertConfig
from official.graphcore import configuration_terms
from official.graphcore.configuration_keys import IPU_ONLY, NOT_NEEDED
from official.graphcore.configurations import FAMILIES, family_of, flat
from official.io.errors import ConfigError
from tests.conftest import ROOT

SHIPPED = sorted(configs.theirs())


def task_flags(name: str) -> list[str]:
    """Returns what their commands of GLUE always say: the task."""
    return ["--task-name=mrpc"] if "glue" in name and "regression" not in name else []


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_builds(name):
    config, told = flags.read([f"--config={name}", "--plan", *task_flags(name)])
    assert config.train_batch_size % config.num_accumulation_steps == 0
    assert config.model.num_hidden_layers > 0 and len(told) > 5
    assert config.model.vocab_size in (30400, 30522, 30528, 30912)
    values = json.dumps(config_lib.to_json(config))  # what a run saves reads back
    assert "graphcore" in values


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_told_by_what_it_holds(name):
    source = flags.foreign.find(name)
    _, family = flags.foreign.read_theirs(source)
    folder = name.split("/")[1]
    expected = folder if folder != "packed" else "packed"
    assert family is not None and family.name == expected


def test_every_key_leads_somewhere():
    """To a setting, a size of the model, a term that is used, or it says why it has none."""
    sizes = BertConfig.__dataclass_fields__
    for family in FAMILIES.values():
        for key, row in family.table.items():
            if row.to.startswith("model."):
                assert row.to[6:] in sizes, key
            elif not row.to.startswith("@"):
                assert (
                    row.to in config_lib.FIELDS or row.to == IPU_ONLY or row.to == NOT_NEEDED and row.why
                ), key
        assert set(family.defaults) <= set(family.table)


def test_a_configuration_of_ours_is_ours():
    assert family_of({"learning_rate": 1.0, "beta_1": 0.5, "epsilon": 1e-3}) is None
    assert family_of({"lerning_rate": 1.0}) is None
    saved = json.loads(config_lib.to_json(flags.parse(["--config=mlperf_v100"])))
    assert family_of(saved) is None


# Name -> settings and sizes, from the published tables: micro x accumulation x replicas, steps, rates.
NUMBERS = {
    "tf1/pretrain_base_128_phase1": (32 * 510 * 4, 7032, 0.006, 2000, "lamb", "512", 0.1),
    "tf1/groupbert/pretrain_base_groupbert_384_POD64": (4 * 510 * 16, 1362, 0.01, 178, "lamb", "512", 0.0),
    "tf1/groupbert/pretrain_medium_groupbert_128_adam": (
        24 * 20 * 2,
        416667,
        0.0015,
        10000,
        "mpadamw",
        "512",
        0,
    ),
    "tf1/groupbert/pretrain_tiny_groupbert_128": (512, 7032, 0.02, 2000, "lamb", "1", 0.0),
    "tf2/pretrain_large_384_phase2": (2 * 2040 * 4, 34_239_360 // 16320, 0.002828, 270, "lamb", "32768", 0.1),
    "popart/pretrain_large_512": (16384, 2137, 0.002828427125, 274, "lamb", "64", 0.1),
    "popart/mk2/packed/packed_pretrain_base_384": (9600, 2137, 0.002828427125, 274, "lamb", "128", 0.1),
    "packed/pod256-closed": (32 * 36 * 3, 700, 0.0035, 0, "lamb", "10", 0.1),
    "pytorch/pretrain_large_512_POD64": (
        2 * 512 * 16,
        2137,
        0.002828,
        int(0.128 * 2137),
        "lamb",
        "16384",
        0.1,
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_the_published_ones(name):
    config = flags.parse([f"--config=graphcore/{name}", "--plan"])
    batch, steps, rate, warmup, optimizer, scale, dropout = NUMBERS[name]
    assert (config.train_batch_size, config.num_steps_per_epoch) == (batch, steps)
    assert (config.learning_rate, config.warmup_steps) == (rate, warmup)
    assert (config.optimizer_type, config.loss_scale) == (optimizer, scale)
    assert config.model.hidden_dropout_prob == dropout


def test_models_are_those_of_their_programs():
    tf1 = flags.parse(["--config=graphcore/tf1/pretrain_base_128_phase1", "--plan"]).model
    assert (tf1.layer_norm_eps, tf1.use_qkv_bias, tf1.use_cls_layer) == (1e-3, False, False)
    group = flags.parse(["--config=pretrain_base_groupbert_128", "--plan"]).model
    assert (group.block_type, group.use_qkv_bias, group.use_attention_projection_bias) == (
        "groupbert",
        True,
        True,
    )
    tf2 = flags.parse(["--config=graphcore/tf2/squad_large", "--plan"]).model
    assert (tf2.num_hidden_layers, tf2.hidden_size, tf2.intermediate_size) == (24, 1024, 4096)


def test_powers_variants_and_schedules_by_step(tmp_path):
    values = {
        **json.loads((ROOT / "configs/graphcore/tf1/pretrain_tiny_128_lamb.json").read_text()),
        "lr_power": [0.5, 2],
        "use_nvlamb": True,
        "use_debiasing": True,
        "reduction_type": "sum",
        "loss_scaling_by_step": {"0": 1, "10": 8},
        "steps_per_ckpts": 25,
        "steps_per_logs": 10,
    }
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values))
    config = flags.parse([f"--config={path}", "--plan"])
    assert (config.warmup_power, config.poly_power, config.clip_scope) == (0.5, 2.0, "global")
    assert (config.bias_correction, config.loss_normalization) == (True, "local_sum")
    assert json.loads(config.loss_scale) == {"0": 1, "10": 8}
    assert config.checkpoint_every_steps == 30  # whole loops
    values |= {"lr_schedule": "custom", "lr_schedule_by_step": {"0": 1e-3, "5": 1e-4}}
    path.write_text(json.dumps(values))
    assert flags.parse([f"--config={path}", "--plan"]).lr_schedule.startswith("{")


def changed(name: str, key: str, value) -> str:
    """Returns the JSON of a shipped configuration with another value; dots in a key go into its objects."""
    values = json.loads((ROOT / f"configs/graphcore/{name}.json").read_text())
    *outer, last = key.split(".")
    inner = values
    for each in outer:
        inner = inner.setdefault(each, {})
    inner[last] = value
    return json.dumps(values)


def message_of(*arguments: str) -> str:
    """Returns the message of a command line that is refused; it is one line."""
    with pytest.raises(ConfigError) as error:
        flags.parse([*arguments, "--plan"])
    assert "\n" not in str(error.value)
    return str(error.value)


TYPOS = {
    ("tf1/pretrain_tiny_128_lamb", "micro_batch_sise"): "micro_batch_size",
    ("tf2/squad_base", "optimizer_optz"): "optimizer_opts.name",
    ("tf2/squad_base", "optimizer_opts.learning_rate.warmup_frc"): "optimizer_opts.learning_rate.warmup_frac",
    ("tf2/pretrain_tiny_128_phase1", "bert_config.hiden_size"): "bert_config.hidden_size",
    ("tf2/pretrain_tiny_128_phase1", "global_batch.replica"): "global_batch.replicas",
    ("popart/squad_base_384", "attention_head"): "attention_heads",
    ("popart/squad_base_384", "validation_config.input_file"): "validation_config.input_files",
    ("packed/pod16-closed", "batch_sizes"): "batch_size",
    ("packed/pod16-closed", "lr_bert_schedule.init_r"): "lr_bert_schedule.init_lr",
}


@pytest.mark.parametrize("name,key", TYPOS)
def test_unknown_keys_are_named_with_the_nearest_known_one(name, key, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(changed(name, key, 1))
    label = FAMILIES[name.split("/")[0]].label
    assert message_of(f"--config={path}") == (
        f"--config={path}: {key!r} (did you mean {TYPOS[name, key]}?) is no key of Graphcore's {label} files."
    )


TINY, TF2 = "tf1/pretrain_tiny_128_lamb", "tf2/pretrain_tiny_128_phase1"


@pytest.mark.parametrize(
    "name,key,value,message",
    [
        (TINY, "optimizer", "lam", "optimizer='lam', expected one of sgd, momentum, adam, "),
        (TINY, "hidden_size", "big", "hidden_size='big', expected a number"),
        (TINY, "hidden_size", 10**12, "model: hidden_size=1000000000000, expected at most 65,536"),
        (TINY, "micro_batch_size", [1], "micro_batch_size=[1], expected a number"),
        (TINY, "micro_batch_size", -1, "micro_batch_size=-1, expected a whole number of 1 or more"),
        (TINY, "replicas", 0, "replicas=0, expected a whole number of 1 or more"),
        (TINY, "num_train_steps", 10**25, "is too large a number"),
        (TINY, "base_learning_rate", float("nan"), "NaN is no JSON number"),
        (TINY, "use_prediction_bias", 1, "use_prediction_bias=1, expected true or false"),
        (TF2, "dataset_dir", 5, "dataset_dir=5, expected a text"),
        (TF2, "global_batch", 5, "global_batch=5, expected an object of keys"),
        ("popart/pretrain_base_128", "micro_batch_size", 0, "micro_batch_size=0, expected a whole number"),
    ],
)
def test_a_wrong_value_names_file_and_key(name, key, value, message, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(changed(name, key, value))
    found = message_of(f"--config={path}")
    assert found.startswith(f"--config={path}: ") and message in found


FILES = {
    "empty.json": ("", "not a JSON file, line 1 column 1"),
    "list.json": ("[1, 2]", "expected an object, got a list"),
    "twice.json": (
        '{"micro_batch_size": 1, "micro_batch_size": 2}',
        "the key 'micro_batch_size' is there twice",
    ),
    "deep.json": ("[" * 9999, "nested too deeply"),
    "empty.yml": ("", "is empty, expected names with keys"),
    "list.yml": ("- 1", "holds a list, expected names with keys"),
    "twice.yml": ("one:\n  hidden_size: 1\n  hidden_size: 2\n", "the key 'hidden_size' is there twice"),
    "itself.yml": ("a: &a [*a]\n", "unknown setting 'a'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_configuration_is_refused_in_a_line(name, tmp_path):
    content, message = FILES[name]
    (tmp_path / name).write_text(content)
    assert message in message_of(f"--config={tmp_path / name}")


def test_what_is_no_file_is_refused_in_a_line(tmp_path):
    assert "is a folder. Give a file of it, or a name" in message_of(f"--config={tmp_path}")
    assert "No such file" in message_of(f"--config={tmp_path}/nothing.yml")


def test_the_prediction_bias_is_that_of_the_model(tmp_path):
    path = tmp_path / "c.json"
    for name, key in ((TINY, "use_prediction_bias"), (TF2, "use_prediction_bias")):
        for value in (True, False):
            path.write_text(changed(name, key, value))
            config, told = flags.read([f"--config={path}", "--plan"])
            assert config.model.use_prediction_bias is value
            assert f"-> model.use_prediction_bias={str(value).lower()}" in "\n".join(told)
    path.write_text(changed("popart/packed/packed_pretrain_tiny_128", "projection_bias", False))
    assert not flags.parse([f"--config={path}", "--plan"]).model.use_prediction_bias
    base = flags.parse(["--config=graphcore/tf1/pretrain_base_128_phase1", "--plan"])
    assert base.model.use_prediction_bias


YAML = """
defaults: &defaults
  vocab_size: 30522
  hidden_size: 64
  num_attention_heads: 2
  optimizer: LAMB
  packed_data: true
  packing_factor: {128: 1.17, 384: 1.7}
  sequence_length: 128
  mask_tokens: 20
  lr_warmup: 0.25
one:
  <<: *defaults
  num_hidden_layers: 1
  micro_batch_size: 2
  gradient_accumulation: 10
  replication_factor: 2
  training_steps: 100
  learning_rate: 5e-5
two:
  <<: *defaults
  num_hidden_layers: 2
  micro_bach_size: 3
"""


def test_an_entry_of_a_yaml_file_of_several(tmp_path):
    path = tmp_path / "configs.yml"
    path.write_text(YAML)
    config = flags.parse([f"--config={path}:one", "--generated-data"])
    assert (config.model.num_hidden_layers, config.learning_rate) == (1, 5e-5)  # YAML reads a text
    assert config.num_accumulation_steps == 9 and config.train_batch_size == 2 * 9 * 2  # ceil(10 / 1.17)
    assert (config.average_sequences_per_pack, config.warmup_steps, config.pack_on_the_fly) == (
        1.17,
        25,
        True,
    )
    with pytest.raises(ConfigError, match="did you mean micro_batch_size"):
        flags.parse([f"--config={path}:two", "--generated-data"])
    with pytest.raises(ConfigError, match="holds defaults, one, two. Give one: --config=FILE:NAME"):
        flags.parse([f"--config={path}", "--generated-data"])
    path.write_text("a: [1\n")
    with pytest.raises(ConfigError, match="is not YAML"):
        flags.parse([f"--config={path}"])


@pytest.mark.parametrize(
    "terms,expected",
    [
        (dict(micro=3, accumulation=4, replicas=2), (24, 8)),
        (dict(micro=3, replicas=2, **{"global": 48}), (48, 16)),
        (dict(micro=3), (3 * 5, 5)),  # the rest as it was
        ({}, None),
    ],
)
def test_batches_on_one_device(terms, expected):
    base = {"num_gpus": 1, "train_batch_size": 10, "num_accumulation_steps": 5}
    found = configuration_terms.settle_batch(terms, base)
    assert (tuple(found.values()) or None) == expected


def test_nested_keys_have_dots():
    assert flat({"a": {"b": {"c": 1}}, "packing_factor": {128: 2}}) == {
        "a.b.c": 1,
        "packing_factor": {128: 2},
    }

"""A model's configuration as Google's and Hugging Face's files give it: what is read, refused, warned of."""

import json

import pytest

from official import config as config_lib
from official.checkpoint.containers import hf_folder
from official.io.errors import ConfigError
from tests.fixtures import ROOT
from tests.refusals import assert_refused, refused

SIZES = json.loads((ROOT / "configs/models/bert_base.json").read_text()) | {"hidden_act": "gelu_new"}
# The keys beside the sizes that BertConfig().save_pretrained and .to_dict() of these versions of transformers
# write, and those of older ones.
SAVED = json.loads((ROOT / "tests/config/transformers_configs.json").read_text())


def test_what_transformers_writes_is_read(tmp_path, caplog):
    path = tmp_path / "config.json"
    for version, keys in SAVED.items():
        path.write_text(json.dumps({**SIZES, **keys}))
        run = {"bert_config_file": str(path), "model_dir": "m", "use_synthetic_data": True}
        with caplog.at_level("WARNING"):
            model = config_lib.build_config([("test", run)]).model
        assert model.vocab_size == 30522 and not caplog.records, version
        assert hf_folder.sizes(str(tmp_path))["num_hidden_layers"] == 12, version


def test_what_is_refused_is_one_line(tmp_path):
    """Sizes that cannot be; and, in folders of Hugging Face too, keys that change the mathematics."""

    def of_folder(values):
        (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "bert", **values}))
        hf_folder.sizes(str(tmp_path))

    cases = [(json.loads(values), message) for values, message in refused("config/refused_models.txt")]
    assert_refused(lambda values: config_lib.bert_config_from_dict({**SIZES, **values}, "c"), cases)
    of_others = [case for case in cases if not case[0].keys() & vars(config_lib.BertConfig()).keys()]
    assert len(of_others) == 8
    assert_refused(of_folder, of_others)
    chunks = {**SIZES, "model_type": "bert", "chunk_size_feed_forward": 64}  # change nothing
    assert config_lib.bert_config_from_dict(chunks, "c").hidden_size == 768


def test_unknown_keys_are_errors_in_files_of_people_and_warned_of_in_those_of_hugging_face(caplog):
    with pytest.raises(ConfigError, match="c: unknown key 'flash_rope'"):
        config_lib.bert_config_from_dict({**SIZES, "flash_rope": 1}, "c")
    with caplog.at_level("WARNING"):
        config_lib.bert_config_from_dict({**SIZES, "flash_rope": 1, "model_type": "bert"}, "c")
    assert "c: the key 'flash_rope' is unknown and ignored" in caplog.text


def test_a_misspelt_size_is_an_error_in_both():
    sizes = {key: value for key, value in SIZES.items() if key != "num_hidden_layers"}
    for more in ({}, {"architectures": ["BertModel"]}):
        with pytest.raises(ConfigError, match="did you mean num_hidden_layers"):
            config_lib.bert_config_from_dict({**sizes, "num_hiden_layers": 6, **more}, "c")

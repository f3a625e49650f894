"""A model's configuration as Google's and Hugging Face's files give it: what is read, refused, warned of."""

import json

import pytest

from official import config as config_lib
from official.checkpoint.containers import hf_folder
from official.io.errors import ConfigError

SIZES = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}
# The keys beside the sizes that BertConfig().save_pretrained and .to_dict() of these versions of transformers
# write.
SAVED = {
    "4.57.6": {
        "classifier_dropout": None,
        "layer_norm_eps": 1e-12,
        "model_type": "bert",
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "transformers_version": "4.57.6",
        "use_cache": True,
    },
    "5.23.0": {
        "add_cross_attention": False,
        "bos_token_id": None,
        "classifier_dropout": None,
        "eos_token_id": None,
        "is_decoder": False,
        "layer_norm_eps": 1e-12,
        "model_type": "bert",
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "transformers_version": "5.23.0",
        "use_cache": True,
    },
    "5.23.0, in full": {
        "transformers_version": "5.23.0",
        "architectures": None,
        "output_hidden_states": False,
        "return_dict": True,
        "dtype": None,
        "chunk_size_feed_forward": 0,
        "is_encoder_decoder": False,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "problem_type": None,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "use_cache": True,
        "classifier_dropout": None,
        "is_decoder": False,
        "add_cross_attention": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": True,
        "_name_or_path": "",
        "model_type": "bert",
        "output_attentions": False,
    },
    "4.57.6, in full": {
        "return_dict": True,
        "output_hidden_states": False,
        "torchscript": False,
        "dtype": None,
        "pruned_heads": {},
        "tie_word_embeddings": True,
        "chunk_size_feed_forward": 0,
        "is_encoder_decoder": False,
        "is_decoder": False,
        "cross_attention_hidden_size": None,
        "add_cross_attention": False,
        "tie_encoder_decoder": False,
        "architectures": None,
        "finetuning_task": None,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "task_specific_params": None,
        "problem_type": None,
        "tokenizer_class": None,
        "prefix": None,
        "bos_token_id": None,
        "pad_token_id": 0,
        "eos_token_id": None,
        "sep_token_id": None,
        "decoder_start_token_id": None,
        "max_length": 20,
        "min_length": 0,
        "do_sample": False,
        "early_stopping": False,
        "num_beams": 1,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "length_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "encoder_no_repeat_ngram_size": 0,
        "bad_words_ids": None,
        "num_return_sequences": 1,
        "output_scores": False,
        "return_dict_in_generate": False,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
        "remove_invalid_values": False,
        "exponential_decay_length_penalty": None,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
        "num_beam_groups": 1,
        "diversity_penalty": 0.0,
        "_name_or_path": "",
        "transformers_version": "4.57.6",
        "tf_legacy_loss": False,
        "use_bfloat16": False,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "use_cache": True,
        "classifier_dropout": None,
        "model_type": "bert",
        "output_attentions": False,
    },
    "of older versions and of models": {
        "architectures": ["BertForSequenceClassification"],
        "attn_implementation": "sdpa",
        "directionality": "bidi",
        "finetuning_task": "mrpc",
        "gradient_checkpointing": False,
        "language": "english",
        "model_type": "bert",
        "name": "Bert",
        "num_labels": 3,
        "output_past": True,
        "pooler_fc_size": 768,
        "pooler_type": "first_token_transform",
        "problem_type": "single_label_classification",
        "torch_dtype": "float32",
    },
}


@pytest.mark.parametrize("version", SAVED)
def test_what_transformers_writes_is_read(version, tmp_path, caplog):
    values = {**SIZES, **SAVED[version]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    with caplog.at_level("WARNING"):
        model = config_lib.build_config(
            [("test", {"bert_config_file": str(path), "model_dir": "m", "use_synthetic_data": True})]
        ).model
    assert model.vocab_size == 30522 and not caplog.records
    assert hf_folder.sizes(str(tmp_path))["num_hidden_layers"] == 12


@pytest.mark.parametrize(
    "values, message",
    [
        ({"is_decoder": True}, "is_decoder=True is not supported, only False .a decoder's tokens"),
        ({"add_cross_attention": True}, "layers that BERT does not have"),
        ({"position_embedding_type": "relative_key"}, "change the attention"),
        ({"pruned_heads": {"1": [2]}}, "layers of fewer heads"),
        ({"is_encoder_decoder": True}, "two models"),
        ({"tie_word_embeddings": False}, "word embedding table"),
        ({"model_type": "roberta"}, "only 'bert'"),
        ({"quantization_config": {"bits": 4}}, "not floating-point"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "code of its own"),
        ({"pad_token_id": 1}, "id 0"),
    ],
)
def test_what_changes_the_mathematics_is_refused_with_the_reason(values, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "bert", **values}))
    for read in (
        lambda: config_lib.bert_config_from_dict({**SIZES, **values}, "c"),
        lambda: hf_folder.sizes(str(tmp_path)),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            read()
        assert "\n" not in str(error.value)


def test_a_chunk_size_changes_nothing():
    assert (
        config_lib.bert_config_from_dict(
            {**SIZES, "model_type": "bert", "chunk_size_feed_forward": 64}, "c"
        ).hidden_size
        == 768
    )


def test_unknown_keys_are_errors_in_files_of_people_and_warned_of_in_those_of_hugging_face(caplog):
    with pytest.raises(ConfigError, match="c: unknown key 'flash_rope'"):
        config_lib.bert_config_from_dict({**SIZES, "flash_rope": 1}, "c")
    with caplog.at_level("WARNING"):
        config_lib.bert_config_from_dict({**SIZES, "flash_rope": 1, "model_type": "bert"}, "c")
    assert "c: the key 'flash_rope' is not known here and ignored" in caplog.text


def test_a_misspelt_size_is_an_error_in_both():
    sizes = {key: value for key, value in SIZES.items() if key != "num_hidden_layers"}
    for more in ({}, {"architectures": ["BertModel"]}):
        with pytest.raises(ConfigError, match="did you mean num_hidden_layers"):
            config_lib.bert_config_from_dict({**sizes, "num_hiden_layers": 6, **more}, "c")

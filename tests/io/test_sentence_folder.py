"""Folders of sentence-transformers: what is written is read back; weights of Dense modules in all forms; what
there is not here is refused by name.

data/dense_zip.bin and data/dense_legacy.bin are the state_dict of a Dense module, [[1 2 3] [4 5 6]] and
[7 8], as PyTorch saves it since 1.6, and before.
"""

import dataclasses
import json
import pathlib
import shutil
import zipfile

import numpy as np
import pytest

from official.io import model_folder, sentence_folder
from official.io.errors import ConfigError
from official.io.sentence_folder import Dense, EmbeddingSettings
from tests.refusals import assert_refused

DATA = pathlib.Path(__file__).parent / "data"


def write(folder: pathlib.Path, settings: EmbeddingSettings) -> pathlib.Path:
    for name, content in sentence_folder.contents(settings, 3).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def dense(folder: pathlib.Path, form: str) -> Dense:
    """Returns a Dense module whose weights are one of DATA's files."""
    folder.mkdir()
    shutil.copy(DATA / f"dense_{form}.bin", folder / "pytorch_model.bin")
    return Dense(3, 2, True, "gelu", str(folder))


def test_what_is_written_is_read_back(tmp_path):
    first = dense(tmp_path / "zip", "zip")
    prompts = {"query": "query: ", "passage": ""}
    settings = EmbeddingSettings("max", True, 64, "dot", prompts, "query", (first,), True)
    found = sentence_folder.read_settings(str(write(tmp_path / "m", settings)))
    kernel_IO, bias_O = found.dense[0].weights()
    np.testing.assert_array_equal(kernel_IO, [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(bias_O, [7, 8])
    again = dataclasses.replace(found.dense[0], folder=first.folder)
    assert dataclasses.replace(found, dense=(again,)) == settings
    assert not sentence_folder.read_settings(str(tmp_path / "m"), lower_case=True).lower_case
    assert sentence_folder.read_settings(str(tmp_path)) is None
    assert found.size(3) == 2 and EmbeddingSettings().size(3) == 3


def test_weights_are_those_of_any_version_of_pytorch(tmp_path):
    found = [dense(tmp_path / form, form).weights() for form in ("zip", "legacy")]
    for kernel_IO, bias_O in found:
        np.testing.assert_array_equal(kernel_IO.T, [[1, 2, 3], [4, 5, 6]])
        np.testing.assert_array_equal(bias_O, [7, 8])
    content = (DATA / "dense_legacy.bin").read_bytes()
    path = tmp_path / "legacy" / "pytorch_model.bin"
    found_in = Dense(3, 2, True, "tanh", str(path.parent))

    def read_bytes(content: bytes) -> None:
        path.write_bytes(content)
        found_in.weights()

    def read_zip(content: bytes, kind: int) -> None:
        with zipfile.ZipFile(path, "w", kind) as file:
            file.writestr("a/data.pkl", content)
        found_in.weights()

    read_bytes(content.replace(b"_v2", b"_v9"))  # the name is read, and never called
    said = "pytorch_model.bin cannot be read"
    assert_refused(read_bytes, [(content[:-9], said), (b"no weights", said)])
    # A name of 2^64 empty tuples, which would be hashed; and a file that may be a bomb.
    nested = b"\x80\x02})" + b"q\x00h\x00\x86" * 64 + b"K\x01s."
    cases = [(nested, zipfile.ZIP_STORED, f"{said} .*not a text")]
    assert_refused(read_zip, [*cases, (b"\x80\x02}.", zipfile.ZIP_DEFLATED, f"{said} .*compressed")])
    with pytest.raises(ConfigError, match="holds .*says"):
        Dense(3, 4, True, "tanh", str(tmp_path / "zip")).weights()


def test_prompts_are_found_by_name():
    settings = EmbeddingSettings(prompts={"query": "q: ", "document": "d: "}, default_prompt_name="query")
    cases = [((), "q: "), (("own: ",), "own: "), (("",), ""), ((None, "passage"), "d: ")]
    assert [settings.prompt(*given) for given, _ in cases] == [expected for _, expected in cases]
    with pytest.raises(ConfigError, match="prompt_name='quer' .did you mean query.*Allowed: query, document"):
        settings.prompt(None, "quer")
    with pytest.raises(ConfigError, match="include_prompt=false is not supported"):
        dataclasses.replace(settings, include_prompt=False).prompt()


def test_settings_of_the_transformer_that_change_what_it_reads_or_gives_are_refused(tmp_path):
    """sentence-transformers gives them to the classes of transformers."""
    folder = write(tmp_path / "m", EmbeddingSettings(max_seq_length=64))
    path = folder / "sentence_bert_config.json"
    told = json.loads(path.read_text())
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    usual = {"modality_config": {"text": text}, "tokenizer_args": {}}
    for more in (usual, {"model_args": {"dtype": "bfloat16"}}):
        path.write_text(json.dumps({**told, **more}))
        assert sentence_folder.read_settings(str(folder)).max_seq_length == 64
    for key, value in (
        ("tokenizer_args", {"model_max_length": 128}),
        ("processor_kwargs", {"truncation_side": "left"}),
        ("config_args", {"num_hidden_layers": 6}),
        ("tokenizer_name_or_path", "somebody/bert"),
        ("query_expansion", {"strategy": "fixed", "length": 32}),
        ("modality_config", {"text": {**text, "method_output_name": ["hidden_states", -2]}}),
        ("modality_config", {"text": text, "message": {**text, "format": "flat"}}),
        ("model_args", {"subfolder": "other"}),
    ):
        path.write_text(json.dumps({**told, key: value}))
        with pytest.raises(ConfigError, match=f"sentence_bert_config.json: {key}.* is not supported, only"):
            sentence_folder.read_settings(str(folder))


def test_what_there_is_not_here_is_refused_by_name(tmp_path):
    settings = EmbeddingSettings(dense=(dense(tmp_path / "d", "zip"),), normalize=True)
    folder = write(tmp_path / "m", settings)
    own, ours = "config_sentence_transformers.json", "sentence_transformers.models.Pooling"
    mean, last = '"pooling_mode_mean_tokens": true', '"pooling_mode": "lasttoken"'
    cases = [
        ("modules.json", "models.Dense", "models.LSTM", "the modules Transformer, Pooling, LSTM, Normalize"),
        ("modules.json", ours, "custom_st.Pooling", "Transformer, custom_st.Pooling, Dense, Normalize"),
        ("modules.json", '"2_Dense"', '"../d"', "the path '../d' leads out of the folder"),
        ("modules.json", '"path": ""', '"path": "/etc"', "the path '/etc' leads out of the folder"),
        ("modules.json", '"path": ""', '"path": null', '"path" is null, expected a text'),
        ("modules.json", '"name": "3"', '"name": "2"', "modules have the same name: 0, 1, 2, 2"),
        ("1_Pooling/config.json", mean, last, "lasttoken"),
        ("2_Dense/config.json", "GELU", "Softplus", "Softplus is not supported, only Identity, Tanh"),
        (own, '"cosine"', '"hamming"', "similarity_fn_name='hamming'"),
        (own, '_name": null', '_name": "q"', "default_prompt_name='q' is none"),
        ("3_Normalize/config.json", "sentence_embedding", "token_embeddings", "module_input_name='token_emb"),
    ]
    (folder / "3_Normalize").mkdir()
    (folder / "3_Normalize" / "config.json").write_text('{"module_input_name": "sentence_embedding"}')
    assert sentence_folder.read_settings(str(folder)).normalize

    def read(name: str, before: str, after: str) -> None:
        path = folder / name
        content = path.read_text()
        assert before in content, name
        path.write_text(content.replace(before, after))
        try:
            sentence_folder.read_settings(str(folder))
        finally:
            path.write_text(content)

    assert_refused(read, cases)
    told = (folder / "modules.json").read_text()
    assert json.loads(told)[2]["path"] == "2_Dense"
    (folder / "modules.json").write_text(told.replace('"path": ""', '"path": "."'))
    assert sentence_folder.transformer_folder(str(folder)) == str(folder)


def test_settings_of_a_cross_encoder_that_there_are_not_here_are_refused_by_name(tmp_path):
    written = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(written))
    usual = {"transformer_task": "sequence-classification", "module_output_name": "scores"}

    def activation(more: dict) -> str:
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({**usual, **more}))
        return model_folder.cross_encoder_activation(str(tmp_path))

    cases = [
        ({"processing_kwargs": {"text": {"max_length": 8}}}, "processing_kwargs={'text'"),
        ({"processor_kwargs": {"model_max_length": 8}}, "processor_kwargs={'model_max_length'"),
        ({"max_seq_length": 8}, "max_seq_length=8 is not supported, only None .the length is"),
        ({"do_lower_case": True}, "do_lower_case=True is not supported"),
        ({"model_args": {"variant": "fp16"}}, "model_args.*variant='fp16' is not supported"),
    ]
    assert_refused(activation, cases)
    assert activation({}) == written["activation_fn"]
    own = "sentence_transformers.base.modules."
    kinds = [f"{own}transformer.Transformer", f"{own}dense.Dense"]
    modules = [{"name": str(number), "path": "", "type": kind} for number, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules[:1]))
    assert activation({}) == written["activation_fn"]
    (tmp_path / "modules.json").write_text(json.dumps(modules))  # a Dense may change the scores
    with pytest.raises(ConfigError, match="Dense of a CrossEncoder are not supported, only one Transformer"):
        model_folder.labels_of_config(str(tmp_path))
    (tmp_path / "modules.json").unlink()
    written |= {"default_prompt_name": ["query"], "prompts": {"query": ""}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match="default_prompt_name=.* is not supported, only null"):
        activation({})

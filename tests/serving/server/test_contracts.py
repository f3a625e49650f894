"""Made-up models behind the server, asked by the clients and checked by the messages of others."""

import base64
import concurrent.futures
import contextlib
import json

import numpy as np
import pytest

from official import inference
from official.inference.rows import Rows
from official.io.errors import ConfigError
from official.serving.server import protocols, reading, versions
from tests.serving.server.servers import LOADING, StandIn, running, write_model

QUESTIONS = [
    {"question": f"word{n}?", "context": " ".join(f"word{(7 * n + k) % 50 + 5}" for k in range(3 + 9 * n))}
    for n in range(6)
]
ASKED = [(each["question"], each["context"]) for each in QUESTIONS]
PREDICT = "/v1/models/bert:predict"
TEXTS = ["word7 word8 [MASK]", "[MASK] word9 word10 [MASK] word11"]


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
    """A folder with a model for each method."""
    folder = tmp_path_factory.mktemp("models")
    for head in ("answer", "classify", "fill_mask"):
        write_model(folder / head, head)
    (folder / "classify" / "labels.json").write_text('{"labels": ["bad", "good"]}')
    return folder


@pytest.fixture(name="model", scope="module")
def fixture_model(folder):
    """What `server` serves, loaded anew."""
    return inference.load(str(folder / "answer"))


@pytest.fixture(name="server", scope="module")
def fixture_server(folder):
    with running(folder / "answer") as server:
        yield server


@pytest.fixture(name="classifier", scope="module")
def fixture_classifier(folder):
    with running(folder / "classify") as server:
        yield server


def close(found, expected) -> None:
    """Compares numbers, texts, and lists and objects of them: numbers to what the sizes of batches change."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        close(list(found.values()), [expected[key] for key in found])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    else:
        assert found == expected


def test_answers_are_those_of_the_model(server, model):
    status, found = server.predict({"instances": QUESTIONS})
    assert status == 200
    answers = dict(zip(("text", "score", "start", "end"), zip(*model.answer_all(ASKED))))
    close({name: [row[name] for row in found["predictions"]] for name in found["predictions"][0]}, answers)
    columns = {name: [row[name] for row in QUESTIONS] for name in QUESTIONS[0]}
    close(server.predict({"inputs": columns}), (200, {"outputs": answers}))
    for question, context in (("", "word7"), ("word7?", ""), ("", ""), (" ", "\n")):
        status, found = server.predict({"instances": [{"question": question, "context": context}]})
        assert status == 200 and found["predictions"][0]["text"] in ("", "word7")
    assert server.predict({"signature_name": "embed", "instances": [""]})[0] == 200


def test_many_clients_at_once_get_what_one_alone_gets(server):
    bodies = [{"instances": [QUESTIONS[n % 6], QUESTIONS[n % 5]]} for n in range(24)]
    bodies += [{"signature_name": "embed", "inputs": [f"word{n}"]} for n in range(8)]
    alone = [server.predict(body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(server.predict, bodies))
    for (status, found), (_, expected) in zip(together, alone):
        assert status == 200
        close(found, expected)
    assert b'bert_batch_sequences_bucket{le="2.0",signature="answer"}' in server.request("GET", "/metrics")[2]


def test_vectors_and_tokens(server, model):
    texts = ["word7", "word8 word9"]
    for body, key in (({"inputs": {"text": texts}}, "outputs"), ({"instances": texts}, "predictions")):
        _, found = server.predict({"signature_name": "embed", **body})
        np.testing.assert_allclose(found[key], model.embed(texts), atol=1e-5)
    ids = {"input_ids": [[2, 7, 3, 8, 3], [2, 9, 3, 0, 0]], "input_mask": [[1] * 5, [1, 1, 1, 0, 0]]}
    ids["segment_ids"] = [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
    _, found = server.predict({"signature_name": "tensors", "inputs": ids})
    made = Rows(np.int32([2, 7, 3, 8, 3, 2, 9, 3]), np.int32([0, 0, 0, 1, 1, 0, 0, 0]), np.int32([5, 3]))
    for name, logits in model.outputs("answer", made).items():
        expected = logits[:5], [*logits[5:], 0, 0]
        np.testing.assert_allclose(found["outputs"][name], expected, atol=1e-5)
    assert server.request("GET", "/metrics")[2].count(b"bert_tokens_total 0.0") == 0


def test_labels_and_words(folder, classifier):
    rows = [{"sentence_a": "word7", "sentence_b": "word8"}, {"sentence_a": "word9", "sentence_b": ""}]
    _, found = classifier.predict({"instances": rows})
    expected = classifier.server.versions.served._model.classify([["word7", "word8"], ["word9"]])
    labels = [[row["label"], row["score"]] for row in found["predictions"]]
    close(labels, [list(each) for each in expected])
    assert found["predictions"][0]["labels"] == ["bad", "good"]
    ids = {"input_ids": [[2, 7, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
    _, found = classifier.predict({"signature_name": "tensors", "inputs": ids})
    assert np.shape(found["outputs"]) == (1, 2)
    with running(folder / "fill_mask") as server:
        model = server.server.versions.served._model
        with pytest.raises(ConfigError, match="top_k=-1, expected 1 or more"):
            model.fill_mask(TEXTS[0], -1)
        _, found = server.predict({"instances": TEXTS})
        for row, masks in zip(found["predictions"], map(model.fill_mask, TEXTS)):
            pairs = [list(map(list, zip(*each))) for each in zip(row["tokens"], row["scores"])]
            close(pairs[: len(masks)], [list(map(list, words)) for words in masks])
        assert found["predictions"][0]["tokens"][1] == [""] * 5
        assert found["predictions"][0]["scores"][1] == [0] * 5
        for text, message in (("no mask", "no [MASK]"), ("[MASK] " + "word7 " * 50, "Shorten the text")):
            status, told = server.predict({"instances": [text]})
            assert status == 400 and message in told["error"]
        _, found = server.predict({"signature_name": "tensors", "inputs": ids})
        assert np.shape(found["outputs"]) == (1, 3, 60)


def test_rows_that_were_cut_are_named(server, classifier):
    long, v2 = "word7 " * 60, "/v2/models/bert/infer"
    tensors = [
        {"name": name, "shape": [2], "datatype": "BYTES", "data": ["word7", text]}
        for name, text in (("sentence_a", "word8"), ("sentence_b", long))
    ]
    for asked, path, body, expected in (
        (server, PREDICT, {"signature_name": "embed", "instances": ["word7", long, long]}, "1,2"),
        (server, PREDICT, {"instances": [QUESTIONS[0], {"question": long, "context": "word7"}]}, "1"),
        (server, PREDICT, {"instances": [{"question": "word7", "context": long}]}, None),  # has windows
        (server, "/v1/embeddings", {"input": [long, "word7"]}, "0"),
        (classifier, PREDICT, {"instances": [{"sentence_a": long}, {"sentence_a": "word7"}]}, "0"),
        (classifier, PREDICT, {"instances": [{"sentence_a": "word7 " * 38}]}, None),
        (classifier, PREDICT, {"instances": [{"sentence_a": "word7 " * 39}]}, "0"),
        (classifier, v2, {"inputs": tensors}, "1"),
    ):
        status, headers, content = asked.request("POST", path, body)
        assert status == 200 and headers.get("x-truncated") == expected, (path, body, content)


def test_messages_of_tensorflow_serving(server):
    metadata_pb = pytest.importorskip("tensorflow_serving.apis.get_model_metadata_pb2")
    status_pb = pytest.importorskip("tensorflow_serving.apis.get_model_status_pb2")
    from google.protobuf import json_format
    from tensorflow.core.framework import types_pb2

    _, found = server.get("/v1/models/bert")
    (version,) = json_format.ParseDict(found, status_pb.GetModelStatusResponse()).model_version_status
    assert (version.version, version.state) == (1, status_pb.ModelVersionStatus.AVAILABLE)
    assert version.status.error_code == 0
    _, found = server.get("/v1/models/bert/versions/1/metadata")
    signatures = json_format.ParseDict(found["metadata"].pop("signature_def"), metadata_pb.SignatureDefMap())
    spec = json_format.ParseDict(found, metadata_pb.GetModelMetadataResponse()).model_spec
    assert (spec.name, spec.version.value) == ("bert", 1)
    assert set(signatures.signature_def) == {"answer", "embed", "tensors", "serving_default"}
    answer = signatures.signature_def["serving_default"]
    assert set(answer.inputs) == set(signatures.signature_def["answer"].inputs) == {"question", "context"}
    assert answer.inputs["question"].dtype == types_pb2.DT_STRING
    assert answer.outputs["start"].dtype == types_pb2.DT_INT32
    embedding = signatures.signature_def["embed"].outputs["embedding"]
    assert [dim.size for dim in embedding.tensor_shape.dim] == [-1, -1]
    assert answer.method_name == "tensorflow/serving/predict"


def test_the_metadata_name_the_labels_of_a_classifier(classifier):
    metadata_pb = pytest.importorskip("tensorflow_serving.apis.get_model_metadata_pb2")
    from google.protobuf import json_format, struct_pb2

    _, found = classifier.get("/v1/models/bert/metadata")
    del found["metadata"]["signature_def"]
    described = json_format.ParseDict(found, metadata_pb.GetModelMetadataResponse()).metadata["labels"]
    labels = struct_pb2.ListValue()
    assert described.Unpack(labels) and list(labels) == ["bad", "good"]


def test_the_metadata_have_the_thresholds_of_several_labels():
    model = StandIn()
    model.source.thresholds = (0.3, 0.6)
    described = protocols.rest_metadata("bert", versions.Served(1, model, ["classify"]))["metadata"]
    assert described["thresholds"]["value"] == [0.3, 0.6]


def test_a_model_that_chooses_from_several_texts_is_refused_at_the_start(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "choice", "classify")
    (tmp_path / "choice" / "labels.json").write_text('{"kind": "choice"}')
    found = inference.source.find(folder, flag="export_dir")
    monkeypatch.setattr(reading, "reading", lambda *_: contextlib.nullcontext(found))
    with pytest.raises(ConfigError, match=f"^--export_dir={folder}: it chooses from several texts"):
        versions.load(1, folder, LOADING)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_the_client_of_triton(server, model, binary):
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("bert", "1")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    described = client.get_model_metadata("bert")
    assert described["versions"] == ["1"]
    assert described["inputs"][0] == {"name": "question", "datatype": "BYTES", "shape": [-1]}
    inputs = []
    for name in ("question", "context"):
        texts = np.array([each[name] for each in QUESTIONS], object)
        inputs.append(triton.InferInput(name, [len(texts)], "BYTES"))
        inputs[-1].set_data_from_numpy(texts, binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("text", "start", "score")]
    found = client.infer("bert", inputs, outputs=outputs, request_id="7", model_version="1")
    texts, scores, starts, _ = zip(*model.answer_all(ASKED))
    texts_found = [text.decode() if binary else text for text in found.as_numpy("text")]
    assert texts_found == list(texts) and found.get_response()["id"] == "7"
    assert found.as_numpy("start").tolist() == list(starts)
    assert found.as_numpy("start").dtype == np.int32 and found.as_numpy("score").dtype == np.float32
    np.testing.assert_allclose(found.as_numpy("score"), scores, atol=1e-5)
    embed = triton.InferInput("text", [2, 1], "BYTES")
    embed.set_data_from_numpy(np.array([["word7"], ["word8"]], object), binary_data=binary)
    vectors = client.infer("bert_embed", [embed]).as_numpy("embedding")
    np.testing.assert_allclose(vectors, model.embed(["word7", "word8"]), atol=1e-5)
    with pytest.raises(triton.InferenceServerException, match="'context' is missing"):
        client.infer("bert", inputs[:1])
    client.close()


# -----------------------------------------------------------------------------------------------------------
# OpenAI's embeddings


def test_embeddings_are_in_openais_form(server, model):
    """Source: https://platform.openai.com/docs/api-reference/embeddings."""

    def post(**values):
        status, _, body = server.request("POST", "/v1/embeddings", values)
        return status, json.loads(body)

    texts = ["word7 word8", "word9"]
    expected = model.embed(texts)
    status, found = post(input=texts, model=server.server.model)
    assert (status, found["object"], found["model"]) == (200, "list", server.server.model)
    assert [(each["object"], each["index"]) for each in found["data"]] == [("embedding", 0), ("embedding", 1)]
    np.testing.assert_allclose([each["embedding"] for each in found["data"]], expected, atol=1e-5)
    assert found["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    unset = dict.fromkeys(("model", "encoding_format", "dimensions", "user"))
    assert post(input=texts, **unset) == (200, found)
    _, found = post(input=texts[0], encoding_format="base64", dimensions=4, user="somebody")
    vector = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, expected[0, :4] / np.linalg.norm(expected[0, :4]), atol=1e-5)
    assert "truncated" not in found
    assert post(input=["word9", "word7 " * 50])[1]["truncated"] == [1]
    wrong, hexadecimal = [], {"input": "a", "encoding_format": "hex"}
    for values, code, part in (
        (hexadecimal, 400, "encoding_format='hex', expected one of float, base64"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions=0, expected a number from 1 to 16"),
        ({"input": "a", "model": "gpt"}, 404, "model='gpt' is not served"),
        ({"input": [1, 2]}, 400, "token ids are not supported"),
        ({"input": ["a", " "]}, 400, "a text is empty"),
        ({"input": []}, 400, "0 texts"),
        ({"input": "a", "top_k": 1}, 400, "unknown parameter 'top_k'"),
        ({}, 400, "expected a text, got null"),
    ):
        status, found = post(**values)
        error = found["error"]
        is_whole = error.keys() == {"message", "type", "param", "code"}
        if status != code or part not in error["message"] or not is_whole:
            wrong.append(f"{values}: {status} {found}")
    assert wrong == []
    status, _, body = server.request("POST", "/v1/embeddings", b"{")
    assert status == 400 and json.loads(body)["error"]["type"] == "invalid_request_error"

"""Bodies of both protocols: what they say becomes a call, and what they should not say an error of 4xx."""

import base64
import json
import pathlib
import re
import string
import struct

import numpy as np
import pytest

from official.inference import Answer
from official.serving.server import protocols
from official.serving.server.protocols import encode
from official.serving.server.settings import HTTPError, Limits
from official.serving.server.versions import Served
from tests.serving.server.servers import StandIn, stand_in

PATH = pathlib.Path(__file__).parent / "refused_bodies.txt"
LIMITS = Limits(max_instances=3, max_text_chars=20)
A = {"question": "who?", "context": "Ada."}
IDS = {"input_ids": [[1, 2, 3]], "input_mask": [[1, 1, 0]], "segment_ids": [[0, 1, 0]]}


def encoded(body) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def read(body, served: Served | None = None) -> protocols.Asked:
    return protocols.read_rest(encoded(body), served or stand_in(), LIMITS)


def of(method: str) -> Served:
    return Served(1, StandIn(), [method])


def test_rows_and_columns_are_the_same_calls():
    both = [A, {"question": "é?", "context": {"b64": base64.b64encode("Łódź".encode()).decode()}}]
    columns = {name: [row[name] for row in both] for name in A}
    for body in ({"instances": both}, {"inputs": columns, "signature_name": "answer"}):
        asked = read(body)
        assert asked.call.rows == [("who?", "Ada."), ("é?", "Łódź")]
        assert asked.by_rows == ("instances" in body)
    for body in ({"instances": ["a", "b"]}, {"inputs": ["a", "b"]}, {"inputs": {"text": ["a", "b"]}}):
        assert read({**body, "signature_name": "embed"}).call.rows == ["a", "b"]
    one = {"sentence_a": "a"}
    for body in ({"instances": [one]}, {"instances": ["a"]}, {"inputs": {"sentence_a": ["a"]}}):
        assert read(body, of("classify")).call.rows == [["a"]]
    rows = [{**one, "sentence_b": "b"}, {**one, "sentence_b": ""}]
    assert read({"instances": rows}, of("classify")).call.rows == [["a", "b"], ["a"]]


def test_outputs_of_token_ids_are_bounded():
    many = {name: [[0 if name == "segment_ids" else 1] * 40] * 3 for name in IDS}
    served, body = of("fill_mask"), {"signature_name": "tensors", "inputs": many}
    read(body, served)
    served.sizes = served.sizes._replace(words=60_000, values_a_token=60_000)
    with pytest.raises(HTTPError, match="would have 7,200,000 numbers, allowed are 4,194,304"):
        read(body, served)


def test_numbers_that_json_does_not_have_are_not_written():
    with pytest.raises(ValueError):
        encode(np.float32([1, np.nan]))
    large = np.arange(20_000, dtype=np.float32).reshape(100, 200) / 7
    np.testing.assert_array_equal(np.float32(json.loads(encode(large))), large)


# ------------------------------------------------------------------------------------------------------------
# v2


def tensor(name: str, texts: list, **changed) -> dict:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": texts, **changed}


def asked_v2(body, json_length=None, name="answer") -> protocols.Asked:
    return protocols.read_v2(encoded(body), json_length, name, stand_in(), LIMITS)


def binary(texts: list[str]) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def test_tensors_in_json_and_behind_it():
    kind, parts = {"shape": [2, 1], "datatype": "BYTES"}, [binary(["who?", "é?"]), binary(["Ada.", "Łódź"])]
    head = {
        "id": "42",
        "inputs": [
            {**kind, "name": name, "parameters": {"binary_data_size": len(part)}}
            for name, part in zip(A, parts)
        ],
        "outputs": [{"name": "score"}, {"name": "text", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(head).encode()
    asked = asked_v2(text + b"".join(parts), str(len(text)))
    assert asked.call.rows == [("who?", "Ada."), ("é?", "Łódź")]
    results = [Answer("Ada", 0.5, 0, 3), Answer("Łódź", 0.25, 0, 4)]
    content, end = protocols.write_v2(asked, results, "bert", 3)
    assert json.loads(content[:end]) == {
        "model_name": "bert",
        "model_version": "3",
        "id": "42",
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [2], "data": [0.5, 0.25]},
            {"name": "text", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 18}},
        ],
    }
    assert content[end:] == binary(["Ada", "Łódź"])
    plain = asked_v2({"inputs": [tensor("question", ["who?"]), tensor("context", ["Ada."], shape=[1, 1])]})
    assert plain.call.rows == [("who?", "Ada.")] and plain.identity is None
    content, end = protocols.write_v2(plain, [Answer("Ada", 0.5, 0, 3)], "bert", 3)
    data = [output["data"] for output in json.loads(content)["outputs"]]
    assert end is None and data == [["Ada"], [0], [3], [0.5]]


def test_integers_flat_nested_and_binary():
    shape = {"shape": [1, 3], "datatype": "INT64"}
    flat = [{"name": name, **shape, "data": rows[0]} for name, rows in IDS.items()]
    nested = [{"name": name, **shape, "data": rows} for name, rows in IDS.items()]
    for inputs in (flat, nested):
        body = {"inputs": inputs, "parameters": None, "outputs": []}  # as clients write what is not set
        assert asked_v2(body, name="tensors").call.rows[0][0].tolist() == [1, 2]
    size = {"binary_data_size": 12}
    inputs = [{"name": name, **shape, "datatype": "INT32", "parameters": size} for name in IDS]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    data = b"".join(np.array(rows, "<i4").tobytes() for rows in IDS.values())
    asked = asked_v2(text + data, str(len(text)), "tensors")
    assert asked.call.rows[0][0].tolist() == [1, 2] and all(asked.outputs.values())


GOOD = [tensor("question", ["a"]), tensor("context", ["b"])]


# ------------------------------------------------------------------------------------------------------------
# Refusals

GROUPS = re.findall(r"^\[(.*)\]\n((?:.+\n)+)", PATH.read_text(encoding="utf-8"), re.MULTILINE)
SHORT = {name: json.dumps(each) for name, each in (("A", A), ("Q", GOOD[0]), ("C", GOOD[1]))}
TOO_LARGE = [
    ("rest", b"\xff\xfe", "not JSON .byte 0 is not UTF-8"),
    ("rest", b"[" * 100_000, "nested too deeply"),
    ("rest", {"instances": [{**A, "x" * 500: "a"}]}, "unknown input 'x{60}': answer takes"),
    ("tensors", {name: [[1] * 41] for name in IDS}, "41 tokens in a row, the model takes 40"),
]


def test_what_cannot_be_read_is_one_line():
    readers = {
        "rest": read,
        "tensors": lambda changed: read({"signature_name": "tensors", "inputs": {**IDS, **changed}}),
        "v2": asked_v2,
        "v2 tensor": lambda changed: asked_v2({"inputs": [{**GOOD[0], **changed}]}),
    }
    cases, wrong = list(TOO_LARGE), []
    for kind, lines in GROUPS:
        for line in lines.splitlines():
            body, message = string.Template(line).safe_substitute(SHORT).rsplit(" => ", 1)
            is_changed = kind in ("tensors", "v2 tensor")
            cases.append((kind, json.loads(body) if is_changed else body.encode(), message))
    for kind, body, message in cases:
        try:
            readers[kind](body)
            wrong.append(f"{str(body)[:200]} is read")
        except HTTPError as error:
            if error.status != 400 or not re.search(message, str(error)) or "\n" in str(error):
                wrong.append(f"{str(body)[:200]}: {error.status} {error}")
    assert not wrong and len(cases) > 45


def test_binary_texts_and_lengths_that_do_not_fit():
    for data in (b"", b"\1\0\0\0", b"\1\0\0\0ab", b"\xff\xff\xff\xffa", b"\1\0\0\0a" * 2):
        inputs = [tensor("question", ["a"], parameters={"binary_data_size": len(data)})]
        text = json.dumps({"inputs": inputs}).encode()
        with pytest.raises(HTTPError, match="expected 1 elements in the binary data"):
            asked_v2(text + data, str(len(text)))
    for length in ("", "-1", "x", "1e3", "9" * 30, "99999"):
        with pytest.raises(HTTPError, match="Inference-Header-Content-Length"):
            asked_v2({"inputs": GOOD}, length)
    text = json.dumps({"inputs": GOOD}).encode()
    with pytest.raises(HTTPError, match="3 bytes too many"):
        asked_v2(text + b"abc", str(len(text)))

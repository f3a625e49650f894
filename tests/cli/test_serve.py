"""The flags of `bert serve`."""

import dataclasses
import sys

import pytest

from official.cli import serve
from official.io.errors import ConfigError
from official.serving.server.settings import Limits


def parsed(monkeypatch, *arguments: str):
    monkeypatch.setattr(sys, "argv", ["bert serve", "--export_dir=x", *arguments])
    return serve.Main.parse()


def test_limits_and_address_are_those_of_the_flags(monkeypatch, tmp_path):
    assert serve.settings_of(parsed(monkeypatch))[1] == Limits()
    values = {field.name: number + 1 for number, field in enumerate(dataclasses.fields(Limits))}
    values["max_request_bytes"] = 4321
    (tmp_path / "token").write_text("sesame\n")
    more = f"--token_file={tmp_path}/token --host=0.0.0.0 --port=0 --model_name=m --poll_secs=2".split()
    more += ["--allowed_hosts=a.example, b", "--allowed_origins=https://a.example"]
    flags = parsed(monkeypatch, *more, *(f"--{name}={value}" for name, value in values.items()))
    endpoint, limits = serve.settings_of(flags)
    assert dataclasses.asdict(limits) == values and "sesame" not in repr(endpoint)
    allowed = {"allowed_hosts": ["a.example", "b"], "allowed_origins": ["https://a.example"]}
    address = {"export_dir": "x", "model": "m", "host": "0.0.0.0", "port": 0, "token": b"sesame"}
    assert dataclasses.asdict(endpoint) == {**address, "poll_secs": 2, **allowed}


def test_a_token_is_one_word_and_never_shown(tmp_path):
    for content in (b"", b" \n", b"two words", b"line\nline", "é".encode(), b"x" * 5000):
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(ConfigError, match="expected one token") as error:
            serve.read_token(str(tmp_path / "token"))
        assert "x" * 20 not in str(error.value) and "two" not in str(error.value)


def test_methods_are_those_that_there_are(monkeypatch):
    flags = parsed(monkeypatch, "--methods=answer,embed")
    assert serve.loading_of(flags).methods == ("answer", "embed")
    with pytest.raises(ConfigError, match="'answr' is not one of answer, .*did you mean answer"):
        serve.loading_of(parsed(monkeypatch, "--methods=answr"))

"""The image for CPUs, and the user as whom pods run it and that for GPUs, as far as they can be tried."""

import fnmatch
import pathlib
import re

import pytest
import yaml

from official.cli import table
from official.launching import manifests
from tests.conftest import ROOT

FOLDER = ROOT / "deploy" / "docker"
IMAGES = {name: FOLDER / name / "Dockerfile" for name in ("cpu", "gpu")}


def instructions(name: str) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", IMAGES[name].read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def test_the_image_for_cpus_takes_what_is_there():
    ignored = pathlib.Path(f"{IMAGES['cpu']}.dockerignore").read_text().split("\n")
    sent = [line[1:] for line in ignored if line.startswith("!")]
    copied = [rest for word, rest in instructions("cpu") if word == "COPY" and not rest.startswith("--from")]
    sources = [source for line in copied for source in line.split()[:-1]]
    assert "*" in ignored and {"setup.py", "pyproject.toml", "official", "tf2_bert", "configs"} < set(sources)
    for source in sources:
        assert (ROOT / source).exists() and any(
            fnmatch.fnmatch(source, each) or source.startswith(f"{each}/") for each in sent
        ), source
    bases = {rest.split()[0] for word, rest in instructions("cpu") if word == "FROM"}
    assert bases == {"python:3.11-slim-bookworm"}  # which constraints/tf215.txt is for


@pytest.mark.parametrize("name", IMAGES)
def test_pods_run_as_a_user_of_the_image(name):
    asked = manifests.Job("bert", "image", ("program",))
    (document,) = manifests.documents("jobset", asked)
    spec = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    user = spec["securityContext"]["runAsUser"]
    words = [word for word, _ in instructions(name)]
    assert any(f"useradd --uid {user} " in rest for word, rest in instructions(name) if word == "RUN")
    assert "ENTRYPOINT" not in words  # the command of a pod is its first process
    environment = " ".join(rest for word, rest in instructions(name) if word == "ENV")
    assert "HOME=/tmp" in environment and "BERT_CACHE_DIR=/tmp/bert" in environment  # which it can write
    if name == "cpu":
        assert dict(instructions(name))["USER"] == str(user)
        assert words.index("USER") > len(words) - 1 - words[::-1].index("RUN")


def test_commands_of_the_image_for_cpus_are_known():
    program, *rest = yaml.safe_load(dict(instructions("cpu"))["CMD"])
    assert (program, rest) == ("bert", ["--help"])
    text = re.sub(r"\\\n#", " ", IMAGES["cpu"].read_text())
    inside = re.findall(r"^#   docker run .* bert-cpu\s+bert (\w\S*) (.*)$", text, re.MULTILINE)
    assert inside and all(table.find([first])[0].name == "train" for first, _ in inside)
    assert all((ROOT / path).exists() for path in re.findall(r"(?:deploy|docs)/[\w/.]*\w", text))

"""bert render-job: manifests from a command, which is checked before a cluster sees it."""

import os
import re
import shlex
import sys

import pytest
import yaml

from official.cli import flags, render_job
from official.io.errors import ConfigError
from tests import programs
from tests.fixtures import ROOT
from tests.launching import kubernetes_schemas

SHIPPED = sorted((ROOT / "deploy" / "kubernetes" / "training").glob("*.yaml"))
IMAGE = "--image=registry.example.com/bert:1"
TRAIN = ("bert", "train", "--config=quickstart", "--input_files=/data/*", "--model_dir=/runs/quick")


@pytest.fixture
def render(monkeypatch, capsys):
    """Returns a function that runs a command line and returns what it printed."""

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["bert render-job", *arguments])
        render_job.main()
        return capsys.readouterr().out

    return call


def commented(text: str) -> list[str]:
    """Returns the words of the command in the first lines of a file, without what it is handed on to."""
    lines = [line[4:] for line in text.splitlines() if line.startswith("#   ")]
    return shlex.split("\n".join(lines).replace("\\\n", " ").split(" | kubectl ")[0])


def commands(pod: dict) -> list[list[str]]:
    """Returns the commands of bert train that a pod runs, by themselves or as a line of a shell."""
    containers = pod.get("initContainers", []) + pod["containers"]
    lines = [line for each in containers for text in each.get("args", []) for line in text.splitlines()]
    found = [each["command"] for each in containers]
    found += [shlex.split(line) for line in lines if "bert train" in line]
    return [words[words.index("train") - 1 :] for words in found if "train" in words]


def pods(part) -> list[dict]:
    """Returns the specifications of pods within a manifest."""
    if isinstance(part, list):
        return [pod for each in part for pod in pods(each)]
    if not isinstance(part, dict):
        return []
    return [part] if "containers" in part else [pod for each in part.values() for pod in pods(each)]


# ------------------------------------------------------------------------------------------------------------
# What is shipped


def test_the_shipped_files(render):
    """Each is what its command makes, valid, and runs its command of bert train."""
    kinds, of_ipus = set(), {}
    for path in SHIPPED:
        text = path.read_text()
        words, documents = commented(text), list(yaml.safe_load_all(text))
        kind = path.stem.partition("_")[0] if path.stem.startswith("ipujob") else path.stem
        assert words[:2] == ["bert", "render-job"] and f"--kind={kind}" in words, path
        assert render(*words[2:]) == text and "train_batch_size" in text.splitlines()[0], path
        for document in documents:
            kubernetes_schemas.check(document)
            kinds.add(document["kind"])
        (pod,) = pods(documents)
        (command,) = commands(pod)
        given = words[words.index("--") + 1 :]
        assert given[:2] == ["bert", "train"], path
        assert [word for word in command if not word.startswith("--plan")] == given, path
        if kind == "ipujob":
            config = flags.parse([*given[2:], "--plan"])
            batches = config.train_batch_size, config.ipu.replicas, config.num_accumulation_steps
            of_ipus[documents[0]["spec"]["ipusPerJobInstance"]] = batches
    assert kinds == {"JobSet", "Job", "Service", "TFJob", "IPUJob"}
    assert of_ipus == {"4": (65536, 1, 2048), "64": (65536, 16, 512)}  # as published


# ------------------------------------------------------------------------------------------------------------
# Other jobs


LINE_ENDS = ("\n", "\r", "\x0b", "\x85", "\u2028", "\u2029", "\x1b[31m", "\x7f", "\ufeff")


def test_nothing_in_a_value_ends_a_comment_or_changes_on_the_way(render):
    """Neither of what steers a terminal, nor of what other readers of YAML take for no text."""
    values = [f"a{end}---{end}kind: Pod{end}# 'x' \\ $(y)" for end in LINE_ENDS]
    values += [*"y N 1e3 0o17 nan yes null ~ 1:30 é€".split(), "- a", "# a", "a: b", "", " a "]
    variables = {f"V{number}": value for number, value in enumerate(values)}
    flags = [f"--env={name}={value}" for name, value in variables.items()]
    for kind, name in (("jobset", "JobSet"), ("ipujob", "IPUJob")):
        text = render(f"--kind={kind}", IMAGE, *flags, "--", "run", *values)
        assert all(letter.isprintable() for letter in text.replace("\n", "")), kind
        (document,) = yaml.safe_load_all(text)
        (pod,) = pods(document)
        (container,) = pod["containers"]
        said = {each["name"]: each["value"] for each in container["env"] if each["name"] in variables}
        assert (document["kind"], said) == (name, variables)
        if kind == "jobset":
            assert [word.replace("$$(", "$(") for word in container["command"]] == ["run", *values]
        assert not any(f"value: {value}\n" in text for value in ("y", "N", "1e3", "0o17", "nan")), kind
        # What the comment says is the command: bash reads it back.
        shell = "\n".join(line[2:] for line in text.splitlines() if line.startswith("#   "))
        shell = shell.split(" | kubectl ")[0].rstrip("\\\n ").strip()
        done = programs.call("bash", "-c", f"printf '%s\\0' {shell}", text=False, LC_ALL="C.UTF-8")
        words = ["bert", "render-job", f"--kind={kind}", IMAGE, *flags, "--", "run", *values]
        assert done.stdout.decode().split("\0")[:-1] == words, kind


def test_numbers_images_commands_volumes_and_names_are_put_in(render):
    command = ["bert", "train", "--config=quickstart", "--train_batch_size=112", "--eval_batch_size=7"]
    command += ["--input_files=/d/a b/*", "--model_dir=/saved/x"]
    flags = ["--name=other", "--image=host:5000/x/y@sha256:ab", "--volume=c-1:/d:ro", "--volume=c-2:/saved"]
    flags += ["--env=A=b=c", "--node-label=gpu.type/x=a100", "--port", "999", "--workers=7"]
    for kind in ("jobset", "indexed_job", "tfjob"):
        text = render(f"--kind={kind}", *flags, "--", *command)
        made = list(yaml.safe_load_all(text))
        for document in made:
            kubernetes_schemas.check(document)
            assert document["metadata"]["name"] == "other"
        (pod,) = pods(made)
        (container,) = pod["containers"]
        assert container["image"] == "host:5000/x/y@sha256:ab" and commands(pod) == [command]
        assert {"name": "A", "value": "b=c"} in container["env"]
        assert container["ports"][0]["containerPort"] == 999
        assert [each["mountPath"] for each in container["volumeMounts"]] == ["/dev/shm", "/d", "/saved"]
        assert pod["nodeSelector"] == {"gpu.type/x": "a100"}
        assert "= 7 replica" in text and render(*commented(text)[2:]) == text


def test_a_command_of_others_is_not_looked_at(render):
    text = render("--kind=jobset", IMAGE, "--workers=2", "--", "my_program", "--output=x", "--image=y")
    (pod,) = pods(list(yaml.safe_load_all(text)))
    assert pod["containers"][0]["command"] == ["my_program", "--output=x", "--image=y"]
    assert text.startswith("#   bert render-job --kind=jobset")
    other = "--no-check_command -- bert train --flagfile=/data/mine.flags".split()
    unchecked = render("--kind=jobset", IMAGE, *other)
    assert "--flagfile=/data/mine.flags" in unchecked and "--no-check_command" in commented(unchecked)


def test_a_file_is_written_whole_and_not_over_another(render, tmp_path):
    path = tmp_path / "made" / "job.yaml"
    told = render("--kind=ipujob", IMAGE, f"--output={path}", "--", "program")
    assert told == f"kubectl create -f {path}\n"
    assert path.read_text() == render("--kind=ipujob", IMAGE, "--", "program")
    render("--kind=jobset", IMAGE, f"--output={path}", "--overwrite", "--", "program")
    assert "JobSet" in path.read_text() and os.listdir(path.parent) == ["job.yaml"]


def test_the_environment_of_the_shell_has_no_part(render, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "nonsense")
    monkeypatch.setenv("BERT_WORKERS", "many")
    before = dict(os.environ)
    kept = "--model_dir=gs://bucket/run"  # in no volume
    assert "JobSet" in render("--kind=jobset", "--workers=2", IMAGE, "--", *TRAIN, kept)
    assert dict(os.environ) == before


def test_a_run_that_began_with_others_is_rendered_for_more_workers(render):
    """4 workers x 3 micro batches are dealt out to 6; laid out anew for 6 they would be too many."""
    command = [*TRAIN, "--train_batch_size=48", "--num_accumulation_steps=3", "--eval_batch_size=12"]
    flags = ["--kind=jobset", "--workers=6", IMAGE, "--volume=runs:/runs", "--"]
    text = render(*flags, *command, "--logical_workers=4")
    assert text.startswith("# train_batch_size 48 = 6 replicas x 2 micro batches x 4 sequences")
    with pytest.raises(ConfigError, match="not divisible"):
        render(*flags, *command)


def test_the_example_of_the_help_works(render):
    (example,) = re.findall(r"  bert render-job.*?\n\n", render_job.__doc__, re.DOTALL)
    words = shlex.split(example.replace("\\\n", " ").split("|")[0])
    assert "JobSet" in render(*words[2:])

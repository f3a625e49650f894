"""The files of deploy/, as far as they can be tried without their hardware and readers: images, disks,
TensorFlow Serving and Kubernetes."""

import fnmatch
import os
import pathlib
import re

import pytest
import yaml
from google.protobuf import text_format

from official.cli import table
from official.launching import manifests
from tests import programs
from tests.fixtures import ROOT
from tests.launching import kubernetes_schemas

IMAGES = {name: ROOT / "deploy" / "docker" / name / "Dockerfile" for name in ("cpu", "gpu", "serve")}
RAID = ROOT / "deploy" / "gpu" / "raid0.sh"
FOLDER = ROOT / "deploy" / "kubernetes" / "serving"
# Fields of KServe's InferenceService that the files may use, beside those of Kubernetes' pods and containers.
# Source: kserve 0.21.0, kserve/models/v1beta1_predictor_spec.py, v1beta1_model_spec.py
PREDICTOR = {"minReplicas", "maxReplicas", "containerConcurrency", "timeout", "model", "containers"}
MODEL = {"modelFormat", "runtime", "runtimeVersion", "protocolVersion", "storageUri", "resources"}


def documents(name: str) -> dict[str, dict]:
    """Returns {kind: manifest} of a file."""
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))}


def known_flags(arguments: list[str]):
    """Returns the values of flags that `bert serve` is given, as its parser reads them."""
    command, _ = table.find(["serve"])
    return command.parser().parse_args(arguments)


# ------------------------------------------------------------------------------------------------------------
# TensorFlow Serving


def test_models_config_is_what_tensorflow_serving_reads():
    messages = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    text = (ROOT / "deploy" / "serving" / "models.config").read_text()
    (config,) = text_format.Parse(text, messages.ModelServerConfig()).model_config_list.config
    assert (config.name, config.base_path) == ("bert", "/models/bert")
    assert config.model_platform == "tensorflow"
    assert config.model_version_policy.latest.num_versions == 1


# Fields of BatchingParameters, whose message no package of Python has: numbers in a message of their own.
# Source: tensorflow_serving/servables/tensorflow/session_bundle_config.proto
BATCHING = {"max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"}


def test_batching_parameters_are_what_tensorflow_serving_reads():
    text = (ROOT / "deploy" / "serving" / "batching_parameters.txt").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    lines.remove("pad_variable_length_inputs: false")
    matches = [re.fullmatch(r"(\w+) \{ value: (\d+) \}", line) for line in lines]
    assert all(matches) and {match[1] for match in matches} <= BATCHING
    found, ours = {match[1]: int(match[2]) for match in matches}, known_flags(["--export_dir=models"])
    assert found["max_batch_size"] == ours.max_batch_size and found["num_batch_threads"] == 1
    assert found["batch_timeout_micros"] == 1000 * ours.batch_delay_ms


# ------------------------------------------------------------------------------------------------------------
# Images


def instructions(name: str) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", IMAGES[name].read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


def user_comes_last(name: str) -> bool:
    """Tells whether all that an image runs while it is made is before its user."""
    words = [word for word, _ in instructions(name)]
    return words.index("USER") > len(words) - 1 - words[::-1].index("RUN")


@pytest.mark.parametrize("name", ["cpu", "serve"])
def test_an_image_takes_what_is_there_and_all_that_the_wheel_is_made_of(name):
    ignored = pathlib.Path(f"{IMAGES[name]}.dockerignore").read_text().split("\n")
    sent = [line[1:] for line in ignored if line.startswith("!")]
    copied = [rest for word, rest in instructions(name) if word == "COPY" and not rest.startswith("--from")]
    sources = [source for line in copied for source in line.split()[:-1]]
    assert "*" in ignored and {"setup.py", "pyproject.toml", "official", "tf2_bert", "configs"} < set(sources)
    for source in sources:
        assert (ROOT / source).exists() and any(
            fnmatch.fnmatch(source, each) or source.startswith(f"{each}/") for each in sent
        ), source
    bases = {rest.split()[0] for word, rest in instructions(name) if word == "FROM"}
    assert bases == {"python:3.11-slim-bookworm"}  # which constraints/tf215.txt is for


def test_the_images_for_gpus_and_serving_take_extras_that_are_there():
    setup = (ROOT / "setup.py").read_text()
    assert "[serve]" in IMAGES["serve"].read_text() and '"serve": [' in setup
    text = " ".join(rest for _, rest in instructions("gpu"))
    assert [word for word, _ in instructions("gpu")] == ["FROM", "ENV", "WORKDIR", "COPY", "RUN"]
    (extras,) = re.findall(r"'\.\[(.*)\]'", text)
    assert all(f'"{extra}": ' in setup for extra in extras.split(","))
    assert all((ROOT / path).exists() for path in re.findall(r"--constraint (\S+)", text))
    assert "python:3.11" in instructions("gpu")[0][1]  # which the constraints are for
    ignored = pathlib.Path(f"{IMAGES['gpu']}.dockerignore").read_text().split()
    needed = {"official", "tests", "configs", "constraints", "scripts"}
    assert not needed & {path.strip("/*") for path in ignored}


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_pods_run_as_a_user_of_the_image(name):
    (document,) = manifests.documents("jobset", manifests.Job("bert", "image", ("program",)))
    spec = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    user = spec["securityContext"]["runAsUser"]
    assert any(f"useradd --uid {user} " in rest for word, rest in instructions(name) if word == "RUN")
    assert "ENTRYPOINT" not in dict(instructions(name))  # the command of a pod is its first process
    environment = " ".join(rest for word, rest in instructions(name) if word == "ENV")
    assert "HOME=/tmp" in environment and "BERT_CACHE_DIR=/tmp/bert" in environment  # which it can write
    if name == "cpu":
        assert dict(instructions(name))["USER"] == str(user) and user_comes_last(name)


def test_commands_of_the_image_for_cpus_are_known():
    assert yaml.safe_load(dict(instructions("cpu"))["CMD"]) == ["bert", "--help"]
    text = re.sub(r"\\\n#", " ", IMAGES["cpu"].read_text())
    inside = re.findall(r"^#   docker run .* bert-cpu\s+bert (\w\S*) (.*)$", text, re.MULTILINE)
    assert inside and all(table.find([first])[0].name == "train" for first, _ in inside)
    assert all((ROOT / path).exists() for path in re.findall(r"(?:deploy|docs)/[\w/.]*\w", text))


def test_the_image_for_serving_runs_without_rights_and_stops_on_sigterm():
    words = dict(instructions("serve"))  # the last of each
    assert words["USER"] == "10001" and f"--uid {words['USER']}" in words["RUN"] and user_comes_last("serve")
    program, command, *given = yaml.safe_load(words["ENTRYPOINT"])  # a list: the shell would eat the signal
    assert (program, command) == ("bert", "serve")
    flags = known_flags(given)
    assert (flags.host, flags.port) == ("0.0.0.0", int(words["EXPOSE"]))
    assert known_flags([*given, "--port=8080"]).port == 8080  # what comes last wins
    python, minus_c, code = yaml.safe_load(words["HEALTHCHECK"].partition("CMD ")[2])
    assert (python, minus_c) == ("python", "-c") and f":{flags.port}/healthz" in code
    compile(code, "HEALTHCHECK", "exec")


# ------------------------------------------------------------------------------------------------------------
# Disks


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs raid0.sh among programs that only note how they are called. `holds` is
    what lsblk finds on the devices, `mounted` whether the mount point is in use."""
    called = tmp_path / "called"
    called.touch()

    def call(*arguments: str, holds: str = "", mounted: bool = False) -> tuple[int, list[str], str]:
        texts = dict.fromkeys(
            "mdadm mkfs.ext4 mkdir mount chmod".split(), f'echo "${{0##*/}} $*" >> {called}'
        )
        texts |= {"lsblk": f'echo "{holds}"', "mountpoint": f"exit {int(not mounted)}"}
        for name, text in texts.items():
            programs.stand_in(tmp_path / "bin" / name, f"#!/bin/bash\n{text}\n")
        done = programs.call("bash", RAID, *arguments, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return done.returncode, called.read_text().splitlines(), done.stderr

    return call


@pytest.fixture
def devices(tmp_path) -> list[str]:
    paths = [tmp_path / f"ssd-{number}" for number in range(8)]
    for path in paths:
        path.touch()
    return list(map(str, paths))


def test_devices_become_one_file_system(run, devices):
    code, called, _ = run("/data", *devices)
    assert code == 0 and called == [
        f"mdadm --create /dev/md0 --run --level=0 --raid-devices=8 {' '.join(devices)}",
        "mkfs.ext4 -F /dev/md0",
        "mkdir -p /data",
        "mount /dev/md0 /data",
        "chmod a+w /data",
    ]
    assert run("/data", devices[0])[1][5] == f"mkfs.ext4 -F {devices[0]}"  # one needs no array


def test_nothing_is_touched_without_need_or_right(run, devices):
    for given, settings, code, said in (
        (["--dry-run", "/data", *devices], {}, 0, ""),
        (["/data", *devices], {"mounted": True}, 0, ""),
        (["/data", *devices], {"holds": "ext4 /"}, 2, "is in use or holds something: ext4/"),
        (["/data", "absent", *devices], {}, 2, "there is no absent"),
        ([], {}, 2, "expected MOUNT DEVICE"),
    ):
        found, called, error = run(*given, **settings)
        assert (found, called) == (code, []) and said in error, given


# ------------------------------------------------------------------------------------------------------------
# Kubernetes


def pods() -> dict[str, dict]:
    """Returns the specifications of pods, KServe's own container among them."""
    predictor = documents("kserve.yaml")["InferenceService"]["spec"]["predictor"]
    return {
        "server.yaml": documents("server.yaml")["Deployment"]["spec"]["template"]["spec"],
        "kserve.yaml": {"containers": predictor["containers"]},
    }


def test_manifests_are_valid():
    for document in documents("server.yaml").values():
        kubernetes_schemas.check(document)
    for spec in pods().values():
        kubernetes_schemas.check_pod({"spec": spec})
        with pytest.raises(kubernetes_schemas.Refused):
            kubernetes_schemas.check_pod({"spec": {**spec, "container": []}})


def test_the_service_finds_its_pods():
    found = documents("server.yaml")
    pod = found["Deployment"]["spec"]["template"]
    selectors = [found[kind]["spec"]["selector"] for kind in ("Deployment", "PodDisruptionBudget", "Service")]
    for selector in (selectors[0]["matchLabels"], selectors[1]["matchLabels"], selectors[2]):
        assert selector.items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] in [port["name"] for port in container["ports"]]


def test_the_server_gets_flags_that_it_knows_and_files_that_are_mounted():
    (entry,) = [rest for word, rest in instructions("serve") if word == "ENTRYPOINT"]
    given = yaml.safe_load(entry)[2:]
    for name, spec in pods().items():
        (container,) = spec["containers"]
        flags = known_flags([*given, *container["args"]])
        ports = {port.get("name"): port["containerPort"] for port in container["ports"]}
        assert flags.port in ports.values(), name
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                asked = container[probe]["httpGet"]
                assert asked["path"] == "/healthz" and ports.get(asked["port"], asked["port"]) == flags.port
        mounted = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        if name == "server.yaml":
            for path in (flags.export_dir, flags.token_file):
                assert any(path.startswith(f"{folder}/") for folder in mounted), path
        else:
            assert flags.export_dir == "/mnt/models"  # where KServe puts the storage
            assert [each["name"] for each in container["env"]] == ["STORAGE_URI"]


def test_a_pod_may_do_little_and_has_time_to_stop():
    (container,), spec = pods()["server.yaml"]["containers"], pods()["server.yaml"]
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    stops = known_flags(container["args"]).grace_secs
    assert waits + stops < spec["terminationGracePeriodSeconds"]


def test_kserve_gets_fields_that_it_knows():
    for name in ("kserve.yaml", "kserve_tensorflow.yaml"):
        ((kind, document),) = documents(name).items()
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert (document["apiVersion"], kind) == ("serving.kserve.io/v1beta1", "InferenceService")
        assert document["spec"].keys() == {"predictor"}
        predictor = document["spec"]["predictor"]
        assert predictor.keys() <= PREDICTOR and ("model" in predictor) != ("containers" in predictor)
        for container in predictor.get("containers", []):
            assert container["name"] == "kserve-container"  # which gets the storage and the traffic
        assert predictor.get("model", {}).keys() <= MODEL


def test_commands_in_comments_name_files_that_are_there():
    for path in (IMAGES["serve"], *FOLDER.glob("*.yaml")):
        lines = [line[4:] for line in path.read_text().splitlines() if line.startswith("#   ")]
        named = [word for line in lines for word in line.split() if word.startswith("deploy/")]
        assert named and all((ROOT / word).exists() for word in named), path

"""Jobs of Kubernetes: every field is one that its reader knows, and a process finds its place by them."""

import json
import shlex
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from official.config.cluster import find_cluster
from official.launching import manifests
from tests.fixtures import ROOT
from tests.launching import kubernetes_schemas
from tests.programs import stand_in

COMMAND = ("bert", "train", "--config=quickstart", "--model_dir=/runs/quick")
NOTHING_ASKED = SimpleNamespace(worker_hosts=None, task_index=None)
VOLUMES = (manifests.Volume("data", "/data", is_read_only=True), manifests.Volume("runs.of-all", "/runs"))


def job(**settings) -> manifests.Job:
    usual = {"name": "bert", "image": "registry.example.com/bert:1", "command": COMMAND}
    return manifests.Job(**{**usual, **settings})


# Kind -> jobs of it that differ in what they take.
FULL = {"namespace": "team", "cpu": "500m", "memory": "64Gi", "volumes": VOLUMES}
FULL |= {"variables": {"NCCL_DEBUG": "INFO"}, "node_labels": {"pool": "large"}}
TPU = {"tpu_type": "tpu-v3-device", "tpu_topology": "2x2"}
JOBS = {
    "jobset": [{"workers": 4, "gpus": 8, **FULL}, {"workers": 1000}],
    "indexed_job": [{"workers": 3, "gpus": 1, **FULL}, {"workers": 2, "port": 5000}],
    "tfjob": [{"workers": 4, "gpus": 8, **FULL}, {"workers": 2}],
    "tpu_job": [{**TPU, **FULL}, {**TPU, "tpu_topology": "2x4"}],
    "ipujob": [{"ipus": 64, "ipu_image": "graphcore/tensorflow:2", **FULL}, {"grace_secs": None}],
}


def pods_of(kind: str, document: dict) -> dict:
    """Returns the template of a job's pods."""
    spec = document["spec"]
    if kind == "jobset":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    if kind == "tfjob":
        spec = spec["tfReplicaSpecs"]["Worker"]
    return (spec["workers"] if kind == "ipujob" else spec)["template"]


def spec_of_pods(kind: str, **settings) -> dict:
    return pods_of(kind, manifests.documents(kind, job(**settings))[-1])["spec"]


EVERY = [(kind, settings) for kind, jobs in JOBS.items() for settings in jobs]


def test_every_kind_is_valid_and_a_misspelt_field_is_refused():
    for kind, settings in EVERY:
        made = manifests.documents(kind, job(**settings))
        assert list(yaml.safe_load_all(manifests.to_yaml(made, ["a comment"]))) == made
        for document in made:
            kubernetes_schemas.check(document)
        pods = pods_of(kind, made[-1])
        parts = [pods, pods["spec"], pods["spec"]["containers"][0], made[-1]["spec"]]
        for part in parts[1:3] if kind == "ipujob" else parts:  # the others are compared with the published
            with pytest.raises(kubernetes_schemas.Refused):
                part["misspelt"] = 1
                kubernetes_schemas.check(made[-1])
            del part["misspelt"]


def test_processes_find_each_other():
    for kind, middle in {"jobset": "large-worker-0-", "indexed_job": "large-"}.items():
        asked = job(workers=3, port=4000, name="large")
        spec = spec_of_pods(kind, workers=3, port=4000, name="large")
        (container,) = spec["containers"]
        given = {each["name"]: each["value"] for each in container["env"]}
        for rank in range(3):
            # What Kubernetes sets in a pod.
            own = {"JOB_COMPLETION_INDEX": str(rank), "HOSTNAME": f"{middle}{rank}"}
            assert manifests.place(kind, asked, rank) == {**own, **given}
            found = find_cluster(NOTHING_ASKED, {**own, **given})
            assert found.rank == rank
            assert found.hosts == tuple(f"{middle}{each}.large:4000" for each in range(3))
        assert container["ports"] == [{"name": "peers", "containerPort": 4000, "protocol": "TCP"}]
    service, made_job = manifests.documents("indexed_job", asked)
    assert service["metadata"]["name"] == spec["subdomain"] == "large"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"job-name": made_job["metadata"]["name"]}


def test_processes_of_a_tfjob_find_each_other():
    # Source: kubeflow/trainer at v1.9, pkg/controller.v1/tensorflow/tensorflow.go, genClusterSpec
    found = find_cluster(NOTHING_ASKED, manifests.place("tfjob", job(workers=2, namespace="team"), 1))
    assert found.rank == 1 and found.hosts == ("bert-worker-0.team.svc:2222", "bert-worker-1.team.svc:2222")
    (container,) = spec_of_pods("tfjob", workers=2)["containers"]
    assert (container["name"], container["ports"][0]["name"]) == ("tensorflow", "tfjob-port")


def test_exit_codes_decide_what_is_tried_again():
    """Of a failed pod: the first rule that fits counts."""

    def meaning(rules: list[dict], code: int, disrupted: bool = False) -> str:
        for rule in rules:
            codes = rule.get("onExitCodes", {"containerName": "", "values": ()})
            by_code = codes["containerName"] == "bert" and code in codes["values"]
            if by_code or "onPodConditions" in rule and disrupted:
                return rule["action"]
        return "Count"

    for kind in ("jobset", "indexed_job", "tpu_job"):
        spec = manifests.documents(kind, job(**JOBS[kind][0], max_restarts=5))[-1]["spec"]
        own = spec["replicatedJobs"][0]["template"]["spec"] if kind == "jobset" else spec
        rules = own["podFailurePolicy"]["rules"]
        assert {meaning(rules, code) for code in (1, 2, 3)} == {"FailJob"}
        assert meaning(rules, 4) == meaning(rules, 137) == "Count"
        assert meaning(rules, 143) == meaning(rules, 137, disrupted=True) == "Ignore"
        assert own["backoffLimit"] == (0 if kind == "jobset" else 5 * own.get("completions", 1))
        if kind == "jobset":
            (rule,) = spec["failurePolicy"]["rules"]
            assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
            assert spec["failurePolicy"]["maxRestarts"] == 5


def start_in_tfjob(program: str) -> subprocess.Popen:
    (container,) = spec_of_pods("tfjob", command=("bash", "-c", program))["containers"]
    return subprocess.Popen(container["command"], stdout=subprocess.PIPE, text=True)


def test_a_tfjob_sees_codes_that_it_tries_again():
    """Kubeflow's policy ExitCode tries those from 128 on again, and no others."""
    for code, seen in {0: 0, 1: 1, 2: 2, 3: 3, 4: 138, 143: 143}.items():
        assert start_in_tfjob(f"exit {code}").wait() == seen


def test_a_tfjob_hands_sigterm_on_and_waits():
    trap = "trap 'sleep 0.1; echo saved; exit 143' TERM"
    process = start_in_tfjob(f"{trap}; echo ready; while :; do sleep 0.05; done")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143 and process.stdout.read() == "saved\n"


def test_a_pod_may_do_little_and_has_what_it_needs():
    for kind, settings in EVERY:
        spec = spec_of_pods(kind, **settings)
        container = spec["containers"][0]
        memory = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume}
        paths = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert memory[paths["/dev/shm"]]["medium"] == "Memory"
        names = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
        assert names == {volume["name"] for volume in spec["volumes"]}
        if "volumes" in settings:
            read_only = {mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")}
            assert {"/data", "/runs"} <= paths.keys() and read_only == {"/data"}
            assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]
            assert spec["nodeSelector"]["pool"] == "large"
        if kind != "ipujob":
            assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert spec["terminationGracePeriodSeconds"] == 120


def test_devices_are_asked_for():
    chips = {"google.com/tpu": 4}
    gpus = {"requests": {"cpu": 32, "memory": "1Ti"}, "limits": {"memory": "1Ti", "nvidia.com/gpu": 8}}
    for kind, settings, expected in (
        ("jobset", {"workers": 2}, None),
        ("jobset", {"gpus": 8, "cpu": "32", "memory": "1Ti"}, gpus),
        ("tpu_job", TPU, {"requests": chips, "limits": chips}),
    ):
        assert spec_of_pods(kind, **settings)["containers"][0].get("resources") == expected
    labels, prefix = spec_of_pods("tpu_job", **TPU)["nodeSelector"], "cloud.google.com/gke-tpu-"
    assert labels == {f"{prefix}accelerator": "tpu-v3-device", f"{prefix}topology": "2x2"}


def test_a_shell_in_a_command_keeps_its_dollars():
    words = ("bash", "-c", "echo $(date) $HOME")
    for kind in ("jobset", "tfjob"):  # Kubernetes makes $( of $$( and would put variables in for $(NAME)
        (container,) = spec_of_pods(kind, command=words)["containers"]
        assert container["command"][-3:] == [*words[:2], "echo $$(date) $HOME"]


# ------------------------------------------------------------------------------------------------------------
# IPUs: what is published


PROGRAM = "python3 run_pretraining.py --dataset generated --config {} --training-steps 1"
POPRUN = (
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_ALLOW_RUN_AS_ROOT=1 poprun --allow-run-as-root 1 --vv"
    " --num-instances 1 --num-replicas 16 --mpi-global-args=--tag-output --ipus-per-replica 4 "
)


def test_an_ipujob_is_the_published_one():
    text = (ROOT / "tests/launching/published_ipujob.yml").read_text(encoding="utf-8")
    for name, ipus, config, launcher in (
        ("bert-training-multi-ipu", 4, "pretrain_base_128_pod4", ""),
        ("bert-poprun-64ipus", 64, "pretrain_large_128_POD64", POPRUN),
    ):
        program = PROGRAM.format(config)
        settings = {"cpu": "32", "memory": "200Gi", "shm": "10Gi", "grace_secs": None, "ipus": ipus}
        settings |= {"image": "graphcore/pytorch:3.3.0", "command": tuple(shlex.split(program))}
        (made,) = manifests.documents("ipujob", job(name=name, **settings))
        line = made["spec"]["workers"]["template"]["spec"]["containers"][0]["args"][0]
        words = [word for word in shlex.split(line.replace("\\\n", " ")) if word != "exec"]
        assert words == shlex.split(launcher + program)
        published = yaml.safe_load(text.replace("NAME", name).replace("IPUS", str(ipus)))
        if ipus == 4:  # one replica
            del published["spec"]["modelReplicasPerWorker"]
        published["spec"]["workers"]["template"]["spec"]["containers"][0]["args"] = [line]
        assert made == published


def test_an_ipujob_writes_its_configuration_first():
    spec = spec_of_pods("ipujob", ipus=64, ipu_image="graphcore/tensorflow:2", volumes=VOLUMES)
    (writer,), (trainer,) = spec["initContainers"], spec["containers"]
    assert (writer["image"], trainer["image"]) == (job().image, "graphcore/tensorflow:2")
    assert f"{shlex.join(COMMAND)} --plan --plan_file=/job/run.json" in writer["args"][0].splitlines()
    assert trainer["args"][0].rstrip().endswith("python3 -m official.graphcore /job/run.json")
    for container in (writer, trainer):
        assert {"name": "job", "mountPath": "/job"} in container["volumeMounts"]
        subprocess.run(["bash", "-n"], input=container["args"][0], text=True, check=True)


def test_the_configuration_goes_with_the_package(tmp_path):
    """The first step of an IPUJob, with a stand-in for `bert` that writes a path in the package."""
    (writer,) = spec_of_pods("ipujob", ipus=4, ipu_image="graphcore/tensorflow:2")["initContainers"]
    folder = tmp_path / "job"
    folder.mkdir()
    text = json.dumps({"model": f"{ROOT}/official/x.json"})
    bert = f"#!/bin/bash\n[ \"$1\" = train ] && echo '{text}' > {folder}/run.json\n"
    stand_in(tmp_path / "bin" / "bert", bert)
    stand_in(tmp_path / "bin" / "python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [*writer["command"], writer["args"][0].replace("/job", str(folder))]
    subprocess.run(command, env=environment, check=True, cwd=tmp_path)
    assert json.loads((folder / "run.json").read_text()) == {"model": f"{folder}/official/x.json"}
    assert (folder / "official" / "graphcore" / "__main__.py").exists()


def test_a_name_may_be_as_long_as_kubernetes_takes():
    for kind, longest in {"jobset": 46, "indexed_job": 55, "tfjob": 48}.items():
        manifests.documents(kind, job(name="b" * longest, workers=4))

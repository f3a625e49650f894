"""Strict checks of manifests: Kubernetes' schemas, the JobSet models of the trainer API, published fields."""

import copy
import functools
from collections.abc import Iterator

import pytest

KUBERNETES = "1.32"
# Fields of a TFJob. Source: kubeflow-training 1.9.4, kubeflow/training/models/kubeflow_org_v1_tf_job*.py,
# kubeflow_org_v1_run_policy.py, kubeflow_org_v1_replica_spec.py
_TOP = {"apiVersion", "kind", "metadata", "spec"}
TFJOB = {
    "TFJob": _TOP,
    "TFJobSpec": {"enableDynamicWorker", "runPolicy", "successPolicy", "tfReplicaSpecs"},
    "RunPolicy": set(
        "activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy schedulingPolicy suspend"
        " ttlSecondsAfterFinished".split()
    ),
    "ReplicaSpec": {"replicas", "restartPolicy", "template"},
}
_REPLICAS = {"Chief", "Master", "Worker", "PS", "Evaluator"}
_RESTARTS = {"Always", "OnFailure", "Never", "ExitCode"}
# Fields of an IPUJob, which no package has: those of Graphcore's published manifests.
# Source: https://docs.graphcore.ai/projects/kubernetes-user-guide/en/latest/creating-ipujob.html,
# https://epcced.github.io/eidf-docs/services/graphcore/training/L2_multiple_IPU/
IPUJOB = {
    "IPUJob": _TOP,
    "spec": {"jobInstances", "ipusPerJobInstance", "modelReplicasPerWorker", "workers"},
    "workers": {"template"},
    "template": {"spec"},
}
# Maps whose keys are people's own.
_FREE = {"labels", "nodeSelector", "selector", "requests", "limits"}


class Refused(Exception):
    """A manifest is not what its reader takes."""


@functools.cache
def _validator(name: str):
    utils = pytest.importorskip("kubernetes_validate.utils", reason="kubernetes-validate is not installed")
    import jsonschema
    import referencing

    folder = f"kubernetes-json-schema/v{KUBERNETES}.0-local-strict"
    schema = utils.schema_contents(f"{folder}/{name}.json", KUBERNETES)
    definitions = utils.schema_contents(f"{folder}/_definitions.json", KUBERNETES)
    resources = [referencing.Resource.from_contents(each) for each in (schema, definitions)]
    registry = resources[1] @ (resources[0] @ referencing.Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


def _check_kubernetes(name: str, document: dict) -> None:
    for error in _validator(name).iter_errors(document):
        raise Refused(error.message)


def _check_pod(template: dict) -> None:
    metadata = {**template.get("metadata", {}), "name": "pod"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    _check_kubernetes("pod-v1", {**template, **pod})


def _check_fields(part: dict, known: set[str], where: str) -> None:
    if not part.keys() <= known:
        raise Refused(f"{where}: {part.keys() - known}")


def _check_jobset(document: dict) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    try:
        read = models.JobsetV1alpha2JobSet.from_dict(document)
    except ValueError as error:  # pydantic's
        raise Refused(str(error)) from None
    if read.to_dict() != document:  # a field that it does not know is left out
        raise Refused("JobSet: a field that the models do not have")
    for job in document["spec"]["replicatedJobs"]:
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
        _check_kubernetes("job-batch-v1", {**head, **job["template"]})


def _check_tfjob(document: dict) -> None:
    _check_fields(document, TFJOB["TFJob"], "TFJob")
    _check_kubernetes("objectmeta-meta-v1", document["metadata"])
    spec = document["spec"]
    _check_fields(spec, TFJOB["TFJobSpec"], "spec")
    _check_fields(spec["runPolicy"], TFJOB["RunPolicy"], "runPolicy")
    if spec["successPolicy"] not in ("", "AllWorkers") or not spec["tfReplicaSpecs"].keys() <= _REPLICAS:
        raise Refused("successPolicy, or tfReplicaSpecs")
    for replicas in spec["tfReplicaSpecs"].values():
        _check_fields(replicas, TFJOB["ReplicaSpec"], "tfReplicaSpecs")
        if replicas["restartPolicy"] not in _RESTARTS:
            raise Refused("restartPolicy")
        _check_pod(replicas["template"])


def _check_ipujob(document: dict) -> None:
    _check_fields(document, IPUJOB["IPUJob"], "IPUJob")
    _check_kubernetes("objectmeta-meta-v1", document["metadata"])
    spec = document["spec"]
    _check_fields(spec, IPUJOB["spec"], "spec")
    _check_fields(spec["workers"], IPUJOB["workers"], "workers")
    _check_fields(spec["workers"]["template"], IPUJOB["template"], "template")
    if type(spec["jobInstances"]) is not int or not isinstance(spec["ipusPerJobInstance"], str):
        raise Refused("spec: types")
    _check_pod(spec["workers"]["template"])


_READERS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _check_jobset,
    ("kubeflow.org/v1", "TFJob"): _check_tfjob,
    ("graphcore.ai/v1alpha1", "IPUJob"): _check_ipujob,
    ("batch/v1", "Job"): functools.partial(_check_kubernetes, "job-batch-v1"),
    ("v1", "Service"): functools.partial(_check_kubernetes, "service-v1"),
}


def check(document: dict) -> None:
    """Raises Refused for a manifest that its reader would not take as it is meant."""
    reader = _READERS.get((document.get("apiVersion"), document.get("kind")))
    if reader is None:
        raise Refused("no such apiVersion and kind")
    try:
        reader(document)
    except KeyError as error:  # a field is not there under its name
        raise Refused(str(error)) from None


def misspelt(document: dict) -> Iterator[tuple[str, dict]]:
    """Yields a copy of a manifest for each of its fields, in which that field is misspelt; of equal ones in
    a list, the first."""
    seen = set()
    for path in _paths(document):
        name = ".".join("*" if isinstance(step, int) else step for step in path)
        if name in seen:
            continue
        seen.add(name)
        damaged = copy.deepcopy(document)
        part = damaged
        for step in path[:-1]:
            part = part[step]
        renamed = {(f"{key}s" if key == path[-1] else key): value for key, value in part.items()}
        part.clear()
        part.update(renamed)
        yield name, damaged


def _paths(part, path: tuple = ()) -> Iterator[tuple]:
    if isinstance(part, list):
        for number, each in enumerate(part):
            yield from _paths(each, (*path, number))
    if isinstance(part, dict):
        for key, value in part.items():
            if not path or path[-1] not in _FREE:
                yield (*path, key)
                yield from _paths(value, (*path, key))

"""Strict checks of manifests: Kubernetes' schemas, the JobSet models of the trainer API, published fields."""

import functools
from collections.abc import Iterable

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


def check_pod(template: dict) -> None:
    """Raises Refused for a template of pods that Kubernetes would not take."""
    metadata = {**template.get("metadata", {}), "name": "pod"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    _check_kubernetes("pod-v1", {**template, **pod})


def _check_fields(table: dict[str, set[str]], parts: Iterable[tuple[str, dict]]) -> None:
    for name, part in parts:
        if not part.keys() <= table[name]:
            raise Refused(f"{name}: {part.keys() - table[name]}")


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
    spec = document["spec"]
    kinds = spec["tfReplicaSpecs"]
    parts = [("TFJob", document), ("TFJobSpec", spec), ("RunPolicy", spec["runPolicy"])]
    _check_fields(TFJOB, [*parts, *(("ReplicaSpec", each) for each in kinds.values())])
    _check_kubernetes("objectmeta-meta-v1", document["metadata"])
    if spec["successPolicy"] not in ("", "AllWorkers") or not kinds.keys() <= _REPLICAS:
        raise Refused("successPolicy, or tfReplicaSpecs")
    for replicas in kinds.values():
        if replicas["restartPolicy"] not in _RESTARTS:
            raise Refused("restartPolicy")
        check_pod(replicas["template"])


def _check_ipujob(document: dict) -> None:
    """Checks the pod: the fields around it are compared with those of the published manifest."""
    spec = document["spec"]
    _check_kubernetes("objectmeta-meta-v1", document["metadata"])
    if type(spec["jobInstances"]) is not int or not isinstance(spec["ipusPerJobInstance"], str):
        raise Refused("spec: types")
    check_pod(spec["workers"]["template"])


_READERS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _check_jobset,
    ("kubeflow.org/v1", "TFJob"): _check_tfjob,
    ("graphcore.ai/v1alpha1", "IPUJob"): _check_ipujob,
    ("batch/v1", "Job"): functools.partial(_check_kubernetes, "job-batch-v1"),
    ("v1", "Service"): functools.partial(_check_kubernetes, "service-v1"),
    ("apps/v1", "Deployment"): functools.partial(_check_kubernetes, "deployment-apps-v1"),
    ("policy/v1", "PodDisruptionBudget"): functools.partial(
        _check_kubernetes, "poddisruptionbudget-policy-v1"
    ),
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

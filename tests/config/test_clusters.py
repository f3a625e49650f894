"""How a process learns its place from what started it: every source in its own words, and what it refuses."""

import json
import os
import types

import pytest
import yaml

from official.cli import flags
from official.config import cluster
from official.config.cluster import Cluster, find_cluster, read_cluster
from official.io.errors import ConfigError
from tests.config.test_configs import GOOD
from tests.fixtures import ROOT
from tests.refusals import assert_refused

TABLES = yaml.safe_load((ROOT / "tests/config/clusters.yaml").read_text(encoding="utf-8"))
SLURM, KUBERNETES, MPI, HYDRA, POPRUN = TABLES["environments"].values()
SEVERAL_HOSTS = MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def asked(worker_hosts=None, task_index=None):
    return types.SimpleNamespace(worker_hosts=worker_hosts, task_index=task_index)


def of_jobs(jobs: dict, kind: str, index) -> dict:
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})}


def tf_config(hosts: str, index: int) -> dict:
    return of_jobs({"worker": hosts.split(",")}, "worker", index)


def test_a_process_that_nobody_placed_is_by_itself():
    assert find_cluster(asked(), {}) is None
    batch_shell = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "a,b"}
    assert find_cluster(asked(), batch_shell) is None
    assert find_cluster(asked(), {"JOB_COMPLETION_INDEX": "2", "TF_CONFIG": "{}"}) is None


def test_tasks_of_a_slurm_step():
    found = find_cluster(asked(), SLURM)
    names = [host.rpartition(":") for host in found.hosts]
    ports = [int(port) for *_, port in names]
    assert [host for host, *_ in names] == ["gpu08", "gpu08", "gpu09"] and found.rank == 2
    assert ports[1] == ports[0] + 1 and ports[2] == ports[0] and "Slurm" in found.source
    other_job = find_cluster(asked(), SLURM | {"SLURM_JOB_ID": "78"})
    assert not set(found.hosts) & set(other_job.hosts)
    told = find_cluster(asked(), SLURM | {"BERT_PORT": "5000"})
    assert told.hosts == ("gpu08:5000", "gpu08:5001", "gpu09:5000")
    in_turns = find_cluster(asked(), SLURM | {"SLURM_DISTRIBUTION": "cyclic", "SLURM_NODEID": "0"})
    assert [host.split(":")[0] for host in in_turns.hosts] == ["gpu08", "gpu09", "gpu08"]


def test_lists_of_slurm_hosts_and_counts_of_their_tasks():
    for text, names in (
        ("a", ["a"]),
        ("a1,b", ["a1", "b"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[09-11,7],b-c", ["a09", "a10", "a11", "a7", "b-c"]),
        ("r[1-2]n[3,5].x,y", ["r1n3.x", "r1n5.x", "r2n3.x", "r2n5.x", "y"]),
    ):
        assert cluster.host_names(text) == names
    no_hosts = ("", "a[", "a[1-]", "a[3-1]", "a,,b", "a[1]]", "a[0-99999999]", ",a")
    assert_refused(cluster.host_names, [(text, "SLURM_STEP_NODELIST") for text in no_hosts])
    assert cluster.tasks_per_host("2(x3),1") == [2, 2, 2, 1] and cluster.tasks_per_host("4") == [4]
    assert_refused(cluster.tasks_per_host, [("2(x", "SLURM_STEP_TASKS_PER_NODE")])


def test_pods_of_an_indexed_job():
    hosts = tuple(f"train-x7f-workers-0-{index}.bert:2222" for index in range(3))
    assert find_cluster(asked(), KUBERNETES) == Cluster(hosts, 2)
    elsewhere = KUBERNETES | {"BERT_PORT": "7000", "BERT_SERVICE": "bert.ns.svc.cluster.local"}
    assert find_cluster(asked(), elsewhere).hosts[0] == "train-x7f-workers-0-0.bert.ns.svc.cluster.local:7000"


def test_processes_of_mpi():
    found = find_cluster(asked(), MPI)
    assert found.rank == 2 and len(set(found.hosts)) == 3 and found.source == "mpirun"
    assert {host.split(":")[0] for host in found.hosts} == {"localhost"}
    assert find_cluster(asked(), MPI | POPRUN).source == "poprun"
    assert (find_cluster(asked(), HYDRA).rank, len(find_cluster(asked(), HYDRA).hosts)) == (1, 2)


def test_processes_of_mpi_on_several_hosts_meet_at_an_address():
    assert find_cluster(asked(), SEVERAL_HOSTS).hosts == ("", "", "")
    with pytest.raises(ConfigError, match="--worker_hosts=HOST:PORT"):
        read_cluster(asked(), SEVERAL_HOSTS)
    found = read_cluster(asked("a:1"), SEVERAL_HOSTS)
    assert found == Cluster(("a:1", "", ""), 2) and found.name(2) == "rank 2" and "mpirun" in found.source
    assert read_cluster(asked("a:1"), SLURM).hosts == ("a:1", "", "")


def test_tasks_of_slurm_that_speak_pmi():
    of_pmi2 = {"PMI_SIZE": "3", "PMI_RANK": "2", "PMI_FD": "11"}
    assert find_cluster(asked(), SLURM | of_pmi2) == find_cluster(asked(), SLURM)
    assert find_cluster(asked(), SLURM | of_pmi2).source == "the Slurm step"


def test_jobs_of_one_machine_have_ports_of_their_own(monkeypatch):
    found = []
    for parent in (1000, 1001):
        monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
        found.append(find_cluster(asked(), HYDRA | {"HYDI_CONTROL_FD": "9"}).hosts)
    assert not set(found[0]) & set(found[1])


def test_a_distribution_that_tells_no_hosts_is_refused_in_every_task():
    for distribution in ("plane=2", "arbitrary", "plane=2:cyclic"):
        for rank, node in ((0, 0), (1, 0), (2, 1)):
            own = {"SLURM_PROCID": f"{rank}", "SLURM_NODEID": f"{node}", "SLURM_DISTRIBUTION": distribution}
            with pytest.raises(ConfigError, match="SLURM_DISTRIBUTION=.* --worker_hosts"):
                find_cluster(asked(), SLURM | own)
            assert read_cluster(asked("a:1"), SLURM | own).rank == rank


def test_the_ways_out_that_messages_name_are_ways_out():
    hosts = "a:1,b:1,c:1"
    wrong = SLURM | {"SLURM_STEP_NODELIST": "a"}
    in_host_network = KUBERNETES | {"HOSTNAME": "node7"}
    for environment in (wrong, in_host_network, {"TF_CONFIG": "{"}):
        with pytest.raises(ConfigError):
            find_cluster(asked(), environment)
        assert find_cluster(asked(hosts, 2), environment).source == "--worker_hosts"
    assert find_cluster(asked(), wrong | tf_config(hosts, 2)).source == "TF_CONFIG"
    assert read_cluster(asked("a:1"), wrong).hosts == ("a:1", "", "")
    assert read_cluster(asked("a:1"), in_host_network).hosts == ("a:1", "", "")


def test_those_that_agree_may_both_speak():
    hosts = "a:1,b:1,c:1"
    both = find_cluster(asked(hosts, 2), tf_config(hosts, 2) | SLURM)
    assert both == Cluster(("a:1", "b:1", "c:1"), 2) and both.source == "--worker_hosts"
    assert find_cluster(asked("a:1"), tf_config(hosts, 2)).source == "TF_CONFIG"
    one_task = SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    one_task |= {"SLURM_STEP_NODELIST": "a", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert find_cluster(asked(), tf_config(hosts, 2) | one_task).source == "TF_CONFIG"
    # Slurm's tasks are mpirun's daemons, one a host.
    assert find_cluster(asked(), MPI | one_task).source == "mpirun"


def test_processes_of_tf_config():
    """A chief is the first process, whatever its workers are called; other jobs have no part in the run."""
    jobs = {"ps": ["p:1"], "worker": ["b:2", "c:3"], "chief": ["a:1"], "evaluator": ["e:1"]}
    for rank, (kind, index) in enumerate((("chief", 0), ("worker", 0), ("worker", 1))):
        found = read_cluster(asked(), of_jobs(jobs, kind, index))
        assert found == Cluster(("a:1", "b:2", "c:3"), rank)
    workers = of_jobs({"worker": ["b:2", "c:3"]}, "worker", "1")
    assert read_cluster(asked(), workers) == Cluster(("b:2", "c:3"), 1)


def test_what_contradicts_itself_is_one_line():
    cases = []
    for each in TABLES["refused"]:
        environment = dict(each.get("set", {}))
        for name in each.get("of", ()):
            environment = TABLES["environments"][name] | environment
        environment |= of_jobs(*each["jobs"]) if "jobs" in each else {}
        cases.append((each.get("asked", ()), environment, each["message"]))
    assert_refused(lambda given, environment: read_cluster(asked(*given), environment), cases)


def placed(monkeypatch, variables: dict) -> dict:
    """Returns the environment of a process started with these variables, which this one gets, too."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.mark.parametrize("variables", [SLURM, KUBERNETES, MPI, tf_config("a:1,b:1", 1)])
def test_one_of_several_trains_together_with_the_others(monkeypatch, variables):
    read = flags.read(GOOD, placed(monkeypatch, variables))
    assert read.config.distribution_strategy == "multi_worker_mirrored" and read.told == []


def test_worker_hosts_choose_the_strategy_too():
    given = [*GOOD, "--worker_hosts=a:1,b:1", "--task_index=1"]
    assert flags.read(given, {}).config.distribution_strategy == "multi_worker_mirrored"


def test_one_of_several_may_keep_to_itself(monkeypatch):
    environment = placed(monkeypatch, SLURM)
    assert flags.read(GOOD).config.distribution_strategy == "mirrored"  # no training run
    alone = flags.read([*GOOD, "--distribution_strategy=mirrored"], environment)
    assert alone.config.distribution_strategy == "mirrored"
    assert "rank 2 of 3 (the Slurm step), but --distribution_strategy=mirrored trains alone" in alone.told[0]
    evaluating = flags.read([*GOOD, "--do_train=false", "--do_eval"], environment)
    assert evaluating.config.distribution_strategy == "mirrored" and evaluating.told == []


def test_launchers_that_are_not_read_are_refused_where_nobody_else_says_the_same(monkeypatch):
    torchrun, horovod = {"RANK": "1", "WORLD_SIZE": "8"}, {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}
    cases = [
        (torchrun, "RANK=1 and WORLD_SIZE=8 .* this process is one of 8, but bert does not read them"),
        (horovod, "(horovodrun) say that this process is one of 2"),
        (SLURM | torchrun, "is one of 8"),
    ]
    assert_refused(lambda environment: flags.read(GOOD, environment), cases)
    for rank, size in (("0", "1"), ("", "8"), ("x", "8")):
        alone = flags.read(GOOD, {"RANK": rank, "WORLD_SIZE": size})
        assert alone.config.distribution_strategy == "mirrored" and not alone.told
    together = flags.read(GOOD, placed(monkeypatch, SLURM | {"RANK": "2", "WORLD_SIZE": "3"}))
    assert together.config.distribution_strategy == "multi_worker_mirrored"
    assert not flags.read([*GOOD, "--distribution_strategy=mirrored"], torchrun).told


def test_a_batch_script_of_several_nodes_is_told_that_it_trains_on_one(monkeypatch):
    script = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "4", "SLURM_PROCID": "0"}
    assert "has 4 nodes, and srun has not started this command" in flags.read(GOOD, script).told[0]
    for pod, told in (("0", 0), ("2", 1)):  # the same of Kubernetes; a job of one pod is pod 0
        said = flags.read(GOOD, {"JOB_COMPLETION_INDEX": pod}).told
        assert len(said) == told and all("pod 2 of an Indexed Job" in line for line in said)
    for words, more in (
        ([], {"SLURM_JOB_NUM_NODES": "1"}),
        (["--do_train=false", "--do_eval"], {}),
        ([], tf_config("a:1,b:1", 1)),
    ):
        assert flags.read([*GOOD, *words], placed(monkeypatch, script | more)).told == []


def test_a_stray_variable_is_nothing_to_who_chose_to_be_alone():
    alone = [*GOOD, "--distribution_strategy=one_device"]
    assert flags.read(alone, {"TF_CONFIG": "{"}).told == []
    with pytest.raises(ConfigError, match="TF_CONFIG is not of the form"):
        flags.read(GOOD, {"TF_CONFIG": "{"})

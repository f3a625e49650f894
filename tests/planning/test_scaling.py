"""The model of scaling: all-reduces against one that is played through, steps against what must hold."""

import dataclasses
import json

import pytest

from official.cli import plan_pictures
from official.config import ConfigError, host_counts
from official.planning import all_reduce as all_reduce_lib
from official.planning import plan as plan_lib
from official.planning import scaling, scaling_fit, scaling_plan
from official.planning.all_reduce import ALGORITHMS, Network, all_reduce
from official.planning.scaling import Batch, Work
from official.tasks import TASKS

WORK = Work(row_secs=0.01, fill=0.0, update_secs=0.02, backward_share=2 / 3, gradient_bytes=1e9, small_sums=1)
HOSTS = dict(plan=True, plan_tflops=1e-3, plan_gbps=1e-3, plan_hosts="1..8", num_steps_per_epoch=20)


def network(replicas=4, algorithm=None, host=1e9, local=1e10, latency=1e-5):
    return Network(replicas, host, local, latency, latency / 10, algorithm)


def play_ring(replicas, num_bytes, bytes_per_sec, latency):
    """Returns when the last replica of a ring has all parts, sending message by message."""
    has = [{part: {replica} for part in range(replicas)} for replica in range(replicas)]
    now = 0.0
    for index in range(2 * (replicas - 1)):
        sent = [(replica, (replica - index) % replicas) for replica in range(replicas)]
        for (replica, part), members in [(each, set(has[each[0]][each[1]])) for each in sent]:
            has[(replica + 1) % replicas][part] |= members
        now += num_bytes / replicas / bytes_per_sec + latency
    assert all(members == set(range(replicas)) for parts in has for members in parts.values())
    return now


@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_ring_is_as_long_as_one_that_is_played_through(hosts, replicas):
    links = (1e9, 1e-5) if hosts > 1 else (1e10, 1e-6)
    found = all_reduce(network(replicas, "ring"), hosts, 1e8)
    assert found.secs == pytest.approx(play_ring(hosts * replicas, 1e8, *links)) and found.algorithm == "ring"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_replica_sends_nothing_and_more_bytes_take_longer(algorithm):
    assert all_reduce(network(1, algorithm), 1, 1e9).secs == 0
    times = [all_reduce(network(4, algorithm), 8, size).secs for size in (0, 1e6, 1e9)]
    assert 0 < times[0] < times[1] < times[2]


def test_rings_of_hosts_are_rings():
    for hosts in (2, 5, 64):
        flat, nested = (all_reduce(network(1, name), hosts, 1e8).secs for name in ("ring", "hierarchical"))
        assert nested == pytest.approx(flat)
    local = all_reduce(network(4, "hierarchical"), 1, 1e8).secs
    assert local == pytest.approx(play_ring(4, 1e8, 1e10, 1e-6))


def test_nothing_sends_less_than_a_sum_needs():
    """Every replica sends 2 (n - 1) / n of the bytes at least: that over the slowest link is the bound."""
    for hosts in (2, 16, 1024):
        bound = 2 * (hosts - 1) / hosts * 1e9 / 1e9
        for algorithm in ALGORITHMS:
            assert all_reduce(network(8, algorithm), hosts, 1e9).secs >= bound


def test_trees_win_where_messages_are_many_and_rings_where_bytes_are():
    found = all_reduce(network(1), 4096, 1e3)
    assert found.algorithm == "tree" and found.secs < 1e-3
    assert all_reduce(network(1), 4, 1e9).algorithm == "ring"
    for size in (0, 1e5, 1e9):
        fastest = min(all_reduce(network(8, name), 32, size).secs for name in ALGORITHMS)
        assert all_reduce(network(8), 32, size).secs == fastest


def test_the_depth_of_trees_is_the_logarithm():
    times = [all_reduce(network(1, "tree"), hosts, 0).secs for hosts in (2, 4, 5, 1024)]
    assert times == pytest.approx([2e-5, 4e-5, 6e-5, 20e-5])


def step(hosts=4, accumulation=2, rows=8, overlap=0.0, rows_per_sec=None, **work):
    return scaling.step_time(
        dataclasses.replace(WORK, **work), network(), hosts, Batch(accumulation, rows), overlap, rows_per_sec
    )


def test_a_step_is_the_sum_of_its_parts():
    time = step()
    gradients, small = all_reduce(network(), 4, 1e9).secs, all_reduce(network(), 4, 0).secs
    assert time.compute_secs == pytest.approx(2 * 8 * 0.01)
    assert time.all_reduce_secs == pytest.approx(gradients + small)
    assert time.secs == pytest.approx(time.compute_secs + 0.02 + gradients + small)
    assert step(accumulation=20).all_reduce_secs == time.all_reduce_secs  # once a step
    assert step(fill=3.0).compute_secs == pytest.approx((2 + 3) * 8 * 0.01)


def test_what_overlaps_hides_behind_the_last_backward_pass_alone():
    full, none = step(overlap=1.0), step()
    assert full.hidden_secs == pytest.approx(2 / 3 * 8 * 0.01)
    assert full.secs == pytest.approx(none.secs - full.hidden_secs)
    assert step(overlap=1.0, accumulation=50).hidden_secs == full.hidden_secs
    little = step(overlap=1.0, gradient_bytes=1e6)
    assert little.hidden_secs < full.hidden_secs and little.secs >= little.compute_secs


def test_many_packs_cost_messages():
    assert step(packs=10).all_reduce_secs > step().all_reduce_secs
    assert step(packs=10).all_reduce_secs - step().all_reduce_secs < 1e-2


def test_a_step_waits_for_its_input():
    assert step(rows_per_sec=1e9).secs == step().secs
    assert step(rows_per_sec=1.0).secs == pytest.approx(4 * 2 * 8)  # the rows of the replicas of a host


@pytest.mark.parametrize(
    "rows,replicas,most,batch",
    [
        (64, 4, 8, (2, 8)),
        (64, 8, 8, (1, 8)),
        (64, 32, 8, (1, 2)),
        (64, 64, 8, (1, 1)),
        (64, 128, 8, None),
        (64, 3, 8, None),
        (60, 4, 6, (3, 5)),
        (14, 2, 4, (7, 1)),
    ],
)
def test_rows_are_shared_out_evenly_or_not_at_all(rows, replicas, most, batch):
    found = scaling.divided(rows, replicas, most)
    assert found == (batch and Batch(*batch))
    assert found is None or found.accumulation * found.rows * replicas == rows


def runs(share, update_secs):
    """Returns made-up runs of replicas that reach a share of their peak."""
    made = []
    for hosts, accumulation in ((1, 64), (2, 16), (8, 4)):
        work = dataclasses.replace(WORK, row_secs=0.01 / share, update_secs=update_secs, fill=1.5)
        batch = Batch(accumulation, 4)
        secs = scaling.step_time(work, network(), hosts, batch).secs
        alike = dataclasses.replace(WORK, fill=1.5, update_secs=0.0)
        made.append(scaling_fit.Run(f"{hosts}", alike, network(), hosts, batch, secs))
    return made


def test_a_fit_finds_what_the_runs_were_made_with():
    for run in runs(0.3, 0.0):
        assert scaling_fit.share_of_peak(run) == pytest.approx(0.3)
        assert scaling_fit.predicted_secs(run, 0.3) == pytest.approx(run.step_secs)
    made = runs(0.25, 0.125)
    assert scaling_fit.share_and_update(made[:2]) == pytest.approx((0.25, 0.125))
    assert scaling_fit.predicted_secs(made[2], 0.25, 0.125) == pytest.approx(made[2].step_secs)


@pytest.mark.parametrize(
    "text,counts",
    [
        ("1", (1,)),
        ("1..8", (1, 2, 4, 8)),
        ("1..4096", tuple(2**power for power in range(13))),
        ("3..10", (3, 6, 10)),
        ("8,1, 3", (1, 3, 8)),
        ("1..4,4..6", (1, 2, 4, 6)),
    ],
)
def test_numbers_of_hosts(text, counts):
    assert host_counts.read(text) == counts


@pytest.mark.parametrize("text", ["0", "8..1", "1..", "..4", "one", "1,,2", "-1", "1..2..3", "1" * 12, "²"])
def test_what_is_no_number_of_hosts(text):
    with pytest.raises(ConfigError, match="plan_hosts=.*from 1 to 1,000,000"):
        host_counts.read(text)


def test_too_many_numbers_of_hosts():
    with pytest.raises(ConfigError, match="names 65 numbers of hosts, 64 at most"):
        host_counts.read(",".join(map(str, range(1, 66))))


def plan_of(config) -> dict:
    return plan_lib.make_plan(config, TASKS[config.task])


def test_a_plan_says_steps_of_more_hosts(make_config):
    config = make_config(**HOSTS, num_accumulation_steps=2)
    plan = plan_of(config)
    rows = plan["scaling"]["hosts"]
    assert [row["hosts"] for row in rows] == [1, 2, 4, 8] and json.dumps(plan)
    first = rows[0]["same_share"]
    assert first["step_secs"] == pytest.approx(plan["expected"]["step_secs"]) and first["efficiency"] == 1
    for row in rows:
        share, batch = row["same_share"], row["same_batch"]
        assert share["global_batch_size"] == 8 * row["hosts"]
        assert (
            batch["global_batch_size"]
            == 8
            == row["replicas"] * (batch["num_accumulation_steps"] * batch["micro_batch_size"])
        )
        assert batch["step_secs"] <= share["step_secs"]
        assert share["sequences_per_sec"] == pytest.approx(share["global_batch_size"] / share["step_secs"])
        assert share["train_secs"] == pytest.approx(20 * 8 / share["sequences_per_sec"])
    for key in ("same_share", "same_batch"):
        shares = [row[key]["efficiency"] for row in rows]
        assert shares == sorted(shares, reverse=True) and 0 < shares[-1] < shares[0]
    text = plan_lib.describe(plan)
    assert "8 hosts" in text and "1 x 1 rows a replica" in text and "0.001 GB/s a host" in text


def test_a_batch_that_cannot_be_shared_out_says_so(make_config):
    plan = plan_of(make_config(**{**HOSTS, "plan_hosts": "1,3,16"}))
    assert [row["same_batch"] is None for row in plan["scaling"]["hosts"]] == [False, True, True]
    assert "3, 16 hosts. These can share it: 1, 2, 4, 8" in plan_lib.describe(plan)


def test_the_step_of_a_pipeline_has_its_bubble(make_config):
    settings = dict(distribution_strategy="pipeline", pipeline_stages="2", num_virtual_devices=2)
    settings |= dict(num_accumulation_steps=4, clip_scope="global", train_batch_size=16)
    plan = plan_of(make_config(**HOSTS, **settings))
    rows = plan["scaling"]["hosts"]
    told = plan["expected"]["matmul_secs"] / (1 - plan["pipeline"]["bubble"])
    assert rows[0]["same_share"]["compute_secs"] == pytest.approx(told)
    few, many = rows[2]["same_batch"], rows[2]["same_share"]
    assert few["num_accumulation_steps"] < 4 and few["compute_secs"] > many["compute_secs"] / 4


def test_replicas_of_a_host_and_what_is_assumed(make_config):
    settings = dict(distribution_strategy="mirrored", num_virtual_devices=2, plan_local_gbps=2e-3)
    told = dict(plan_latency_usecs=0.0, plan_all_reduce="tree", plan_overlap=1.0, plan_update_secs=0.5)
    plan = plan_of(make_config(**HOSTS, **settings, **told, plan_rows_per_sec=1e9))
    assert plan["expected"]["gbps"] == 2e-3  # of one host, whose replicas send inside it
    scaled = plan["scaling"]
    assert scaled["replicas_per_host"] == 2 and scaled["local_gbps"] == pytest.approx(2e-3)
    first = scaled["hosts"][0]["same_share"]
    assert first["all_reduce"] == "tree" and first["update_secs"] == 0.5 and first["hidden_secs"] > 0
    assert scaled["latency_usecs"] == 0 and scaled["hosts"][3]["replicas"] == 16


def test_workers_are_hosts(make_config, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    settings = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1", task_index=0)
    scaled = plan_of(make_config(**HOSTS, **settings, num_gpus=2))["scaling"]
    assert scaled["replicas_per_host"] == 2
    assert scaled["hosts"][1]["same_share"]["global_batch_size"] == 8  # of the two that are planned


@pytest.mark.parametrize(
    "settings,message",
    [
        (dict(plan_hosts="1..4"), "plan_hosts=1..4 needs --plan"),
        (dict(plan=True, plan_hosts="1..4"), "Add --plan_gbps=GB/s"),
        (dict(plan=True, plan_hosts="4..1", plan_gbps=1.0), "'4..1' is no number of hosts"),
        (dict(plan=True, plan_overlap=0.5), "plan_overlap=0.5 needs --plan_hosts"),
        (dict(plan=True, plan_update_secs=0.0), "plan_update_secs=0.0 needs --plan_hosts"),
        (dict(plan=True, plan_hosts="1", plan_gbps=1.0, plan_local_gbps=0.0), "plan_local_gbps=0, expected"),
        (dict(plan=True, plan_hosts="1", plan_gbps=1.0, plan_rows_per_sec=0.0), "plan_rows_per_sec=0, exp"),
        (dict(plan=True, plan_hosts="1", plan_gbps=1.0, do_train=False, do_eval=True), "is of training"),
        (dict(plan=True, plan_picture="a.png"), "Add --plan_hosts, or drop --plan_picture"),
        (dict(plan=True, plan_overlap=2.0), "above the maximum of 1"),
    ],
)
def test_settings_that_do_not_go_together(make_config, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(**settings)


def test_the_time_of_a_step_must_come_from_somewhere(make_config):
    with pytest.raises(ConfigError, match="needs the time of a step. Add --plan_tflops=N"):
        plan_of(make_config(plan=True, plan_hosts="1", plan_gbps=1.0))


def test_a_measured_machine_tells_the_time_of_a_step(make_config):
    """Its update is no part of the micro batches, its all-reduce is none of these hosts'."""
    config = make_config(**{**HOSTS, "plan_tflops": None}, num_accumulation_steps=2)
    parts = {"matrix products": 3.0, "optimizer": 0.5, "all-reduce": 1.0, "calls": 0.25}
    plan = plan_of(make_config(**HOSTS, num_accumulation_steps=2))
    plan |= {"expected": None, "predicted": {"step_secs": 4.75, "parts": parts}}
    work = scaling_plan.work_of(config, plan)
    assert (work.update_secs, work.row_secs * 8) == pytest.approx((0.5, 3.25))
    own = scaling_plan.work_of(make_config(**HOSTS, plan_update_secs=0.0), plan)
    assert own.update_secs == 0 and own.row_secs == work.row_secs
    found = scaling_plan.scaling_of(config, plan)
    assert found and found["source"] == "machine_file"
    assert found["hosts"][0]["same_share"]["step_secs"] == pytest.approx(3.75)


def test_gradients_in_packs_and_packed_rows_are_more_messages(make_config):
    config = make_config(**HOSTS, explicit_allreduce=True, allreduce_bytes_per_pack=1000, clip_scope="global")
    work = scaling_plan.work_of(config, plan_of(config))
    assert work.packs == -(-work.gradient_bytes // 1000) > 10
    assert work.small_sums == (config.loss_normalization == "global") + 1
    plain = make_config(**HOSTS)
    assert scaling_plan.work_of(plain, plan_of(plain)).packs == 1


@pytest.mark.parametrize(
    "extreme",
    [
        dict(plan_gbps=1e-300),
        dict(plan_gbps=9e18, plan_tflops=9e18),
        dict(plan_latency_usecs=9e18, plan_hosts="1000000"),
        dict(plan_rows_per_sec=1e-300),
        dict(plan_update_secs=9e18, plan_overlap=1.0),
    ],
)
def test_extremes_are_numbers(make_config, extreme):
    plan = plan_of(make_config(**{**HOSTS, **extreme}))
    assert json.loads(json.dumps(plan["scaling"], allow_nan=False)) and plan_lib.describe(plan)


def test_the_curves_are_drawn(make_config, tmp_path):
    path = tmp_path / "a.png"
    config = make_config(**HOSTS, plan_picture=str(path))
    plan_lib.run(config, TASKS[config.task], plan_pictures.write_picture)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    panel = plan_pictures.panel_of(plan_of(config))
    assert [[hosts for hosts, _ in curve.points] for curve in panel.curves] == [[1, 2, 4, 8]] * 2


def test_every_algorithm_can_be_asked_for():
    from official.config import FIELDS

    assert FIELDS["plan_all_reduce"].choices == all_reduce_lib.ALGORITHMS

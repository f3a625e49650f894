"""The model of scaling: all-reduces against one that is played through, steps against what must hold."""

import itertools
import json

import pytest

from official.cli import plan_pictures
from official.config import ConfigError, values
from official.planning import plan as plan_lib
from official.planning import scaling
from official.planning.scaling import Batch, Network, Work, ring_secs
from official.tasks import TASKS
from tests.planning.test_plan import plan_of
from tests.refusals import assert_refused

WORK = Work(row_secs=0.01, fill=0.0, gradient_bytes=1e9, small_sums=1)
HOSTS = dict(plan=True, plan_tflops=1e-3, plan_gbps=1e-3, plan_hosts="1..8", num_steps_per_epoch=20)


def network(replicas=4):
    return Network(replicas, 1e9, 1e-5)


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


def test_a_ring_is_as_long_as_one_that_is_played_through():
    for hosts, replicas in itertools.product((1, 2, 3, 8), (1, 4)):
        found, latency = ring_secs(network(replicas), hosts, 1e8), 1e-5 if hosts > 1 else 1e-6
        assert found == pytest.approx(play_ring(hosts * replicas, 1e8, 1e9, latency))
    assert ring_secs(network(1), 1, 1e9) == 0  # one replica sends nothing
    times = [ring_secs(network(4), 8, size) for size in (0, 1e6, 1e9)]
    assert 0 < times[0] < times[1] < times[2]
    # Every replica sends 2 (n - 1) / n of the bytes at least: that over the slowest link is the bound.
    for hosts in (2, 16, 1024):
        assert ring_secs(network(8), hosts, 1e9) >= 2 * (hosts - 1) / hosts * 1e9 / 1e9


def step(accumulation=2, **work):
    return scaling.step_time(WORK._replace(**work), network(), 4, Batch(accumulation, 8))


def test_a_step_is_the_sum_of_its_parts():
    time = step()
    gradients, small = ring_secs(network(), 4, 1e9), ring_secs(network(), 4, 0)
    assert time["compute_secs"] == pytest.approx(2 * 8 * 0.01)
    assert time["all_reduce_secs"] == pytest.approx(gradients + small)
    assert time["step_secs"] == pytest.approx(time["compute_secs"] + gradients + small)
    assert step(accumulation=20)["all_reduce_secs"] == time["all_reduce_secs"]  # once a step
    assert 0 < step(packs=10)["all_reduce_secs"] - time["all_reduce_secs"] < 1e-2
    assert step(fill=3.0)["compute_secs"] == pytest.approx((2 + 3) * 8 * 0.01)


def test_rows_are_shared_out_evenly_or_not_at_all():
    cases = {(64, 4, 8): (2, 8), (64, 8, 8): (1, 8), (64, 32, 8): (1, 2), (64, 64, 8): (1, 1)}
    cases |= {(64, 128, 8): None, (64, 3, 8): None, (60, 4, 6): (3, 5), (14, 2, 4): (7, 1)}
    for (rows, replicas, most), batch in cases.items():
        assert scaling.divided(rows, replicas, most) == (batch and Batch(*batch)), (rows, replicas)


def test_numbers_of_hosts():
    for text, counts in (
        ("1", (1,)),
        ("1..8", (1, 2, 4, 8)),
        ("1..4096", tuple(2**power for power in range(13))),
        ("3..10", (3, 6, 10)),
        ("8,1, 3", (1, 3, 8)),
        ("1..4,4..6", (1, 2, 4, 6)),
    ):
        assert values.read_host_counts(text) == counts
    wrong = ("0", "8..1", "1..", "..4", "one", "1,,2", "-1", "1..2..3", "1" * 12, "²")
    cases = [(text, "plan_hosts=.*from 1 to 1,000,000") for text in wrong]
    cases.append((",".join(map(str, range(1, 66))), "names 65 numbers of hosts, 64 at most"))
    assert_refused(values.read_host_counts, cases)


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
        own = batch["num_accumulation_steps"] * batch["micro_batch_size"]
        assert batch["global_batch_size"] == 8 == row["replicas"] * own
        assert batch["step_secs"] <= share["step_secs"]
        assert share["sequences_per_sec"] == pytest.approx(share["global_batch_size"] / share["step_secs"])
        assert share["train_secs"] == pytest.approx(20 * 8 / share["sequences_per_sec"])
    for key in ("same_share", "same_batch"):
        shares = [row[key]["efficiency"] for row in rows]
        assert shares == sorted(shares, reverse=True) and 0 < shares[-1] < shares[0]
    text = plan_lib.describe(plan)
    assert "8 hosts" in text and "1 x 1 rows a replica" in text and "0.001 GB/s a host" in text


PIPELINE = dict(distribution_strategy="pipeline", pipeline_stages="2", num_virtual_devices=2)
PIPELINE |= dict(num_accumulation_steps=4, clip_scope="global", train_batch_size=16)
MEASURED = {**HOSTS, "plan_tflops": None, "plan_gbps": 1.0, "measure": True}


def test_a_batch_that_cannot_be_shared_out_says_so(make_config):
    plan = plan_of(make_config(**{**HOSTS, "plan_hosts": "1,3,16"}))
    assert [row["same_batch"] is None for row in plan["scaling"]["hosts"]] == [False, True, True]
    assert "3, 16 hosts. These can share it: 1, 2, 4, 8" in plan_lib.describe(plan)


@pytest.mark.slow
def test_the_step_of_a_pipeline_has_its_bubble(make_config):
    plan = plan_of(make_config({"num_hidden_layers": 2}, **HOSTS, **PIPELINE))
    rows = plan["scaling"]["hosts"]
    told = plan["expected"]["matmul_secs"] / (1 - plan["pipeline"]["bubble"])
    assert rows[0]["same_share"]["compute_secs"] == pytest.approx(told)
    few, many = rows[2]["same_batch"], rows[2]["same_share"]
    assert few["num_accumulation_steps"] < 4 and few["compute_secs"] > many["compute_secs"] / 4


@pytest.mark.slow
def test_replicas_of_a_host_and_what_is_assumed(make_config, monkeypatch):
    settings = dict(distribution_strategy="mirrored", num_virtual_devices=2)
    scaled = plan_of(make_config(**HOSTS, **settings))["scaling"]
    assert scaled["replicas_per_host"] == 2 and scaled["hosts"][3]["replicas"] == 16
    assert (scaled["gbps"], scaled["latency_usecs"]) == (1e-3, 10)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    settings = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1", task_index=0)
    scaled = plan_of(make_config(**HOSTS, **settings, num_gpus=2))["scaling"]
    assert scaled["replicas_per_host"] == 2  # workers are hosts
    assert scaled["hosts"][1]["same_share"]["global_batch_size"] == 8  # of the two that are planned


def measured(config, secs: float) -> dict:
    """Returns a plan of which every step took so long."""
    return plan_lib.make_plan(config, TASKS[config.task], lambda *_: [secs, secs, 9 * secs])


def test_a_measured_step_is_that_of_one_host(make_config):
    for settings in ({}, {"num_accumulation_steps": 2}):
        plan = measured(make_config(**MEASURED, **settings), 4.75)
        first, *_, last = plan["scaling"]["hosts"]
        assert plan["scaling"]["source"] == "measure" and plan["measured"]["step_secs"] == 4.75
        for key in ("same_share", "same_batch"):
            assert first[key]["step_secs"] == pytest.approx(4.75)
            assert last[key]["all_reduce_secs"] > 0 == first[key]["all_reduce_secs"]
        assert last["same_share"]["step_secs"] > 4.75 > last["same_batch"]["step_secs"]
        assert "the step as measured" in plan_lib.describe(plan)


def test_what_replicas_of_a_host_send_is_a_part_of_the_measured_step(make_config):
    config = make_config(**MEASURED, distribution_strategy="mirrored", num_virtual_devices=2)
    first = measured(config, 4.75)["scaling"]["hosts"][0]["same_share"]
    assert first["step_secs"] == pytest.approx(4.75) and 0 < first["all_reduce_secs"] < 4.75
    with pytest.raises(ConfigError, match="the measured step took 1e-06 s.*Raise --plan_gbps"):
        measured(config, 1e-6)


def test_gradients_in_packs_are_more_messages(make_config):
    packs = dict(explicit_allreduce=True, allreduce_bytes_per_pack=1000, clip_scope="global")
    configs = make_config(**HOSTS, **packs), make_config(**HOSTS)
    work, plain = (scaling.work_of(config, plan_of(config), network()) for config in configs)
    assert work.packs == -(-work.gradient_bytes // 1000) > 10 and plain.packs == 1
    assert work.small_sums == (configs[0].loss_normalization == "global") + 1


def test_extremes_are_numbers(make_config):
    large = dict(plan_gbps=9e18, plan_tflops=9e18)
    for extreme in (dict(plan_gbps=1e-300), large, dict(plan_hosts="1000000")):
        plan = plan_of(make_config(**{**HOSTS, **extreme}))
        assert json.loads(json.dumps(plan["scaling"], allow_nan=False)) and plan_lib.describe(plan)


@pytest.mark.slow
def test_the_curves_are_drawn(make_config, tmp_path):
    path = tmp_path / "a.png"
    config = make_config(**HOSTS, plan_picture=str(path))
    plan_lib.run(config, TASKS[config.task], plan_pictures.write_picture)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    curves = plan_pictures.curves_of(plan_of(config))
    assert [[hosts for hosts, _ in points] for _, points in curves.values()] == [[1, 2, 4, 8]] * 2

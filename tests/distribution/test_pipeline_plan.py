"""Stages to devices: what is said, what is balanced, by which costs, and what is refused; and orders of work,
free of deadlocks, as wide as the schedule allows, with the bubbles of the papers."""

import dataclasses
import itertools
import random

import pytest
import tensorflow as tf

from official.config.values import read_devices, read_stages, written_stages
from official.distribution import pipeline_plan as plan_lib
from official.distribution.pipeline_plan import Cost, PipelinePlan, Work, make_plan, make_timeline
from official.planning.graph_cost import stage_costs
from official.tasks import TASKS
from tests.fixtures import TINY, slow
from tests.refusals import assert_refused, refused

HEADS = dict(pretrain=["pooler", "masked_lm", "next_sentence"], squad=["span"], glue=["pooler", "classifier"])


def stages_of(task="pretrain", layers=12, final_norm=False):
    """Returns the names of a model's stages."""
    return ["embeddings", *(f"layer_{number}" for number in range(layers)), *["final_norm"] * final_norm,
            *HEADS[task]]  # fmt: skip


@pytest.fixture
def planned(make_config):
    """Returns a function that makes the plan of a pipeline; the table of back ends is not asked."""

    def plan(stages=None, devices=None, schedule=None, micro_batches=20, backend="ipu", **model):
        config = dataclasses.replace(
            make_config(model={"num_hidden_layers": model.get("layers", 12)}),
            distribution_strategy=backend,
            pipeline_stages=stages,
            device_mapping=devices,
            pipeline_schedule=schedule,
            num_accumulation_steps=micro_batches,
            do_train=model.pop("trains", True),
        )
        return make_plan(config, stages_of(**model))

    return plan


FIVE = "emb+pos / hid*4 / hid*4 / hid*4 / mlm+nsp"


def test_the_notation_and_the_list_say_the_same(planned):
    lists = '[["emb"], ["hid","hid","hid","hid"], ["hid","hid","hid","hid"], ["hid","hid","hid","hid"], ' \
        '["enc_out", "pool", "heads"]]'  # fmt: skip
    plan = planned(FIVE)
    assert plan == planned(lists, "[0,1,2,3,0]") == planned(lists.replace('"', "'"), "0, 1, 2, 3, 0")
    assert plan.stages[0] == ("embeddings",) and plan.stages[1] == tuple(f"layer_{each}" for each in range(4))
    assert plan.stages[4] == ("pooler", "masked_lm", "next_sentence")
    assert (plan.devices, plan.schedule, plan.num_devices) == ((0, 1, 2, 3, 0), "grouped", 4)
    assert plan.notation == "emb / hid*4 / hid*4 / hid*4 / pool+mlm+nsp" and planned(plan.notation) == plan
    assert plan.device_of("layer_5") == 2 and plan.device_of("masked_lm") == 0


def test_the_notation_goes_there_and_back():
    for text in ("emb+pos / hid*4+mlm+nsp", "emb / hid / hid*2 / loc", "emb+hid*24+glu"):
        assert written_stages(read_stages(text)) == text
    assert read_stages(" 4 ") == 4 and read_devices("0,1") == read_devices("[0, 1]") == (0, 1)


def test_heads_are_found_by_every_name(planned):
    def stages(text, task):
        return planned(text, task=task, micro_batches=6, final_norm=task == "squad").stages

    assert stages("emb / hid*12 / qa_head", "squad") == stages("emb+pos / hid*12 / loc", "squad")
    assert stages("emb / hid*12 / loc", "squad")[1][-1] == "final_norm"
    by_name = {stages(f"emb / hid*12 / {name}", "glue") for name in ("glu", "glu_reg", "pool+glue_head")}
    assert [each[2] for each in by_name] == [("pooler", "classifier")]
    # Their encoder ends with a pooler that a span model has not.
    assert stages("emb / hid*12+enc_out+pool / qa_head", "squad")[2] == ("span",)
    split = planned("emb / hid*12+mlm / nsp", "0,0,0", micro_batches=6)  # the pooler comes before all heads
    assert split.stages[1:] == ((*stages_of()[1:13], "pooler", "masked_lm"), ("next_sentence",))


def test_devices_follow_where_none_are_said(planned):
    five = "emb / hid*4 / hid*4 / hid*4 / loc"
    assert planned(five, task="squad").devices == (0, 1, 2, 3, 0)  # four IPUs, and not eight
    assert planned("emb+hid*6 / hid*6+loc", task="squad").devices == (0, 1)
    assert planned("emb / hid*6 / hid*6 / mlm+nsp", micro_batches=8).devices == (0, 1, 2, 0)
    assert planned(FIVE, backend="pipeline").devices == (0, 1, 2, 3, 4)
    assert planned(FIVE, backend="pipeline").schedule == "1f1b"
    assert [plan_lib.power_of_two(count) for count in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]


def test_what_does_not_fit_is_one_clear_line(planned):
    cases = []
    for words, message in refused("distribution/refused_pipelines.txt"):
        *said, count = [word.strip() or None for word in [*words.split(";"), "", "", ""][:4]]
        cases.append((*said, int(count or 20), message))
    assert_refused(planned, cases)


def test_micro_batches_of_graphcores_schedules():
    five, four = (0, 1, 2, 3, 0), (0, 1, 2, 3)
    assert plan_lib.micro_batch_divisor(five, "grouped", True) == 10
    assert plan_lib.micro_batch_divisor(five, "grouped", False) == 5
    assert plan_lib.micro_batch_divisor(four, "interleaved", True) == 4
    assert plan_lib.micro_batch_divisor((0, 0, 0), "grouped", False) == 1  # nothing to pipeline
    for schedule in ("sequential", "gpipe", "1f1b"):
        assert plan_lib.micro_batch_divisor(four, schedule, True) == 1
    assert plan_lib.rotations(range(6)) == list(range(6))  # n for n different IPUs
    for shift, other in itertools.combinations(plan_lib.rotations(five), 2):
        assert all(five[(place + shift) % 5] != five[(place + other) % 5] for place in range(5))


def measured(flops, sizes, ends, devices):
    """Returns what is to be least, the first thing first: busiest device, evenness, fullest device."""
    parts = list(zip((0, *ends), ends))

    def most(values):
        return max(
            sum(sum(values[slice(*part)]) for part, own in zip(parts, devices) if own == device)
            for device in devices
        )

    return most(flops), sum(sum(flops[slice(*part)]) ** 2 for part in parts), most(sizes)


def test_balance_is_the_best_of_all_cuts():
    """Against every way to cut a small model."""
    dice = random.Random(0)
    for devices in ((0, 1), (0, 1, 2), (0, 1, 0), (0, 0, 0), (0, 1, 0, 1), (0, 1, 2, 0)):
        for _ in range(20):
            names = stages_of("squad", dice.randint(3, 7))
            costs = {name: Cost(dice.choice([0, 1, 5, 5, 7]), dice.randint(1, 9)) for name in names}
            stages = plan_lib.balanced(names, costs, devices)
            assert [name for stage in stages for name in stage] == names and all(stages)
            ends = tuple(itertools.accumulate(map(len, stages)))
            flops, sizes = [[costs[name][kind] for name in names] for kind in (0, 1)]
            best = min(
                measured(flops, sizes, (*cuts, len(names)), devices)
                for cuts in itertools.combinations(range(1, len(names)), len(devices) - 1)
            )
            assert measured(flops, sizes, ends, devices) == best


def test_the_allocation_is_graphcores(planned):
    lines = plan_lib.allocation(planned("emb+pos+hid*3 / hid*7 / hid*7 / hid*7 / mlm+nsp", layers=24))
    assert lines[0] == ("Embedding", 0) and lines[1] == ("Encoder 0 ", 0) and lines[4] == ("Encoder 3 ", 1)
    assert lines[-3:] == [("Encoder 23", 3), ("Pooler", 0), ("Classifier", 0)]
    assert len(lines) == 27


MODELS = {
    "bert": {},
    "bare": {"use_qkv_bias": False, "use_attention_projection_bias": False, "use_cls_layer": False,
             "use_prediction_bias": False},
    "groupbert": {"block_type": "groupbert", "groupbert_conv_group_size": 8},
}  # fmt: skip


KNOWN: dict[str, dict] = {}


@pytest.fixture
def read(make_config):
    """Returns a function that returns a configuration and the costs read from its graph."""

    def costs(model=None, rows=4, **settings):
        config = make_config(model=model, use_synthetic_data=True, kernels="plain", **settings)
        if (key := str((model, rows, settings))) not in KNOWN:
            with tf.device("CPU:0"):
                KNOWN[key] = stage_costs(TASKS[config.task](config), rows)
        return config, KNOWN[key]

    return costs


@pytest.mark.parametrize("name", ["bert", "bare", slow("groupbert")])
def test_flops_are_those_of_the_graph(read, name):
    config, found = read({"hidden_dropout_prob": 0.1, **MODELS[name]})
    assert list(found) == stages_of(layers=TINY["num_hidden_layers"], final_norm="groupbert" in name)
    ours = plan_lib.stage_costs(config, list(found))
    for stage, cost in found.items():
        if stage == "embeddings":  # one-hot products of the segments, which nothing else needs
            continue
        # A convolution is computed in blocks of tokens, of which it needs a part.
        near = 0.1 if "groupbert" in name else 0
        assert ours[stage].flops / 2 == pytest.approx(cost.flops, rel=near), stage  # 8 rows, not 4
        assert cost.backward_flops == 2 * cost.flops


def test_a_stage_keeps_its_activations_for_each_row(read):
    _, four = read({"hidden_dropout_prob": 0.1}, rows=4)
    _, eight = read({"hidden_dropout_prob": 0.1}, rows=8)
    for stage in ("layer_0", "masked_lm"):
        assert eight[stage].kept_bytes == pytest.approx(2 * four[stage].kept_bytes, rel=0.05)
    # At least the argument of each matrix product: x of query, key and value, what attention gives, both
    # sides of the feed-forward layer, the shares of attention.
    length, hidden, inner, heads = 16, 32, 64, 4
    least = 4 * 4 * (length * (3 * hidden + inner) + heads * length * length)
    assert least < four["layer_0"].kept_bytes < 6 * least


def test_weights_are_kept_once_and_not_for_each_micro_batch(read):
    """In a 16-bit type weights are cast; that is no activation."""
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    _, one = read(rows=1, dtype="bf16")
    assert one["pooler"].kept_bytes < 2 * 32 * 32  # its kernel alone would be as much


def test_a_pipeline_is_balanced_by_its_costs(make_config):
    # The products of the vocabulary are as many as those of four blocks: the last stage has fewer blocks.
    config = dataclasses.replace(
        make_config(model={"num_hidden_layers": 8, "vocab_size": 20000}, max_predictions_per_seq=16),
        distribution_strategy="pipeline",
        pipeline_stages="3",
    )
    names = stages_of(layers=8)
    costs, plan = plan_lib.stage_costs(config, names), make_plan(config, names)
    assert plan.stages[2] == tuple(HEADS["pretrain"])
    assert len(plan.stages[0]) - 1 == len(plan.stages[1]) == 4
    assert costs["masked_lm"].flops > 4 * costs["layer_0"].flops


# ------------------------------------------------------------------------------------------------------------
# Orders of work


DEVICES = [(0,), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 0), (0, 0, 0), (1, 0, 1, 0)]


def plan_of(devices, schedule, micro_batches):
    """Returns a plan of one block a stage."""
    stages = tuple((f"layer_{stage}",) for stage in range(len(devices)))
    return PipelinePlan(stages, tuple(devices), schedule, micro_batches)


def needed(work, count):
    """Returns the works that come before a work."""
    stage, number, backward = work
    if not backward:
        return {Work(stage - 1, number, False)} if stage else set()
    later = {Work(stage + 1, number, True)} if stage + 1 < count else set()
    return {Work(stage, number, False)} | later


@pytest.mark.parametrize("schedule", ("gpipe", "1f1b", "grouped", "interleaved", "sequential"))
def test_orders_hold_every_work_once_and_never_lock(schedule):
    for devices, micro_batches, trains in itertools.product(DEVICES, (1, 2, 7, 12), (True, False)):
        count, done = len(devices), set()
        for together in plan_lib.works_by_time(plan_of(devices, schedule, micro_batches), trains):
            for work in together:
                assert needed(work, count) <= done
                if work.micro_batch:  # a stage takes its micro batches in their order
                    assert work._replace(micro_batch=work.micro_batch - 1) in done
                done.add(work)
        directions = (False, True) if trains else (False,)
        assert done == {
            Work(*each) for each in itertools.product(range(count), range(micro_batches), directions)
        }


def test_bubbles_are_those_of_the_papers():
    for count, micro_batches in itertools.product((1, 2, 4, 6), (1, 4, 9)):
        for schedule in ("gpipe", "1f1b", "grouped"):
            timeline = make_timeline(plan_of(range(count), schedule, micro_batches))
            assert timeline.bubble == pytest.approx((count - 1) / (micro_batches + count - 1)), schedule
            assert timeline.length == pytest.approx(3 * (micro_batches + count - 1)), schedule
        sequential = make_timeline(plan_of(range(count), "sequential", micro_batches))
        assert sequential.bubble == pytest.approx(1 - 1 / count)


def test_an_interleaved_pipeline_waits_where_passes_differ_in_length():
    """By hand: of 22 times the first 4 have forward passes alone, all others a backward pass somewhere:
    4 x 1 + 18 x 2 = 40, of which a device works 24."""
    timeline = make_timeline(plan_of(range(4), "interleaved", 8))
    assert (timeline.length, timeline.bubble) == (40, pytest.approx(1 - 24 / 40))
    # Where both take 1, no device waits between its first and its last pass.
    alike = make_timeline(plan_of(range(4), "interleaved", 8), lambda work: 1.0)
    assert (alike.length, alike.bubble) == (22, pytest.approx(1 - 16 / 22))


IN_FLIGHT = {"gpipe": [8, 8, 8, 8], "1f1b": [4, 3, 2, 1], "interleaved": [4, 3, 2, 1]}
IN_FLIGHT |= {"grouped": [8, 6, 4, 2], "sequential": [1, 1, 1, 1]}


def most_kept(plan, stage):
    """Returns the most micro batches between the forward and the backward pass of a stage, by the order."""
    kept = [0]
    for work in itertools.chain.from_iterable(plan_lib.works_by_time(plan)):
        if work.stage == stage:
            kept.append(kept[-1] + (-1 if work.backward else 1))
    return max(kept)


def test_stages_keep_as_many_micro_batches_as_the_schedule_says():
    places = (range(4), (0, 1, 2, 0), (0, 0, 0, 0), (1, 0, 1, 0))
    for schedule, expected in IN_FLIGHT.items():
        assert plan_lib.in_flight(plan_of(range(4), schedule, 8)) == expected
        for devices, micro_batches in itertools.product(places, (1, 3, 8, 20)):
            plan = plan_of(devices, schedule, micro_batches)
            assert plan_lib.in_flight(plan) == [most_kept(plan, stage) for stage in range(4)]
        inference = make_timeline(plan_of(range(4), schedule, 8), trains=False)
        assert inference.length == (32 if schedule == "sequential" else 11)
    assert plan_lib.in_flight(plan_of((0, 1, 2, 3, 0), "grouped", 40)) == [10, 8, 6, 4, 2]


def test_the_order_is_that_of_the_papers():
    def texts(schedule):
        timeline = make_timeline(plan_of((0, 1), schedule, 3))
        return [
            " ".join(f"{'FB'[work.backward]}{work.micro_batch}" for work, *_ in own) for own in timeline.works
        ]

    assert texts("1f1b") == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    assert texts("gpipe") == ["F0 F1 F2 B0 B1 B2"] * 2


def test_uneven_stages_wait_for_the_busiest():
    """Each stage takes its own time: a step of gpipe is once through all, and the slowest pass of each
    direction for every other micro batch; of 1f1b at most that of the busiest device."""
    secs = ((1.0, 2.0), (2.5, 4.0), (0.5, 3.0), (1.5, 6.0))
    through = sum(map(sum, secs))
    for micro_batches in (1, 2, 5, 8):
        gpipe, other = (
            make_timeline(plan_of(range(4), name, micro_batches), lambda at: secs[at.stage][at.backward])
            for name in ("gpipe", "1f1b")
        )
        assert gpipe.length == pytest.approx(through + (micro_batches - 1) * (2.5 + 6.0))
        assert micro_batches * 7.5 <= other.length <= through + (micro_batches - 1) * 7.5
        assert other.bubble == pytest.approx(1 - micro_batches * through / (4 * other.length))


@pytest.mark.parametrize("count,size", [(8, 8), (33, 11), (64, 32), (37, 1)])
def test_more_micro_batches_than_a_graph_has_pieces_for_go_in_rounds(count, size):
    plan, whole = plan_of(range(4), "1f1b", count), plan_of(range(4), "grouped", count)
    assert (plan.round_size, whole.round_size) == (size, count)
    timeline = make_timeline(plan)
    assert timeline.bubble == pytest.approx(3 / (size + 3))
    assert timeline.length == 3 * (size + 3) * (count // size)

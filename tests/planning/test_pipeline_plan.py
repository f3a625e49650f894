"""What a plan says of a pipeline: by hand from the costs of its stages."""

import pytest

from official.modeling.stages import symbolic_model
from official.planning import plan as plan_lib
from official.planning.graph_cost import stage_costs
from official.tasks import TASKS

MADE: dict[tuple, tuple] = {}  # by settings: the tests share them


@pytest.fixture
def planned(make_config):
    """Returns a function that returns (configuration, plan) of a pipeline on logical CPUs."""

    def plan(stages, **settings):
        key = (stages, *sorted(settings.items()))
        if key not in MADE:
            shared = dict(distribution_strategy="pipeline", num_virtual_devices=8, use_synthetic_data=True)
            shared |= dict(num_accumulation_steps=4, train_batch_size=32, pipeline_stages=stages)
            shared |= dict(plan=True, measure=True, plan_gbps=1e-3, plan_hosts="1,2")
            config = make_config({"num_hidden_layers": 2}, **shared, **settings)
            MADE[key] = config, plan_lib.make_plan(config, TASKS[config.task], lambda *_: [2.0])
        return MADE[key]

    return plan


FOUR = "emb / hid / hid / mlm+nsp"


def test_each_device_holds_its_stages(planned):
    config, plan = planned(FOUR)
    pipeline = plan["pipeline"]
    assert plan["num_replicas"] == 2 and pipeline["devices"] == (0, 1, 2, 3)
    assert pipeline["schedule"] == "1f1b" and list(pipeline["bubbles"]) == ["1f1b", "gpipe"]
    assert 0 < pipeline["bubble"] == pipeline["bubbles"]["1f1b"] < 1
    held = pipeline["bytes_per_device"]
    model = symbolic_model(TASKS["pretrain"](config).build_model)
    of = {each.name: 4 * sum(own.shape.num_elements() for own in each.variables) for each in model.stages()}
    expected = [sum(of[stage] for stage in names) for names in pipeline["stages"]]
    assert [each["parameters"] for each in held] == [each["gradients"] for each in held] == expected
    # LAMB has two slots a parameter; those of the shared table are with the embeddings.
    table = 4 * 50 * 32
    slots = [2 * size for size in expected]
    slots[3] -= 2 * table
    assert [each["optimizer_slots"] for each in held] == slots
    assert sum(slots) == plan["bytes"]["optimizer_slots"]
    assert all(each["total"] == sum(each.values()) - each["total"] for each in held)
    # The measured step has its bubble already.
    assert plan["scaling"]["hosts"][0]["same_share"]["step_secs"] == pytest.approx(2.0)


@pytest.mark.slow
def test_activations_count_the_micro_batches_in_flight(planned):
    _, plan = planned(FOUR)
    _, other = planned(FOUR, pipeline_schedule="gpipe")
    assert plan["pipeline"]["in_flight"] == [4, 3, 2, 1] and other["pipeline"]["in_flight"] == [4] * 4
    kept = [[each["activations"] for each in made["pipeline"]["bytes_per_device"]] for made in (plan, other)]
    assert kept[0][0] == kept[1][0] and kept[0][2] < kept[1][2]
    # One micro batch of a stage.
    assert kept[0][1] - kept[0][2] == pytest.approx((kept[1][2] - kept[0][2]) / 2)


@pytest.mark.slow
def test_stages_that_share_devices_have_the_schedules_that_they_allow(planned):
    _, shared = planned("4", device_mapping="0,1,0,1")
    assert shared["num_replicas"] == 4 and list(shared["pipeline"]["bubbles"]) == ["1f1b", "gpipe"]


def test_a_block_that_is_computed_again_keeps_what_it_is_given(make_config):
    rows, length, width = 4, 16, 32
    settings = dict(distribution_strategy="pipeline", num_virtual_devices=2, pipeline_stages="2")
    config = make_config(recompute="block", **settings)
    cost = stage_costs(TASKS["pretrain"](config), rows)["layer_0"]
    given = 4 * rows * length * (width + 1)  # vectors, and which tokens are seen
    assert given <= cost.kept_bytes <= given + 64  # a seed
    assert cost.backward_flops == 3 * cost.flops
    kept = stage_costs(TASKS["pretrain"](make_config(**settings)), rows)["layer_0"]
    assert kept.kept_bytes > 8 * cost.kept_bytes and kept.backward_flops == 2 * cost.flops

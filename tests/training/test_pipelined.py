"""A pipeline computes what one device does, whatever its stages, schedule, micro batches and replicas."""

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.distribution import pipeline_plan as plan_lib
from official.distribution import strategy as strategy_lib
from official.io.errors import ConfigError
from official.training import pipelined
from tests.fixtures import slow
from tests.refusals import assert_refused
from tests.run_folders import run, state_of
from tests.training.test_training import DROPOUT, assert_close, make_loop, replicas, values

GROUPBERT = dict(block_type="groupbert", groupbert_conv_kernel_size=3, groupbert_conv_group_size=8)


@pytest.fixture
def make_config(make_config):
    return lambda model=None, **settings: make_config(
        {"num_hidden_layers": 3, **DROPOUT, **(model or {})}, **{"learning_rate": 1e-3, **settings}
    )


def pipeline(stages, devices: int, **settings) -> dict:
    """Settings of a pipeline on logical CPUs."""
    own = dict(distribution_strategy="pipeline", pipeline_stages=str(stages), num_virtual_devices=devices)
    return own | settings


def steps_of(config, steps: int = 3):
    """Runs some steps on the same batches whatever the devices. Returns (state, totals, strategy)."""
    loop = make_loop(config)
    given = next(iter(loop.task.synthetic_dataset(config.train_batch_size)))
    rows = loop.plan.replica_batch_size

    def own(context):
        first = context.replica_id_in_sync_group * rows
        return {name: value[first : first + rows] for name, value in given.items()}

    batch = strategy_lib.HeldBatch(loop.strategy.experimental_distribute_values_from_function(own))
    totals = loop.train_loop(batch, tf.constant(steps), loop.nothing)
    return loop.state, totals, loop.strategy


def assert_equal_to_rounding(config, expected_config) -> None:
    (state, totals, _), (expected, expected_totals, _) = steps_of(config), steps_of(expected_config)
    np.testing.assert_allclose(totals["sums"], expected_totals["sums"], rtol=1e-5)
    np.testing.assert_allclose(totals["norm"], expected_totals["norm"], rtol=1e-4)
    assert_close(values(state), values(expected), atol=2e-5)


FINE_TUNING = dict(optimizer_type="adamw", num_accumulation_steps=2)
FINE_TUNING |= dict(max_predictions_per_seq=config_lib.FIELDS["max_predictions_per_seq"].default)
PACKED = dict(pack_on_the_fly=True)
MIRRORED = dict(replicas(2), num_accumulation_steps=2)
TWO, FOUR = dict(num_accumulation_steps=2), dict(num_accumulation_steps=4)
CASES = [slow(PACKED | TWO, pipeline(4, 4, pipeline_schedule="gpipe"))]
CASES += [(dict(FINE_TUNING, task="squad", model=dict(num_hidden_layers=2)), pipeline(2, 2))]
CASES += [slow(MIRRORED, pipeline(2, 4, all_reduce_alg=None)), slow(TWO, pipeline(1, 1))]
CASES += [slow(dict(TWO, objective="mlm"), pipeline("emb / hid*3 / mlm", 3))]
CASES += [slow(FOUR | each, pipeline(4, 4)) for each in ({}, dict(model=GROUPBERT))]
CASES += [
    slow(TWO | each, pipeline(2, 2)) for each in (dict(kernels="plain"), dict(optimizer_type="momentum"))
]
CASES += [slow(dict(FINE_TUNING, task="glue", glue_task="mnli"), pipeline(2, 2))]


@pytest.mark.parametrize("settings,piped", CASES, ids=str)
def test_stages_schedules_and_micro_batches_change_no_weight(make_config, settings, piped):
    """Nor do replicas of several devices."""
    assert_equal_to_rounding(make_config(**{**settings, **piped}), make_config(**settings))


@pytest.mark.slow
def test_more_micro_batches_than_a_graph_has_pieces_for(make_config, monkeypatch):
    monkeypatch.setattr(plan_lib, "MAX_ROUND_SIZE", 3)
    settings = dict(num_accumulation_steps=4, learning_rate=2e-3)  # of no graph that there is
    assert_equal_to_rounding(make_config(**settings, **pipeline(2, 2)), make_config(**settings))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [dict(dtype="bf16"), dict(dtype="fp16", loss_scale="dynamic")])
def test_mixed_precision(make_config, settings):
    settings = dict(num_accumulation_steps=2, **settings)
    (state, totals, _), (_, expected, _) = (
        steps_of(make_config(**settings, **more)) for more in (pipeline(2, 2), {})
    )
    np.testing.assert_allclose(totals["sums"], expected["sums"], rtol=1e-2)
    assert {variable.dtype for variable in state.model.trainable_variables} == {tf.float32}


def test_every_variable_is_on_the_device_of_its_stage(make_config):
    config = make_config(
        num_accumulation_steps=2, optimizer_type="adamw", **pipeline("emb+pos+hid / hid*2 / mlm+nsp", 3)
    )
    loop = make_loop(config)
    assert loop.strategy.plan.stages[0] == ("embeddings", "layer_0")
    where = {}
    for name, variable in loop.state.variables().items():
        where.setdefault(variable.device.split("device:")[-1], set()).add(name)
    assert set(where) == {"CPU:0", "CPU:1", "CPU:2"}
    assert {name for name in where["CPU:1"] if "layer_1" not in name and "layer_2" not in name} == set()
    assert "bert/embeddings/word_embeddings/adam_m" in where["CPU:0"]
    assert {"bert/pooler/dense/kernel", "cls/predictions/output_bias/adam_v"} <= where["CPU:2"]


@pytest.mark.slow
def test_a_part_keeps_as_many_micro_batches_as_the_schedule_says(make_config, monkeypatch):
    most = {}
    forward, backward = pipelined.PipelineRound._forward, pipelined.PipelineRound._backward

    def noting(method):
        def note(self, work):
            result = method(self, work)
            kept = sum(stage == work.stage for stage, _ in self._kept)
            most[work.stage] = max(most.get(work.stage, 0), kept)
            return result

        return note

    monkeypatch.setattr(pipelined.PipelineRound, "_forward", noting(forward))
    monkeypatch.setattr(pipelined.PipelineRound, "_backward", noting(backward))
    shared = dict(model=dict(num_hidden_layers=1), num_accumulation_steps=4)
    for schedule, expected in (("1f1b", {0: 2, 1: 1}), ("gpipe", {0: 4, 1: 4})):
        most.clear()
        steps_of(make_config(**shared, **pipeline(2, 2, pipeline_schedule=schedule)), 1)
        assert most == expected


@pytest.mark.slow
def test_a_checkpoint_of_four_stages_goes_on_on_one_device(make_config, record_files, tmp_path):
    settings = dict(input_files=record_files(), num_accumulation_steps=2, steps_per_loop=2)
    folder = str(tmp_path / "piped")
    trained = run(make_config(**settings, stop_steps=2, model_dir=folder, **pipeline(4, 4)))
    assert trained.pipeline is not None and trained.pipeline["devices"] == [0, 1, 2, 3]
    page = (tmp_path / "piped" / "report.html").read_text()
    stages = enumerate(trained.pipeline["stages"].split(" / "))
    assert "Device of a replica" in page and all(f"{number}: {stage}" in page for number, stage in stages)
    resumed = run(make_config(**settings, stop_steps=4, model_dir=folder))
    alone = run(make_config(**settings, stop_steps=4, model_dir=str(tmp_path / "alone")))
    assert resumed.step == alone.step == 4 and resumed.pipeline is None
    assert_close(state_of(folder, 4), state_of(tmp_path / "alone", 4), atol=2e-5)


def test_what_cannot_be_is_said_in_a_line(make_config):
    cases = [
        (pipeline(2, 3), "num_virtual_devices=3 is not divisible by the 2 devices"),
        (dict(distribution_strategy="pipeline", num_virtual_devices=2), "needs --pipeline_stages"),
    ]
    assert_refused(lambda settings: steps_of(make_config(**settings), 1), cases)
    config = make_config(distribution_strategy="pipeline", pipeline_stages="3", num_gpus=4)  # of a plan
    with pytest.raises(ConfigError, match="num_gpus=4 is not divisible by the 3 devices"):
        strategy_lib.num_replicas(config)

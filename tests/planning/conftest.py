"""Fixtures of plans: of one layer, and steps of the same settings are priced once."""

import json

import pytest

from official import config as config_lib
from official.planning import graph_cost
from tests.shared_steps import FREE
from tests.training.conftest import make_config  # noqa: F401

OF_PLANS = "plan plan_device plan_tflops plan_gbps plan_hosts plan_file plan_picture".split()
OF_PLANS += "measure async_checkpoints".split()
PRICED: dict[str, graph_cost.Cost] = {}


@pytest.fixture(autouse=True)
def _shared_costs(monkeypatch):
    step_cost, free = graph_cost.step_cost, FREE.union(OF_PLANS)

    def priced(config, task, *batches):
        settings = {name: config[name] for name in config_lib.FIELDS if name not in free}
        key = json.dumps([settings, vars(config.model), *map(repr, batches)], sort_keys=True, default=str)
        if key not in PRICED:
            PRICED[key] = step_cost(config, task, *batches)
        return PRICED[key]

    monkeypatch.setattr(graph_cost, "step_cost", priced)

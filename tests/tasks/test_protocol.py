"""Every task has what the training program asks of it."""

import inspect

import pytest

from official.config import replaced
from official.tasks import TASKS
from official.training import task as task_lib


def members(protocol: type) -> dict[str, object]:
    """Returns the names of a protocol, those of its bases among them, with what they are."""
    found = {}
    for base in reversed(protocol.__mro__):
        if base.__module__.startswith("official."):
            found |= dict.fromkeys(base.__annotations__)
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    return found


@pytest.mark.parametrize("name", list(TASKS))
def test_a_task_has_every_member_with_the_same_parameters(name, make_config):
    task = TASKS[name](replaced(make_config(), task=name, glue_task="rte"))
    asked = members(task_lib.ScoredTask if task_lib.is_scored(task) else task_lib.ExampleTask)
    assert {"terms", "train_dataset", "local_epsilon", "is_scored"} <= set(asked)
    for member, value in asked.items():
        ours = getattr(task, member)
        if inspect.isfunction(value):
            expected = list(inspect.signature(value).parameters)[1:]
            assert list(inspect.signature(ours).parameters) == expected, member


def test_only_scored_tasks_have_scores():
    assert not task_lib.is_scored(TASKS["pretrain"]) and not hasattr(TASKS["pretrain"], "score")
